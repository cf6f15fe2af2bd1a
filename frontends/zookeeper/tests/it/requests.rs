//! Clients' requests, encoded a second time and independently of the server's reader.

use coordination::model::{
    Acl, Lifetime, Naming, Request, WatchKind, WatchMode, Watched, Watching,
};

/// The bytes of a frame with its length field.
pub(crate) fn frame(body: &[u8]) -> Vec<u8> {
    [
        &int(i32::try_from(body.len()).expect("a test's frame is small"))[..],
        body,
    ]
    .concat()
}

/// A request as a frame. `newer` selects create2, getChildren2 and setWatches2.
pub(crate) fn encode(xid: i32, request: &Request, newer: bool) -> Vec<u8> {
    let (opcode, body) = body(request, newer);
    frame(&[int(xid), int(opcode), body].concat())
}

fn create(request: &Request, newer: bool) -> (i32, Vec<u8>) {
    let Request::Create {
        path,
        data,
        acl,
        lifetime,
        naming,
    } = request
    else {
        unreachable!("the caller has a create")
    };
    let is_sequential = i32::from(*naming == Naming::Sequential);
    let (flags, ms) = match lifetime {
        Lifetime::Persistent => (2 * is_sequential, None),
        Lifetime::Ephemeral => (1 + 2 * is_sequential, None),
        Lifetime::Container => (4, None),
        Lifetime::TimeToLive { ms } => (5 + is_sequential, Some(*ms)),
    };
    let mut body = [string(path), buffer(data.as_deref()), acls(acl), int(flags)].concat();
    let opcode = match (ms, flags) {
        (Some(ms), _) => {
            body.extend(long(ms));
            21
        }
        (None, 4) if newer => 19,
        (None, _) if newer => 15,
        _ => 1,
    };
    (opcode, body)
}

fn parts(requests: &[Request], newer: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    for request in requests {
        let (opcode, body) = body(request, newer);
        bytes.extend([int(opcode), vec![0], int(-1), body].concat());
    }
    [bytes, int(-1), vec![1], int(-1)].concat()
}

fn set_watches(request: &Request, newer: bool) -> (i32, Vec<u8>) {
    let Request::SetWatches { relative, watches } = request else {
        unreachable!("the caller checks");
    };
    let of = |watched| {
        let of = watches.iter().filter(|(of, _)| *of == watched);
        let paths: Vec<_> = of.map(|(_, path)| path.clone()).collect();
        strings(&paths)
    };
    let mut body = [
        long(relative.0),
        of(Watched::Data),
        of(Watched::Existence),
        of(Watched::Children),
    ]
    .concat();
    let is_lasting = |(watched, _): &(Watched, String)| matches!(watched, Watched::Lasting(_));
    let is_new_form = newer || watches.iter().any(is_lasting);
    if is_new_form {
        body.extend(of(Watched::Lasting(WatchMode::Persistent)));
        body.extend(of(Watched::Lasting(WatchMode::Recursive)));
    }
    (if is_new_form { 105 } else { 101 }, body)
}

fn body(request: &Request, newer: bool) -> (i32, Vec<u8>) {
    match request {
        Request::Create { .. } => create(request, newer),
        Request::SetAcl { path, acl, version } => {
            (7, [string(path), acls(acl), int(*version)].concat())
        }
        Request::Check { path, version } => (13, [string(path), int(*version)].concat()),
        Request::Multi(requests) => (14, parts(requests, newer)),
        Request::MultiRead(requests) => (22, parts(requests, false)),
        Request::GetAcl { path } => (6, string(path)),
        Request::Authenticate(_) => unreachable!("tests write its bytes themselves"),
        Request::WhoAmI => (107, Vec::new()),
        Request::GetEphemerals { prefix } => (103, string(prefix)),
        Request::CountDescendants { path } => (104, string(path)),
        Request::AddWatch { path, mode } => {
            let mode = i32::from(*mode == WatchMode::Recursive);
            (106, [string(path), int(mode)].concat())
        }
        Request::RemoveWatches {
            path,
            kind,
            only_checks,
        } => {
            let kind = match kind {
                WatchKind::Children => 1,
                WatchKind::Data => 2,
                WatchKind::Any => 3,
                WatchKind::Persistent => 4,
                WatchKind::Recursive => 5,
            };
            let opcode = if *only_checks { 17 } else { 18 };
            (opcode, [string(path), int(kind)].concat())
        }
        Request::Delete { path, version } => (2, [string(path), int(*version)].concat()),
        Request::Exists { path, watching } => (3, watched(path, *watching)),
        Request::GetData { path, watching } => (4, watched(path, *watching)),
        Request::SetData {
            path,
            data,
            version,
        } => (
            5,
            [string(path), buffer(data.as_deref()), int(*version)].concat(),
        ),
        Request::GetChildren { path, watching } => {
            (if newer { 12 } else { 8 }, watched(path, *watching))
        }
        Request::Sync { path } => (9, path.as_deref().map_or_else(|| int(-1), string)),
        Request::Ping => (11, Vec::new()),
        Request::SetWatches { .. } => set_watches(request, newer),
        Request::Close => (-11, Vec::new()),
        Request::Refuse(_) | Request::RefuseUpdate(_) => (55, Vec::new()),
    }
}

pub(crate) fn int(value: i32) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

pub(crate) fn long(value: i64) -> Vec<u8> {
    value.to_be_bytes().to_vec()
}

pub(crate) fn buffer(value: Option<&[u8]>) -> Vec<u8> {
    match value {
        None => int(-1),
        Some(bytes) => [&int(bytes.len() as i32), bytes].concat(),
    }
}

pub(crate) fn string(value: &str) -> Vec<u8> {
    buffer(Some(value.as_bytes()))
}

pub(crate) fn strings(values: &[String]) -> Vec<u8> {
    values
        .iter()
        .fold(int(values.len() as i32), |bytes, value| {
            [bytes, string(value)].concat()
        })
}

fn acls(values: &[Acl]) -> Vec<u8> {
    values.iter().fold(int(values.len() as i32), |bytes, acl| {
        [
            bytes,
            int(acl.permissions),
            string(&acl.scheme),
            string(&acl.id),
        ]
        .concat()
    })
}

fn watched(path: &str, watching: Watching) -> Vec<u8> {
    [string(path), vec![u8::from(watching == Watching::Yes)]].concat()
}
