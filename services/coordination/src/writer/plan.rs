//! Plans a request: its effect and the znodes it touches, which are then locked, or the reason for
//! refusing it.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;

use ports::key_value::Version;

use super::{
    batch::{Batch, PlanError, Refusal},
    hard_limits::{self, Growth},
};
use crate::{
    Error, access,
    broken::Broken,
    model::{Acl, Lifetime, Naming, SessionId},
    path,
    records::{Effect, Kind, NodeState, Operation, Part, Payload, Touched},
    storage::{ephemerals, expiring},
    writer::tree::{self, Asked, Locked},
};

pub(super) type Planned = (Effect, Vec<Touched>);

pub(super) type Plan = Result<Planned, PlanError>;

/// Plans one request after those already in `batch`.
pub(super) async fn plan(operation: &Operation, asked: Asked<'_>, batch: &mut Batch<'_>) -> Plan {
    let planned = match operation {
        Operation::Attach => Ok((Effect::Attach, Vec::new())),
        Operation::Close | Operation::Expire => {
            let session = batch.next_id().session;
            let paths = ephemerals::first(&mut batch.store, session, usize::MAX).await?;
            let (paths, touched) = end(session, paths, batch).await?;
            return Ok((Effect::Close { paths }, touched));
        }
        Operation::Multi(parts) => multi(parts, asked, batch).await,
        Operation::RemoveExpired { path, entry } => {
            remove_expired(path, *entry, asked, batch).await
        }
        operation => {
            let mut view = View {
                batch,
                earlier: None,
            };
            update(operation, asked, &mut view).await
        }
    }?;
    batch.index_expiring(&planned.1).await?;
    Ok(planned)
}

/// Plans the removal of a container or a znode with a time to live, if it is due.
async fn remove_expired(
    path: &str,
    entry: Version,
    asked: Asked<'_>,
    batch: &mut Batch<'_>,
) -> Plan {
    if batch.is_optimistic() && !batch.breaks(Broken::IndexesWithoutLocks) {
        // It may remove an entry of the index for a state that no decision checks.
        return Err(PlanError::Contended);
    }
    let mut view = View {
        batch,
        earlier: None,
    };
    let parent = view.locked(tree::check_delete(path)?).await?;
    let node = view.locked(path).await?;
    let due_ms = node.state.as_ref().and_then(NodeState::due_ms);
    let is_due = due_ms.is_some_and(|due_ms| due_ms < asked.now_ms);
    let is_gone = node.state.is_none();
    if is_gone || (!is_due && !batch.breaks(Broken::RemovesUnchecked)) {
        expiring::replace(&mut batch.store, path, entry, due_ms).await?;
        return Err(PlanError::Unneeded);
    }
    let touched = tree::delete(batch.next_id(), asked.identities, parent, node, -1)?;
    let paths = vec![path.to_owned()];
    Ok((Effect::Delete { paths }, touched))
}

/// The znodes from which a request is planned. It locks them.
struct View<'batch, 'writer> {
    batch: &'batch mut Batch<'writer>,
    /// If the request is a part of a multi, the znodes that the parts before it touch.
    earlier: Option<BTreeMap<String, Touched>>,
}

impl View<'_, '_> {
    async fn locked<'path>(&mut self, path: &'path str) -> Result<Locked<'path>, PlanError> {
        let state = match &self.earlier {
            None => self.batch.lock(path).await?,
            Some(earlier) => match earlier.get(path) {
                Some(touched) => touched.becomes.clone(),
                None => self.batch.lock_another(path).await?,
            },
        };
        Ok(Locked { path, state })
    }
}

