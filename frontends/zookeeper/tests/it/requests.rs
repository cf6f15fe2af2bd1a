//! Clients' requests, encoded a second time and independently of the server's reader.

use coordination::model::{Acl, Lifetime, Naming, Request, Watching};

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
    let (opcode, body) = match request {
        Request::Create {
            path,
            data,
            acl,
            lifetime,
            naming,
        } => {
            let flags = i32::from(*lifetime == Lifetime::Ephemeral)
                + 2 * i32::from(*naming == Naming::Sequential);
            let body = [string(path), buffer(data.as_deref()), acls(acl), int(flags)].concat();
            (if newer { 15 } else { 1 }, body)
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
        Request::SetWatches {
            relative,
            data,
            exists,
            children,
        } => {
            let mut body = [
                long(relative.0),
                strings(data),
                strings(exists),
                strings(children),
            ]
            .concat();
            if newer {
                body.extend([strings(&[]), strings(&[])].concat());
            }
            (if newer { 105 } else { 101 }, body)
        }
        Request::Close => (-11, Vec::new()),
        Request::Refuse(_) | Request::RefuseUpdate(_) => (55, Vec::new()),
    };
    frame(&[int(xid), int(opcode), body].concat())
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
