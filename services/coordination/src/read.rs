//! Reads: straight from the user store, in step with the process's view.
//!
//! A read looks at the store, which may be ahead of the view. What it found is shown only once the view has
//! reached it, and only if nothing that it looked at was handed out as changed since the read began; else it
//! looks again. A znode that is there carries the zxid of its last change. One that is missing does not, so
//! there the cursor, read afterwards, says how far the view has to come (rule C-5).

use std::iter;

use ports::Result;

use crate::{
    Error,
    broken::Broken,
    gateway::Shared,
    model::{EventKind, Output, Request, Response, Stat, Watching, Zxid},
    tail::{Connection, Look},
    user_store::Node,
    watch::Aspect,
};

/// How often a read that changes overtake looks again before others get a turn.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

/// How often a znode is looked at that changes while it is being looked at.
const LOOKS_MAX: u32 = 1000;

/// What a read saw: shown once the view has reached `zxid`.
#[derive(Debug)]
pub(crate) struct Found {
    /// Everything the answer rests on has this zxid or an earlier one.
    pub(crate) zxid: Zxid,
    result: Result<Response, Error>,
    looked_at: Vec<Look>,
    /// Events of watches that have missed something (set watches).
    missed: Vec<(EventKind, String)>,
}

impl Found {
    fn of(zxid: Zxid, result: Result<Response, Error>) -> Self {
        Self { zxid, result, looked_at: Vec::new(), missed: Vec::new() }
    }

    fn at(mut self, path: &str, watch: Option<Aspect>) -> Self {
        self.looked_at.push(Look { path: path.to_owned(), watch });
        self
    }

    /// Whether something it looked at was handed out as changed since `since`. If not, its watches are armed.
    pub(crate) fn is_overtaken(&self, shared: &Shared, client: Connection, since: Zxid) -> bool {
        let at_once = match shared.config.broken {
            Some(Broken::ArmsWatchesOneByOne) => 1,
            _ => self.looked_at.len().max(1),
        };
        self.looked_at.chunks(at_once).any(|looks| shared.tail.overtaken(looks, since, client))
    }

    /// The events and the reply it comes to, shown at `zxid`.
    pub(crate) fn outputs(self, tag: i32, zxid: Zxid) -> impl Iterator<Item = Output> {
        let event = |(kind, path)| Output::Event { zxid: None, kind, path };
        let reply = Output::Reply { tag, zxid, result: self.result };
        self.missed.into_iter().map(event).chain(iter::once(reply))
    }
}

/// Looks for what `request` asks.
pub(crate) async fn look(shared: &Shared, request: &Request) -> Result<Found> {
    match request {
        Request::Exists { path, watching } => {
            let (node, zxid) = node(shared, path).await?;
            let result = if path.contains('\0') {
                Err(Error::BadArguments)
            } else {
                node.map(|node| Response::Stat(node.meta.stat())).ok_or(Error::NoNode)
            };
            Ok(Found::of(zxid, result).at(path, aspect(*watching, Aspect::Data)))
        }
        Request::GetData { path, watching } => look_for_data(shared, path, *watching).await,
        Request::GetChildren { path, watching } => look_for_children(shared, path, *watching).await,
        Request::Sync { path } => {
            let (cursor, _) = shared.region.cursor().await?.value;
            Ok(Found::of(cursor.applying, Ok(Response::Synced { path: path.clone() })))
        }
        Request::Ping => Ok(Found::of(Zxid(0), Ok(Response::Pong))),
        Request::Refuse(error) => Ok(Found::of(Zxid(0), Err(*error))),
        Request::SetWatches { relative, data, exists, children } => {
            look_for_missed(shared, *relative, data, exists, children).await
        }
        Request::Create { .. }
        | Request::Delete { .. }
        | Request::SetData { .. }
        | Request::RefuseUpdate(_)
        | Request::Close => {
            unreachable!("updates go to the writer")
        }
    }
}

