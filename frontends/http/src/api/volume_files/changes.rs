//! Requests that change files.
//!
//! A change is durable when its response is sent. A request from a step of a workflow first waits
//! for the dependencies of the step (rule P5), because files belong to no step.

use std::sync::Arc;

use axum::{
    body::Body,
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};
use bytes::Bytes;
use files::{
    Errno, Ino, Result, Transaction,
    model::{
        Access, Follow, Found, Kind as FileKind, Privileges, RenameMode, SetAttributes, SetTime,
        Time,
    },
};
use futures_util::future::{BoxFuture, FutureExt as _};
use serde::Deserialize;
use tokio::sync::OwnedSemaphorePermit;

use super::{
    attributes, joined,
    parameters::{FilePath, Parameters},
};
use crate::{
    api::volumes::volume_name,
    body,
    headers::{refuse_conditions_but, single},
    problem::{Kind, Problem},
    request::{BODY_BYTES_MAX, Request},
    response::{Answer, no_content},
};

/// The mode of a new file, unless the request has `mode`.
const FILE_MODE: u32 = 0o644;
/// The mode of a new directory, unless the request has `mode`.
const DIRECTORY_MODE: u32 = 0o755;
const NO_BODY: &str = "this takes no body";

/// A condition that the file at a path must meet.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Condition {
    Nothing,
    IsAbsent,
    Exists,
    HasTag(String),
}

/// Where data go.
#[derive(Debug, Clone, Copy)]
enum Place {
    /// They replace the content.
    Whole,
    At(u64),
    End,
}

#[derive(Debug)]
struct Write {
    path: FilePath,
    data: Bytes,
    place: Place,
    mode: u32,
    makes_parents: bool,
    condition: Condition,
}

/// The end of a change.
#[derive(Debug)]
enum Done {
    /// Something new is at the path.
    Created {
        etag: Option<String>,
    },
    Changed {
        etag: Option<String>,
    },
    /// The condition does not hold, and nothing changed.
    NotMet,
}

/// Writes a file: its whole content, or the bytes at `offset`.
pub(super) async fn put(request: Request, body: Body) -> Answer {
    let parameters = Parameters::of(&request.uri, &["offset", "mode", "parents"])?;
    let place = match parameters.number("offset", 10)? {
        Some(offset) => Place::At(offset),
        None => Place::Whole,
    };
    write(&request, &parameters, place, body).await
}

/// Appends to a file, makes a directory, or renames.
pub(super) async fn post(request: Request, body: Body) -> Answer {
    let known = [
        "append",
        "mkdir",
        "rename-to",
        "mode",
        "parents",
        "noreplace",
    ];
    let parameters = Parameters::of(&request.uri, &known)?;
    let asked = ["append", "mkdir", "rename-to"];
    match asked.map(|name| parameters.has(name)) {
        [true, false, false] => write(&request, &parameters, Place::End, body).await,
        [false, true, false] => mkdir(&request, &parameters, body).await,
        [false, false, true] => rename(&request, &parameters, body).await,
        _ => Err(Problem::invalid(
            "a POST has one of ?append, ?mkdir and ?rename-to=PATH",
        )),
    }
}

async fn write(request: &Request, parameters: &Parameters<'_>, place: Place, body: Body) -> Answer {
    let write = Write {
        path: FilePath::of(&request.uri)?,
        data: Bytes::new(),
        place,
        mode: mode(parameters)?.unwrap_or(FILE_MODE),
        makes_parents: parameters.has("parents"),
        condition: condition(&request.headers)?,
    };
    request.backend.volumes()?;
    // It counts against the budget until the change has ended.
    let whole = request.read(body, request.backend.value_bytes_max).await?;
    let (data, buffered) = whole.into_parts();
    let bytes = data.len();
    let write = Arc::new(Write { data, ..write });
    change(request, bytes, buffered, move |transaction| {
        let write = write.clone();
        async move { write.run(transaction).await }.boxed()
    })
    .await
}

