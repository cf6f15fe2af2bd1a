//! Key-value items in memory. [`ports::key_value::evaluate`] defines conditions and changes.

use std::{ops::Bound, sync::Arc, time::Duration};

use async_trait::async_trait;
use ports::{
    Error, ErrorKind, Item, Key, KeyValue, Result, Update,
    key_value::{
        KeyValueLimits, Outcome, Page, Read, Scan, Transacted, Updated,
        evaluate::{Evaluated, Stored, check_key, check_limits, evaluate},
    },
    queue::Retention,
};

use crate::{
    call::{Kind, TraceText},
    durability::SimulatedStore,
    store::{Durability, Store},
};

#[async_trait]
impl KeyValue for SimulatedStore {
    async fn get(&self, key: &Key) -> Result<Read<Option<Arc<Item>>>> {
        let perform = |store: &mut Store, now| {
            check_key(key, &store.limits)?;
            Ok(Read {
                value: store.stored(key, now).item.clone(),
                point: store.point(),
            })
        };
        let trace_text = |read: &Read<Option<Arc<Item>>>| trace_item(read.value.as_ref());
        self.0
            .call("get", format!("{key:?}"), Kind::Reads, perform, trace_text)
            .await
    }

    async fn scan(&self, scan: &Scan) -> Result<Read<Page>> {
        let subject = format!(
            "{} from {}",
            scan.partition.escape_ascii(),
            scan.from.escape_ascii()
        );
        let call = self.0.begin_call("scan", subject).await?;
        let result = self.read_page(scan).await;
        let trace_text =
            |read: &Read<Page>| TraceText::from(format!("{} items", read.value.items.len()));
        self.0.end_call(call, Kind::Reads, result, trace_text).await
    }

    async fn update(&self, update: Update) -> Result<Updated> {
        let subject = format!("{:?}", update.key);
        let perform = |store: &mut Store, now| store.update(update, now);
        let trace_text = |updated: &Updated| match &updated.outcome {
            Outcome::Done(item) => trace_item(item.as_ref()),
            Outcome::Conflict(item) => format!("conflict, {}", trace_item(item.as_ref())).into(),
        };
        self.0
            .call("update", subject, Kind::Changes, perform, trace_text)
            .await
    }

    async fn transact(&self, updates: Vec<Update>) -> Result<Transacted> {
        let subject = format!(
            "{:?}",
            updates.iter().map(|update| &update.key).collect::<Vec<_>>()
        );
        let perform = |store: &mut Store, now| store.transact(&updates, now);
        let trace_text = |transacted: &Transacted| match transacted {
            Transacted::Done { .. } => "done".into(),
            Transacted::Conflict { index, .. } => format!("conflict at {index}").into(),
        };
        self.0
            .call("transact", subject, Kind::Changes, perform, trace_text)
            .await
    }

    fn limits(&self) -> &KeyValueLimits {
        &self.0.options.key_value
    }

    /// It has no reserve.
    fn has_room(&self) -> bool {
        !(self.0.options.key_value.tells_room && self.0.store().is_full)
    }
}

impl SimulatedStore {
    /// Reads one page. Where pages are no snapshots, it reads two halves with a pause between them.
    async fn read_page(&self, scan: &Scan) -> Result<Read<Page>> {
        let now = self.0.elapsed();
        let items_max = scan
            .items_max
            .min(self.0.options.key_value.page_items_max)
            .max(1);
        if self.0.options.key_value.page_is_snapshot || items_max < 2 {
            return self.0.store().scan(scan, items_max, now);
        }
        let first = self.0.store().scan(scan, items_max / 2, now)?;
        let Some(from) = first.value.next else {
            return Ok(first);
        };
        self.0.pause_briefly().await;
        let rest = Scan {
            from,
            ..scan.clone()
        };
        let second = self
            .0
            .store()
            .scan(&rest, items_max - items_max / 2, self.0.elapsed())?;
        let items = first
            .value
            .items
            .into_iter()
            .chain(second.value.items)
            .collect();
        Ok(Read {
            value: Page {
                items,
                next: second.value.next,
            },
            point: second.point,
        })
    }
}

