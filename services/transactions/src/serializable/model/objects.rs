//! The check of the objects that hold large values of a volume.

/// The most objects that a check names. Further ones are counted.
const NAMED_MAX: usize = 1_000;

/// Whether a check deletes objects that hold no value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unreferenced {
    /// They stay until a server collects them, soon after it has opened the volume.
    Count,
    /// They are deleted.
    Delete,
}

/// The result of a check of objects.
#[derive(Debug, Clone, PartialEq, Eq, Default, serde::Serialize)]
pub struct CheckedObjects {
    /// How many were checked.
    pub count: u64,
    /// Those that hold no value. A crash and a collection that is due leave such objects.
    pub unreferenced: u64,
    /// How many of them were deleted.
    pub deleted: u64,
    /// The first 1,000 objects that are not whole.
    pub findings: Vec<ObjectFinding>,
    /// How many there are beyond them.
    pub findings_left_off: u64,
}

/// An object that is not whole.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct ObjectFinding {
    /// Its path in the object store.
    pub object: String,
    /// `missing` or `damaged`.
    pub problem: &'static str,
}

impl CheckedObjects {
    pub(crate) fn add(&mut self, object: String, problem: &'static str) {
        if self.findings.len() < NAMED_MAX {
            self.findings.push(ObjectFinding { object, problem });
        } else {
            self.findings_left_off += 1;
        }
    }
}
