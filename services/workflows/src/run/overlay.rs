//! The uncommitted writes and messages of an attempt, which it alone sees (rule W-1).

use std::sync::Arc;

use bytes::Bytes;
use parking_lot::{Mutex, MutexGuard};
use transactions::Effect;

use crate::{
    Error, Options, Result,
    storage::{Changes, Writes, size},
};

/// The write to a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Written {
    Nothing,
    Deleted,
    Value(Bytes),
}

/// Writes over the committed state, or over another overlay.
#[derive(Debug)]
pub(crate) struct Overlay {
    below: Option<Arc<Overlay>>,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    changes: Changes,
    bytes: usize,
    is_closed: bool,
}

impl Overlay {
    pub(crate) fn over(below: Option<Arc<Self>>) -> Arc<Self> {
        Self::of_attempt(below, 0)
    }

    /// The overlay of an attempt, which has the random number `attempt`.
    pub(crate) fn of_attempt(below: Option<Arc<Self>>, attempt: u64) -> Arc<Self> {
        let changes = Changes {
            attempt,
            ..Changes::default()
        };
        Arc::new(Self {
            below,
            state: Mutex::new(State {
                changes,
                ..State::default()
            }),
        })
    }

    /// Whether its lower overlay is `below`.
    pub(crate) fn is_over(&self, below: &Arc<Self>) -> bool {
        let mine = self.below.as_ref();
        mine.is_some_and(|mine| Arc::ptr_eq(mine, below))
    }

    /// The write to `key`, here or below.
    pub(crate) fn get(&self, key: &[u8]) -> Result<Written> {
        let state = self.open()?;
        match state.changes.writes.get(key) {
            Some(Some(value)) => Ok(Written::Value(value.clone())),
            Some(None) => Ok(Written::Deleted),
            None => {
                let below = self.below.as_ref();
                below.map_or(Ok(Written::Nothing), |below| below.get(key))
            }
        }
    }

    /// The writes to keys that begin with `prefix`, here or below.
    pub(crate) fn written(&self, prefix: &[u8]) -> Result<Writes> {
        let state = self.open()?;
        let below = self.below.as_ref().map(|below| below.written(prefix));
        let mut written = below.transpose()?.unwrap_or_default();
        let here = state.changes.writes.iter();
        let here = here.filter(|(key, _)| key.starts_with(prefix));
        written.extend(here.map(|(key, value)| (key.clone(), value.clone())));
        Ok(written)
    }

    /// Errors: `AttemptEnded`, `TooLarge`.
    pub(crate) fn put(&self, key: Bytes, value: Option<Bytes>, options: &Options) -> Result<()> {
        let mut state = self.open()?;
        let writes = &state.changes.writes;
        let before = writes.get(&key);
        check_keys(writes.len() + usize::from(before.is_none()), options)?;
        let before = before.map_or(0, |value| size(&key, value.as_ref()));
        state.grow(size(&key, value.as_ref()), before, options)?;
        state.changes.writes.insert(key, value);
        Ok(())
    }

    /// Errors: `AttemptEnded`; `TooLarge`, also if this overlay and the ones below have `sends_max`
    /// messages.
    pub(crate) fn send(&self, effect: Effect, sends_max: usize, options: &Options) -> Result<()> {
        let mut state = self.open()?;
        let below = self.below.as_ref().map_or(Ok(0), |below| below.sends())?;
        if below + state.changes.sends.len() >= sends_max {
            let most = format!("{sends_max} messages and invocations at most");
            let say = format!("a step without a far store sends {most}, and an atomic run in all");
            return Err(Error::TooLarge(say));
        }
        state.grow(effect.bytes_len(), 0, options)?;
        state.changes.sends.push(effect);
        Ok(())
    }

    /// How many messages are here and below.
    fn sends(&self) -> Result<usize> {
        let state = self.open()?;
        let below = self.below.as_ref().map_or(Ok(0), |below| below.sends())?;
        Ok(below + state.changes.sends.len())
    }

    /// A copy of the present changes, to be committed ahead of the step.
    pub(crate) fn peek(&self) -> Result<Changes> {
        let mut state = self.open()?;
        state.changes.ahead = state.changes.sends.len();
        Ok(state.changes.clone())
    }

    /// Removes changes that have committed. A key that was written again since keeps its later
    /// value.
    pub(crate) fn forget(&self, counts: &Changes) {
        let mut state = self.state.lock();
        let writes = &mut state.changes.writes;
        writes.retain(|key, value| counts.writes.get(key) != Some(value));
        // An overlay that was closed has fewer.
        let sent = counts.sends.len().min(state.changes.sends.len());
        state.changes.sends.drain(..sent);
        state.changes.first += sent as u32;
        state.changes.ahead = state.changes.ahead.saturating_sub(sent);
        state.bytes = state.changes.bytes();
    }

