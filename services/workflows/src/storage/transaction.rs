//! The transaction of a step or run near: begun, filled with its changes, and committed.

use bytes::Bytes;
use ports::DurabilityPoint;
use transactions::{
    Engine,
    model::{Begin, Begun, Call, Key, Outcome, TransactionId},
};

use super::changes::Changes;
use crate::{Error, Result};

/// A key of functions' state, as transactions take it.
pub(crate) fn state_key(key: &Bytes) -> Result<Key> {
    Ok(Key::new(key.clone())?)
}

/// Begins a transaction, or returns the point of its earlier commit.
pub(crate) async fn begin(engine: &Engine, begin: Begin) -> Result<Result<Call, DurabilityPoint>> {
    let begun = engine.begin(begin).await?;
    Ok(match begun.value {
        Begun::Open { id, attempt } => Ok(Call {
            id,
            attempt: Some(attempt),
        }),
        Begun::Committed { .. } => Err(begun.point),
    })
}

/// Writes and sends all changes and commits them; on an error none takes effect.
pub(crate) async fn commit(
    engine: &Engine,
    call: &Call,
    changes: Changes,
) -> Result<DurabilityPoint> {
    let written = async {
        for (key, value) in changes.writes {
            match value {
                Some(value) => engine.put(call, state_key(&key)?, value).await?,
                None => engine.delete(call, state_key(&key)?).await?,
            }
        }
        for (place, effect) in (0..).zip(changes.sends) {
            let destination = effect.destination().to_owned();
            let sent = engine.send(call, effect, Some(place)).await;
            sent.map_err(|error| named(error, &destination))?;
        }
        Ok(())
    };
    if let Err(error) = written.await {
        engine.abort(call).await?;
        return Err(error);
    }
    Ok(engine.commit_shown(call).await?.point)
}

/// Names the destination in an error.
fn named(error: transactions::Error, destination: &str) -> Error {
    let kind = match error {
        transactions::Error::NoSuchQueue => "queue",
        transactions::Error::NoSuchFunction => "function",
        error => return error.into(),
    };
    Error::Invalid(format!("there is no {kind} {destination:?}"))
}

/// Whether a transaction of this name has committed, as far as that is still known.
pub(crate) async fn has_committed(
    engine: &Engine,
    name: &TransactionId,
) -> Result<(bool, DurabilityPoint)> {
    match engine.status(name).await {
        Ok(shown) => Ok((shown.value == Outcome::Committed, shown.point)),
        Err(transactions::Error::NoSuchTransaction | transactions::Error::Expired) => {
            Ok((false, DurabilityPoint::DURABLE))
        }
        Err(error) => Err(error.into()),
    }
}
