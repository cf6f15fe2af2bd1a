//! What a function rests on: how far it has seen a store that may yet lose it.
//!
//! Inside the house nobody waits for the disk, so what a function reads, a lock that it took, a row that it moved, may
//! not be durable yet. A store that fails to make it durable goes back to what is (embedded: in process, while
//! functions under way go on), and hands the same locks, fencing numbers, zxids and attach numbers out again: a
//! condition on one row cannot tell them apart. So every update names the last point that its function has seen, and
//! the store refuses it where it has lost that (promise D4). It costs no call: each answer brings its point along.
//!
//! Invariants
//! - A basis is of one start of its store. Whoever sees the next one begins again, by what is there then.
//! - Each store has a basis of its own, since points of two stores say nothing about each other.

use ports::{DurabilityPoint, Error, ErrorKind, Externalize, Incarnation, Result};

/// All that one piece of work has seen of one store.
#[derive(Debug, Clone, Copy, Default)]
pub struct Basis {
    point: DurabilityPoint,
    is_ignored: bool,
}

impl Basis {
    /// Of work that begins now on `store`. One that has seen nothing yet is the default.
    pub fn now<S: Externalize + ?Sized>(store: &S) -> Self {
        Self {
            point: store.point(),
            ..Self::default()
        }
    }

    /// Of work that updates whatever it finds. A broken variant.
    pub(crate) fn ignored() -> Self {
        Self {
            is_ignored: true,
            ..Self::default()
        }
    }

    /// The start of the store that the work is done in.
    pub fn incarnation(&self) -> Incarnation {
        self.point.incarnation
    }

    /// What an update names: the last point that was seen.
    pub fn point(&self) -> DurabilityPoint {
        if self.is_ignored {
            DurabilityPoint::DURABLE
        } else {
            self.point
        }
    }

    /// Takes in an answer of the store.
    ///
    /// Errors: `Lost` if the store has restarted since the work began.
    pub fn seen(&mut self, point: DurabilityPoint) -> Result<()> {
        let is_first = self.point == DurabilityPoint::DURABLE || self.is_ignored;
        if !is_first && point.incarnation != self.point.incarnation {
            let (begun, now) = (self.point.incarnation.0, point.incarnation.0);
            return Err(Error::new(
                ErrorKind::Lost,
                format!("go on in start {now} of a store with what was seen in start {begun}"),
            ));
        }
        self.point = if self.is_ignored {
            point
        } else {
            self.point.max(point)
        };
        Ok(())
    }

    /// Takes in everything that was read of `store` up to now.
    ///
    /// Errors: as [`Basis::seen`].
    pub fn look<S: Externalize + ?Sized>(&mut self, store: &S) -> Result<()> {
        self.seen(store.point())
    }
}

#[cfg(test)]
mod tests {
    use ports::Position;

    use super::*;

    fn point(incarnation: u64, position: u64) -> DurabilityPoint {
        DurabilityPoint {
            incarnation: Incarnation(incarnation),
            position: Position(position),
        }
    }

    #[test]
    fn it_is_the_last_point_of_one_start() {
        let mut basis = Basis::default();
        assert_eq!(basis.point(), DurabilityPoint::DURABLE);
        for seen in [point(2, 7), point(2, 5)] {
            basis.seen(seen).expect("one start");
        }
        assert_eq!(basis.point(), point(2, 7));
        assert_eq!(
            basis.seen(point(3, 8)).expect_err("another start").kind(),
            ErrorKind::Lost
        );
        assert_eq!(
            basis.point(),
            point(2, 7),
            "and nothing of the other start is taken in"
        );
    }

    #[test]
    fn a_store_whose_every_answer_is_durable_is_never_lost() {
        let mut basis = Basis::default();
        basis.seen(DurabilityPoint::DURABLE).expect("durable");
        assert_eq!(basis.point(), DurabilityPoint::DURABLE);
    }
}
