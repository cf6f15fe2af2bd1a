//! Every key, record and conditional write of the service.
//!
//! | partition | sort key | row |
//! | --- | --- | --- |
//! | `memory` | bucket | [`rows::BucketRow`]: the bucket's id and state |
//! | `memory/o/` bucket id | object key | [`rows::ObjectRow`]: the present version, and the content of a small object |
//! | `memory/u/` bucket id | upload id | [`rows::UploadRow`]: an upload in parts that is not completed |
//! | `memory/p/` bucket id | upload id, part number | [`rows::PartRow`]: an uploaded part |
//! | `memory/e` | the id of a change | [`crate::events::Event`]: a change that is not delivered yet |
//! | `memory/g` | a unique number | [`rows::PendingRow`]: segments that no other row names |
//! | `memory/m` | segment, fragment | [`rows::ResidentRow`]: a fragment that was in function memory lately |
//!
//! A bucket that is deleted and made again has another id, so that no row of its earlier life is
//! found.

pub(crate) mod buckets;
pub(crate) mod objects;
pub(crate) mod pending;
pub(crate) mod resident;
pub(crate) mod rows;
pub(crate) mod table;
pub(crate) mod uploads;
