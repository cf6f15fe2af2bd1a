//! Reads: directly from the user store, consistent with the process's view.
//!
//! The store may be ahead of the view. A read's result is therefore placed at a zxid at which it is
//! completely true, once the view has reached that zxid, between the events up to it and the events
//! after it (rule C-5). Concurrent changes never force a read to start again, however fast they
//! are:
//!
//! - The state of an existing znode is true from the zxid of its last change, which it contains, to
//!   beyond the view at the time when the read began.
//! - For a missing znode the cursor, read afterwards, says how far the view must advance. The
//!   changes delivered up to there tell whether the znode was created meanwhile. In that case it
//!   was missing before the create.
//! - Children are listed in several calls, so a child that changes meanwhile may appear in either
//!   state. The changes delivered since the read began tell its state as of the last change of the
//!   parent, which is read last. A slot that is applied in parts changes parents first.
//! - A watch is also armed as of that zxid. If it would have fired since, its event is inserted at
//!   its place.
//!
//! A read starts again only if more changes were delivered since it began than the tail keeps.
//!
//! After a reconnect, watches are set again one by one, each as a read of its own, as in ZooKeeper.
//! A watch that is armed, or whose missed event is delivered, stays done even if other znodes
//! change while the remaining watches are read.

use std::collections::BTreeSet;

use ports::Result;

use crate::{
    Error, access,
    broken::Broken,
    model::{Connection, EventKind, Output, Request, Response, WatchMode, Watched, Watching, Zxid},
    path::split,
    records::Identities,
    storage::{
        ephemerals,
        user_store::{Node, Reader},
    },
    tail::{DeliveredChange, ReadTarget, Tail},
    watches::{Aspect, Watches},
};

/// How often a read starts again because it fell behind the kept changes, before other work gets a
/// turn.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

/// How often a list is retried whose length differs from the parent's child count although nothing
/// changed.
const LISTS_MAX: u32 = 100;

/// Once the results of a multi read take this many bytes, its other parts fail. A packet could
/// otherwise ask for many thousand times its size.
const GATHERED_BYTES_MAX: usize = 8 << 20;

/// The result of a read. It can be placed once the view has reached `zxid`.
#[derive(Debug)]
pub(crate) struct ReadResult {
    /// The view when the read began.
    since: Zxid,
    /// No state that the result is based on is newer than this.
    pub(crate) zxid: Zxid,
    correction: Correction,
    /// None while another watch remains to be set.
    result: Option<Result<Response, Error>>,
    /// Whether this is the result of one part of a multi read.
    is_part: bool,
    target: Option<ReadTarget>,
    /// The event that a watch missed (set watches).
    missed: Option<(EventKind, String)>,
}

/// Which changes delivered meanwhile affect the result.
#[derive(Debug)]
enum Correction {
    /// None: the result contains its own zxid, or does not concern a znode.
    NotNeeded,
    Missing(String),
    Children(String),
}

impl ReadResult {
    fn of(since: Zxid, zxid: Zxid, result: Result<Response, Error>) -> Self {
        Self {
            since,
            zxid,
            correction: Correction::NotNeeded,
            result: Some(result),
            is_part: false,
            target: None,
            missed: None,
        }
    }

    fn with_target(self, path: &str, watch: Option<Aspect>) -> Self {
        let path = path.to_owned();
        Self {
            target: Some(ReadTarget { path, watch }),
            ..self
        }
    }

    /// Corrects the result to be true at one zxid, `floor` or later, and returns that zxid. Returns
    /// `None` if more changes were delivered meanwhile than are kept. The view must have reached
    /// `zxid`.
    pub(crate) fn settle(&mut self, tail: &Tail, floor: Zxid) -> Option<Zxid> {
        if self.must_restart(tail) {
            return None;
        }
        let at = floor.max(self.zxid);
        match &self.correction {
            Correction::NotNeeded => Some(at),
            _ if tail.env.breaks(Broken::ReturnsUncorrectedReads) => Some(at),
            Correction::Missing(path) => {
                let comes_and_goes = [EventKind::NodeCreated, EventKind::NodeDeleted];
                let changes = tail.changes(self.since, at, |change| {
                    let is_its = comes_and_goes.contains(&change.kind) && change.path == *path;
                    is_its.then_some((change.zxid, change.kind))
                })?;
                match changes.last() {
                    // The znode was read before its create.
                    Some((created, EventKind::NodeCreated)) => Some(Zxid(created.0 - 1)),
                    _ => Some(at),
                }
            }
            Correction::Children(parent) => {
                let Some(Ok(Response::Children { children, stat })) = &mut self.result else {
                    return Some(at);
                };
                if stat.pzxid <= self.since {
                    return Some(at);
                }
                let changes = tail.changes(self.since, at, |change| {
                    let (of, name) = split(&change.path)?;
                    (of == parent).then(|| (change.kind, name.to_owned()))
                })?;
                let mut names: BTreeSet<String> = std::mem::take(children).into_iter().collect();
                for (kind, name) in changes {
                    match kind {
                        EventKind::NodeCreated => names.insert(name),
                        EventKind::NodeDeleted => names.remove(&name),
                        EventKind::NodeDataChanged | EventKind::NodeChildrenChanged => false,
                    };
                }
                *children = names.into_iter().collect();
                (children.len() == stat.num_children as usize).then_some(at)
            }
        }
    }

