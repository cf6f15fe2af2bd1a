//! Requests: a header, and the body of its opcode.
//!
//! A body that does not decode is still a request with an xid. It becomes [`Request::Refuse`] and
//! is answered in order. Only a frame too short for the header cannot be answered.

use coordination::{
    Error,
    model::{Lifetime, Naming, Request, WatchKind, WatchMode, Watched, Watching, Zxid},
};

use super::{Malformed, Operation, Reader};
use crate::authentication::{Authentication, IDENTITIES_BYTES_MAX};

/// A string takes at least its length field.
const STRING_BYTES_MIN: usize = 4;
/// The most parts of a multi. Each locks a few znodes, and all are decided by one write.
const PARTS_MAX: usize = 4096;
/// A time to live has 40 bits, in milliseconds.
const TIME_TO_LIVE_MS_END: i64 = 1 << 40;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Decoded {
    /// The client's number for it, which the reply repeats. Special numbers are echoed too.
    pub xid: i32,
    /// The operation, which determines the form of the reply.
    pub operation: Operation,
    /// The operations of the parts of a multi or a multi read, which determine the forms of their
    /// results.
    pub parts: Vec<Operation>,
    pub request: Request,
    /// Why it is refused, if no client sends such a request.
    pub fault: Option<Fault>,
}

/// A request that no client sends and that is answered nevertheless.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Fault {
    /// The body does not match the operation.
    #[error("{operation:?}: {malformed}")]
    Body {
        operation: Operation,
        malformed: Malformed,
    },
    /// An unknown operation. The connection closes.
    #[error("unknown opcode {0}; the connection closes")]
    Opcode(i32),
    /// An authentication in a scheme that is not offered, or without a proof. The connection
    /// closes.
    #[error("authentication failed; the connection closes")]
    Authentication,
    /// One whose identities exceed the bound of a connection. The connection closes.
    #[error(
        "authentication failed: its identities take more than {IDENTITIES_BYTES_MAX} bytes; the connection closes"
    )]
    Identities,
    /// A request before an authentication that is required. The connection closes.
    #[error("authentication required; the connection closes")]
    Unauthenticated,
}

/// Decodes a request. Fails only if the header is incomplete, or an authentication.
pub fn decode(
    mut frame: Reader<'_>,
    authentication: &mut Authentication,
) -> Result<Decoded, Malformed> {
    let xid = frame.int()?;
    let opcode = frame.int()?;
    let operation = Operation::of(opcode);
    let mut parts = Vec::new();
    let body = match operation {
        // As in ZooKeeper, one that does not decode gets no answer.
        Operation::Authenticate => Ok(authenticate(&mut frame, authentication)?),
        _ if authentication.is_missing() => Ok(Request::Refuse(Error::AuthenticationRequired)),
        Operation::Multi => multi(&mut frame, &mut parts, Operation::of_part).map(Request::Multi),
        Operation::MultiRead => {
            multi(&mut frame, &mut parts, Operation::of_read_part).map(Request::MultiRead)
        }
        operation => body(operation, &mut frame).map(|request| alone(operation, request)),
    };
    let fault = match (operation, &body) {
        (_, Ok(Request::Refuse(Error::AuthenticationRequired))) => Some(Fault::Unauthenticated),
        (_, Ok(Request::Refuse(Error::AuthenticationFailed))) if authentication.is_full() => {
            Some(Fault::Identities)
        }
        (_, Ok(Request::Refuse(Error::AuthenticationFailed))) => Some(Fault::Authentication),
        (Operation::Unknown, _) => Some(Fault::Opcode(opcode)),
        (_, Err(malformed)) => Some(Fault::Body {
            operation,
            malformed: *malformed,
        }),
        (_, Ok(_)) => None,
    };
    // As in ZooKeeper, a refused update takes a zxid like any other, unless it does not decode at
    // all.
    let request = match body {
        Ok(Request::Refuse(error))
            if is_update(operation) && error != Error::AuthenticationRequired =>
        {
            Request::RefuseUpdate(error)
        }
        Ok(mut request) => {
            if !authentication.has_x509() {
                hide_x509(&mut request);
            }
            request
        }
        Err(Malformed::Null) if is_update(operation) => Request::RefuseUpdate(Error::Marshalling),
        Err(_) if operation == Operation::Multi => Request::RefuseUpdate(Error::Marshalling),
        Err(_) => Request::Refuse(Error::Marshalling),
    };
    Ok(Decoded {
        xid,
        operation,
        parts,
        request,
        fault,
    })
}

/// A request that is no part of a multi. As in ZooKeeper, the flags of a container then make one
/// only with the operation for it, and otherwise a persistent znode.
fn alone(operation: Operation, mut request: Request) -> Request {
    if let (Operation::Create | Operation::Create2, Request::Create { lifetime, .. }) =
        (operation, &mut request)
        && *lifetime == Lifetime::Container
    {
        *lifetime = Lifetime::Persistent;
    }
    request
}

