//! Where a run is stored.

use std::{fmt, sync::Arc};

/// A store of runs. A far store is identified by its place: its address without credentials. So a
/// workflow keeps its store when its password changes.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StoreLocation {
    Near,
    Far(Arc<str>),
}

impl fmt::Display for StoreLocation {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Near => formatter.write_str("near"),
            Self::Far(place) => formatter.write_str(place),
        }
    }
}