    /// Refuses further changes; returns the present ones.
    pub(crate) fn close(&self) -> Changes {
        let mut state = self.state.lock();
        state.is_closed = true;
        std::mem::take(&mut state.changes)
    }

    /// Adds the changes of another overlay: all of them, or none. Errors: `AttemptEnded`,
    /// `TooLarge`.
    pub(crate) fn merge(&self, changes: Changes, options: &Options) -> Result<()> {
        let mut state = self.open()?;
        let there = &state.changes.writes;
        let replaced = changes
            .writes
            .keys()
            .filter_map(|key| Some((key, there.get(key)?)));
        let (keys, bytes) = replaced.fold((0, 0), |(keys, bytes), (key, value)| {
            (keys + 1, bytes + size(key, value.as_ref()))
        });
        check_keys(there.len() + changes.writes.len() - keys, options)?;
        state.grow(changes.bytes(), bytes, options)?;
        state.changes.writes.extend(changes.writes);
        state.changes.sends.extend(changes.sends);
        Ok(())
    }

    fn open(&self) -> Result<MutexGuard<'_, State>> {
        let state = self.state.lock();
        if state.is_closed {
            return Err(Error::AttemptEnded);
        }
        Ok(state)
    }
}

impl State {
    fn grow(&mut self, by: usize, instead_of: usize, options: &Options) -> Result<()> {
        let bytes = self.bytes + by - instead_of;
        if bytes > options.step_bytes_max {
            let most = options.step_bytes_max;
            let say = format!("a step writes and sends {most} bytes at most");
            return Err(Error::TooLarge(say));
        }
        self.bytes = bytes;
        Ok(())
    }
}

fn check_keys(keys: usize, options: &Options) -> Result<()> {
    let most = options.step_keys_max;
    if keys > most {
        let say = format!("a step writes {most} keys at most");
        return Err(Error::TooLarge(say));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_beyond_the_limit_is_refused_at_once() {
        let options = Options::default();
        let send = |overlay: &Overlay| {
            let effect = Effect::Message {
                queue: "q".to_owned(),
                group: Bytes::new(),
                body: Bytes::new(),
            };
            overlay.send(effect, 2, &options)
        };
        let below = Overlay::over(None);
        let above = Overlay::over(Some(Arc::clone(&below)));
        send(&below).expect("room");
        send(&above).expect("room");
        assert!(
            matches!(send(&above), Err(Error::TooLarge(_))),
            "those of the whole atomic run"
        );
        send(&below).expect("it does not see the uncommitted ones above");
        // Committed messages are in a transaction of their own.
        below.forget(&below.peek().expect("open"));
        send(&above).expect("room");
    }

    #[test]
    fn writes_are_seen_above_and_not_below() {
        let options = Options {
            step_bytes_max: 200,
            step_keys_max: 2,
            ..Options::default()
        };
        let below = Overlay::over(None);
        let above = Overlay::over(Some(Arc::clone(&below)));
        let value = |text: &'static str| Some(Bytes::from(text));
        below
            .put("k".into(), value("below"), &options)
            .expect("room");
        let below_it = Written::Value(Bytes::from("below"));
        assert_eq!(above.get(b"k").expect("open"), below_it);
        above.put("k".into(), None, &options).expect("room");
        let both = (
            above.get(b"k").expect("open"),
            below.get(b"k").expect("open"),
        );
        assert_eq!(both, (Written::Deleted, below_it));
        above.put("l".into(), value("1"), &options).expect("room");
        assert!(matches!(
            above.put("m".into(), None, &options),
            Err(Error::TooLarge(_))
        ));
        let all = [("k".into(), None), ("l".into(), value("1"))];
        assert_eq!(above.written(b"").expect("open"), Writes::from(all.clone()));
        assert_eq!(
            below.written(b"k").expect("open"),
            Writes::from([("k".into(), value("below"))])
        );
        assert_eq!(
            above.written(b"l").expect("open"),
            Writes::from([("l".into(), value("1"))])
        );
        let long = Some(Bytes::from(vec![0; 200]));
        assert!(matches!(
            above.put("l".into(), long, &options),
            Err(Error::TooLarge(_))
        ));
        below.merge(above.close(), &options).expect("room");
        assert_eq!(below.get(b"k").expect("open"), Written::Deleted);
        // Changes that are too large are not merged in part.
        let more = Overlay::over(None);
        more.put("l".into(), value("2"), &options).expect("room");
        more.put("m".into(), value("2"), &options).expect("room");
        assert!(matches!(
            below.merge(more.close(), &options),
            Err(Error::TooLarge(_))
        ));
        assert_eq!(below.written(b"").expect("open"), Writes::from(all));
        assert!(matches!(above.get(b"k"), Err(Error::AttemptEnded)));
    }
}
