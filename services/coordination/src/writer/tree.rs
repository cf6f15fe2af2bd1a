//! The rules of the tree: how a request changes the znodes it touches, or why it is refused.
//!
//! Pure functions from locked states to new states. The writer does the I/O. The order of the
//! checks is ZooKeeper's (`PrepRequestProcessor`), because clients distinguish the errors.

use std::collections::BTreeMap;

use crate::{
    Error,
    model::{Acl, Lifetime, Naming, SessionId},
    path,
    records::{NodeState, Touched, UpdateId},
};

/// All permissions: read, write, create, delete, admin.
const PERMISSIONS_ALL: i32 = 0x1f;

/// Checks a create without reading the tree. Returns the parent's path.
pub(super) fn check_create<'path>(
    path: &'path str,
    acl: &[Acl],
    naming: Naming,
) -> Result<&'path str, Error> {
    if path.contains('\0') || path.len() > path::PATH_BYTES_MAX {
        return Err(Error::BadArguments);
    }
    // The name of a sequential child of the root may consist of its number.
    let parent = if path == "/" {
        path
    } else {
        path::split(path).ok_or(Error::BadArguments)?.0
    };
    check_acl(acl)?;
    if path == "/" && naming == Naming::Given {
        Err(Error::NodeExists)
    } else {
        Ok(parent)
    }
}

/// This build enforces one ACL, ZooKeeper's open one, and refuses all others. Undefined permission
/// bits are ignored, as in ZooKeeper.
fn check_acl(acl: &[Acl]) -> Result<(), Error> {
    let is_open = |acl: &Acl| {
        acl.scheme == "world"
            && acl.id == "anyone"
            && acl.permissions & PERMISSIONS_ALL == PERMISSIONS_ALL
    };
    if acl.is_empty() || !acl.iter().all(is_open) {
        Err(Error::InvalidAcl)
    } else {
        Ok(())
    }
}

/// Checks a delete without reading the tree. Returns the parent's path.
pub(super) fn check_delete(path: &str) -> Result<&str, Error> {
    // As in ZooKeeper, an invalid path is reported as a missing znode.
    if path::is_reserved(path) || path.contains('\0') || path.len() > path::PATH_BYTES_MAX {
        return Err(Error::BadArguments);
    }
    let (parent, _) = path::split(path).ok_or(Error::BadArguments)?;
    check_access(parent)?;
    Ok(parent)
}

/// Refuses to set data at an invalid path, or at a znode that clients may not change.
pub(super) fn check_set_data(path: &str) -> Result<(), Error> {
    if path::is_valid(path) {
        check_access(path)
    } else {
        Err(Error::BadArguments)
    }
}

/// Refuses changes of the znodes that only ZooKeeper's administrator may change, and of those below
/// them.
pub(super) fn check_access(path: &str) -> Result<(), Error> {
    if path == path::CONFIG {
        Err(Error::NotAuthorized)
    } else {
        Ok(())
    }
}

/// The complete path of a znode to create in `parent`, which exists and is locked.
pub(super) fn name(path: &str, naming: Naming, parent: NodeState) -> Result<String, Error> {
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
#[derive(Debug, Clone, Copy)]
pub(super) struct Locked<'path> {
    pub(super) path: &'path str,
    pub(super) state: Option<NodeState>,
}

impl Locked<'_> {
    fn becomes(self, becomes: Option<NodeState>) -> Touched {
        Touched {
            path: self.path.to_owned(),
            follows: self.state.map(|state| state.last),
            becomes,
        }
    }
}

/// Creates `child` in `parent`.
pub(super) fn create(
    id: UpdateId,
    parent: Locked<'_>,
    child: Locked<'_>,
    lifetime: Lifetime,
) -> Result<Vec<Touched>, Error> {
    let before = parent.state.ok_or(Error::NoNode)?;
    if child.state.is_some() {
        return Err(Error::NodeExists);
    }
    if before.owner.is_some() {
        return Err(Error::NoChildrenForEphemerals);
    }
    let owner = (lifetime == Lifetime::Ephemeral).then_some(id);
    let parent_after = NodeState {
        creates: before.creates.wrapping_add(1),
        children: before.children + 1,
        last: id,
        ..before
    };
    let child_after = NodeState {
        version: 0,
        creates: 0,
        children: 0,
        owner,
        last: id,
    };
    Ok(vec![
        parent.becomes(Some(parent_after)),
        child.becomes(Some(child_after)),
    ])
}

/// Deletes `node` from `parent`.
pub(super) fn delete(
    id: UpdateId,
    parent: Locked<'_>,
    node: Locked<'_>,
    version: i32,
) -> Result<Vec<Touched>, Error> {
    let before = node.state.ok_or(Error::NoNode)?;
    check_version(before.version, version)?;
    if before.children > 0 {
        return Err(Error::NotEmpty);
    }
    // The parent is missing only for a writer that lost the first lock while it waited for the
    // second: the znode was created again meanwhile. The fence will refuse its decision.
    let parent_before = parent.state.ok_or(Error::NoNode)?;
    let parent_after = NodeState {
        children: parent_before.children - 1,
        last: id,
        ..parent_before
    };
    Ok(vec![parent.becomes(Some(parent_after)), node.becomes(None)])
}

/// Replaces the data of `node`.
pub(super) fn set_data(
    id: UpdateId,
    node: Locked<'_>,
    version: i32,
) -> Result<Vec<Touched>, Error> {
    let before = node.state.ok_or(Error::NoNode)?;
    check_version(before.version, version)?;
    let after = NodeState {
        version: before.version.wrapping_add(1),
        last: id,
        ..before
    };
    Ok(vec![node.becomes(Some(after))])
}

/// Deletes all znodes in `locked` that `session` owns. Their parents in `locked` remain, with fewer
/// children. Returns the touched znodes and the deleted paths.
pub(super) fn close(
    id: UpdateId,
    session: SessionId,
    locked: &[Locked<'_>],
) -> (Vec<Touched>, Vec<String>) {
    let owner = |node: &Locked<'_>| {
        node.state
            .and_then(|state| state.owner)
            .map(|owner| owner.session)
    };
    let is_owned = |node: &Locked<'_>| owner(node) == Some(session);
    let deleted: Vec<&str> = locked
        .iter()
        .filter(|node| is_owned(node))
        .map(|node| node.path)
        .collect();
    let mut lost: BTreeMap<&str, i32> = BTreeMap::new();
    for (parent, _) in deleted.iter().filter_map(|path| path::split(path)) {
        *lost.entry(parent).or_default() += 1;
    }
    let mut touched = Vec::new();
    for node in locked {
        let Some(before) = node.state else { continue };
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
        touched.push(node.becomes(becomes));
    }
    (touched, deleted.into_iter().map(str::to_owned).collect())
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