/// Plans an update of the tree.
async fn update(operation: &Operation, asked: Asked<'_>, view: &mut View<'_, '_>) -> Plan {
    let id = view.batch.next_id();
    match operation {
        Operation::Create {
            path,
            data,
            acl,
            lifetime,
            naming,
        } => create((path, data, acl), *lifetime, *naming, asked, view).await,
        Operation::Delete { path, version } => {
            let parent = view.locked(tree::check_delete(path)?).await?;
            let node = view.locked(path).await?;
            let touched = tree::delete(id, asked.identities, parent, node, *version)?;
            let paths = vec![path.clone()];
            Ok((Effect::Delete { paths }, touched))
        }
        Operation::SetData {
            path,
            data,
            version,
        } => set_data(path, data, *version, asked, view).await,
        Operation::SetAcl { path, acl, version } => {
            tree::check_path(path)?;
            let acl = access::resolve(acl, asked.identities)?;
            let node = view.locked(path).await?;
            let touched = tree::set_acl(id, asked.identities, node, &acl, *version)?;
            let path = path.clone();
            Ok((Effect::SetAcl { path, acl }, touched))
        }
        Operation::Check { path, version } => {
            tree::check_path(path)?;
            let node = view.locked(path).await?;
            let touched = tree::check(id, asked.identities, node, *version)?;
            Ok((Effect::Check, touched))
        }
        Operation::Refuse(error) => Err((*error).into()),
        Operation::Attach
        | Operation::Close
        | Operation::Expire
        | Operation::RemoveExpired { .. }
        | Operation::Multi(_) => Err(Error::Marshalling.into()),
    }
}

async fn set_data(
    path: &str,
    data: &Payload,
    version: i32,
    asked: Asked<'_>,
    view: &mut View<'_, '_>,
) -> Plan {
    tree::check_path(path)?;
    let node = view.locked(path).await?;
    if let Some(quotas) = view.batch.quotas {
        // As in ZooKeeper, before the version.
        let state = node.state.as_ref().ok_or(Error::NoNode)?;
        access::check(&state.acl, asked.identities, access::WRITE)?;
        hard_limits::check(quotas, path, Growth::Set(data.bytes_len())).await?;
    }
    let asked = match node.state.as_ref().map(|state| state.kind) {
        Some(Kind::TimeToLive {
            set_at_ms: now_ms, ..
        }) if view.batch.breaks(Broken::CountsFromTheCreation) => Asked { now_ms, ..asked },
        _ => asked,
    };
    let touched = tree::set_data(view.batch.next_id(), asked, node, version)?;
    let (path, data) = (path.to_owned(), data.clone());
    Ok((Effect::SetData { path, data }, touched))
}

async fn create(
    (path, data, acl): (&str, &Payload, &[Acl]),
    lifetime: Lifetime,
    naming: Naming,
    asked: Asked<'_>,
    view: &mut View<'_, '_>,
) -> Plan {
    let parent_path = tree::check_create(path)?;
    let acl = access::resolve(acl, asked.identities)?;
    let parent = view.locked(parent_path).await?;
    let parent_state = parent.state.as_ref().ok_or(Error::NoNode)?;
    access::check(&parent_state.acl, asked.identities, access::CREATE)?;
    if path == "/" && naming == Naming::Given {
        return Err(Error::NodeExists.into());
    }
    let whole = tree::name(path, naming, parent_state)?;
    let child = view.locked(&whole).await?;
    let id = view.batch.next_id();
    let touched = tree::create(id, asked, parent, child, (lifetime, &acl))?;
    if let Some(quotas) = view.batch.quotas {
        hard_limits::check(quotas, &whole, Growth::Create(data.bytes_len())).await?;
    }
    if lifetime == Lifetime::Ephemeral {
        // Before the decision: the session's end checks superfluous entries, but cannot find a
        // missing one.
        ephemerals::add(&mut view.batch.store, id, &whole).await?;
    }
    let (path, data) = (whole, data.clone());
    Ok((Effect::Create { path, data, acl }, touched))
}

/// Plans all parts of a multi, each on the states that those before it leave.
async fn multi(parts: &[Operation], asked: Asked<'_>, batch: &mut Batch<'_>) -> Plan {
    loop {
        batch.lock_all(known_paths(parts)).await?;
        let planned = parts_in_order(parts, asked, batch).await;
        let is_too_large = match &planned {
            // Now it is among the locks that are taken in path order.
            Err(PlanError::Waited) => continue,
            Ok(planned) => batch.is_too_large(planned, asked.bytes_max),
            Err(PlanError::Refused(_)) => batch.is_refusal_too_large(asked.bytes_max),
            Err(_) => false,
        };
        if is_too_large {
            // The cause is its size, not the znodes, so it touches none of them.
            batch.forget_planned_from();
            return Err(Error::System.into());
        }
        return planned;
    }
}

