//! Checks the rules of files in a volume, and repairs violations.
//!
//! ```text
//!  snapshot, pinned
//!    ──▶ inodes: every number that may have one, in windows of a bounded size
//!    ──▶ entries of every directory: names, kinds, parents        link counts, lost inodes, circles
//!    ──▶ blocks of every file of the window                       beyond the end, damaged
//!    ──▶ repairs, one transaction each, at the snapshot
//! ```
//!
//! The check reads one snapshot, so the volume may be in use. A repair reads the same snapshot. It
//! conflicts if another client has changed a value that the repair depends on. Another run then
//! sees the new state. The memory is bounded by a window of inodes, and by the number of
//! directories.
//!
//! Not checked: keys of inodes that are gone. The reaper deletes them, an orphan candidate last.

mod blocks;
mod reader;
mod repair;
mod report;
mod tree;

use std::{fmt, sync::Arc};

use ports::{Clock, Entropy};
use primitives::Mutant;
use transactions::serializable::{
    VolumeStore,
    model::{NUMBERS_RESERVED, PinName},
};

pub use self::report::{Counts, Finding, Problem, Repair, Report};
use self::{reader::Reader, repair::Repairer, tree::Window};
use crate::{
    error::{Errno, Result},
    model::Ino,
    transaction::Context,
};

/// The most inodes that are checked at once. Each window reads all directories again.
const WINDOW_INODES: u64 = 1 << 20;
/// The name of the pin that keeps the snapshot readable. A later check moves it.
const PIN: &str = "landfast-files-check";

/// The choices of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Whether all data are read, too.
    pub blocks: bool,
    /// Whether problems are repaired, where that is possible.
    pub repair: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            blocks: true,
            repair: false,
        }
    }
}

/// Checks the volume at one snapshot. `progress` is called now and then, with the counts so far.
///
/// Errors: `EIO` if the volume does not answer for 30 s, `ESTALE` if the snapshot became too old.
pub async fn run(
    store: Arc<dyn VolumeStore>,
    clock: Arc<dyn Clock>,
    entropy: Arc<dyn Entropy>,
    options: Options,
    progress: &mut (dyn FnMut(&Counts) + Send + Sync),
) -> Result<Report> {
    let pin = PinName::new(PIN).map_err(|_| Errno::EIO)?;
    let context = Context::new(store.clone(), clock.clone(), entropy, Mutant::NONE);
    let reader = Reader::open(store, clock, &pin).await?;
    let check = Check {
        report: Report::at(reader.slot()),
        reader: &reader,
        options,
        progress,
    };
    let checked = check.run(Arc::new(context)).await;
    let unpinned = reader.close(&pin).await;
    let report = checked?;
    unpinned.map(|()| report)
}

/// A running check.
struct Check<'a> {
    reader: &'a Reader,
    options: Options,
    report: Report,
    progress: &'a mut (dyn FnMut(&Counts) + Send + Sync),
}

impl fmt::Debug for Check<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Check")
            .field("report", &self.report)
            .finish_non_exhaustive()
    }
}

impl Check<'_> {
    async fn run(mut self, context: Arc<Context>) -> Result<Report> {
        match self.read_all().await {
            Err(_) if self.reader.gives_up() => {
                self.report.findings_left_off += 1;
                return Ok(self.report);
            }
            ended => ended?,
        }
        if self.options.repair {
            Repairer::new(context, self.reader.slot())
                .run(&mut self.report)
                .await?;
        }
        Ok(self.report)
    }

    async fn read_all(&mut self) -> Result<()> {
        // All numbers of inodes are below those of this range, which no inode uses then.
        let end = self.reader.reserve_numbers().await?.start;
        let directories = self.directories(end).await?;
        let mut first = NUMBERS_RESERVED;
        loop {
            let until = first.saturating_add(WINDOW_INODES).min(end);
            let root = (first == NUMBERS_RESERVED).then_some(Ino::ROOT.0);
            let mut window = Window::new(root, first..until);
            self.inodes(&mut window).await?;
            self.entries(&mut window, &directories, end).await?;
            self.judge(&window, &directories);
            if self.options.blocks {
                self.blocks(&window, &directories).await?;
            }
            first = until;
            if first >= end {
                break;
            }
        }
        self.orphans().await
    }

    fn advance(&mut self, count: impl FnOnce(&mut Counts)) {
        count(&mut self.report.counts);
        (self.progress)(&self.report.counts);
    }
}
