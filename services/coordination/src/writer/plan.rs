//! Plans a request: its effect and the znodes it touches, which are then locked, or the reason for
//! refusing it.

use std::collections::BTreeSet;

use super::batch::{Batch, PlanError};
use crate::{
    Error,
    model::{Acl, Lifetime, Naming, SessionId},
    path,
    records::{Effect, Operation, Payload, Touched},
    storage::ephemerals,
    writer::tree::{self, Locked},
};

pub(super) type Planned = (Effect, Vec<Touched>);

pub(super) type Plan = Result<Planned, PlanError>;

/// Plans one request after those already in `batch`.
pub(super) async fn plan(operation: &Operation, batch: &mut Batch<'_>) -> Plan {
    match operation {
        Operation::Create {
            path,
            data,
            acl,
            lifetime,
            naming,
        } => create(path, data, acl, *lifetime, *naming, batch).await,
        Operation::Delete { path, version } => {
            let parent = tree::check_delete(path)?;
            let parent = locked(parent, batch).await?;
            let node = locked(path, batch).await?;
            let touched = tree::delete(batch.next_id(), parent, node, *version)?;
            let paths = vec![path.clone()];
            Ok((Effect::Delete { paths }, touched))
        }
        Operation::SetData {
            path,
            data,
            version,
        } => {
            tree::check_set_data(path)?;
            let node = locked(path, batch).await?;
            let touched = tree::set_data(batch.next_id(), node, *version)?;
            let (path, data) = (path.clone(), data.clone());
            Ok((Effect::SetData { path, data }, touched))
        }
        Operation::Refuse(error) => Err(PlanError::Refused(*error)),
        Operation::Attach => Ok((Effect::Attach, Vec::new())),
        Operation::Close | Operation::Expire => {
            let session = batch.next_id().session;
            let paths = ephemerals::first(&mut batch.store, session, usize::MAX).await?;
            let (paths, touched) = end(session, paths, batch).await?;
            Ok((Effect::Close { paths }, touched))
        }
    }
}

async fn locked<'path>(
    path: &'path str,
    batch: &mut Batch<'_>,
) -> Result<Locked<'path>, PlanError> {
    let state = batch.lock(path).await?;
    Ok(Locked { path, state })
}

async fn create(
    path: &str,
    data: &Payload,
    acl: &[Acl],
    lifetime: Lifetime,
    naming: Naming,
    batch: &mut Batch<'_>,
) -> Plan {
    let parent_path = tree::check_create(path, acl, naming)?;
    let parent = locked(parent_path, batch).await?;
    let parent_state = parent.state.ok_or(Error::NoNode)?;
    tree::check_access(parent_path)?;
    let whole = tree::name(path, naming, parent_state)?;
    let child = locked(&whole, batch).await?;
    let touched = tree::create(batch.next_id(), parent, child, lifetime)?;
    if lifetime == Lifetime::Ephemeral {
        // Before the decision: the session's end checks superfluous entries, but cannot find a
        // missing one.
        let id = batch.next_id();
        ephemerals::add(&mut batch.store, id, &whole).await?;
    }
    Ok((
        Effect::Create {
            path: whole,
            data: data.clone(),
            acl: acl.to_vec(),
        },
        touched,
    ))
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
            locked.push(self::locked(path, batch).await?);
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
    Ok((deleted, touched))
}