impl Write {
    async fn run(&self, transaction: &mut Transaction) -> Result<Done> {
        let path = self.path.whole();
        let found = existing(transaction, &path, Follow::Yes).await?;
        if !self.condition.holds(transaction, found).await? {
            return Ok(Done::NotMet);
        }
        let ino = match found {
            Some(found) if found.kind == FileKind::Directory => return Err(Errno::EISDIR),
            Some(found) => found.ino,
            None => self.create(transaction).await?,
        };
        let privileges = Privileges::Clear;
        match self.place {
            Place::Whole => {
                if found.is_some() {
                    transaction.truncate(ino, 0).await?;
                }
                transaction.write(ino, 0, privileges, &self.data).await?;
            }
            Place::At(offset) => {
                transaction
                    .write(ino, offset, privileges, &self.data)
                    .await?;
            }
            Place::End => transaction.append(ino, privileges, &self.data).await?,
        }
        // A part of a file does not depend on its length, which the ETag would.
        let etag = match self.place {
            Place::Whole => Some(attributes::etag(&transaction.getattr(ino).await?)),
            Place::At(_) | Place::End => None,
        };
        Ok(match found {
            Some(_) => Done::Changed { etag },
            None => Done::Created { etag },
        })
    }

    async fn create(&self, transaction: &mut Transaction) -> Result<Ino> {
        let (_, name) = self.path.parent_and_name(Errno::EISDIR)?;
        let parent = directory_of(transaction, &self.path, self.makes_parents).await?;
        let access = inherited(&parent, self.mode);
        transaction.create(parent.ino, access, name).await
    }
}

impl Condition {
    async fn holds(&self, transaction: &mut Transaction, found: Option<Found>) -> Result<bool> {
        Ok(match (self, found) {
            (Self::Nothing, _) => true,
            (Self::IsAbsent, found) => found.is_none(),
            (Self::Exists, found) => found.is_some(),
            (Self::HasTag(_), None) => false,
            (Self::HasTag(tag), Some(found)) => {
                let attributes = transaction.getattr(found.ino).await?;
                attributes::etag(&attributes) == *tag
            }
        })
    }
}

async fn mkdir(request: &Request, parameters: &Parameters<'_>, body: Body) -> Answer {
    refuse_conditions_but(&request.headers, &[])?;
    body::refuse(body, NO_BODY).await?;
    let path = Arc::new(FilePath::of(&request.uri)?);
    let mode = mode(parameters)?.unwrap_or(DIRECTORY_MODE);
    let makes_parents = parameters.has("parents");
    change(request, 0, None, move |transaction| {
        let path = path.clone();
        async move {
            let whole = path.whole();
            let found = existing(transaction, &whole, Follow::Yes).await?;
            if makes_parents && found.is_some_and(|found| found.kind == FileKind::Directory) {
                return Ok(Done::Changed { etag: None });
            }
            let (_, name) = path.parent_and_name(Errno::EEXIST)?;
            let parent = directory_of(transaction, &path, makes_parents).await?;
            let access = inherited(&parent, mode);
            transaction.mkdir(parent.ino, access, name).await?;
            Ok(Done::Created { etag: None })
        }
        .boxed()
    })
    .await
}

async fn rename(request: &Request, parameters: &Parameters<'_>, body: Body) -> Answer {
    refuse_conditions_but(&request.headers, &[])?;
    body::refuse(body, NO_BODY).await?;
    let to = parameters.bytes("rename-to").unwrap_or_default();
    let paths = Arc::new((FilePath::of(&request.uri)?, FilePath::parsed(to)?));
    let mode = if parameters.has("noreplace") {
        RenameMode::NoReplace
    } else {
        RenameMode::Replace
    };
    change(request, 0, None, move |transaction| {
        let paths = paths.clone();
        async move {
            let (from, to) = &*paths;
            let (_, from_name) = from.parent_and_name(Errno::EBUSY)?;
            let (_, to_name) = to.parent_and_name(Errno::EBUSY)?;
            let from = directory_of(transaction, from, false).await?.ino;
            let to = directory_of(transaction, to, false).await?.ino;
            let renamed = transaction.rename(from, to, mode, from_name, to_name);
            renamed.await?;
            Ok(Done::Changed { etag: None })
        }
        .boxed()
    })
    .await
}

