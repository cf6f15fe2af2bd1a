//! The contents of the rows of runs and steps.

use bytes::Bytes;
use functions::manifest::workflow::Workflow;
use ports::{
    Condition, Error, Item, Result,
    key_value::{Name, Test, Value},
};
use serde::{Deserialize, Serialize, de::value::StrDeserializer};
use transactions::model::{Attempt, NodeId};

use crate::failure::failure;

const STATUS: &str = "status";
const INPUT: &str = "input";
const OUTPUT: &str = "output";
const ERROR: &str = "error";
const BEGAN: &str = "began";
const ENDED: &str = "ended";
const DEFINITION: &str = "definition";
pub(crate) const DRIVER: &str = "driver";
pub(crate) const ATTEMPT: &str = "attempt";
const FUNCTION: &str = "function";
const TRIES: &str = "tries";
const FAILURE: &str = "failure";

/// The bits of a begin's number that count the begins of one node.
const SEQUENCE_BITS: u32 = 40;

/// The state of a run. Its row has the number of the variant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It is active.
    Running,
    /// It ended with an output.
    Succeeded,
    /// A step failed after all retries, or the run exceeded its time limit.
    Failed,
    /// A caller cancelled it.
    Cancelled,
}

impl Status {
    const ALL: [Self; 4] = [
        Self::Running,
        Self::Succeeded,
        Self::Failed,
        Self::Cancelled,
    ];

    /// The status of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::deserialize(StrDeserializer::<serde::de::value::Error>::new(name)).ok()
    }

    fn numbered(number: i64) -> Option<Self> {
        let is_it = |status: &Self| *status as i64 == number;
        Self::ALL.into_iter().find(is_it)
    }
}

/// The input and definition of a run. This row is written once, when the run begins, so that the
/// output may be as long as the input.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) input: Bytes,
    /// The definition when the run began.
    pub(crate) workflow: Workflow,
}

impl Given {
    pub(crate) fn encode(&self) -> Vec<(Name, Value)> {
        let definition =
            serde_json::to_vec(&self.workflow).expect("strings and numbers always serialise");
        vec![
            (INPUT.into(), Value::Bytes(self.input.clone())),
            (DEFINITION.into(), Value::Bytes(definition.into())),
        ]
    }

