//! The cases of [`CodeStore`](crate::CodeStore).

mod archives;

use std::{fmt, sync::Arc};

use bytes::Bytes;

use super::Case;
use crate::CodeStore;

/// A fresh code store, with archives for it.
#[derive(Clone)]
pub struct Subject {
    /// The port under test.
    pub store: Arc<dyn CodeStore>,
    /// Makes an archive with one file from its path and its content.
    pub archive: fn(&str, &[u8]) -> Bytes,
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subject")
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

/// The path of the one file in the archives of the cases.
const PATH: &str = "code/app.py";

/// More bytes than any file of the cases has.
const BYTES_MAX: usize = 1 << 20;

impl Subject {
    async fn install(&self, name: &str, content: &[u8]) {
        let archive = (self.archive)(PATH, content);
        self.store
            .install(name, archive)
            .await
            .expect("it is an archive");
    }

    async fn file(&self, archive: &str) -> Option<Bytes> {
        self.store
            .file(archive, PATH, BYTES_MAX)
            .await
            .expect("it is read")
    }
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::code_store_contract!(@list);

/// One test per case of the contract of code stores; `run` takes a
/// [`Case<contract::code_store::Subject>`](crate::contract::Case) and runs it on a fresh store.
#[macro_export]
macro_rules! code_store_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] code_store {
            archives {
                "B1" an_installed_archive_is_there_whole,
                "B1" installing_an_archive_again_changes_nothing,
                "B2" content_that_is_no_archive_is_refused_and_leaves_nothing,
                "B3" a_file_is_read_whole_or_refused,
                "B3" a_file_that_is_not_there_is_none,
                "B4" named_archives_stay_and_all_others_go,
            }
        } }
    };
}
