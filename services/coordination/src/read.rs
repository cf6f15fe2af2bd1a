//! Reads: straight from the user store, in step with the process's view.
//!
//! A read looks at the store, which may be ahead of the view. What it found is shown only once the view has
//! reached it, and only if nothing that it looked at was handed out as changed since the read began; else it
//! looks again. A znode that is there carries the zxid of its last change. One that is missing does not, so
//! there the cursor, read afterwards, says how far the view has to come (rule C-5).
//!
//! Watches that are set again after a reconnect are looked at one by one, each as a read of its own, as in ZooKeeper: a
//! watch that is armed, or has been told what it missed, is done with, whatever changes while the others are looked at.

use ports::Result;

use crate::{
    Error,
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
    /// None while there is another watch to set again.
    result: Option<Result<Response, Error>>,
    looked_at: Option<Look>,
    /// The event of a watch that has missed something (set watches).
    missed: Option<(EventKind, String)>,
}

impl Found {
    fn of(zxid: Zxid, result: Result<Response, Error>) -> Self {
        Self { zxid, result: Some(result), looked_at: None, missed: None }
    }

    fn at(self, path: &str, watch: Option<Aspect>) -> Self {
        Self { looked_at: Some(Look { path: path.to_owned(), watch }), ..self }
    }

    /// Whether something it looked at was handed out as changed since `since`. If not, its watch is armed.
    pub(crate) fn is_overtaken(&self, shared: &Shared, client: Connection, since: Zxid) -> bool {
        self.looked_at.as_ref().is_some_and(|look| shared.tail.overtaken(look, since, client))
    }

    /// Whether this is all that was asked for.
    pub(crate) fn is_whole(&self) -> bool {
        self.result.is_some()
    }

    /// The event or the reply it comes to, shown at `zxid`.
    pub(crate) fn output(self, tag: i32, zxid: Zxid) -> Option<Output> {
        let event = |(kind, path)| Output::Event { zxid: None, kind, path };
        self.missed.map(event).or_else(|| self.result.map(|result| Output::Reply { tag, zxid, result }))
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
            match next_watch(data, exists, children) {
                Some((watch, path)) => look_for_missed(shared, *relative, watch, path).await,
                None => Ok(Found::of(Zxid(0), Ok(Response::WatchesSet))),
            }
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

/// What a client watched before it reconnected.
#[derive(Debug, Clone, Copy)]
enum Watched {
    Data,
    Existence,
    Children,
}

/// The watch that is looked at next. From the last one on, so that those that are done with are taken off at once.
fn next_watch<'request>(
    data: &'request [String],
    exists: &'request [String],
    children: &'request [String],
) -> Option<(Watched, &'request str)> {
    let lists = [(Watched::Data, data), (Watched::Existence, exists), (Watched::Children, children)];
    lists.into_iter().find_map(|(watched, paths)| paths.last().map(|path| (watched, path.as_str())))
}

/// Takes the watch off a request that was looked at last: it is armed, or its event is shown.
pub(crate) fn take_watch_off(request: &mut Request) {
    if let Request::SetWatches { data, exists, children, .. } = request {
        data.pop().or_else(|| exists.pop()).or_else(|| children.pop());
    }
}

/// Sets a watch again after a reconnect: what has changed since the client last looked fires at once.
async fn look_for_missed(shared: &Shared, relative: Zxid, watched: Watched, path: &str) -> Result<Found> {
    let (node, zxid) = node(shared, path).await?;
    let meta = node.map(|node| node.meta);
    let (aspect, missed) = match (watched, meta) {
        (Watched::Existence, meta) => (Aspect::Data, meta.map(|_| EventKind::NodeCreated)),
        (Watched::Data, Some(meta)) => {
            (Aspect::Data, (meta.mzxid > relative).then_some(EventKind::NodeDataChanged))
        }
        (Watched::Children, Some(meta)) => {
            (Aspect::Children, (meta.pzxid > relative).then_some(EventKind::NodeChildrenChanged))
        }
        (Watched::Data, None) => (Aspect::Data, Some(EventKind::NodeDeleted)),
        (Watched::Children, None) => (Aspect::Children, Some(EventKind::NodeDeleted)),
    };
    let looked_at = Some(Look { path: path.to_owned(), watch: missed.is_none().then_some(aspect) });
    let missed = missed.map(|kind| (kind, path.to_owned()));
    Ok(Found { zxid, result: None, looked_at, missed })
}