/// Removes a file, a symbolic link or an empty directory.
pub(super) async fn delete(request: Request, body: Body) -> Answer {
    Parameters::of(&request.uri, &[])?;
    let condition = condition(&request.headers)?;
    body::refuse(body, NO_BODY).await?;
    let asked = Arc::new((FilePath::of(&request.uri)?, condition));
    change(&request, 0, None, move |transaction| {
        let asked = asked.clone();
        async move {
            let (path, condition) = &*asked;
            let found = existing(transaction, &path.whole(), Follow::No).await?;
            if !condition.holds(transaction, found).await? {
                return Ok(Done::NotMet);
            }
            let found = found.ok_or(Errno::ENOENT)?;
            let (_, name) = path.parent_and_name(Errno::EBUSY)?;
            let parent = directory_of(transaction, path, false).await?.ino;
            if found.kind == FileKind::Directory {
                transaction.rmdir(parent, name).await?;
            } else {
                transaction.unlink(parent, name).await?;
            }
            Ok(Done::Changed { etag: None })
        }
        .boxed()
    })
    .await
}

/// The changes of a PATCH. Absent ones change nothing.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Changes {
    mode: Option<u32>,
    uid: Option<u32>,
    gid: Option<u32>,
    size: Option<u64>,
    atime_ns: Option<i64>,
    mtime_ns: Option<i64>,
}

/// Changes the attributes of a file, its length among them.
pub(super) async fn set_attributes(request: Request, body: Body) -> Answer {
    Parameters::of(&request.uri, &[])?;
    refuse_conditions_but(&request.headers, &[])?;
    let path = FilePath::of(&request.uri)?.whole();
    let whole = request.read(body, BODY_BYTES_MAX).await?;
    let changes: Changes = serde_json::from_slice(&whole.bytes).map_err(|error| {
        Problem::invalid(format!(
            "an object with some of mode, uid, gid, size, atime_ns and mtime_ns: {error}"
        ))
    })?;
    let time = |ns: i64| {
        SetTime::To(Time {
            seconds: ns.div_euclid(1_000_000_000),
            nanoseconds: ns.rem_euclid(1_000_000_000) as u32,
        })
    };
    let set = SetAttributes {
        mode: changes.mode,
        uid: changes.uid,
        gid: changes.gid,
        size: changes.size,
        atime: changes.atime_ns.map(time),
        mtime: changes.mtime_ns.map(time),
        privileges: Privileges::Keep,
    };
    change(&request, 0, None, move |transaction| {
        let path = path.clone();
        async move {
            let found = transaction.resolve(Ino::ROOT, Follow::Yes, &path).await?;
            transaction.setattr(found.ino, set).await?;
            Ok(Done::Changed { etag: None })
        }
        .boxed()
    })
    .await
}

/// Runs `work` as one transaction, and answers once it is durable. If the request names a
/// transaction, `work` runs within that, which then keeps the memory of the body, `buffered`.
async fn change<F>(
    request: &Request,
    bytes: usize,
    buffered: Option<OwnedSemaphorePermit>,
    work: F,
) -> Answer
where
    F: for<'a> Fn(&'a mut Transaction) -> BoxFuture<'a, Result<Done>>,
{
    let (backend, name) = (&request.backend, volume_name(request)?);
    let volumes = backend.volumes()?;
    if let Some(open) = joined(request)? {
        // It takes effect with the transaction.
        let done = async {
            let changed = open.change(buffered, async |transaction| Ok(work(transaction).await?));
            let done = changed.await?;
            open.show_changes().await?;
            Ok(done)
        };
        return answer(backend.within(0, Kind::OutcomeUnknown, done).await?);
    }
    request.settle().await?;
    let done = async {
        let volume = volumes.open(&name).await?;
        let done = volume.files.transact_durably(work).await;
        if done.is_err() {
            // A refusal too depends on the state that the transaction read.
            volume.files.settle().await.map_err(of_change)?;
        }
        done.map_err(of_change)
    };
    answer(backend.within(bytes, Kind::OutcomeUnknown, done).await?)
}