fn trace_item(item: Option<&Arc<Item>>) -> TraceText {
    match item {
        Some(item) => format!("version {}", item.version.0).into(),
        None => "none".into(),
    }
}

impl Store {
    fn scan(&self, scan: &Scan, items_max: usize, now: Duration) -> Result<Read<Page>> {
        let from = Key::new(&scan.partition, &scan.from);
        check_key(&from, &self.limits)?;
        let until = match &scan.until {
            Some(until) => Bound::Excluded(Key::new(&scan.partition, until)),
            None => Bound::Unbounded,
        };
        let mut page = Page {
            items: Vec::new(),
            next: None,
        };
        if matches!(&until, Bound::Excluded(until) if *until <= from) {
            return Ok(Read {
                value: page,
                point: self.point(),
            });
        }
        for key in self
            .items
            .range((Bound::Included(from), until))
            .map(|(key, _)| key)
        {
            if key.partition() != scan.partition {
                break;
            }
            let Some(item) = &self.stored(key, now).item else {
                continue;
            };
            if page.items.len() == items_max {
                page.next = Some(key.sort());
                break;
            }
            page.items.push((key.sort(), Arc::clone(item)));
        }
        Ok(Read {
            value: page,
            point: self.point(),
        })
    }

    /// Checks that the point which an update depends on still exists (D4).
    fn check_dependency(&self, update: &Update) -> Result<()> {
        match self.durability(update.depends_on) {
            Durability::Lost => Err(Error::new(
                ErrorKind::Lost,
                format!("update {:?}, which rests on what is lost", update.key),
            )),
            Durability::Durable | Durability::Pending | Durability::Unknown => Ok(()),
        }
    }

    fn update(&mut self, update: Update, now: Duration) -> Result<Updated> {
        check_key(&update.key, &self.limits)?;
        self.check_dependency(&update)?;
        let stored = self.stored(&update.key, now);
        let evaluated = evaluate(stored, &update, &self.limits)?;
        let outcome = match evaluated {
            Evaluated::Refused => Outcome::Conflict(stored.item.clone()),
            Evaluated::Unchanged => Outcome::Done(stored.item.clone()),
            Evaluated::Changed(next)
                if update.retention == Retention::Transient
                    && self.put_transient(&update.key, &next, now) =>
            {
                Outcome::Done(next.item)
            }
            Evaluated::Changed(next) => {
                self.check_room()?;
                let item = next.item.clone();
                let undo = self.put(update.key, next, now);
                self.order(vec![undo]);
                Outcome::Done(item)
            }
        };
        Ok(Updated {
            outcome,
            receipt: self.receipt(),
        })
    }

    fn transact(&mut self, updates: &[Update], now: Duration) -> Result<Transacted> {
        check_limits(updates, &self.limits)?;
        updates
            .iter()
            .try_for_each(|update| self.check_dependency(update))?;
        let mut items = Vec::with_capacity(updates.len());
        let mut changed = Vec::new();
        for (index, update) in updates.iter().enumerate() {
            let stored = self.stored(&update.key, now);
            let evaluated = evaluate(stored, update, &self.limits)?;
            match evaluated {
                Evaluated::Refused => {
                    let (item, receipt) = (stored.item.clone(), self.receipt());
                    return Ok(Transacted::Conflict {
                        index,
                        item,
                        receipt,
                    });
                }
                Evaluated::Unchanged => items.push(stored.item.clone()),
                Evaluated::Changed(next) => {
                    items.push(next.item.clone());
                    changed.push((update.key.clone(), next));
                }
            }
        }
        if !changed.is_empty() {
            self.check_room()?;
        }
        self.put_all(changed, now);
        Ok(Transacted::Done {
            items,
            receipt: self.receipt(),
        })
    }

    /// Stores all of these at one position; takes no position if there are none.
    fn put_all(&mut self, changed: impl IntoIterator<Item = (Key, Stored)>, now: Duration) {
        let undo: Vec<_> = changed
            .into_iter()
            .map(|(key, stored)| self.put(key, stored, now))
            .collect();
        if !undo.is_empty() {
            self.order(undo);
        }
    }
}