fn aspect(watching: Watching, aspect: Aspect) -> Option<Aspect> {
    (watching == Watching::Yes).then_some(aspect)
}

/// The znode at `path`, and how far the view has to come to show it, or its absence.
async fn node(shared: &Shared, path: &str) -> Result<(Option<Node>, Zxid)> {
    match shared.region.get(path).await? {
        Some(node) => {
            let zxid = node.meta.zxid();
            Ok((Some(node), zxid))
        }
        None => Ok((None, shared.region.cursor().await?.value.0.applying)),
    }
}

async fn look_for_data(shared: &Shared, path: &str, watching: Watching) -> Result<Found> {
    for _ in 0..LOOKS_MAX {
        let (node, zxid) = node(shared, path).await?;
        let Some(node) = node else { return Ok(Found::of(zxid, Err(Error::NoNode)).at(path, None)) };
        // Without its object the znode has changed since: look again.
        let Some(data) = shared.region.load(&node.data).await? else { continue };
        let response = Response::Data { data, stat: node.meta.stat() };
        return Ok(Found::of(zxid, Ok(response)).at(path, aspect(watching, Aspect::Data)));
    }
    Err(ports::Error::corrupt(format!("read the data of {path:?}, whose object is gone")))
}

async fn look_for_children(shared: &Shared, path: &str, watching: Watching) -> Result<Found> {
    for _ in 0..LOOKS_MAX {
        let (before, zxid) = node(shared, path).await?;
        let Some(before) = before else { return Ok(Found::of(zxid, Err(Error::NoNode)).at(path, None)) };
        let children = shared.region.children(path).await?;
        let (after, zxid) = node(shared, path).await?;
        // Every child made or deleted in between has moved the parent's pzxid.
        let Some(stat) = unchanged(&before, after.as_ref()) else { continue };
        if children.len() != stat.num_children as usize {
            continue; // a slot was applied in parts meanwhile
        }
        let response = Response::Children { children, stat };
        return Ok(Found::of(zxid, Ok(response)).at(path, aspect(watching, Aspect::Children)));
    }
    Err(ports::Error::unavailable(format!("list the children of {path:?}, which change all the time")))
}

fn unchanged(before: &Node, after: Option<&Node>) -> Option<Stat> {
    let after = after?.meta;
    let is_same = after.pzxid == before.meta.pzxid && after.czxid == before.meta.czxid;
    is_same.then(|| after.stat())
}

/// Sets watches again after a reconnect: what has changed since the client last looked fires at once.
async fn look_for_missed(
    shared: &Shared,
    relative: Zxid,
    data: &[String],
    exists: &[String],
    children: &[String],
) -> Result<Found> {
    let mut found = Found::of(Zxid(0), Ok(Response::WatchesSet));
    let mut note = |path: &String, zxid: Zxid, fired: Option<EventKind>, aspect: Aspect| {
        found.zxid = found.zxid.max(zxid);
        found.looked_at.push(Look { path: path.clone(), watch: fired.is_none().then_some(aspect) });
        found.missed.extend(fired.map(|kind| (kind, path.clone())));
    };
    for path in data {
        let (node, zxid) = node(shared, path).await?;
        let fired = match node {
            None => Some(EventKind::NodeDeleted),
            Some(node) if node.meta.mzxid > relative => Some(EventKind::NodeDataChanged),
            Some(_) => None,
        };
        note(path, zxid, fired, Aspect::Data);
    }
    for path in exists {
        let (node, zxid) = node(shared, path).await?;
        note(path, zxid, node.map(|_| EventKind::NodeCreated), Aspect::Data);
    }
    for path in children {
        let (node, zxid) = node(shared, path).await?;
        let fired = match node {
            None => Some(EventKind::NodeDeleted),
            Some(node) if node.meta.pzxid > relative => Some(EventKind::NodeChildrenChanged),
            Some(_) => None,
        };
        note(path, zxid, fired, Aspect::Children);
    }
    Ok(found)
}
