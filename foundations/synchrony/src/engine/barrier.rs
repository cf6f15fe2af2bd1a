//! The barrier: callers wait here before they make output visible.

use std::sync::Arc;

use ports::{DurabilityPoint, Error, ErrorKind, Incarnation, Result};

use super::{Engine, LANE_BITS};
use crate::layout::{LaneId, RecordId};

impl Engine {
    /// Waits until all that a point covers is durable far, and proves that we owned the shard until
    /// then (E3, E10).
    pub(crate) async fn barrier(self: &Arc<Self>, point: DurabilityPoint) -> Result<()> {
        let began = self.clock.monotonic();
        self.check_open()?;
        let places = self.places_of(point)?;
        if point == DurabilityPoint::DURABLE {
            return Ok(());
        }
        self.wait_until_far(&places).await?;
        self.prove_ownership(began).await?;
        self.renew_apart_if_over();
        Ok(())
    }

    /// Waits until all these records are durable far; they are sent at once.
    pub(crate) async fn wait_until_far(&self, places: &[RecordId]) -> Result<()> {
        let is_settled = {
            let mut state = self.state();
            state.stream.urge(places);
            state.stream.is_settled(places)?
        };
        if is_settled {
            return Ok(());
        }
        self.work.notify_one();
        self.until(|state| match state.stream.is_settled(places) {
            Ok(false) => None,
            settled => Some(settled.map(drop)),
        })
        .await
    }

    /// The records that a point covers. For an earlier epoch: its whole tail, if the point is
    /// within that epoch.
    pub(crate) fn places_of(&self, point: DurabilityPoint) -> Result<Vec<RecordId>> {
        if point == DurabilityPoint::DURABLE {
            return Ok(Vec::new());
        }
        let (position, number) = (point.position.0 >> LANE_BITS, point.position.0 as u16);
        let mut state = self.state();
        if point.incarnation == Incarnation(self.epoch) {
            let (epoch, number) = (self.epoch, number.into());
            return Ok(state.stream.frontier(LaneId { epoch, number }, position));
        }
        let mut ends = self.ends.iter();
        match ends.find(|end| Incarnation(end.epoch) == point.incarnation) {
            Some(end) if position <= end.position => Ok(state.stream.tail()),
            _ => {
                let what = format!("externalize {point:?}");
                Err(Error::new(ErrorKind::Lost, what))
            }
        }
    }

    /// Whether a barrier would return at once.
    pub(crate) fn is_far_durable(&self, point: DurabilityPoint) -> bool {
        if point == DurabilityPoint::DURABLE {
            return true;
        }
        let Ok(places) = self.places_of(point) else {
            return false;
        };
        let now = self.clock.monotonic();
        let state = self.state();
        let is_ours = state.ended.is_none() && state.lease.until.is_some_and(|until| now < until);
        is_ours && state.stream.is_settled(&places).unwrap_or(false)
    }
}
