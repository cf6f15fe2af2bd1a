//! Conditions in headers: on reads, which are decided here, and on writes, which the service decides.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use memory::model::{Conditions, ETags, Object};
use s3s::dto::{ETag, ETagCondition, Timestamp};

/// The conditions of a read, or on the source of a copy.
#[derive(Debug, Default)]
pub(crate) struct ReadConditions {
    pub(crate) if_match: Option<ETagCondition>,
    pub(crate) if_none_match: Option<ETagCondition>,
    pub(crate) modified_since: Option<Timestamp>,
    pub(crate) unmodified_since: Option<Timestamp>,
}

/// The outcome of a condition that does not hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Unmet {
    /// The client has this version.
    NotModified,
    /// The object is another one than the client wants.
    Failed,
}

impl ReadConditions {
    /// A condition on an ETag beats the one on a time beside it, as RFC 9110 says.
    pub(crate) fn check(&self, object: &Object) -> Result<(), Unmet> {
        let modified = seconds(object.modified.0);
        if let Some(condition) = &self.if_match {
            if !holds(&etags(condition), &object.etag) {
                return Err(Unmet::Failed);
            }
        } else if self
            .unmodified_since
            .as_ref()
            .is_some_and(|t| modified > *t)
        {
            return Err(Unmet::Failed);
        }
        if let Some(condition) = &self.if_none_match {
            if holds(&etags(condition), &object.etag) {
                return Err(Unmet::NotModified);
            }
        } else if self.modified_since.as_ref().is_some_and(|t| modified <= *t) {
            return Err(Unmet::NotModified);
        }
        Ok(())
    }
}

/// The conditions of a write.
pub(crate) fn of_write(
    if_match: Option<&ETagCondition>,
    if_none_match: Option<&ETagCondition>,
) -> Conditions {
    Conditions {
        if_match: if_match.map(etags),
        if_none_match: if_none_match.map(etags),
    }
}

/// s3s takes a list of ETags for one ETag with quotes inside.
pub(crate) fn etags(condition: &ETagCondition) -> ETags {
    match condition {
        ETagCondition::Any => ETags::Any,
        ETagCondition::ETag(etag) => {
            let list = etag.value().split(',').map(bare).collect();
            ETags::OneOf(list)
        }
    }
}

fn bare(etag: &str) -> String {
    let etag = etag.trim();
    let etag = etag.strip_prefix("W/").unwrap_or(etag);
    etag.trim_matches('"').to_owned()
}

fn holds(etags: &ETags, etag: &str) -> bool {
    match etags {
        ETags::Any => true,
        ETags::OneOf(list) => list.iter().any(|one| one == etag),
    }
}

/// An ETag as a header.
pub(crate) fn etag(value: &str) -> ETag {
    ETag::Strong(value.to_owned())
}

/// A time in milliseconds as XML shows it.
pub(crate) fn time(at: ports::Timestamp) -> Timestamp {
    Timestamp::from(UNIX_EPOCH + Duration::from_millis(at.0))
}

/// Headers have whole seconds, so that only these compare.
fn seconds(ms: u64) -> Timestamp {
    let at: SystemTime = UNIX_EPOCH + Duration::from_secs(ms / 1000);
    Timestamp::from(at)
}

#[cfg(test)]
mod tests {
    use memory::model::{Attributes, VersionId};

    use super::*;

    fn object() -> Object {
        Object {
            key: "k".into(),
            version: VersionId(1),
            modified: ports::Timestamp(10_500),
            bytes: 1,
            etag: "abc".into(),
            attributes: Attributes::default(),
            parts: Vec::new(),
        }
    }

    fn tagged(value: &str) -> ETagCondition {
        value.parse().expect("a condition")
    }

    fn at(seconds: u64) -> Timestamp {
        super::seconds(seconds * 1000)
    }

    #[test]
    fn a_time_counts_in_whole_seconds() {
        let read = |modified_since, unmodified_since| ReadConditions {
            modified_since,
            unmodified_since,
            ..ReadConditions::default()
        };
        assert_eq!(read(Some(at(9)), None).check(&object()), Ok(()));
        assert_eq!(
            read(Some(at(10)), None).check(&object()),
            Err(Unmet::NotModified)
        );
        assert_eq!(read(None, Some(at(10))).check(&object()), Ok(()));
        assert_eq!(read(None, Some(at(9))).check(&object()), Err(Unmet::Failed));
    }

    #[test]
    fn an_etag_beats_the_time_beside_it() {
        let matching = ReadConditions {
            if_match: Some(tagged("\"abc\"")),
            unmodified_since: Some(at(1)),
            ..ReadConditions::default()
        };
        assert_eq!(matching.check(&object()), Ok(()));
        let other = ReadConditions {
            if_none_match: Some(tagged("\"other\"")),
            modified_since: Some(at(20)),
            ..ReadConditions::default()
        };
        assert_eq!(other.check(&object()), Ok(()));
    }

    #[test]
    fn a_list_of_etags_matches_any_of_them() {
        let read = ReadConditions {
            if_none_match: Some(tagged("\"x\", \"abc\"")),
            ..ReadConditions::default()
        };
        assert_eq!(read.check(&object()), Err(Unmet::NotModified));
        let read = ReadConditions {
            if_match: Some(tagged("\"x\", W/\"y\"")),
            ..ReadConditions::default()
        };
        assert_eq!(read.check(&object()), Err(Unmet::Failed));
    }
}
