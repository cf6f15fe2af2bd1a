//! What a step or a run writes near, as one transaction: begun, filled with its changes, committed, and asked for afterwards.

use bytes::Bytes;
use ports::DurabilityPoint;
use transactions::{
    Engine,
    model::{Begin, Begun, Call, Key, Outcome, TransactionId},
};

use super::changes::Changes;
use crate::{Error, Result};

/// A key of functions' state, as transactions have it.
pub(crate) fn state_key(key: &Bytes) -> Result<Key> {
    Ok(Key::new(key.clone())?)
}

/// Begins; or says at which point it has committed before.
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

/// Writes and sends all of it, and commits; or nothing of it counts.
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

/// Why nothing was sent there.
fn named(error: transactions::Error, destination: &str) -> Error {
    match error {
        transactions::Error::NoSuchQueue => {
            Error::Invalid(format!("there is no queue {destination:?}"))
        }
        transactions::Error::NoSuchFunction => {
            Error::Invalid(format!("there is no function {destination:?}"))
        }
        error => error.into(),
    }
}

/// Whether a transaction of this name has committed, as far as that is known still.
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
