//! Reads: straight from the user store, in step with the process's view.
//!
//! A read looks at the store, which may be ahead of the view, and is shown as of a zxid at which what it found is the
//! whole truth: once the view has reached that, between the events up to it and those behind it (rule C-5). So nothing that
//! others change makes it look again, however fast they are:
//!
//! - What is found of a znode that is there is true from the zxid of its last change, which it carries, to beyond the
//!   view of when the read began.
//! - Of one that is missing the cursor, read afterwards, says how far the view has to come; what was handed out up to
//!   there says whether it was created in between, before which it was missing.
//! - Children are listed in several calls, and a child that changes meanwhile may be seen as it was or as it is. What was
//!   handed out since the read began says which it is as of the last change of the parent, read last. A slot that is
//!   applied in parts changes parents first.
//! - A watch is left as of that zxid too: if it would have fired since, its event is put where it would have been.
//!
//! Only if more was handed out since the read began than the tail keeps it looks again.
//!
//! Watches that are set again after a reconnect are looked at one by one, each as a read of its own, as in ZooKeeper: a
//! watch that is armed, or has been told what it missed, is done with, whatever changes while the others are looked at.

use std::collections::BTreeSet;

use ports::Result;

use crate::{
    Error,
    broken::Broken,
    client::Shared,
    model::{EventKind, Output, Request, Response, Watching, Zxid},
    path::split,
    records::Payload,
    storage::user_store::Node,
    tail::{Change, Connection, Look, watches::Aspect},
};

/// How often a read looks again for which too much was handed out meanwhile, before others get a turn.
pub(crate) const ATTEMPTS_MAX: u32 = 8;

/// How often children are listed that are not as many as their parent has, although nothing has changed.
const LISTS_MAX: u32 = 100;

/// What a read saw: it can be shown once the view has reached `zxid`.
#[derive(Debug)]
pub(crate) struct Found {
    /// The view when it began.
    since: Zxid,
    /// Everything it rests on has this zxid or an earlier one.
    pub(crate) zxid: Zxid,
    sight: Sight,
    /// None while there is another watch to set again.
    result: Option<Result<Response, Error>>,
    looked_at: Option<Look>,
    /// The event of a watch that has missed something (set watches).
    missed: Option<(EventKind, String)>,
}

/// What has to be known of what was handed out meanwhile.
#[derive(Debug)]
enum Sight {
    /// Nothing: it carries its own zxid, or says nothing of a znode.
    Whole,
    /// Whether the znode that was missing was created.
    Missing(String),
    /// Which children were created and deleted.
    Children(String),
}

impl Found {
    fn of(since: Zxid, zxid: Zxid, result: Result<Response, Error>) -> Self {
        Self {
            since,
            zxid,
            sight: Sight::Whole,
            result: Some(result),
            looked_at: None,
            missed: None,
        }
    }

    fn seen(self, sight: Sight) -> Self {
        Self { sight, ..self }
    }

    fn at(self, path: &str, watch: Option<Aspect>) -> Self {
        Self {
            looked_at: Some(Look {
                path: path.to_owned(),
                watch,
            }),
            ..self
        }
    }

