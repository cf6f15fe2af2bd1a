//! What a request comes to: its effect and the znodes it touches, which are locked by then, or why not.

use std::collections::BTreeSet;

use super::{
    Writer,
    batch::{Batch, Unplanned},
};
use crate::{
    Error,
    model::{Acl, Lifetime, Naming, SessionId},
    path,
    records::{Effect, Operation, Payload, Touched},
    tree::{self, Locked},
};

/// An effect and the znodes it touches.
pub(super) type Planned = (Effect, Vec<Touched>);

/// That, or why not.
pub(super) type Plan = Result<Planned, Unplanned>;

/// Plans one request behind those that are in `batch` already.
pub(super) async fn plan(writer: &Writer, operation: &Operation, batch: &mut Batch<'_>) -> Plan {
    match operation {
        Operation::Create { path, data, acl, lifetime, naming } => {
            create(writer, path, data, acl, *lifetime, *naming, batch).await
        }
        Operation::Delete { path, version } => {
            let parent = tree::check_delete(path)?;
            let parent = Locked { path: parent, state: batch.lock(parent).await? };
            let node = Locked { path, state: batch.lock(path).await? };
            let touched = tree::delete(batch.next_id(), parent, node, *version)?;
            Ok((Effect::Delete { paths: vec![path.clone()] }, touched))
        }
        Operation::SetData { path, data, version } => {
            tree::check_set_data(path)?;
            let node = Locked { path, state: batch.lock(path).await? };
            let touched = tree::set_data(batch.next_id(), node, *version)?;
            Ok((Effect::SetData { path: path.clone(), data: data.clone() }, touched))
        }
        Operation::Refuse(error) => Err(Unplanned::Refused(*error)),
        Operation::Attach => Ok((Effect::Attach, Vec::new())),
        Operation::Close | Operation::Expire => {
            let session = batch.next_id().session;
            let paths = writer.ephemerals.all(session, batch.basis()).await?;
            let (paths, touched) = end(session, paths, batch).await?;
            Ok((Effect::Close { paths }, touched))
        }
    }
}

async fn create(
    writer: &Writer,
    path: &str,
    data: &Payload,
    acl: &[Acl],
    lifetime: Lifetime,
    naming: Naming,
    batch: &mut Batch<'_>,
) -> Plan {
    let parent_path = tree::check_create(path, acl, naming)?;
    let parent = Locked { path: parent_path, state: batch.lock(parent_path).await? };
    let parent_state = parent.state.ok_or(Error::NoNode)?;
    tree::check_access(parent_path)?;
    let whole = tree::name(path, naming, parent_state)?;
    let child = Locked { path: &whole, state: batch.lock(&whole).await? };
    let touched = tree::create(batch.next_id(), parent, child, lifetime)?;
    if lifetime == Lifetime::Ephemeral {
        // Before the decision: an entry too many is seen through at the end, one too few is not.
        writer.ephemerals.add(batch.next_id(), &whole, batch.basis()).await?;
    }
    Ok((Effect::Create { path: whole, data: data.clone(), acl: acl.to_vec() }, touched))
}

/// What vanishes of `ephemerals` when `session` loses them, and what that touches.
pub(super) async fn end(
    session: SessionId,
    ephemerals: Vec<String>,
    batch: &mut Batch<'_>,
) -> Result<(Vec<String>, Vec<Touched>), Unplanned> {
    let mut paths = Vec::with_capacity(2 * ephemerals.len());
    for path in ephemerals {
        paths.extend(path::split(&path).map(|(parent, _)| parent.to_owned()));
        paths.push(path);
    }
    paths.sort_unstable();
    paths.dedup();
    let mut locked = Vec::with_capacity(paths.len());
    for path in &paths {
        locked.push(Locked { path, state: batch.lock(path).await? });
    }
    let (touched, vanishing) = tree::close(batch.next_id(), session, &locked);
    let is_touched: BTreeSet<&str> = touched.iter().map(|touched| touched.path.as_str()).collect();
    for path in paths.iter().filter(|path| !is_touched.contains(path.as_str())) {
        batch.unlock(path).await?;
    }
    Ok((vanishing, touched))
}
