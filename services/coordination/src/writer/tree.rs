//! The rules of the tree: how a request changes the znodes it touches, or why it is refused.
//!
//! Pure functions from locked states to new states. The writer does the I/O. The order of the
//! checks is ZooKeeper's (`PrepRequestProcessor`), because clients distinguish the errors.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::{
    Error, access,
    model::{Lifetime, Naming, SessionId},
    path,
    records::{Identities, Kind, NodeState, Touched, UpdateId},
};

/// The connection that asks, and the time on the writer's clock.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'request> {
    pub(super) identities: &'request Identities,
    pub(super) now_ms: i64,
    /// The most bytes that one decision may take.
    pub(super) bytes_max: usize,
}

/// Checks the path of a create without reading the tree. Returns the parent's path.
pub(super) fn check_create(path: &str) -> Result<&str, Error> {
    if path.contains('\0') || path.len() > path::PATH_BYTES_MAX {
        return Err(Error::BadArguments);
    }
    // The name of a sequential child of the root may consist of its number.
    if path == "/" {
        return Ok(path);
    }
    Ok(path::split(path).ok_or(Error::BadArguments)?.0)
}

/// Checks a delete without reading the tree. Returns the parent's path.
pub(super) fn check_delete(path: &str) -> Result<&str, Error> {
    // As in ZooKeeper, an invalid path is reported as a missing znode.
    if path::is_reserved(path) || path.contains('\0') || path.len() > path::PATH_BYTES_MAX {
        return Err(Error::BadArguments);
    }
    Ok(path::split(path).ok_or(Error::BadArguments)?.0)
}

/// Refuses an invalid path.
pub(super) fn check_path(path: &str) -> Result<(), Error> {
    if path::is_valid(path) {
        Ok(())
    } else {
        Err(Error::BadArguments)
    }
}

/// The complete path of a znode to create in `parent`, which exists and is locked.
pub(super) fn name(path: &str, naming: Naming, parent: &NodeState) -> Result<String, Error> {
    let whole = match naming {
        Naming::Given => path.to_owned(),
        Naming::Sequential => format!("{path}{:010}", parent.creates),
    };
    if path::is_valid(&whole) {
        Ok(whole)
    } else {
        Err(Error::BadArguments)
    }
}

/// A znode with its state when it was locked.
#[derive(Debug, Clone)]
pub(super) struct Locked<'path> {
    pub(super) path: &'path str,
    pub(super) state: Option<NodeState>,
}

fn touched(path: &str, follows: Option<UpdateId>, becomes: Option<NodeState>) -> Touched {
    let path = path.to_owned();
    Touched {
        path,
        follows,
        becomes,
    }
}

/// Creates `child` in `parent`, whose ACL was checked.
pub(super) fn create(
    id: UpdateId,
    asked: Asked<'_>,
    parent: Locked<'_>,
    child: Locked<'_>,
    (lifetime, acl): (Lifetime, &Bytes),
) -> Result<Vec<Touched>, Error> {
    let before = parent.state.ok_or(Error::NoNode)?;
    if child.state.is_some() {
        return Err(Error::NodeExists);
    }
    if before.owner().is_some() {
        return Err(Error::NoChildrenForEphemerals);
    }
    let parent_after = NodeState {
        creates: before.creates.wrapping_add(1),
        children: before.children + 1,
        last: id,
        ..before
    };
    let kind = match lifetime {
        Lifetime::Persistent => Kind::Persistent,
        Lifetime::Ephemeral => Kind::Ephemeral(id),
        Lifetime::Container => Kind::Container,
        Lifetime::TimeToLive { ms } => Kind::TimeToLive {
            ms,
            set_at_ms: asked.now_ms,
        },
    };
    let child_after = NodeState::created(kind, acl.clone(), id);
    Ok(vec![
        touched(parent.path, Some(before.last), Some(parent_after)),
        touched(
            child.path,
            child.state.map(|state| state.last),
            Some(child_after),
        ),
    ])
}

