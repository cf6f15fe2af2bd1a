//! The routes of files in a volume. Each request is one transaction.
//!
//! A response with content reads one slot of the volume, however long it takes, so a file that is
//! replaced meanwhile is never seen half. That slot stays readable while a client goes on reading,
//! for up to 15 minutes. Then the response breaks off, and the client asks for the rest with
//! `Range` and `If-Match`.
//!
//! `attributes` shows the attributes of `stat`, `range` and `parameters` read a request, and
//! `changes` has the requests that change files.

mod attributes;
mod changes;
mod parameters;
mod range;

use std::{io, sync::Arc};

use axum::{
    Router,
    body::Body,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use bytes::{Bytes, BytesMut};
use files::{
    Errno, Ino, Listing, Transaction,
    model::{Attributes, Follow, Kind as FileKind},
};
use futures_util::{StreamExt as _, stream};
use serde_json::json;
use transactions::serializable::model::{PinName, Slot};

use self::{
    attributes::Shown,
    parameters::{FilePath, Parameters},
    range::Part,
};
use super::volumes::{slot_of, volume_name};
use crate::{
    backend::Backend,
    headers::{self, single},
    open_volumes::OpenVolume,
    problem::{Kind, Problem},
    request::Request,
    response::{self, Answer},
    volume_transactions::VolumeTransaction,
};

/// The bytes of a file that one response has in memory.
const PIECE_BYTES: u64 = 256 << 10;
/// The most bytes of a file that one response within a transaction has. A range is cut to it.
const WITHIN_BYTES_MAX: u64 = 4 << 20;
/// The most entries of a page.
const ENTRIES_MAX: u64 = 1_000;

pub(crate) fn routes() -> Router<Arc<Backend>> {
    let file = || {
        get(read)
            .put(changes::put)
            .post(changes::post)
            .patch(changes::set_attributes)
            .delete(changes::delete)
    };
    // The last two are the root directory.
    Router::new()
        .route("/v1/volumes/{name}/files/{*path}", file())
        .route("/v1/volumes/{name}/files/", file())
        .route("/v1/volumes/{name}/files", file())
}

/// A file or a directory at one slot.
struct Opened {
    volume: Arc<OpenVolume>,
    slot: Slot,
    attributes: Attributes,
}

async fn read(method: Method, request: Request) -> Answer {
    let known = ["list", "stat", "limit", "page", "snapshot"];
    let parameters = Parameters::of(&request.uri, &known)?;
    let page = Page::of(&parameters)?;
    if let Some(joined) = joined(&request)? {
        return read_within(&request, &parameters, page, &joined).await;
    }
    let opened = async {
        let opened = open(&request, &parameters, page.as_ref()).await?;
        let Some(page) = &page else {
            return Ok((opened, None));
        };
        let mut transaction = opened.volume.files.begin_at(opened.slot);
        let listed = page.list(&mut transaction, opened.attributes.ino).await?;
        Ok((opened, Some(listed)))
    };
    let backend = &request.backend;
    let opened = backend.within(0, Kind::Unavailable, opened).await?;
    match opened {
        (_, Some(listed)) => Ok(listed),
        (opened, None) if parameters.has("stat") => {
            Ok(response::json(&Shown::new(None, &opened.attributes)))
        }
        (opened, None) => content(&request, &method, opened).await,
    }
}

/// The open transaction that a request names. Errors: it is unknown, or on another volume.
fn joined(request: &Request) -> Result<Option<Arc<VolumeTransaction>>, Problem> {
    let Some(call) = headers::transaction(&request.headers)? else {
        return Ok(None);
    };
    let found = request.backend.on_volume(&call)?;
    let found = found.ok_or(transactions::Error::NoSuchTransaction)?;
    if *found.volume_name() != volume_name(request)? {
        let name = found.volume_name();
        let why = format!("the transaction is on the volume {name}");
        return Err(Problem::invalid(why));
    }
    Ok(Some(found))
}

/// The same within a transaction, which then depends on this read.
async fn read_within(
    request: &Request,
    parameters: &Parameters<'_>,
    page: Option<Page>,
    joined: &VolumeTransaction,
) -> Answer {
    if parameters.has("snapshot") {
        let why = "a transaction reads its own snapshot: leave `snapshot` out";
        return Err(Problem::invalid(why));
    }
    let path = FilePath::of(&request.uri)?.whole();
    let read = joined.read(async |transaction| {
        let attributes = attributes_at(transaction, &path).await?;
        if let Some(page) = &page {
            return page.list(transaction, attributes.ino).await;
        }
        if parameters.has("stat") {
            return Ok(response::json(&Shown::new(None, &attributes)));
        }
        let (status, mut headers, part) = head(request, &attributes, Some(WITHIN_BYTES_MAX))?;
        let Some(mut part) = part else {
            return Ok((status, headers).into_response());
        };
        let mut data = BytesMut::with_capacity((part.end - part.first) as usize);
        while part.first < part.end {
            let count = (part.end - part.first).min(PIECE_BYTES);
            let piece = transaction.read(attributes.ino, part.first, count).await?;
            if piece.is_empty() {
                return Err(Errno::EIO.into());
            }
            part.first += piece.len() as u64;
            data.extend_from_slice(&piece);
        }
        headers.insert(header::CONTENT_LENGTH, text(data.len().to_string()));
        Ok((status, headers, data.freeze()).into_response())
    });
    request.backend.within(0, Kind::Unavailable, read).await
}

/// Finds the inode that the path leads to, once all dependencies of the answer are durable.
async fn open(
    request: &Request,
    parameters: &Parameters<'_>,
    page: Option<&Page>,
) -> Result<Opened, Problem> {
    let path = FilePath::of(&request.uri)?.whole();
    let volume = request.backend.volumes()?;
    let volume = volume.open(&volume_name(request)?).await?;
    let mut at = page.and_then(|page| page.after.as_ref().map(|(slot, _)| *slot));
    if let Some(snapshot) = parameters.text("snapshot")? {
        at = Some(slot_of(&*volume.store, &PinName::new(snapshot)?).await?);
    }
    let mut transaction = match at {
        Some(slot) => volume.files.begin_at(slot),
        None => volume.files.begin(),
    };
    let found = attributes_at(&mut transaction, &path).await;
    volume.store.externalize(transaction.point()).await?;
    let attributes = found?;
    let slot = transaction.slot().ok_or(Errno::EIO)?;
    Ok(Opened {
        volume,
        slot,
        attributes,
    })
}

async fn attributes_at(transaction: &mut Transaction, path: &Bytes) -> Result<Attributes, Errno> {
    let found = transaction.resolve(Ino::ROOT, Follow::Yes, path).await?;
    transaction.getattr(found.ino).await
}

/// The request for a page of a directory.
struct Page {
    entries_max: usize,
    /// The slot of the former pages, and their last name.
    after: Option<(Slot, Bytes)>,
}

impl Page {
    /// `None`: no page is asked for.
    fn of(parameters: &Parameters<'_>) -> Result<Option<Self>, Problem> {
        if !parameters.has("list") {
            return Ok(None);
        }
        let entries_max = parameters.number("limit", 10)?.unwrap_or(ENTRIES_MAX);
        if !(1..=ENTRIES_MAX).contains(&entries_max) {
            return Err(Problem::invalid("limit is 1 to 1000"));
        }
        let wrong = || Problem::invalid("page is the `next` of the page before");
        let after = parameters.text("page")?.map(|token| {
            let (slot, name) = token.split_once('-')?;
            let slot = u64::from_str_radix(slot, 16).ok()?;
            Some((Slot(slot), Bytes::from(from_hex(name)?)))
        });
        Ok(Some(Self {
            entries_max: entries_max as usize,
            after: match after {
                None => None,
                Some(after) => Some(after.ok_or_else(wrong)?),
            },
        }))
    }

    /// The page in JSON. Errors: `ENOTDIR`.
    async fn list(&self, transaction: &mut Transaction, directory: Ino) -> Answer {
        let (mut listing, cookie) = match &self.after {
            Some((_, name)) => Listing::after(directory, name.clone()),
            // Without `.` and `..`.
            None => (Listing::new(directory), 2),
        };
        let count = self.entries_max + 1;
        let mut found = transaction.list(&mut listing, cookie, count).await?;
        let has_more = found.len() == count;
        found.truncate(self.entries_max);
        let mut entries = Vec::with_capacity(found.len());
        for entry in &found {
            let attributes = transaction.getattr(entry.ino).await?;
            entries.push(Shown::new(Some(&entry.name), &attributes));
        }
        let slot = transaction.slot().ok_or(Errno::EIO)?;
        let last = found.last().filter(|_| has_more);
        let next = last.map(|last| format!("{:x}-{}", slot.0, to_hex(&last.name)));
        Ok(response::json(&json!({ "entries": entries, "next": next })))
    }
}

/// The content of a file, or a part of it.
async fn content(request: &Request, method: &Method, opened: Opened) -> Answer {
    let attributes = &opened.attributes;
    let (status, mut headers, part) = head(request, attributes, None)?;
    let Some(part) = part else {
        return Ok((status, headers).into_response());
    };
    let length = (part.end - part.first).to_string();
    headers.insert(header::CONTENT_LENGTH, text(length));
    let body = if *method == Method::HEAD || part.first == part.end {
        Body::empty()
    } else {
        // The first piece shows a refusal while the status can still say so.
        let first = piece(&opened.volume, opened.slot, attributes.ino, part);
        let first = first.await?;
        following(opened, part, first)
    };
    let mut response = Response::new(body);
    *response.status_mut() = status;
    *response.headers_mut() = headers;
    Ok(response)
}

/// The status and the headers of a response, and the part of the file that it has; no part: the
/// client has it already. With `bytes_max`, a part is cut to it, and a longer file is refused.
///
/// Errors: a directory, a condition that does not hold, a range beyond the end.
fn head(
    request: &Request,
    attributes: &Attributes,
    bytes_max: Option<u64>,
) -> Result<(StatusCode, HeaderMap, Option<Part>), Problem> {
    if attributes.kind == FileKind::Directory {
        let mut problem = Problem::from(Errno::EISDIR);
        problem.detail += ": ?list lists a directory, ?stat shows its attributes";
        return Err(problem);
    }
    let (size, etag) = (attributes.size, attributes::etag(attributes));
    let mut headers = attributes::headers(attributes);
    let is_etag = |name| header_is(&request.headers, &name, &etag);
    if is_etag(header::IF_NONE_MATCH)? == Some(true) {
        return Ok((StatusCode::NOT_MODIFIED, headers, None));
    }
    if is_etag(header::IF_MATCH)? == Some(false) {
        let why = "the file has changed";
        return Err(Problem::new(Kind::ConditionNotMet, why));
    }
    let binary = HeaderValue::from_static("application/octet-stream");
    headers.insert(header::CONTENT_TYPE, binary);
    let part = match is_etag(header::IF_RANGE)? {
        Some(false) => None,
        _ => range::asked(&request.headers, size)?,
    };
    let bytes_max = bytes_max.unwrap_or(u64::MAX);
    let Some(Part { first, end }) = part else {
        if size > bytes_max {
            let why = format!("within a transaction at most {bytes_max} bytes: ask for a Range");
            return Err(Problem::new(Kind::TooLarge, why));
        }
        let whole = Part {
            first: 0,
            end: size,
        };
        return Ok((StatusCode::OK, headers, Some(whole)));
    };
    let end = end.min(first.saturating_add(bytes_max));
    let range = format!("bytes {first}-{}/{size}", end - 1);
    headers.insert(header::CONTENT_RANGE, text(range));
    Ok((
        StatusCode::PARTIAL_CONTENT,
        headers,
        Some(Part { first, end }),
    ))
}

/// Whether the header is this ETag or `*`; `None`: it is absent. Errors: it is there twice.
fn header_is(
    headers: &HeaderMap,
    name: &header::HeaderName,
    etag: &str,
) -> Result<Option<bool>, Problem> {
    let twice = |()| Problem::invalid(format!("send {name} once, as text"));
    let value = single(headers, name).map_err(twice)?;
    Ok(value.map(|value| value == "*" || value.split(',').any(|tag| tag.trim() == etag)))
}

/// `first`, and the rest of the part while the client takes it.
fn following(opened: Opened, part: Part, first: Bytes) -> Body {
    let rest = Part {
        first: part.first + first.len() as u64,
        ..part
    };
    let ino = opened.attributes.ino;
    let rest = stream::try_unfold(
        (opened, rest),
        move |(opened, mut rest): (Opened, Part)| async move {
            if rest.first >= rest.end {
                return Ok(None);
            }
            let read = piece(&opened.volume, opened.slot, ino, rest).await;
            let data = read.map_err(|errno| {
                tracing::debug!(%errno, "http: the rest of a file cannot be read");
                io::Error::other(errno)
            })?;
            rest.first += data.len() as u64;
            Ok(Some((data, (opened, rest))))
        },
    );
    let first = stream::iter([Ok::<_, io::Error>(first)]);
    Body::from_stream(first.chain(rest))
}

/// The first bytes of a part, which is not empty.
async fn piece(volume: &OpenVolume, slot: Slot, ino: Ino, part: Part) -> Result<Bytes, Errno> {
    let count = (part.end - part.first).min(PIECE_BYTES);
    let mut transaction = volume.files.begin_at(slot);
    let data = transaction.read(ino, part.first, count).await?;
    if data.is_empty() {
        // The length was read at the same slot.
        return Err(Errno::EIO);
    }
    Ok(data)
}

fn text(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("digits and words are ASCII")
}

fn to_hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    digits.collect::<Vec<_>>().concat()
}

fn from_hex(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2);
    let byte = |pair: &[u8]| {
        let [high, low] = pair else { return None };
        let digit = |digit: u8| char::from(digit).to_digit(16);
        Some((digit(*high)? << 4 | digit(*low)?) as u8)
    };
    pairs.map(byte).collect()
}