    /// Whether the znode's changes were delivered meanwhile, in the mutants that then start again.
    fn must_restart(&self, tail: &Tail) -> bool {
        let mutant = tail.env.config.mutant;
        let begins_again = mutant.breaks(Broken::RestartsReadsForever)
            || mutant.breaks(Broken::ForgetsRestoredWatches);
        if !begins_again {
            return false;
        }
        let Some(ReadTarget { path, .. }) = &self.target else {
            return false;
        };
        let is_its = |change: &DeliveredChange| (change.path == *path).then_some(());
        let changes = tail.changes(self.since, tail.applied(), is_its);
        changes.is_none_or(|changes| !changes.is_empty())
    }

    /// Arms the requested watch as of `at`. Returns false if more changes were delivered since than
    /// are kept, so it is unknown whether the watch has fired.
    pub(crate) fn arm_watch(&self, tail: &Tail, client: Connection, at: Zxid) -> bool {
        // The observed state did not change up to `since`.
        self.target
            .as_ref()
            .is_none_or(|target| tail.arm_watch(target, at.max(self.since), client))
    }

    pub(crate) fn is_whole(&self) -> bool {
        self.result.is_some() && !self.is_part
    }

    /// The event or the reply, placed at `zxid`. The result of a part of a multi read goes to
    /// `gathered`.
    pub(crate) fn output(self, tag: i32, zxid: Zxid, gathered: &mut Gathered) -> Option<Output> {
        if self.is_part {
            gathered.push(self.result?);
            return None;
        }
        let event = |(kind, path)| Output::Event {
            zxid: None,
            kind,
            path,
        };
        self.missed.map(event).or_else(|| {
            self.result
                .map(|result| Output::Reply { tag, zxid, result })
        })
    }
}

/// The connection that asks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker<'client> {
    pub(crate) connection: Connection,
    pub(crate) identities: &'client Identities,
}

impl Asker<'_> {
    /// Refuses unless it has one of `permissions` for the znode.
    fn check(&self, node: &Node, permissions: i32) -> Result<(), Error> {
        access::check(&node.acl, self.identities, permissions)
    }
}

/// Runs a read, or the next part of a multi read. `gathered` holds the results of the parts before.
pub(crate) async fn run(
    tail: &Tail,
    asker: Asker<'_>,
    request: &Request,
    gathered: &mut Gathered,
) -> Result<ReadResult> {
    match request {
        Request::MultiRead(parts) => match parts.last() {
            Some(_) if gathered.bytes > GATHERED_BYTES_MAX => Ok(ReadResult {
                is_part: true,
                ..ReadResult::of(tail.applied(), Zxid(0), Err(Error::System))
            }),
            Some(part) => Ok(ReadResult {
                is_part: true,
                ..run_one(tail, asker, part).await?
            }),
            None => {
                let results = Ok(Response::Multi(std::mem::take(gathered).results));
                Ok(ReadResult::of(tail.applied(), Zxid(0), results))
            }
        },
        request => run_one(tail, asker, request).await,
    }
}

/// The results of the parts of a multi read that have run.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    results: Vec<Result<Response, Error>>,
    bytes: usize,
}

impl Gathered {
    fn push(&mut self, result: Result<Response, Error>) {
        self.bytes += result.as_ref().map_or(0, Response::bytes_len);
        self.results.push(result);
    }
}

