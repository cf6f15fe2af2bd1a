//! The calls of transactions that are on a volume. Writes of its keys take effect together with the
//! changes that the same transaction makes to its files.
//!
//! The keys are the volume's own. Those of the default keyspace are of another order of commits, so
//! no transaction has both (T-3), and messages and invocations are refused by name.

use axum::{
    http::StatusCode,
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use transactions::model::{Attempt, Call, Key, TransactionId};
use transactions::serializable::volumes::VolumeName;

use crate::{
    body::Whole,
    problem::{Kind, Problem},
    request::Request,
    response::{self, Answer, no_content},
    volume_transactions::VolumeTransaction,
};

/// Begins a transaction on a volume, or a block of the transaction of the request's invocation.
/// Returns whether it is such a block.
pub(super) async fn begin(
    request: &Request,
    volume: String,
    id: Option<TransactionId>,
) -> Result<(Bytes, Attempt, bool), Problem> {
    let (backend, name) = (&request.backend, VolumeName::new(volume)?);
    let (volumes, transactions) = (backend.volumes()?, backend.volume_transactions()?);
    let invocation = request.invocation.as_ref().map(|of| &of.0);
    if let Some(invocation) = invocation.filter(|of| of.volume() == name.as_str()) {
        let begun = transactions.join(name.clone(), invocation, id);
        let (id, attempt) = backend.within(0, Kind::Unavailable, begun).await?;
        return Ok((id, attempt, true));
    }
    let begun = async {
        let volume = volumes.open(&name).await?;
        transactions.begin(name.clone(), volume, id).await
    };
    let (id, attempt) = backend.within(0, Kind::Unavailable, begun).await?;
    Ok((id, attempt, false))
}

pub(super) async fn read(request: &Request, open: &VolumeTransaction, key: &Key) -> Answer {
    let name = key.name().clone();
    let read = open.read(async |transaction| Ok(transaction.get_key(&name).await?));
    let found = request.backend.within(0, Kind::Unavailable, read).await?;
    response::value(found)
}

/// Sets a key, or deletes it.
pub(super) async fn write(
    request: &Request,
    open: &VolumeTransaction,
    key: &Key,
    whole: Option<Whole>,
) -> Answer {
    let (name, parts) = (key.name().clone(), whole.map(Whole::into_parts));
    let (value, buffered) = match parts {
        Some((value, buffered)) => (Some(value), buffered),
        None => (None, None),
    };
    let written = open.change(buffered, async |transaction| {
        Ok(transaction.put_key(&name, value)?)
    });
    request
        .backend
        .within(0, Kind::Unavailable, written)
        .await?;
    Ok(no_content())
}

/// Refuses messages and invocations in a transaction on a volume.
pub(super) fn refuse_effects(request: &Request, call: &Call) -> Result<(), Problem> {
    match request.backend.on_volume(call)? {
        Some(_) => Err(Problem::invalid(
            "a transaction on a volume sends no messages and no invocations: send them after its commit",
        )),
        None => Ok(()),
    }
}

/// The response to a begin.
pub(super) fn begun(shown: &impl serde::Serialize) -> Response {
    (StatusCode::CREATED, response::json(shown)).into_response()
}
