//! Histories made by hand, for the tests of the checks: attempts by name, one event after the other.

use std::time::Duration;

use bytes::Bytes;
use transactions::{
    model::{Attempt, Isolation, Key, NodeId, Position, Timestamp, TransactionId, Version},
    records::{Place, StoredRecord, Write, WriteSet},
};

use super::{
    at_rest::{AtRest, Decision, Row, VersionAtRest},
    history::{Answer, Commit, Execution, Order, Shown, Span, Step, Writer},
    workload::{Planned, Tag},
};

/// What happened, and what stands in the store.
#[derive(Default)]
pub(crate) struct Story {
    pub(crate) executions: Vec<Execution>,
    pub(crate) at_rest: AtRest,
    planned: Vec<Vec<Planned>>,
    moments: u64,
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name.to_owned()).expect("short")
}

impl Story {
    /// An attempt begins; a key with a minus in front will be deleted.
    pub(crate) fn begins(&mut self, name: &str, keys: &[&str]) -> &mut Self {
        let asked = self.moment();
        let id = name.split('/').next().expect("a name").to_owned();
        let attempt = Attempt {
            node: NodeId(1),
            sequence: self.executions.len() as u64 + 1,
        };
        let writer = Writer {
            id: TransactionId::new(id).expect("a name"),
            attempt,
        };
        let planned = keys.iter().map(|name| match name.strip_prefix('-') {
            Some(name) => Planned {
                key: key(name),
                deletes: true,
            },
            None => Planned {
                key: key(name),
                deletes: false,
            },
        });
        self.planned.push(planned.collect());
        let begun = Span {
            asked,
            answered: self.moment(),
        };
        let (isolation, steps) = (Isolation::ReadAtomic, Vec::new());
        self.executions.push(Execution {
            client: 0,
            writer,
            isolation,
            begun,
            steps,
            commit: None,
        });
        self
    }

    /// The same, serializable.
    pub(crate) fn begins_serializable(&mut self, name: &str, keys: &[&str]) -> &mut Self {
        self.begins(name, keys);
        self.executions.last_mut().expect("it began").isolation = Isolation::Serializable;
        self
    }

    /// `reader` reads what `writer` wrote to a key.
    pub(crate) fn reads(&mut self, reader: &str, name: &str, writer: &str) -> &mut Self {
        let value = self.value(writer, name);
        self.shows(reader, name, Shown::Value(value))
    }

    pub(crate) fn shows(&mut self, reader: &str, name: &str, shown: Shown) -> &mut Self {
        let span = Span {
            asked: self.moment(),
            answered: self.moment(),
        };
        let reader = self.find(reader);
        self.executions[reader].steps.push(Step::Read {
            key: key(name),
            shown,
            span,
        });
        self
    }

    /// It writes all it had planned.
    pub(crate) fn writes(&mut self, name: &str) -> &mut Self {
        let writer = self.find(name);
        for planned in self.planned[writer].clone() {
            let text = String::from_utf8(planned.key.name().to_vec()).expect("a name");
            let value = (!planned.deletes).then(|| self.value(name, &text));
            self.executions[writer].steps.push(Step::Wrote {
                key: planned.key,
                value,
            });
        }
        self
    }

    /// It writes, commits at this version, and is told so.
    pub(crate) fn commits(&mut self, name: &str, version: u64) -> &mut Self {
        self.writes(name)
            .decides(name, version)
            .is_told(name, Answer::Committed)
    }

    /// It is told this of a commit it asks for now.
    pub(crate) fn is_told(&mut self, name: &str, answer: Answer) -> &mut Self {
        let span = Span {
            asked: self.moment(),
            answered: self.moment(),
        };
        let writer = self.find(name);
        self.executions[writer].commit = Some(Commit { span, answer });
        self
    }

    /// Row and data stand in the store.
    pub(crate) fn decides(&mut self, name: &str, version: u64) -> &mut Self {
        let execution = &self.executions[self.find(name)];
        let Writer { id, attempt } = execution.writer.clone();
        let writes = execution.writes().into_iter().map(|(key, value)| {
            let place = if value.is_some() {
                Place::Inline { bytes: 1 }
            } else {
                Place::Gone
            };
            Write {
                key: key.clone(),
                write: 0,
                place,
            }
        });
        let writes: Vec<Write> = writes.collect();
        let version = Version {
            timestamp: Timestamp(version),
            node: NodeId(1),
        };
        let position = Position {
            log: NodeId(1),
            slot: 1,
        };
        let stored = StoredRecord {
            version,
            position,
            writes: WriteSet::Inline(writes.clone()),
            effects: 0,
        };
        for (key, value) in execution.writes() {
            let item = VersionAtRest {
                id: id.clone(),
                value: value.cloned(),
                pack: None,
            };
            self.at_rest.versions.insert((key.clone(), attempt), item);
        }
        let decision = Decision::Committed(stored, writes);
        self.at_rest.rows.insert(id, Row { attempt, decision });
        self
    }

    /// A node shows, in the end, what `writer` wrote to a key; none: nothing.
    pub(crate) fn ends_with(&mut self, name: &str, writer: Option<&str>) -> &mut Self {
        let value = writer.map(|writer| self.value(writer, name));
        self.at_rest.shown.insert(key(name), value);
        self
    }

    pub(crate) fn value(&self, writer: &str, name: &str) -> Bytes {
        let writer = self.find(writer);
        let planned = self.planned[writer].clone();
        let ordinal = planned
            .iter()
            .position(|planned| planned.key == key(name))
            .expect("planned") as u32;
        Tag {
            writer: self.executions[writer].writer.clone(),
            ordinal,
            planned,
        }
        .to_value(0)
    }

    pub(crate) fn order(&self) -> Order {
        self.at_rest.order()
    }

    /// The last attempt of this name: `NAME/WHICH` if there are several of one id.
    pub(crate) fn find(&self, name: &str) -> usize {
        let mut parts = name.split('/');
        let id = parts.next().expect("a name").as_bytes();
        let which: usize = parts
            .next()
            .map_or(0, |which| which.parse().expect("a number"));
        let of_id = self.executions.iter().enumerate();
        let mut of_id = of_id.filter(|(_, execution)| &execution.writer.id.as_bytes()[..] == id);
        of_id.nth(which).expect("it has begun").0
    }

    fn moment(&mut self) -> Duration {
        self.moments += 1;
        Duration::from_millis(self.moments)
    }
}
