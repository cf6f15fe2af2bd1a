//! The result of a check, as programs and people read it.

use bytes::Bytes;
use serde::Serialize;
use transactions::serializable::model::Slot;

use crate::model::Ino;

/// The most findings in a report. Further ones are counted.
const FINDINGS_MAX: usize = 10_000;

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The slot of the snapshot that was checked.
    pub slot: u64,
    /// How much was checked.
    pub counts: Counts,
    /// The first 10,000 problems.
    pub findings: Vec<Finding>,
    /// How many problems there are beyond them. One stands for all that was not read because much is
    /// damaged.
    pub findings_left_off: u64,
}

/// How much was checked so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize)]
pub struct Counts {
    /// Inodes of any kind.
    pub inodes: u64,
    /// Names.
    pub entries: u64,
    /// Blocks.
    pub blocks: u64,
    /// Bytes in them.
    pub bytes: u64,
}

/// A problem and the outcome of its repair.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The inode, or the directory of the entry.
    pub ino: u64,
    /// A path that leads to it, as text; without a leading slash if it leads from no root. None: it
    /// has no name.
    pub path: Option<String>,
    /// The problem.
    #[serde(flatten)]
    pub problem: Problem,
    /// Whether it was repaired.
    pub repair: Repair,
    /// The bytes of the name of an entry.
    #[serde(skip)]
    pub(super) name: Bytes,
}

/// A violation of the rules of files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
pub enum Problem {
    /// The name leads to an inode that does not exist. Repair: it is removed.
    DanglingEntry {
        /// The inode that the entry names.
        to: u64,
    },
    /// The entry has another kind than the inode. Repair: it takes the inode's.
    WrongKind {
        /// The inode that the entry names.
        to: u64,
    },
    /// The directory has another name. Repair: this one is removed.
    SecondName {
        /// The directory that the entry names.
        to: u64,
    },
    /// The value of the entry does not decode.
    DamagedEntry,
    /// The link count is not the number of names. Repair: it becomes that.
    WrongLinks {
        /// The stored count.
        stored: u64,
        /// The number of names; of a directory 2 and one for each directory in it.
        counted: u64,
    },
    /// The directory stores another parent than the one that lists it. Repair: it takes that one.
    WrongParent {
        /// The directory that lists it.
        listed_in: u64,
    },
    /// The inode has no name, and is no orphan candidate. Repair: it moves to `/lost+found`.
    Lost,
    /// The directory is below itself. Repair: one directory of the circle moves to `/lost+found`.
    Circle {
        /// The directory that lists it.
        listed_in: u64,
    },
    /// The inode has no name and no links, and would stay. Repair: it becomes an orphan candidate.
    Unreaped,
    /// An orphan candidate does not decode.
    DamagedOrphan,
    /// A value of the inode is missing or does not decode.
    DamagedField {
        /// Which one.
        field: &'static str,
    },
    /// There are data after the end of the file. Repair: they are removed.
    DataBeyondEnd {
        /// The number of the block.
        block: u64,
        /// The length of the file in bytes.
        size: u64,
    },
    /// The block is longer than blocks of this volume are.
    LongBlock {
        /// The number of the block.
        block: u64,
    },
    /// The block does not decode. Reads of it fail with `EIO`.
    DamagedBlock {
        /// The number of the block.
        block: u64,
    },
}

/// The outcome of a repair.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repair {
    /// There is no repair without a loss. Restore the file from a copy.
    Impossible,
    /// It was not asked for.
    Possible,
    /// It is repaired.
    Done,
    /// Another client has changed the files meanwhile. Check again.
    Changed,
    /// The volume refused it, for example because it is full. Make room and check again.
    Refused,
}

impl Problem {
    pub(super) fn is_repairable(&self) -> bool {
        !matches!(
            self,
            Self::DamagedEntry
                | Self::DamagedOrphan
                | Self::DamagedField { .. }
                | Self::LongBlock { .. }
                | Self::DamagedBlock { .. }
        )
    }
}

impl Report {
    pub(super) fn at(slot: Slot) -> Self {
        Self {
            slot: slot.0,
            counts: Counts::default(),
            findings: Vec::new(),
            findings_left_off: 0,
        }
    }

    /// Whether no problem was found.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// How many problems are left.
    pub fn unrepaired(&self) -> u64 {
        let left = |finding: &&Finding| finding.repair != Repair::Done;
        self.findings.iter().filter(left).count() as u64 + self.findings_left_off
    }

    /// Adds a problem of an inode, or of the entry `name` in the directory `ino`.
    pub(super) fn add(&mut self, ino: Ino, path: Option<Bytes>, name: Bytes, problem: Problem) {
        if self.findings.len() >= FINDINGS_MAX {
            self.findings_left_off += 1;
            return;
        }
        self.findings.push(Finding {
            ino: ino.0,
            path: path.map(|path| String::from_utf8_lossy(&path).into_owned()),
            repair: if problem.is_repairable() {
                Repair::Possible
            } else {
                Repair::Impossible
            },
            problem,
            name,
        });
    }
}
