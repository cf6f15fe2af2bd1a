//! A builder of histories for the tests of the checks: attempts by name, one event after the other.

use std::time::Duration;

use bytes::Bytes;
use transactions::{
    model::{Attempt, Isolation, Key, NodeId, Position, Timestamp, TransactionId, Version},
    records::{Place, StoredRecord, Write, WriteSet},
};

use super::{
    history::{Answer, Commit, Execution, Order, ReadResult, Span, Step, Writer},
    stored_state::{Decision, Row, StoredState, StoredVersion},
    workload::{Planned, Tag},
};

/// The histories, and the state of the store.
#[derive(Default)]
pub(crate) struct HistoryBuilder {
    pub(crate) executions: Vec<Execution>,
    pub(crate) stored_state: StoredState,
    planned: Vec<Vec<Planned>>,
    moments: u64,
}

pub(crate) fn key(name: &str) -> Key {
    Key::new(name.to_owned()).expect("short")
}

impl HistoryBuilder {
    /// Begins an attempt; a key with a leading minus will be deleted.
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

    /// `reader` reads the value that `writer` wrote to a key.
    pub(crate) fn reads(&mut self, reader: &str, name: &str, writer: &str) -> &mut Self {
        let value = self.value(writer, name);
        self.shows(reader, name, ReadResult::Value(value))
    }

    pub(crate) fn shows(&mut self, reader: &str, name: &str, shown: ReadResult) -> &mut Self {
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

    /// The attempt performs all its planned writes.
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

    /// The attempt writes, commits at this version, and receives the acknowledgement.
    pub(crate) fn commits(&mut self, name: &str, version: u64) -> &mut Self {
        self.writes(name)
            .decides(name, version)
            .receives_answer(name, Answer::Committed)
    }

    /// The attempt requests its commit and receives this answer.
    pub(crate) fn receives_answer(&mut self, name: &str, answer: Answer) -> &mut Self {
        let span = Span {
            asked: self.moment(),
            answered: self.moment(),
        };
        let writer = self.find(name);
        self.executions[writer].commit = Some(Commit { span, answer });
        self
    }

    /// Adds its row and data to the store.
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
            let item = StoredVersion {
                id: id.clone(),
                value: value.cloned(),
                pack: None,
            };
            self.stored_state
                .versions
                .insert((key.clone(), attempt), item);
        }
        let decision = Decision::Committed(stored, writes);
        self.stored_state.rows.insert(id, Row { attempt, decision });
        self
    }

    /// Finally a node returns the value that `writer` wrote to a key; none: no value.
    pub(crate) fn ends_with(&mut self, name: &str, writer: Option<&str>) -> &mut Self {
        let value = writer.map(|writer| self.value(writer, name));
        self.stored_state.shown.insert(key(name), value);
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
        self.stored_state.order()
    }

    /// The last attempt of this name: `NAME/NUMBER` if one id has several.
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
