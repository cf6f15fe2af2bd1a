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
//! | `memory/n` | id of a server | [`rows::MemberRow`]: a server of a shared store, renewed while it lives |
//! | `memory/l` | id of a server | nothing: the server adds rows of its own only while this one is there |
//!
//! In a shared store `memory/e` and `memory/g` have a partition for each start of a server, named by
//! its id ([`mod@own`]), and `memory/m` has one for each address.
//!
//! A bucket that is deleted and made again has another id, so that no row of its earlier life is
//! found.

pub(crate) mod buckets;
pub(crate) mod members;
pub(crate) mod objects;
pub(crate) mod own;
pub(crate) mod pending;
pub(crate) mod resident;
pub(crate) mod rows;
pub(crate) mod table;
pub(crate) mod uploads;