async fn run_one(tail: &Tail, asker: Asker<'_>, request: &Request) -> Result<ReadResult> {
    let since = tail.applied();
    match request {
        Request::Exists { path, watching } => read_existence(tail, asker, path, *watching).await,
        Request::GetData { path, watching } => read_data(tail, asker, path, *watching).await,
        Request::GetChildren { path, watching } => {
            read_children(tail, asker, path, *watching).await
        }
        Request::Sync { path } => {
            let zxid = reader(tail).cursor().await?.applying;
            let result = Ok(Response::Synced { path: path.clone() });
            Ok(ReadResult::of(since, zxid, result))
        }
        Request::Ping => Ok(ReadResult::of(since, Zxid(0), Ok(Response::Pong))),
        Request::Refuse(error) => Ok(ReadResult::of(since, Zxid(0), Err(*error))),
        Request::SetWatches { relative, watches } => match watches.last() {
            Some((watched, path)) => {
                restore_watch(tail, asker.connection, *relative, *watched, path).await
            }
            None => Ok(ReadResult::of(since, Zxid(0), Ok(Response::WatchesSet))),
        },
        Request::Authenticate(_) => Ok(ReadResult::of(since, Zxid(0), Ok(Response::Authenticated))),
        Request::WhoAmI => {
            let identities = asker.identities.decode().into_iter();
            let shown = identities.map(access::without_hash).collect();
            Ok(ReadResult::of(
                since,
                Zxid(0),
                Ok(Response::Identities(shown)),
            ))
        }
        Request::GetAcl { path } => read_acl(tail, asker, path).await,
        Request::GetEphemerals { prefix } => read_ephemerals(tail, asker, prefix).await,
        Request::CountDescendants { path } => count_descendants(tail, asker, path).await,
        Request::AddWatch { path, mode } => {
            let zxid = add_lasting_watch(tail, asker.connection, *mode, path);
            Ok(ReadResult::of(zxid, zxid, Ok(Response::WatchAdded)))
        }
        Request::RemoveWatches { .. } => Ok(remove_watches(tail, asker.connection, request)),
        Request::MultiRead(_) => Ok(ReadResult::of(since, Zxid(0), Err(Error::Unimplemented))),
        Request::Create { .. }
        | Request::Delete { .. }
        | Request::SetData { .. }
        | Request::SetAcl { .. }
        | Request::Check { .. }
        | Request::Multi(_)
        | Request::RefuseUpdate(_)
        | Request::Close => {
            unreachable!("updates go to the writer")
        }
    }
}

fn aspect(watching: Watching, aspect: Aspect) -> Option<Aspect> {
    (watching == Watching::Yes).then_some(aspect)
}

/// The path to read for `path`. As in ZooKeeper, the empty path means the root, but only to reads: events
/// name `/`, so a watch on the empty path never fires.
fn or_root(path: &str) -> &str {
    if path.is_empty() { "/" } else { path }
}

/// The store for one read. Its result would not be true at any zxid if it combined answers of
/// different incarnations.
fn reader(tail: &Tail) -> Reader {
    let store = tail.region.reader();
    if tail.env.breaks(Broken::ReadsAcrossRestarts) {
        store.untracked()
    } else {
        store
    }
}

/// A znode or its absence, and the zxid that the view must reach before it is shown.
async fn node(
    tail: &Tail,
    store: &mut Reader,
    path: &str,
) -> Result<(Option<Node>, Zxid, Correction)> {
    let Some(node) = store.get(or_root(path)).await? else {
        let zxid = store.cursor().await?.applying;
        return Ok((None, zxid, Correction::Missing(path.to_owned())));
    };
    let zxid = if tail.env.breaks(Broken::ReadsByLaterAcls) {
        node.zxid_without_acl()
    } else {
        node.zxid()
    };
    Ok((Some(node), zxid, Correction::NotNeeded))
}

/// Begins a read of a znode at which the connection needs one of `permissions`. Returns the znode
/// and the zxid that the view must reach before it is shown. Otherwise, `Err` holds the result,
/// which sets no watch.
async fn begin(
    tail: &Tail,
    store: &mut Reader,
    asker: Asker<'_>,
    since: Zxid,
    path: &str,
    permissions: i32,
) -> Result<Result<(Node, Zxid), ReadResult>> {
    let (node, zxid, correction) = node(tail, store, path).await?;
    let checked = match node {
        Some(node) => asker.check(&node, permissions).map(|()| node),
        None => Err(Error::NoNode),
    };
    Ok(match checked {
        Ok(node) => Ok((node, zxid)),
        Err(error) => Err(ReadResult {
            correction,
            ..ReadResult::of(since, zxid, Err(error)).with_target(path, None)
        }),
    })
}

