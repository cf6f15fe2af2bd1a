//! What a node keeps in memory of the store: versions, values and recent commits.

pub(crate) mod data_cache;
pub(crate) mod recent_commits;
pub(crate) mod version_index;