async fn parts_in_order(parts: &[Operation], asked: Asked<'_>, batch: &mut Batch<'_>) -> Plan {
    let mut view = View {
        batch,
        earlier: Some(BTreeMap::new()),
    };
    let mut planned = Vec::with_capacity(parts.len());
    for (number, part) in parts.iter().enumerate() {
        let (effect, touched) = match update(part, asked, &mut view).await {
            Err(PlanError::Refused(Refusal { error, .. })) => {
                return Err(PlanError::Refused(Refusal {
                    error,
                    part: Some((number as u32, parts.len() as u32)),
                }));
            }
            planned => planned?,
        };
        let earlier = view.earlier.get_or_insert_default();
        for touched in &touched {
            if let Some(whole) = earlier.get_mut(&touched.path) {
                whole.becomes.clone_from(&touched.becomes);
            } else {
                earlier.insert(touched.path.clone(), touched.clone());
            }
        }
        let touched = touched.into_iter().map(without_acl).collect();
        planned.push(Part { effect, touched });
    }
    let merged = view.earlier.into_iter().flat_map(BTreeMap::into_values);
    Ok((Effect::Multi(planned), merged.collect()))
}

/// What a part's own change shows to the distributor, which has the ACL from the effect.
fn without_acl(mut touched: Touched) -> Touched {
    if let Some(state) = &mut touched.becomes {
        state.acl = Bytes::new();
    }
    touched
}

/// The paths that the parts certainly touch. Those of sequential znodes depend on their parents.
fn known_paths(parts: &[Operation]) -> BTreeSet<&str> {
    let mut paths = BTreeSet::new();
    for part in parts {
        let (path, has_parent, is_whole) = match part {
            Operation::Create { path, naming, .. } => (path, true, *naming == Naming::Given),
            Operation::Delete { path, .. } => (path, true, true),
            Operation::SetData { path, .. }
            | Operation::SetAcl { path, .. }
            | Operation::Check { path, .. } => (path, false, true),
            _ => continue,
        };
        if path.len() > path::PATH_BYTES_MAX {
            continue;
        }
        if has_parent && let Some((parent, _)) = path::split(path) {
            paths.insert(parent);
        }
        if is_whole {
            paths.insert(path);
        }
    }
    paths
}

/// The ephemerals that `session` loses, and the znodes that this touches.
///
/// An entry that names no znode of the session may belong to an ephemeral that another session
/// deleted, and the deletion may not be applied yet. The end must follow that deletion (rule C-3).
/// Like a refusal, it therefore touches every znode that it was planned from. A deletion of the
/// ephemeral touched its parent, and a deletion of the parent touched the znode above.
pub(super) async fn end(
    session: SessionId,
    ephemerals: Vec<String>,
    batch: &mut Batch<'_>,
) -> Result<(Vec<String>, Vec<Touched>), PlanError> {
    let parents: BTreeSet<String> = ephemerals
        .iter()
        .filter_map(|path| path::split(path))
        .map(|(parent, _)| parent.to_owned())
        .collect();
    let mut paths: BTreeSet<String> = ephemerals
        .into_iter()
        .chain(parents.iter().cloned())
        .collect();
    let locked = loop {
        let mut locked = Vec::with_capacity(paths.len());
        for path in &paths {
            let state = batch.lock(path).await?;
            locked.push(Locked { path, state });
        }
        let missing = locked
            .iter()
            .filter(|node| node.state.is_none() && parents.contains(node.path))
            .map(|node| node.path);
        match batch.lock_ancestors(missing).await? {
            Some(waited_for) => {
                batch.release_all().await?;
                paths.insert(waited_for);
            }
            None => break locked,
        }
    };
    let (mut touched, deleted) = tree::close(batch.next_id(), session, &locked);
    batch.touch_planned_from(&mut touched);
    batch.index_expiring(&touched).await?;
    Ok((deleted, touched))
}
