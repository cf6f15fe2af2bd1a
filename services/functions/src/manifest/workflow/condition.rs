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
    /// Errors: the condition is empty, can never hold, or has a value that JSON cannot express.
    pub(super) fn check(&self) -> Result<(), String> {
        let Self {
            path,
            equals,
            below,
            above,
            exists,
        } = self;
        if equals.is_none() && below.is_none() && above.is_none() && exists.is_none() {
            return Err(format!(
                "choice: when {{ path = {path:?} }} asks for nothing there: add equals, below, above or exists"
            ));
        }
        let never = |why: String| {
            Err(format!(
                "choice: when {{ path = {path:?} }} never holds, because {why}: correct it"
            ))
        };
        let asks_for_a_value = equals.is_some() || below.is_some() || above.is_some();
        if *exists == Some(false) && path.split('.').all(str::is_empty) {
            return never("the input is always there (exists = false)".to_owned());
        }
        if *exists == Some(false) && asks_for_a_value {
            return never("what is not there has no value (exists = false)".to_owned());
        }
        if let (Some(above), Some(below)) = (above, below)
            && above.as_f64() >= below.as_f64()
        {
            return never(format!("no number is above {above} and below {below}"));
        }
        let Some(equals) = equals else { return Ok(()) };
        check_equals(equals, 1)?;
        if !equals.is_number() && (below.is_some() || above.is_some()) {
            return never(format!(
                "{equals} is no number, which below and above ask for"
            ));
        }
        let number = equals.as_f64();
        let bound = |bound: &Option<Number>| bound.as_ref().map(Number::as_f64);
        if bound(above).is_some_and(|above| number <= above)
            || bound(below).is_some_and(|below| number >= below)
        {
            return never(format!("{equals} lies outside of above and below"));
        }
        Ok(())
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