async fn read_existence(
    tail: &Tail,
    asker: Asker<'_>,
    path: &str,
    watching: Watching,
) -> Result<ReadResult> {
    let since = tail.applied();
    let (node, zxid, correction) = node(tail, &mut reader(tail), path).await?;
    let result = match node {
        _ if path.contains('\0') => Err(Error::BadArguments),
        Some(node) => asker
            .check(&node, access::READ)
            .map(|()| Response::Stat(node.stat)),
        None => Err(Error::NoNode),
    };
    let watch = match result {
        Err(Error::NotAuthorized | Error::BadArguments) => None,
        _ => aspect(watching, Aspect::Data),
    };
    let found = ReadResult {
        correction,
        ..ReadResult::of(since, zxid, result)
    };
    Ok(found.with_target(path, watch))
}

async fn read_data(
    tail: &Tail,
    asker: Asker<'_>,
    path: &str,
    watching: Watching,
) -> Result<ReadResult> {
    let since = tail.applied();
    let (mut store, mut gone) = (reader(tail), None);
    loop {
        let begun = begin(tail, &mut store, asker, since, path, access::READ);
        let (node, zxid) = match begun.await? {
            Ok(begun) => begun,
            Err(refused) => return Ok(refused),
        };
        let Some(data) = tail.region.load(&node.data).await? else {
            // The znode changed and names another object now, because an object is only removed
            // after such a change.
            // If it names the same object again, the data is damaged.
            if gone.as_ref() == Some(&node.data) {
                return Err(ports::Error::corrupt(format!(
                    "read the data of {path:?}: its object is missing"
                )));
            }
            gone = Some(node.data);
            continue;
        };
        let stat = node.stat;
        return Ok(
            ReadResult::of(since, zxid, Ok(Response::Data { data, stat }))
                .with_target(path, aspect(watching, Aspect::Data)),
        );
    }
}

async fn read_acl(tail: &Tail, asker: Asker<'_>, path: &str) -> Result<ReadResult> {
    let since = tail.applied();
    let permissions = access::READ | access::ADMIN;
    let begun = begin(tail, &mut reader(tail), asker, since, path, permissions).await?;
    let (node, zxid) = match begun {
        Ok(begun) => begun,
        Err(refused) => return Ok(refused),
    };
    let mut acl = access::decode(&node.acl)?;
    if asker.check(&node, access::ADMIN).is_err() {
        acl = access::without_hashes(acl);
    }
    let stat = node.stat;
    Ok(ReadResult::of(since, zxid, Ok(Response::Acl { acl, stat })))
}

/// The session's ephemerals, as its index and the znodes' owners tell. Each is true at some zxid
/// between the one at the start of the read and the one in the reply.
async fn read_ephemerals(tail: &Tail, asker: Asker<'_>, prefix: &str) -> Result<ReadResult> {
    let (since, session) = (tail.applied(), asker.connection.session);
    let mut store = reader(tail);
    store.begin()?;
    let mut paths = ephemerals::first(&mut tail.env.system(), session, usize::MAX).await?;
    // As in ZooKeeper, a blank prefix or the root means all.
    if !matches!(prefix.trim(), "" | "/") {
        paths.retain(|path| path.starts_with(prefix));
    }
    let mut owned = Vec::with_capacity(paths.len());
    for path in paths {
        let node = store.get(&path).await?;
        if node.is_some_and(|node| node.stat.ephemeral_owner == session.0) {
            owned.push(path);
        }
    }
    let zxid = store.cursor().await?.applying;
    let result = Ok(Response::Ephemerals(owned));
    Ok(ReadResult::of(since, zxid, result))
}

async fn read_children(
    tail: &Tail,
    asker: Asker<'_>,
    path: &str,
    watching: Watching,
) -> Result<ReadResult> {
    for _ in 0..LISTS_MAX {
        let (since, mut store) = (tail.applied(), reader(tail));
        let children = store.children(or_root(path)).await?;
        let begun = begin(tail, &mut store, asker, since, path, access::READ);
        let (node, zxid) = match begun.await? {
            Ok(begun) => begun,
            Err(refused) => return Ok(refused),
        };
        let stat = node.stat;
        if stat.pzxid <= since && children.len() != stat.num_children as usize {
            continue;
        }
        let found = ReadResult {
            correction: Correction::Children(or_root(path).to_owned()),
            ..ReadResult::of(since, zxid, Ok(Response::Children { children, stat }))
        };
        return Ok(found.with_target(path, aspect(watching, Aspect::Children)));
    }
    Err(ports::Error::corrupt(format!(
        "list the children of {path:?}: their number differs from its count"
    )))
}

