//! Runs and steps, as callers see them.

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::storage::{RunRow, Status, StepRow};

/// A run, as callers see it.
#[derive(Debug, Clone, Serialize)]
pub struct RunView {
    /// Its id.
    pub run: String,
    /// Its state.
    pub status: Status,
    /// Its output.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Box<RawValue>>,
    /// Why it failed: `step`, `errorType`, `errorMessage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<RawValue>>,
    /// When it began, in milliseconds since the epoch.
    pub began_ms: u64,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ended_ms: Option<u64>,
}

/// A committed step, as callers see it.
#[derive(Debug, Clone, Serialize)]
pub struct StepView {
    /// Its path in the workflow.
    pub path: String,
    /// The function, or the name that code gives the step.
    pub function: String,
    /// How often it was tried.
    pub tries: u32,
    /// When the committed attempt began, in milliseconds since the epoch.
    pub began_ms: u64,
    /// When it ended.
    pub ended_ms: u64,
    /// Why it failed, if its code continued after that: `step`, `errorType`, `errorMessage`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<Box<RawValue>>,
}

impl RunView {
    pub(crate) fn of(run: String, row: &RunRow) -> Self {
        let is_running = row.status == Status::Running;
        Self {
            run,
            status: row.status,
            output: row.output.as_ref().filter(|_| !is_running).map(raw),
            error: row.error.as_ref().map(raw),
            began_ms: row.began_ms,
            ended_ms: row.ended_ms,
        }
    }
}

/// A failure as a list shows it.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    #[serde(default)]
    step: String,
    #[serde(default)]
    error_type: String,
}

impl RunView {
    /// The view for a list. It omits the output and the message of a failure, as each may be long.
    pub(crate) fn listed(run: String, row: &RunRow) -> Self {
        let whole = Self::of(run, row);
        let listed = |error: Box<RawValue>| {
            let listed: Listed = serde_json::from_str(error.get()).ok()?;
            serde_json::value::to_raw_value(&listed).ok()
        };
        Self {
            output: None,
            error: whole.error.and_then(listed),
            ..whole
        }
    }
}

impl StepView {
    pub(crate) fn of(path: String, row: StepRow) -> Self {
        Self {
            path,
            function: row.function,
            tries: row.tries,
            began_ms: row.began_ms,
            ended_ms: row.ended_ms,
            error: row.result.err().as_ref().map(raw),
        }
    }
}

/// JSON unchanged; anything else as a string.
fn raw(bytes: &Bytes) -> Box<RawValue> {
    let text = String::from_utf8_lossy(bytes).into_owned();
    RawValue::from_string(text.clone())
        .or_else(|_| serde_json::value::to_raw_value(&text))
        .expect("a string always serialises")
}