/// As in ZooKeeper, a server without a secure port does not know the scheme `x509`. The service
/// refuses an empty scheme like any unknown one.
fn hide_x509(request: &mut Request) {
    match request {
        Request::Create { acl, .. } | Request::SetAcl { acl, .. } => {
            for entry in acl.iter_mut().filter(|entry| entry.scheme == "x509") {
                entry.scheme.clear();
            }
        }
        Request::Multi(parts) => parts.iter_mut().for_each(hide_x509),
        _ => {}
    }
}

fn is_update(operation: Operation) -> bool {
    operation.creates()
        || matches!(
            operation,
            Operation::Delete
                | Operation::SetData
                | Operation::SetAcl
                | Operation::Check
                | Operation::Reconfigure
        )
}

fn body(operation: Operation, frame: &mut Reader<'_>) -> Result<Request, Malformed> {
    Ok(match operation {
        Operation::Create
        | Operation::Create2
        | Operation::CreateContainer
        | Operation::CreateTtl => create(frame, operation)?,
        Operation::Delete => delete(frame)?,
        Operation::Exists => {
            let (path, watching) = read(frame)?;
            Request::Exists { path, watching }
        }
        Operation::GetData => {
            let (path, watching) = read(frame)?;
            Request::GetData { path, watching }
        }
        Operation::SetData => set_data(frame)?,
        Operation::GetChildren | Operation::GetChildren2 => {
            let (path, watching) = read(frame)?;
            Request::GetChildren { path, watching }
        }
        // ZooKeeper does not check the path, and returns it.
        Operation::Sync => Request::Sync {
            path: frame.string()?,
        },
        Operation::Ping => Request::Ping,
        Operation::CloseSession => Request::Close,
        Operation::SetWatches => set_watches(frame, false)?,
        Operation::SetWatches2 => set_watches(frame, true)?,
        Operation::GetAcl => Request::GetAcl {
            path: frame.path()?,
        },
        Operation::SetAcl => set_acl(frame)?,
        Operation::Check => {
            let (path, version) = (frame.path()?, frame.int()?);
            Request::Check { path, version }
        }
        Operation::WhoAmI => Request::WhoAmI,
        Operation::GetEphemerals => Request::GetEphemerals {
            prefix: frame.string()?.unwrap_or_default(),
        },
        Operation::CountDescendants => Request::CountDescendants {
            path: frame.path()?,
        },
        Operation::AddWatch => add_watch(frame)?,
        Operation::CheckWatches => remove_watches(frame, true)?,
        Operation::RemoveWatches => remove_watches(frame, false)?,
        Operation::Reconfigure => {
            let _members = (frame.string()?, frame.string()?, frame.string()?);
            let _version = frame.long()?;
            Request::Refuse(Error::ReconfigurationDisabled)
        }
        Operation::NotOffered
        | Operation::Unknown
        | Operation::Authenticate
        | Operation::Multi
        | Operation::MultiRead => Request::Refuse(Error::Unimplemented),
    })
}

fn authenticate(
    frame: &mut Reader<'_>,
    authentication: &mut Authentication,
) -> Result<Request, Malformed> {
    let (_kind, scheme, proof) = (frame.int()?, frame.string()?, frame.buffer()?);
    Ok(match authentication.prove(scheme.as_deref(), proof) {
        Some(identities) => Request::Authenticate(identities),
        None => Request::Refuse(Error::AuthenticationFailed),
    })
}

fn read(frame: &mut Reader<'_>) -> Result<(String, Watching), Malformed> {
    Ok((frame.path()?, watching(frame)?))
}

/// A delete with a null path takes a zxid. One whose body ends too early does not, even with a null
/// path.
fn delete(frame: &mut Reader<'_>) -> Result<Request, Malformed> {
    let (path, version) = (frame.string()?, frame.int()?);
    Ok(Request::Delete {
        path: path.ok_or(Malformed::Null)?,
        version,
    })
}

/// Unlike elsewhere, a null path is refused as an invalid path here, because ZooKeeper checks it
/// first.
fn set_data(frame: &mut Reader<'_>) -> Result<Request, Malformed> {
    let (path, data, version) = (frame.string()?, frame.data()?, frame.int()?);
    Ok(match path {
        Some(path) => Request::SetData {
            path,
            data,
            version,
        },
        None => Request::Refuse(Error::BadArguments),
    })
}

/// The parts of a multi: a header and a body each, up to the one that says done.
fn multi(
    frame: &mut Reader<'_>,
    operations: &mut Vec<Operation>,
    operation_of: fn(i32) -> Option<Operation>,
) -> Result<Vec<Request>, Malformed> {
    let mut requests = Vec::new();
    loop {
        let (opcode, is_done, _error) = (frame.int()?, frame.bool()?, frame.int()?);
        if is_done {
            return Ok(requests);
        }
        if requests.len() >= PARTS_MAX {
            return Err(Malformed::Parts(PARTS_MAX));
        }
        let operation = operation_of(opcode).ok_or(Malformed::Part(opcode))?;
        let request = match body(operation, frame)? {
            // As in ZooKeeper, most of these end the whole multi.
            Request::Refuse(_) if operation == Operation::SetData => return Err(Malformed::Null),
            Request::Refuse(_) if operation != Operation::CreateTtl => {
                return Err(Malformed::Flags);
            }
            Request::Refuse(error) => Request::RefuseUpdate(error),
            // As in ZooKeeper, a part of a multi read sets no watch.
            Request::GetData { path, .. } => Request::GetData {
                path,
                watching: Watching::No,
            },
            Request::GetChildren { path, .. } => Request::GetChildren {
                path,
                watching: Watching::No,
            },
            request => request,
        };
        // As in ZooKeeper, a container is answered with its Stat whatever created it.
        operations.push(match &request {
            Request::Create { lifetime, .. } if *lifetime == Lifetime::Container => {
                Operation::Create2
            }
            _ => operation,
        });
        requests.push(request);
    }
}