    /// The zxid at which it is shown, at `floor` or later, and made true there; none: too much was handed out meanwhile to
    /// know. The view has reached `zxid`.
    pub(crate) fn settle(&mut self, shared: &Shared, floor: Zxid) -> Option<Zxid> {
        if self.looks_again(shared) {
            return None;
        }
        let at = floor.max(self.zxid);
        match &self.sight {
            Sight::Whole => Some(at),
            _ if shared.config.broken == Some(Broken::ShowsWhatItSaw) => Some(at),
            Sight::Missing(path) => {
                let comes_and_goes = [EventKind::NodeCreated, EventKind::NodeDeleted];
                let changes = shared.tail.changes(self.since, at, |change| {
                    let is_its = comes_and_goes.contains(&change.kind) && change.path == *path;
                    is_its.then_some((change.zxid, change.kind))
                })?;
                match changes.last() {
                    // It was looked at before that.
                    Some((created, EventKind::NodeCreated)) => Some(Zxid(created.0 - 1)),
                    _ => Some(at),
                }
            }
            Sight::Children(parent) => {
                let Some(Ok(Response::Children { children, stat })) = &mut self.result else {
                    return Some(at);
                };
                if stat.pzxid <= self.since {
                    return Some(at);
                }
                let changes = shared.tail.changes(self.since, at, |change| {
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

    /// Whether what it looked at was handed out as changed meanwhile, in the variants that begin again then.
    fn looks_again(&self, shared: &Shared) -> bool {
        let begins_again = [
            Some(Broken::LooksAgainForEver),
            Some(Broken::ForgetsWhichWatchesAreSet),
        ];
        if !begins_again.contains(&shared.config.broken) {
            return false;
        }
        let Some(Look { path, .. }) = &self.looked_at else {
            return false;
        };
        let is_its = |change: &Change| (change.path == *path).then_some(());
        let changes = shared
            .tail
            .changes(self.since, shared.tail.applied(), is_its);
        changes.is_none_or(|changes| !changes.is_empty())
    }

    /// Leaves the watch that it asks for, as of `at`; false: too much was handed out meanwhile to know whether it has fired.
    pub(crate) fn watch(&self, shared: &Shared, client: Connection, at: Zxid) -> bool {
        // What it saw has not changed up to `since`.
        self.looked_at
            .as_ref()
            .is_none_or(|look| shared.tail.watch(look, at.max(self.since), client))
    }

    /// Whether this is all that was asked for.
    pub(crate) fn is_whole(&self) -> bool {
        self.result.is_some()
    }

    /// The event or the reply it comes to, shown at `zxid`.
    pub(crate) fn output(self, tag: i32, zxid: Zxid) -> Option<Output> {
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

/// Looks for what `request` asks.
pub(crate) async fn look(shared: &Shared, request: &Request) -> Result<Found> {
    let since = shared.tail.applied();
    match request {
        Request::Exists { path, watching } => {
            let Seen { node, zxid, sight } = node(shared, path).await?;
            let result = if path.contains('\0') {
                Err(Error::BadArguments)
            } else {
                node.map(|node| Response::Stat(node.meta.stat()))
                    .ok_or(Error::NoNode)
            };
            Ok(Found::of(since, zxid, result)
                .seen(sight)
                .at(path, aspect(*watching, Aspect::Data)))
        }
        Request::GetData { path, watching } => look_for_data(shared, path, *watching).await,
        Request::GetChildren { path, watching } => look_for_children(shared, path, *watching).await,
        Request::Sync { path } => {
            let (cursor, _) = shared.region.cursor().await?.value;
            Ok(Found::of(
                since,
                cursor.applying,
                Ok(Response::Synced { path: path.clone() }),
            ))
        }
        Request::Ping => Ok(Found::of(since, Zxid(0), Ok(Response::Pong))),
        Request::Refuse(error) => Ok(Found::of(since, Zxid(0), Err(*error))),
        Request::SetWatches {
            relative,
            data,
            exists,
            children,
        } => match next_watch(data, exists, children) {
            Some((watch, path)) => look_for_missed(shared, *relative, watch, path).await,
            None => Ok(Found::of(since, Zxid(0), Ok(Response::WatchesSet))),
        },
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

/// A znode, or that it is missing, and how far the view has to come to show that.
struct Seen {
    node: Option<Node>,
    zxid: Zxid,
    sight: Sight,
}

async fn node(shared: &Shared, path: &str) -> Result<Seen> {
    if let Some(node) = shared.region.get(path).await? {
        let zxid = node.meta.zxid();
        return Ok(Seen {
            node: Some(node),
            zxid,
            sight: Sight::Whole,
        });
    }
    let zxid = shared.region.cursor().await?.value.0.applying;
    Ok(Seen {
        node: None,
        zxid,
        sight: Sight::Missing(path.to_owned()),
    })
}

async fn look_for_data(shared: &Shared, path: &str, watching: Watching) -> Result<Found> {
    let since = shared.tail.applied();
    let mut gone = None;
    loop {
        let Seen { node, zxid, sight } = node(shared, path).await?;
        let Some(node) = node else {
            return Ok(Found::of(since, zxid, Err(Error::NoNode))
                .seen(sight)
                .at(path, None));
        };
        let Some(data) = shared.region.load(&node.data).await? else {
            // It has changed since, and names another one by now: an object goes only after that.
            check_object(path, &node.data, &mut gone)?;
            continue;
        };
        let response = Response::Data {
            data,
            stat: node.meta.stat(),
        };
        return Ok(Found::of(since, zxid, Ok(response)).at(path, aspect(watching, Aspect::Data)));
    }
}

/// Notes an object that is not there. One that is named still, although it was seen to be gone, is damage.
fn check_object(path: &str, data: &Payload, gone: &mut Option<Payload>) -> Result<()> {
    if gone.as_ref() == Some(data) {
        return Err(ports::Error::corrupt(format!(
            "read the data of {path:?}, whose object is gone"
        )));
    }
    *gone = Some(data.clone());
    Ok(())
}

async fn look_for_children(shared: &Shared, path: &str, watching: Watching) -> Result<Found> {
    for _ in 0..LISTS_MAX {
        let since = shared.tail.applied();
        let children = shared.region.children(path).await?;
        let Seen { node, zxid, sight } = node(shared, path).await?;
        let Some(node) = node else {
            return Ok(Found::of(since, zxid, Err(Error::NoNode))
                .seen(sight)
                .at(path, None));
        };
        let stat = node.meta.stat();
        if stat.pzxid <= since && children.len() != stat.num_children as usize {
            continue;
        }
        let found = Found::of(since, zxid, Ok(Response::Children { children, stat }));
        let watch = aspect(watching, Aspect::Children);
        return Ok(found.seen(Sight::Children(path.to_owned())).at(path, watch));
    }
    Err(ports::Error::corrupt(format!(
        "list the children of {path:?}, which are not as many as it has"
    )))
}

/// What a client watched before it reconnected.
#[derive(Debug, Clone, Copy)]
enum Watched {
    Data,
    Existence,
    Children,
}

/// Turns the lists of watches that are to be set again over: looked at as in ZooKeeper, list by list and in the order of each,
/// they are taken off from the end.
pub(crate) fn turn_over(request: &mut Request) {
    if let Request::SetWatches {
        data,
        exists,
        children,
        ..
    } = request
    {
        for paths in [data, exists, children] {
            paths.reverse();
        }
    }
}

/// The watch that is looked at next, of lists that were turned over.
fn next_watch<'request>(
    data: &'request [String],
    exists: &'request [String],
    children: &'request [String],
) -> Option<(Watched, &'request str)> {
    let lists = [
        (Watched::Data, data),
        (Watched::Existence, exists),
        (Watched::Children, children),
    ];
    lists
        .into_iter()
        .find_map(|(watched, paths)| paths.last().map(|path| (watched, path.as_str())))
}

/// Takes the watch off a request that was looked at last: it is armed, or its event is shown.
pub(crate) fn take_watch_off(request: &mut Request) {
    if let Request::SetWatches {
        data,
        exists,
        children,
        ..
    } = request
    {
        data.pop()
            .or_else(|| exists.pop())
            .or_else(|| children.pop());
    }
}

/// Sets a watch again after a reconnect: what has changed since the client last looked fires at once.
///
/// As in ZooKeeper the empty path is the root here too; but who watches it so hears nothing of what changes later, since that
/// is told of `/`.
async fn look_for_missed(
    shared: &Shared,
    relative: Zxid,
    watched: Watched,
    path: &str,
) -> Result<Found> {
    let since = shared.tail.applied();
    let Seen { node, zxid, sight } = node(shared, if path.is_empty() { "/" } else { path }).await?;
    let meta = node.map(|node| node.meta);
    let (aspect, missed) = match (watched, meta) {
        (Watched::Existence, meta) => (Aspect::Data, meta.map(|_| EventKind::NodeCreated)),
        (Watched::Data, Some(meta)) => (
            Aspect::Data,
            (meta.mzxid > relative).then_some(EventKind::NodeDataChanged),
        ),
        (Watched::Children, Some(meta)) => (
            Aspect::Children,
            (meta.pzxid > relative).then_some(EventKind::NodeChildrenChanged),
        ),
        (Watched::Data, None) => (Aspect::Data, Some(EventKind::NodeDeleted)),
        (Watched::Children, None) => (Aspect::Children, Some(EventKind::NodeDeleted)),
    };
    let looked_at = Some(Look {
        path: path.to_owned(),
        watch: missed.is_none().then_some(aspect),
    });
    let missed = missed.map(|kind| (kind, path.to_owned()));
    Ok(Found {
        since,
        zxid,
        sight,
        result: None,
        looked_at,
        missed,
    })
}

#[cfg(test)]
mod tests;
