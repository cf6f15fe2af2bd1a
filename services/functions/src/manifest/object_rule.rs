//! The objects whose changes start a function.

use serde::Deserialize;

/// `on_object` of a function.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ObjectRule {
    /// The bucket.
    pub bucket: String,
    /// The beginning of the keys.
    #[serde(default)]
    pub prefix: String,
    /// The end of the keys.
    #[serde(default)]
    pub suffix: String,
    /// The changes.
    #[serde(default = "created")]
    pub events: Vec<Change>,
}

/// A change of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Change {
    /// There is a new object under the key.
    Created,
    /// It was deleted.
    Removed,
}

fn created() -> Vec<Change> {
    vec![Change::Created]
}

impl ObjectRule {
    /// Whether a change starts the function.
    pub fn wants(&self, bucket: &str, key: &str, change: Change) -> bool {
        let is_key = key.starts_with(&self.prefix) && key.ends_with(&self.suffix);
        self.bucket == bucket && is_key && self.events.contains(&change)
    }
}