fn set_acl(frame: &mut Reader<'_>) -> Result<Request, Malformed> {
    let path = frame.string()?;
    let acl = frame.acl()?;
    let version = frame.int()?;
    Ok(match path {
        Some(path) => Request::SetAcl { path, acl, version },
        None => Request::Refuse(Error::BadArguments),
    })
}

/// A null path becomes empty. As in ZooKeeper, a client may watch either, and no znode has it.
fn watched_path(frame: &mut Reader<'_>) -> Result<String, Malformed> {
    Ok(frame.string()?.unwrap_or_default())
}

fn add_watch(frame: &mut Reader<'_>) -> Result<Request, Malformed> {
    let (path, mode) = (watched_path(frame)?, frame.int()?);
    let mode = match mode {
        0 => WatchMode::Persistent,
        1 => WatchMode::Recursive,
        _ => return Ok(Request::Refuse(Error::Marshalling)),
    };
    Ok(Request::AddWatch { path, mode })
}

fn remove_watches(frame: &mut Reader<'_>, only_checks: bool) -> Result<Request, Malformed> {
    let (path, kind) = (watched_path(frame)?, frame.int()?);
    let kind = match kind {
        1 => WatchKind::Children,
        2 => WatchKind::Data,
        3 => WatchKind::Any,
        4 => WatchKind::Persistent,
        5 => WatchKind::Recursive,
        _ => return Ok(Request::Refuse(Error::Marshalling)),
    };
    Ok(Request::RemoveWatches {
        path,
        kind,
        only_checks,
    })
}

/// The flags are checked before the path, as in ZooKeeper.
fn create(frame: &mut Reader<'_>, operation: Operation) -> Result<Request, Malformed> {
    let path = frame.string()?;
    let data = frame.data()?;
    let acl = frame.acl()?;
    let flags = frame.int()?;
    let ms = match operation {
        Operation::CreateTtl => frame.long()?,
        _ => -1,
    };
    let (lifetime, naming) = match flags {
        0 => (Lifetime::Persistent, Naming::Given),
        1 => (Lifetime::Ephemeral, Naming::Given),
        2 => (Lifetime::Persistent, Naming::Sequential),
        3 => (Lifetime::Ephemeral, Naming::Sequential),
        4 => (Lifetime::Container, Naming::Given),
        5 => (Lifetime::TimeToLive { ms }, Naming::Given),
        6 => (Lifetime::TimeToLive { ms }, Naming::Sequential),
        _ => return Ok(Request::Refuse(Error::BadArguments)),
    };
    let lifetime = match lifetime {
        Lifetime::Persistent | Lifetime::Ephemeral if operation == Operation::CreateContainer => {
            Lifetime::Container
        }
        lifetime => lifetime,
    };
    let is_in_range = match lifetime {
        Lifetime::TimeToLive { ms } => (1..TIME_TO_LIVE_MS_END).contains(&ms),
        _ => ms < 0,
    };
    if !is_in_range {
        return Ok(Request::Refuse(Error::BadArguments));
    }
    Ok(Request::Create {
        path: path.ok_or(Malformed::Null)?,
        data,
        acl,
        lifetime,
        naming,
    })
}

fn watching(frame: &mut Reader<'_>) -> Result<Watching, Malformed> {
    Ok(if frame.bool()? {
        Watching::Yes
    } else {
        Watching::No
    })
}

fn paths<'frame>(
    frame: &mut Reader<'frame>,
    path: fn(&mut Reader<'frame>) -> Result<String, Malformed>,
) -> Result<Vec<String>, Malformed> {
    frame.vector(STRING_BYTES_MIN, path)?.ok_or(Malformed::Null)
}

/// Clients send the form with persistent watches (`setWatches2`) only if they have some.
fn set_watches(frame: &mut Reader<'_>, has_persistent: bool) -> Result<Request, Malformed> {
    let relative = Zxid(frame.long()?);
    let mut watches = Vec::new();
    for watched in [Watched::Data, Watched::Existence, Watched::Children] {
        let paths = paths(frame, Reader::path)?;
        watches.extend(paths.into_iter().map(|path| (watched, path)));
    }
    if has_persistent {
        for mode in [WatchMode::Persistent, WatchMode::Recursive] {
            let paths = paths(frame, watched_path)?;
            watches.extend(paths.into_iter().map(|path| (Watched::Lasting(mode), path)));
        }
    }
    Ok(Request::SetWatches { relative, watches })
}
