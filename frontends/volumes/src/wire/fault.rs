//! Errors on the wire.

use std::{collections::BTreeSet, sync::Arc};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use transactions::Error;

/// The longest text of an error, in bytes.
const TEXT_BYTES_MAX: usize = 1_024;
/// The most different texts of refused requests that a process keeps.
const TEXTS_MAX: usize = 256;
/// Stands for all texts beyond them.
const OTHER_TEXT: &str = "the server's log or documentation tells the reason";

/// An error of a call, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Fault {
    /// [`Error::Invalid`].
    Invalid(String),
    /// [`Error::TooLarge`].
    TooLarge(String),
    /// [`Error::NoSuchVolume`].
    NoSuchVolume,
    /// [`Error::VolumeExists`].
    VolumeExists,
    /// [`Error::VolumeInUse`].
    VolumeInUse,
    /// [`Error::Conflict`].
    Conflict,
    /// [`Error::SnapshotTooOld`].
    SnapshotTooOld,
    /// [`Error::Expired`].
    Expired,
    /// [`Error::OutcomeUnknown`].
    OutcomeUnknown,
    /// [`Error::Unavailable`], and errors that volumes do not have.
    Unavailable(String),
    /// [`Error::NoRoom`].
    NoRoom,
    /// [`Error::WrongObjects`].
    WrongObjects(String),
    /// [`Error::Corrupt`].
    Corrupt(String),
}

impl From<&Error> for Fault {
    fn from(error: &Error) -> Self {
        match error {
            Error::Invalid(why) => Self::Invalid(short(why)),
            Error::TooLarge(why) => Self::TooLarge(short(why)),
            Error::NoSuchVolume => Self::NoSuchVolume,
            Error::VolumeExists => Self::VolumeExists,
            Error::VolumeInUse => Self::VolumeInUse,
            Error::Conflict => Self::Conflict,
            Error::SnapshotTooOld => Self::SnapshotTooOld,
            Error::Expired => Self::Expired,
            Error::OutcomeUnknown => Self::OutcomeUnknown,
            Error::Unavailable(why) => Self::Unavailable(short(why)),
            Error::NoRoom => Self::NoRoom,
            Error::WrongObjects(why) => Self::WrongObjects(short(why)),
            Error::Corrupt(why) => Self::Corrupt(short(why)),
            other => Self::Unavailable(short(&other.to_string())),
        }
    }
}

impl From<Fault> for Error {
    fn from(fault: Fault) -> Self {
        let shared = |text: String| Arc::<str>::from(short(&text));
        match fault {
            Fault::Invalid(why) => Self::Invalid(kept(&why)),
            Fault::TooLarge(why) => Self::TooLarge(kept(&why)),
            Fault::NoSuchVolume => Self::NoSuchVolume,
            Fault::VolumeExists => Self::VolumeExists,
            Fault::VolumeInUse => Self::VolumeInUse,
            Fault::Conflict => Self::Conflict,
            Fault::SnapshotTooOld => Self::SnapshotTooOld,
            Fault::Expired => Self::Expired,
            Fault::OutcomeUnknown => Self::OutcomeUnknown,
            Fault::Unavailable(why) => Self::Unavailable(shared(why)),
            Fault::NoRoom => Self::NoRoom,
            Fault::WrongObjects(why) => Self::WrongObjects(shared(why)),
            Fault::Corrupt(why) => Self::Corrupt(shared(why)),
        }
    }
}

/// The beginning of `text`, up to the bound.
fn short(text: &str) -> String {
    let end = text.floor_char_boundary(TEXT_BYTES_MAX);
    text[..end].to_owned()
}

/// The text for the rest of the process. Servers have a few dozen of them; a hostile one cannot
/// make the process keep more than [`TEXTS_MAX`].
fn kept(text: &str) -> &'static str {
    static TEXTS: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
    let mut texts = TEXTS.lock();
    if let Some(text) = texts.get(text) {
        return text;
    }
    if texts.len() == TEXTS_MAX {
        return OTHER_TEXT;
    }
    let text: &'static str = Box::leak(short(text).into_boxed_str());
    texts.insert(text);
    text
}