fn answer(done: Done) -> Answer {
    let (status, etag) = match done {
        Done::Created { etag } => (StatusCode::CREATED, etag),
        Done::Changed { etag } => (StatusCode::NO_CONTENT, etag),
        Done::NotMet => {
            let why = "the file has changed, or exists already, or does not; nothing was written";
            return Err(Problem::new(Kind::ConditionNotMet, why));
        }
    };
    let etag = etag.map(|etag| [(header::ETAG, etag)]);
    Ok(match etag {
        Some(etag) => (status, etag).into_response(),
        None if status == StatusCode::NO_CONTENT => no_content(),
        None => status.into_response(),
    })
}

/// After an I/O error a change may have taken effect.
fn of_change(errno: Errno) -> Problem {
    match errno {
        Errno::EIO => Problem::from(errno).but(Kind::OutcomeUnknown),
        errno => errno.into(),
    }
}

/// The inode at a path, if there is one.
async fn existing(
    transaction: &mut Transaction,
    path: &Bytes,
    follow: Follow,
) -> Result<Option<Found>> {
    match transaction.resolve(Ino::ROOT, follow, path).await {
        Ok(found) => Ok(Some(found)),
        Err(Errno::ENOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// The directory above a path. Errors: `ENOENT` if it is missing and not `is_made`.
async fn directory_of(
    transaction: &mut Transaction,
    path: &FilePath,
    is_made: bool,
) -> Result<Found> {
    if !is_made {
        let (parent, _) = path.parent_and_name(Errno::EBUSY)?;
        return transaction.resolve(Ino::ROOT, Follow::Yes, &parent).await;
    }
    let mut found = transaction.lookup(Ino::ROOT, b".").await?;
    for name in path.parents() {
        let next = transaction.resolve(found.ino, Follow::Yes, name).await;
        found = match next {
            Err(Errno::ENOENT) => {
                let access = inherited(&found, DIRECTORY_MODE);
                let ino = transaction.mkdir(found.ino, access, name).await?;
                let kind = FileKind::Directory;
                Found { ino, kind, access }
            }
            next => next?,
        };
    }
    Ok(found)
}

/// The access of something new: it belongs to the owner of its directory, as a request has no user.
fn inherited(parent: &Found, mode: u32) -> Access {
    Access {
        mode,
        ..parent.access
    }
}

/// The parameter `mode`, in octal digits.
fn mode(parameters: &Parameters<'_>) -> Result<Option<u32>, Problem> {
    let mode = parameters.number("mode", 8)?;
    let wrong = || Problem::invalid("mode is 0 to 7777 in octal digits");
    let fits = |mode| u32::try_from(mode).ok().filter(|mode| *mode <= 0o7777);
    mode.map(|mode| fits(mode).ok_or_else(wrong)).transpose()
}

/// The condition of a change. Errors: it is another one than a file can have.
fn condition(headers: &HeaderMap) -> Result<Condition, Problem> {
    refuse_conditions_but(headers, &[header::IF_MATCH, header::IF_NONE_MATCH])?;
    let text = |name| {
        single(headers, &name).map_err(|()| Problem::invalid(format!("send {name} once, as text")))
    };
    Ok(
        match (text(header::IF_MATCH)?, text(header::IF_NONE_MATCH)?) {
            (None, None) => Condition::Nothing,
            (None, Some("*")) => Condition::IsAbsent,
            (Some("*"), None) => Condition::Exists,
            (Some(tag), None) if !tag.contains(',') => Condition::HasTag(tag.to_owned()),
            _ => {
                let why = "a change takes one condition: If-None-Match with *, or If-Match with * or one ETag";
                return Err(Problem::invalid(why));
            }
        },
    )
}