/// Deletes `node` from `parent`, whose ACL decides.
pub(super) fn delete(
    id: UpdateId,
    identities: &Identities,
    parent: Locked<'_>,
    node: Locked<'_>,
    version: i32,
) -> Result<Vec<Touched>, Error> {
    // The parent is missing only for a writer that lost the first lock while it waited for the
    // second: the znode was created again meanwhile. The fence will refuse its decision.
    let parent_before = parent.state.ok_or(Error::NoNode)?;
    access::check(&parent_before.acl, identities, access::DELETE)?;
    let before = node.state.ok_or(Error::NoNode)?;
    check_version(before.version, version)?;
    if before.children > 0 {
        return Err(Error::NotEmpty);
    }
    let parent_after = NodeState {
        children: parent_before.children - 1,
        last: id,
        ..parent_before
    };
    Ok(vec![
        touched(parent.path, Some(parent_before.last), Some(parent_after)),
        touched(node.path, Some(before.last), None),
    ])
}

/// Replaces the data of `node`.
pub(super) fn set_data(
    id: UpdateId,
    asked: Asked<'_>,
    node: Locked<'_>,
    version: i32,
) -> Result<Vec<Touched>, Error> {
    let before = node.state.ok_or(Error::NoNode)?;
    access::check(&before.acl, asked.identities, access::WRITE)?;
    check_version(before.version, version)?;
    let kind = match before.kind {
        Kind::TimeToLive { ms, .. } => Kind::TimeToLive {
            ms,
            set_at_ms: asked.now_ms,
        },
        kind => kind,
    };
    let after = NodeState {
        version: before.version.wrapping_add(1),
        kind,
        last: id,
        ..before
    };
    Ok(vec![touched(node.path, Some(before.last), Some(after))])
}

/// Replaces the ACL of `node`.
pub(super) fn set_acl(
    id: UpdateId,
    identities: &Identities,
    node: Locked<'_>,
    acl: &Bytes,
    version: i32,
) -> Result<Vec<Touched>, Error> {
    let before = node.state.ok_or(Error::NoNode)?;
    access::check(&before.acl, identities, access::ADMIN)?;
    check_version(before.aversion, version)?;
    let after = NodeState {
        aversion: before.aversion.wrapping_add(1),
        acl: acl.clone(),
        last: id,
        ..before
    };
    Ok(vec![touched(node.path, Some(before.last), Some(after))])
}

/// Checks the version of `node`. Later updates of it follow the check, because it touches it.
pub(super) fn check(
    id: UpdateId,
    identities: &Identities,
    node: Locked<'_>,
    version: i32,
) -> Result<Vec<Touched>, Error> {
    let before = node.state.ok_or(Error::NoNode)?;
    access::check(&before.acl, identities, access::READ)?;
    check_version(before.version, version)?;
    let follows = Some(before.last);
    let after = NodeState { last: id, ..before };
    Ok(vec![touched(node.path, follows, Some(after))])
}

/// Deletes all znodes in `locked` that `session` owns. Their parents in `locked` remain, with fewer
/// children. Returns the touched znodes and the deleted paths.
pub(super) fn close(
    id: UpdateId,
    session: SessionId,
    locked: &[Locked<'_>],
) -> (Vec<Touched>, Vec<String>) {
    let is_owned = |node: &Locked<'_>| {
        let owner = node.state.as_ref().and_then(NodeState::owner);
        owner.is_some_and(|owner| owner.session == session)
    };
    let deleted: Vec<&str> = locked
        .iter()
        .filter(|node| is_owned(node))
        .map(|node| node.path)
        .collect();
    let mut lost: BTreeMap<&str, i32> = BTreeMap::new();
    for (parent, _) in deleted.iter().filter_map(|path| path::split(path)) {
        *lost.entry(parent).or_default() += 1;
    }
    let mut touches = Vec::new();
    for node in locked {
        let Some(before) = node.state.clone() else {
            continue;
        };
        let becomes = if is_owned(node) {
            None
        } else if let Some(lost) = lost.get(node.path) {
            Some(NodeState {
                children: before.children - lost,
                last: id,
                ..before
            })
        } else {
            continue;
        };
        touches.push(touched(node.path, Some(before.last), becomes));
    }
    (touches, deleted.into_iter().map(str::to_owned).collect())
}

fn check_version(actual: i32, expected: i32) -> Result<(), Error> {
    if expected == -1 || expected == actual {
        Ok(())
    } else {
        Err(Error::BadVersion)
    }
}

#[cfg(test)]
mod tests;
