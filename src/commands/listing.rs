//! Lists of a server, page by page.

use std::process::ExitCode;

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Value, value::RawValue};

use super::request::{Target, parsed};

/// A page of any list, and where the next one begins.
#[derive(Debug, Deserialize)]
struct Page {
    #[serde(
        alias = "keys",
        alias = "messages",
        alias = "queues",
        alias = "runs",
        alias = "snapshots",
        alias = "transactions",
        alias = "volumes"
    )]
    items: Vec<Box<RawValue>>,
    next: Option<Value>,
}

/// Prints all items of a list: the JSON of each if `json`, or its `line`. `path` is that of the page
/// after an item.
///
/// Errors: the server refuses, or does not answer with `what`.
pub(crate) fn print_all<T: DeserializeOwned>(
    target: &Target,
    what: &str,
    json: bool,
    path: impl Fn(Option<&str>) -> String,
    line: impl Fn(T) -> String,
) -> anyhow::Result<ExitCode> {
    let mut after = None::<String>;
    loop {
        let body = target.get(&path(after.as_deref()))?;
        let Page { items, next } = parsed(body.as_bytes(), what)?;
        let mut text = String::new();
        for item in &items {
            text += &if json {
                item.to_string()
            } else {
                line(parsed(item.get().as_bytes(), what)?)
            };
            text.push('\n');
        }
        super::print(&text)?;
        after = match next {
            None => return Ok(ExitCode::SUCCESS),
            Some(Value::String(next)) => Some(next),
            Some(next) => Some(next.to_string()),
        };
    }
}
