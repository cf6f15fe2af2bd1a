//! The condition of a branch.

use serde::{Deserialize, Serialize};
use serde_json::{Number, Value};

/// The deepest nesting of lists and tables in a condition's value.
const EQUALS_DEPTH_MAX: usize = 8;

/// A condition on the input. All of its members must hold.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct When {
    /// The path of a value: member names and indices, separated by dots; empty: the input itself.
    #[serde(default)]
    pub path: String,
    /// The value equals this one. Numbers are compared by value, so that 1 equals 1.0.
    pub equals: Option<Value>,
    /// The value is a number below this one.
    pub below: Option<Number>,
    /// The value is a number above this one.
    pub above: Option<Number>,
    /// Whether there is a value.
    pub exists: Option<bool>,
}

impl When {
    /// Errors: the condition is empty, or has a value that JSON cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let path = &self.path;
        let has_bound = self.below.is_some() || self.above.is_some();
        match &self.equals {
            Some(equals) => check_equals(equals, 1),
            None if has_bound || self.exists.is_some() => Ok(()),
            None => Err(format!(
                "choice: when {{ path = {path:?} }} asks for nothing there: add equals, below, above or exists"
            )),
        }
    }
}

/// Errors: `equals` holds a value that JSON cannot express. A run stores its workflow as JSON and
/// reads it back.
fn check_equals(equals: &Value, depth: usize) -> Result<(), String> {
    if depth > EQUALS_DEPTH_MAX {
        return Err(format!("equals is {EQUALS_DEPTH_MAX} deep at most"));
    }
    match equals {
        Value::Null => Err("equals: nan and infinity are no JSON".to_owned()),
        Value::Array(elements) => elements
            .iter()
            .try_for_each(|element| check_equals(element, depth + 1)),
        Value::Object(members) if members.keys().any(|name| name.starts_with("$__")) => {
            Err("equals: a date is no JSON, but a string with one is".to_owned())
        }
        Value::Object(members) => members
            .values()
            .try_for_each(|member| check_equals(member, depth + 1)),
        Value::Bool(_) | Value::Number(_) | Value::String(_) => Ok(()),
    }
}