/// Counts the znodes below `path`, page by page. Each page is true at some zxid between the one at
/// the start of the read and the one in the reply. As in ZooKeeper, the empty path counts the root
/// too.
async fn count_descendants(tail: &Tail, asker: Asker<'_>, path: &str) -> Result<ReadResult> {
    let (since, mut store) = (tail.applied(), reader(tail));
    if let Err(refused) = begin(tail, &mut store, asker, since, path, access::READ).await? {
        return Ok(refused);
    }
    let itself = u64::from(path.is_empty());
    let count = store.count_descendants(or_root(path)).await? + itself;
    let zxid = store.cursor().await?.applying;
    let count = i32::try_from(count).unwrap_or(i32::MAX);
    Ok(ReadResult::of(since, zxid, Ok(Response::Count(count))))
}

/// Reverses the parts of a multi read, and the watches to set again. They are processed from the
/// end, and this restores ZooKeeper's order.
pub(crate) fn reverse(request: &mut Request) {
    match request {
        Request::MultiRead(parts) => parts.reverse(),
        Request::SetWatches { watches, .. } => watches.reverse(),
        _ => {}
    }
}

/// Removes the part that was read last, or the watch that was processed last: it is armed, or its
/// event is delivered.
pub(crate) fn remove_last(request: &mut Request) {
    match request {
        Request::MultiRead(parts) => drop(parts.pop()),
        Request::SetWatches { watches, .. } => drop(watches.pop()),
        _ => {}
    }
}

/// Adds a persistent watch at once. Returns the zxid at which its reply is placed: earlier changes
/// are in the client's queue and come before the reply, later ones find the watch.
fn add_lasting_watch(tail: &Tail, client: Connection, mode: WatchMode, path: &str) -> Zxid {
    let add = |watches: &mut Watches, session| watches.add_lasting(session, mode, path);
    tail.with_watches(client, add).1
}

/// Removes watches, or looks for them, at once.
fn remove_watches(tail: &Tail, client: Connection, request: &Request) -> ReadResult {
    let Request::RemoveWatches {
        path,
        kind,
        only_checks,
    } = request
    else {
        unreachable!("the caller checked the request");
    };
    let (had, zxid) = tail.with_watches(client, |watches, session| {
        if *only_checks {
            watches.has(session, *kind, path)
        } else {
            watches.remove(session, *kind, path)
        }
    });
    let result = had.then_some(Response::WatchesRemoved);
    ReadResult::of(zxid, zxid, result.ok_or(Error::NoWatcher))
}

/// As in ZooKeeper, a persistent watch misses the changes while its client was disconnected.
fn restore_lasting_watch(
    tail: &Tail,
    client: Connection,
    mode: WatchMode,
    path: &str,
) -> ReadResult {
    let zxid = if tail.env.breaks(Broken::ForgetsPersistentWatches) {
        tail.applied()
    } else {
        add_lasting_watch(tail, client, mode, path)
    };
    ReadResult {
        result: None,
        ..ReadResult::of(zxid, zxid, Ok(Response::WatchesSet))
    }
}

/// Sets a watch again after a reconnect. It fires at once if the znode changed after `relative`.
async fn restore_watch(
    tail: &Tail,
    client: Connection,
    relative: Zxid,
    watched: Watched,
    path: &str,
) -> Result<ReadResult> {
    if let Watched::Lasting(mode) = watched {
        return Ok(restore_lasting_watch(tail, client, mode, path));
    }
    let since = tail.applied();
    let (node, zxid, correction) = node(tail, &mut reader(tail), path).await?;
    let stat = node.map(|node| node.stat);
    let (aspect, missed) = match (watched, stat) {
        (Watched::Existence, stat) => (Aspect::Data, stat.map(|_| EventKind::NodeCreated)),
        (Watched::Data, Some(stat)) => (
            Aspect::Data,
            (stat.mzxid > relative).then_some(EventKind::NodeDataChanged),
        ),
        (Watched::Children, Some(stat)) => (
            Aspect::Children,
            (stat.pzxid > relative).then_some(EventKind::NodeChildrenChanged),
        ),
        (Watched::Lasting(_), _) => unreachable!("a persistent watch reads no znode"),
        (Watched::Data, None) => (Aspect::Data, Some(EventKind::NodeDeleted)),
        (Watched::Children, None) => (Aspect::Children, Some(EventKind::NodeDeleted)),
    };
    let target = Some(ReadTarget {
        path: path.to_owned(),
        watch: missed.is_none().then_some(aspect),
    });
    Ok(ReadResult {
        since,
        zxid,
        correction,
        result: None,
        is_part: false,
        target,
        missed: missed.map(|kind| (kind, path.to_owned())),
    })
}

#[cfg(test)]
mod tests;