    pub(crate) fn decode(item: &Item) -> Result<Self> {
        let decoded = || {
            let workflow = serde_json::from_slice(item.bytes(DEFINITION)?).ok()?;
            Some(Self {
                input: item.bytes(INPUT)?.clone(),
                workflow,
            })
        };
        decoded().ok_or_else(|| Error::corrupt("read the input of a run"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RunRow {
    pub(crate) status: Status,
    /// The output; of an active atomic run, its output if its transaction commits.
    pub(crate) output: Option<Bytes>,
    /// Why it failed: a JSON object.
    pub(crate) error: Option<Bytes>,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: Option<u64>,
    /// Among several processes: the node that executes the run, or did last. None: no other process
    /// shares the store.
    pub(crate) driver: Option<NodeId>,
}

/// Holds if a run is active and has this driver.
pub(crate) fn is_driven_by(driver: Option<NodeId>) -> Condition {
    let is_running = Test::is_integer(Status::Running as i64);
    let is_driver = driver.map_or(Test::Absent, |driver| Test::is_integer(driver.0.into()));
    Condition::All(vec![
        Condition::attribute(STATUS, is_running),
        Condition::attribute(DRIVER, is_driver),
    ])
}

/// Holds if a run ended at this time.
pub(crate) fn has_ended(ended_ms: u64) -> Condition {
    Condition::attribute(ENDED, Test::is_integer(ended_ms as i64))
}

/// Holds if the row is absent, or belongs to an earlier run of the same id.
pub(crate) fn is_of_earlier(began_ms: u64) -> Condition {
    let earlier = Condition::attribute(BEGAN, Test::Below(began_ms as i64));
    Condition::Any(vec![Condition::Absent, earlier])
}

impl RunRow {
    pub(crate) fn begun(began_ms: u64, driver: Option<NodeId>) -> Self {
        Self {
            status: Status::Running,
            output: None,
            error: None,
            began_ms,
            ended_ms: None,
            driver,
        }
    }

    /// The same run as failed, because a store has permanently refused its writes.
    pub(crate) fn refused(&self, why: &crate::Error, now_ms: u64) -> Self {
        let why = format!(
            "{why}. The next start of the server sends it to the far store again: \
             begin another run in its place only after that"
        );
        Self {
            status: Status::Failed,
            output: None,
            error: Some(failure("", "Workflow.NotWritten", &why)),
            ended_ms: Some(now_ms),
            ..self.clone()
        }
    }

    pub(crate) fn encode(&self) -> Vec<(Name, Value)> {
        let ended = self.ended_ms.map(|ended| ended as i64);
        let driver = self.driver.map(|driver| i64::from(driver.0));
        let attributes = [
            (STATUS, Some(Value::Integer(self.status as i64))),
            (BEGAN, Some(Value::Integer(self.began_ms as i64))),
            (OUTPUT, self.output.clone().map(Value::Bytes)),
            (ERROR, self.error.clone().map(Value::Bytes)),
            (ENDED, ended.map(Value::Integer)),
            (DRIVER, driver.map(Value::Integer)),
        ];
        let present = attributes.into_iter();
        let present = present.filter_map(|(name, value)| Some((name.into(), value?)));
        present.collect()
    }

    pub(crate) fn decode(item: &Item) -> Result<Self> {
        let decoded = || {
            Some(Self {
                status: Status::numbered(item.integer(STATUS)?)?,
                output: item.bytes(OUTPUT).cloned(),
                error: item.bytes(ERROR).cloned(),
                began_ms: item.integer(BEGAN)? as u64,
                ended_ms: item.integer(ENDED).map(|ended| ended as u64),
                driver: item.integer(DRIVER).map(|driver| NodeId(driver as u32)),
            })
        };
        decoded().ok_or_else(|| Error::corrupt("read a run"))
    }
}

/// The result of a step: its output, or its failure, a JSON object.
pub type StepResult = std::result::Result<Bytes, Bytes>;

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct StepRow {
    /// The function, or the name that code gives the step.
    pub(crate) function: String,
    /// A failure is stored only for a step that code has called, when that code continues after it.
    pub(crate) result: StepResult,
    /// The begin of the transaction with which the step commits. None: it has committed.
    pub(crate) attempt: Option<i64>,
    /// How often the step was tried since the run was last resumed.
    pub(crate) tries: u32,
    pub(crate) began_ms: u64,
    pub(crate) ended_ms: u64,
}

/// The number of a begin; a later begin of the same node has a higher one.
pub(crate) fn number_of(attempt: Attempt) -> i64 {
    i64::from(attempt.node.0) << SEQUENCE_BITS | attempt.sequence as i64
}

/// Holds if the row is absent, or has the number of an earlier begin of the same transaction. A
/// begin of another node is earlier, even with a higher number: the caller has begun the transaction anew
/// since (rule T-5), and a run may move to a node with a lower number.
pub(crate) fn is_before(attempt: i64) -> Condition {
    let last_of_node = attempt | ((1 << SEQUENCE_BITS) - 1);
    let is = |test| Condition::attribute(ATTEMPT, test);
    let (earlier, elsewhere) = (Test::Below(attempt), Test::Above(last_of_node));
    Condition::Any(vec![Condition::Absent, is(earlier), is(elsewhere)])
}

impl StepRow {
    pub(crate) fn encode(&self) -> Vec<(Name, Value)> {
        let result = match &self.result {
            Ok(output) => (OUTPUT.into(), Value::Bytes(output.clone())),
            Err(failure) => (FAILURE.into(), Value::Bytes(failure.clone())),
        };
        let mut attributes: Vec<(Name, Value)> = vec![
            (FUNCTION.into(), Value::Bytes(self.function.clone().into())),
            result,
            (TRIES.into(), Value::Integer(self.tries.into())),
            (BEGAN.into(), Value::Integer(self.began_ms as i64)),
            (ENDED.into(), Value::Integer(self.ended_ms as i64)),
        ];
        let attempt = self.attempt.map(Value::Integer);
        attributes.extend(attempt.map(|attempt| (ATTEMPT.into(), attempt)));
        attributes
    }

    pub(crate) fn decode(item: &Item) -> Result<Self> {
        let decoded = || {
            Some(Self {
                function: String::from_utf8(item.bytes(FUNCTION)?.to_vec()).ok()?,
                result: match item.bytes(FAILURE) {
                    Some(failure) => Err(failure.clone()),
                    None => Ok(item.bytes(OUTPUT)?.clone()),
                },
                attempt: item.integer(ATTEMPT),
                tries: item.integer(TRIES)? as u32,
                began_ms: item.integer(BEGAN)? as u64,
                ended_ms: item.integer(ENDED)? as u64,
            })
        };
        decoded().ok_or_else(|| Error::corrupt("read a step"))
    }
}

#[cfg(test)]
mod tests {
    use ports::key_value::Version;
    use proptest::{collection::vec, prelude::*, sample::select};

    use super::*;

    #[test]
    fn rows_are_read_back_as_they_were_written() {
        let workflow: Workflow = serde_json::from_str(
            r#"{"steps":["f",{"function":"g","retries":1},{"parallel":[["f"],[]]},{"map":["f"],"concurrency":2},
                {"choice":[{"when":{"path":"a","equals":1},"steps":["f"]}],"otherwise":["g"]}]}"#,
        )
        .expect("a workflow");
        let given = Given {
            input: Bytes::from("{}"),
            workflow,
        };
        let item = Item::from_parts(Version(1), given.encode());
        assert_eq!(Given::decode(&item).expect("whole"), given);
        let run = RunRow {
            status: Status::Failed,
            error: Some(Bytes::from("{}")),
            ended_ms: Some(2),
            ..RunRow::begun(1, Some(NodeId(7)))
        };
        let item = Item::from_parts(Version(1), run.encode());
        assert_eq!(RunRow::decode(&item).expect("whole"), run);
        let step = StepRow {
            function: "f".to_owned(),
            result: Ok(Bytes::from("1")),
            attempt: Some(3),
            tries: 2,
            began_ms: 1,
            ended_ms: 2,
        };
        let failed = StepRow {
            result: Err(Bytes::from("{}")),
            attempt: None,
            ..step.clone()
        };
        for step in [step, failed] {
            let item = Item::from_parts(Version(1), step.encode());
            assert_eq!(StepRow::decode(&item).expect("whole"), step);
            assert!(RunRow::decode(&item).is_err());
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let definition = select(vec![
            r#"{"steps":["f"]}"#,
            r#"{"steps":[{"parallel":[["f"]]}]}"#,
            r#"{"steps":[{"#,
            r#"{"steps":["f"],"timeout_s":-1}"#,
            r#"{"unknown":1}"#,
        ]);
        prop_oneof![
            any::<i64>().prop_map(Value::Integer),
            (-2_i64..6).prop_map(Value::Integer),
            vec(any::<u8>(), 0..20).prop_map(|bytes| Value::Bytes(bytes.into())),
            definition.prop_map(|text| Value::Bytes(text.into())),
            (1_usize..4000)
                .prop_map(|deep| Value::Bytes(format!("{{\"steps\":{}", "[".repeat(deep)).into())),
        ]
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(3000) })]

        #[test]
        fn rows_of_any_attributes_are_read_or_refused(
            drawn in vec((select(vec![STATUS, INPUT, OUTPUT, ERROR, BEGAN, ENDED, DEFINITION, DRIVER, ATTEMPT, FUNCTION, TRIES, FAILURE]), values()), 0..10)
        ) {
            let attributes: std::collections::BTreeMap<_, _> = drawn.into_iter().collect();
            let attributes = attributes.into_iter().map(|(name, value)| (Name::from(name), value));
            let item = Item::from_parts(Version(1), attributes.collect());
            if let Ok(row) = RunRow::decode(&item) {
                let again = Item::from_parts(Version(1), row.encode());
                assert_eq!(RunRow::decode(&again).expect("it was read"), row);
            }
            if let Ok(row) = StepRow::decode(&item) {
                let again = Item::from_parts(Version(1), row.encode());
                assert_eq!(StepRow::decode(&again).expect("it was read"), row);
            }
        }
    }
}
