//! A trace: requests in the order of their times. As text it is CSV with the columns `time_ms`,
//! `operation` (`put`, `get` or `delete`), `key` and `size`.

use std::{collections::BTreeMap, fmt::Write as _};

use memory::model::{KEY_BYTES_MAX, OBJECT_BYTES_MAX};

/// The first line of a trace.
const HEADER: &str = "time_ms,operation,key,size";
/// The most requests.
const REQUESTS_MAX: usize = 20_000_000;
/// The longest trace: a year. The replay takes a step for each minute of it.
const TIME_MS_MAX: u64 = 366 * 24 * 3_600_000;

/// The kind of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Stores an object.
    Put,
    /// Reads a whole object.
    Get,
    /// Deletes an object.
    Delete,
}

/// A request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Request {
    /// When it begins, in milliseconds after the start of the trace.
    pub at_ms: u64,
    /// Its kind.
    pub operation: Operation,
    /// The index of its key.
    pub object: u32,
    /// The size of the object.
    pub bytes: u64,
}

/// Requests, and the keys of their objects.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Trace {
    /// By index.
    pub keys: Vec<String>,
    /// In the order of their times.
    pub requests: Vec<Request>,
}

/// The reason why a text is no trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {why}")]
pub struct Invalid {
    line: usize,
    why: &'static str,
}

impl Trace {
    /// Reads CSV.
    pub fn parse(text: &str) -> Result<Self, Invalid> {
        let mut lines = (1..).zip(text.lines());
        if lines.next().is_none_or(|(_, first)| first.trim() != HEADER) {
            let why = "the first line has to be time_ms,operation,key,size";
            return Err(Invalid { line: 1, why });
        }
        let (mut trace, mut indices) = (Self::default(), BTreeMap::new());
        for (line, text) in lines.filter(|(_, text)| !text.trim().is_empty()) {
            let invalid = |why| Invalid { line, why };
            let (request, key) = read(text).map_err(invalid)?;
            let last = trace.requests.last();
            if last.is_some_and(|last| last.at_ms > request.at_ms) {
                return Err(invalid("its time is before that of the line above"));
            }
            if trace.requests.len() == REQUESTS_MAX {
                return Err(invalid("a trace has at most 20,000,000 requests"));
            }
            let object = *indices.entry(key).or_insert_with(|| {
                trace.keys.push(key.to_owned());
                trace.keys.len() as u32 - 1
            });
            trace.requests.push(Request { object, ..request });
        }
        Ok(trace)
    }

    /// The trace as CSV.
    pub fn text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for request in &self.requests {
            let operation = match request.operation {
                Operation::Put => "put",
                Operation::Get => "get",
                Operation::Delete => "delete",
            };
            let key = &self.keys[request.object as usize];
            let Request { at_ms, bytes, .. } = request;
            let _ = writeln!(text, "{at_ms},{operation},{key},{bytes}");
        }
        text
    }

    /// The hours that it covers, begun ones as whole ones.
    pub fn hours(&self) -> u64 {
        let last = self.requests.last().map_or(0, |request| request.at_ms);
        last.div_ceil(3_600_000).max(1)
    }

    /// The requests that begin in the first `hours` hours.
    pub fn within(mut self, hours: u64) -> Self {
        let end = hours.saturating_mul(3_600_000);
        self.requests.retain(|request| request.at_ms < end);
        self
    }
}

/// A line. The size is the last column, so a key may contain commas.
fn read(line: &str) -> Result<(Request, &str), &'static str> {
    let mut fields = line.splitn(3, ',');
    let [time, operation, rest] = [(); 3].map(|()| fields.next().unwrap_or_default());
    let (key, size) = rest.rsplit_once(',').ok_or("it has too few columns")?;
    let at_ms = time.trim().parse().ok();
    let at_ms = at_ms.filter(|at_ms| *at_ms < TIME_MS_MAX);
    let operation = match operation.trim() {
        "put" => Operation::Put,
        "get" => Operation::Get,
        "delete" => Operation::Delete,
        _ => return Err("the operation has to be put, get or delete"),
    };
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err("a key has 1 to 1024 bytes");
    }
    let bytes = size.trim().parse().ok();
    let request = Request {
        at_ms: at_ms.ok_or("the time has to be milliseconds, at most a year")?,
        operation,
        object: 0,
        bytes: bytes
            .filter(|bytes| *bytes <= OBJECT_BYTES_MAX)
            .ok_or("the size has to be bytes, at most 5 TiB")?,
    };
    Ok((request, key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trace_is_read_as_it_was_written() {
        let text = "time_ms,operation,key,size\n0,put,a,7\n5,get,a,7\n5,get,b,c,9\n9,delete,a,0\n";
        let trace = Trace::parse(text).expect("a trace");
        assert_eq!(trace.keys, ["a", "b,c"]);
        assert_eq!(trace.text(), text);
        assert_eq!(trace.clone().within(1), trace);
        assert_eq!(trace.hours(), 1);
    }

    #[test]
    fn a_bad_line_is_named_with_its_fault() {
        for (lines, expected) in [
            ("0,put,a,1", "line 1: the first line"),
            (
                "time_ms,operation,key,size\n1,put,a",
                "line 2: it has too few",
            ),
            (
                "time_ms,operation,key,size\n1,post,a,1",
                "line 2: the operation",
            ),
            ("time_ms,operation,key,size\nx,put,a,1", "line 2: the time"),
            (
                "time_ms,operation,key,size\n99999999999999,put,a,1",
                "line 2: the time",
            ),
            ("time_ms,operation,key,size\n1,put,a,-1", "line 2: the size"),
            ("time_ms,operation,key,size\n1,put,,1", "line 2: a key"),
            (
                "time_ms,operation,key,size\n2,put,a,1\n1,get,a,1",
                "line 3: its time",
            ),
        ] {
            let error = Trace::parse(lines).expect_err(lines).to_string();
            assert!(error.starts_with(expected), "{lines}: {error}");
        }
    }
}
