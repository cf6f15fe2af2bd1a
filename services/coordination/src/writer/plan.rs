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
    writer::tree::{self, Locked},
};

/// An effect and the znodes it touches.
pub(super) type Planned = (Effect, Vec<Touched>);

/// That, or why not.
pub(super) type Plan = Result<Planned, Unplanned>;

/// Plans one request behind those that are in `batch` already.
pub(super) async fn plan(writer: &Writer, operation: &Operation, batch: &mut Batch<'_>) -> Plan {
    match operation {
        Operation::Create {
            path,
            data,
            acl,
            lifetime,
            naming,
        } => create(writer, path, data, acl, *lifetime, *naming, batch).await,
        Operation::Delete { path, version } => {
            let parent = tree::check_delete(path)?;
            let parent = Locked {
                path: parent,
                state: batch.lock(parent).await?,
            };
            let node = Locked {
                path,
                state: batch.lock(path).await?,
            };
            let touched = tree::delete(batch.next_id(), parent, node, *version)?;
            Ok((
                Effect::Delete {
                    paths: vec![path.clone()],
                },
                touched,
            ))
        }
        Operation::SetData {
            path,
            data,
            version,
        } => {
            tree::check_set_data(path)?;
            let node = Locked {
                path,
                state: batch.lock(path).await?,
            };
            let touched = tree::set_data(batch.next_id(), node, *version)?;
            Ok((
                Effect::SetData {
                    path: path.clone(),
                    data: data.clone(),
                },
                touched,
            ))
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
    let parent = Locked {
        path: parent_path,
        state: batch.lock(parent_path).await?,
    };
    let parent_state = parent.state.ok_or(Error::NoNode)?;
    tree::check_access(parent_path)?;
    let whole = tree::name(path, naming, parent_state)?;
    let child = Locked {
        path: &whole,
        state: batch.lock(&whole).await?,
    };
    let touched = tree::create(batch.next_id(), parent, child, lifetime)?;
    if lifetime == Lifetime::Ephemeral {
        // Before the decision: an entry too many is seen through at the end, one too few is not.
        writer
            .ephemerals
            .add(batch.next_id(), &whole, batch.basis())
            .await?;
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

/// What vanishes of `ephemerals` when `session` loses them, and what that touches.
///
/// An entry that names nothing of the session's may be of an ephemeral that another has deleted, which may not be applied
/// yet. The end comes behind that (rule C-3): like a refusal, it touches what it was planned by. Whoever deleted the
/// ephemeral touched its parent, and whoever deleted the parent what is above.
pub(super) async fn end(
    session: SessionId,
    ephemerals: Vec<String>,
    batch: &mut Batch<'_>,
) -> Result<(Vec<String>, Vec<Touched>), Unplanned> {
    let parents = ephemerals
        .iter()
        .filter_map(|path| path::split(path))
        .map(|(parent, _)| parent.to_owned());
    let parents: BTreeSet<String> = parents.collect();
    let mut paths: BTreeSet<String> = ephemerals
        .into_iter()
        .chain(parents.iter().cloned())
        .collect();
    let locked = loop {
        let mut locked = Vec::with_capacity(paths.len());
        for path in &paths {
            locked.push(Locked {
                path,
                state: batch.lock(path).await?,
            });
        }
        let missing: Vec<&Locked<'_>> = locked.iter().filter(|node| node.state.is_none()).collect();
        let missing = missing
            .iter()
            .map(|node| node.path)
            .filter(|path| parents.contains(*path));
        match batch.anchor_all(missing).await? {
            Some(waited_for) => {
                batch.give_back().await?;
                paths.insert(waited_for);
            }
            None => break locked,
        }
    };
    let (mut touched, vanishing) = tree::close(batch.next_id(), session, &locked);
    batch.mark_beside(&mut touched);
    Ok((vanishing, touched))
}
