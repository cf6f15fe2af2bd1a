//! The cases of [`Logs`](crate::Logs), over a runtime whose function prints on command.
//!
//! The subject is that of the [runtime suite](super::runtime): logs without a function that prints
//! have nothing to show.

mod reading;

use super::Case;
pub use super::runtime::Subject;
use crate::logs::{Line, Page};

/// More lines than any case prints.
const LINES_MAX: usize = 1000;

/// All lines from `from` on.
fn all_from(from: u64) -> Page {
    Page {
        from,
        lines_max: LINES_MAX,
        bytes_max: usize::MAX,
    }
}

async fn page(subject: &Subject, page: Page) -> Vec<Line> {
    subject
        .logs
        .lines(&subject.function.name, page)
        .await
        .expect("the lines are read")
}

async fn lines(subject: &Subject, from: u64) -> Vec<Line> {
    page(subject, all_from(from)).await
}

/// The suite.
pub const CASES: &[Case<Subject>] = crate::logs_contract!(@list);

/// One test per case of the contract of logs; `run` takes a
/// [`Case<contract::logs::Subject>`](crate::contract::Case) and runs it on a fresh runtime.
#[macro_export]
macro_rules! logs_contract {
    ($($run:tt)*) => {
        $crate::contract_cases! { [$($run)*] logs {
            reading {
                "G1" a_reader_goes_on_from_any_line,
                "G2" pages_are_bounded_and_a_longer_line_is_a_page_of_its_own,
                "G3" a_waiting_reader_is_woken_by_its_own_function_alone,
            }
        } }
    };
}
