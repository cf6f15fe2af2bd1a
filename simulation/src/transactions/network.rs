//! The network between nodes: lost, late and duplicated messages, and partitions.
//!
//! A lost message never brings an answer, so the caller must time out. A late or duplicated message
//! arrives although no caller waits any more. An address without a live process refuses at once,
//! like a machine whose process has ended.
//!
//! All randomness has a seed and all delays are virtual, so one seed gives one run.

use std::{
    collections::{BTreeMap, BTreeSet},
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use fastrand::Rng;
use tokio::sync::oneshot;
use transactions::{
    Engine,
    membership::Address,
    peers::{NoAnswer, Peers},
};

use super::crashable::Life;

/// The shortest delay of a message.
const DELAY_MIN: Duration = Duration::from_millis(1);

/// The faults of a network. Each rate is one in this many; zero: none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Trouble {
    /// Messages that are lost, or whose answers are.
    pub one_lost_in: usize,
    /// Messages that arrive twice.
    pub one_doubled_in: usize,
    /// Messages that take up to ten seconds.
    pub one_late_in: usize,
}

/// The network. Clones share it.
#[derive(Debug, Clone)]
pub struct Network(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    rng: Rng,
    trouble: Trouble,
    processes: BTreeMap<String, (Engine, Life)>,
    /// Links that are cut, in both directions.
    cut: BTreeSet<(String, String)>,
    /// Addresses that refuse messages longer than this many bytes, and their error.
    refusing: BTreeMap<String, (usize, NoAnswer)>,
    /// The bandwidth in bytes per millisecond; none: unlimited.
    bytes_per_ms: Option<usize>,
    /// The number of messages by kind and address.
    sent: BTreeMap<(String, u8), usize>,
}

/// The faults of one message.
#[derive(Debug, Clone, Copy)]
struct MessageFaults {
    there: Duration,
    back: Duration,
    is_lost: bool,
    is_answer_lost: bool,
    again_after: Option<Duration>,
}

impl Network {
    /// A network that draws its faults from `rng`.
    pub fn new(rng: Rng, trouble: Trouble) -> Self {
        let (processes, cut, refusing) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let (bytes_per_ms, sent) = (None, BTreeMap::new());
        let state = State {
            rng,
            trouble,
            processes,
            cut,
            refusing,
            bytes_per_ms,
            sent,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Makes `engine` reachable at `address` during `life`.
    pub fn listen(&self, address: &Address, engine: Engine, life: Life) {
        self.state()
            .processes
            .insert(address.0.clone(), (engine, life));
    }

    /// Makes `address` unreachable.
    pub fn hang_up(&self, address: &Address) {
        let gone = self.state().processes.remove(&address.0);
        drop(gone);
    }

    /// Cuts the link between two addresses.
    pub fn cut(&self, one: &Address, other: &Address) {
        let mut state = self.state();
        state.cut.insert((one.0.clone(), other.0.clone()));
        state.cut.insert((other.0.clone(), one.0.clone()));
    }

    /// Makes `address` refuse messages longer than `bytes` until [`Network::mend`].
    pub fn refuse(&self, address: &Address, bytes: usize, why: NoAnswer) {
        self.state()
            .refusing
            .insert(address.0.clone(), (bytes, why));
    }

    /// Limits the bandwidth from now on.
    pub fn narrow(&self, bytes_per_ms: usize) {
        self.state().bytes_per_ms = Some(bytes_per_ms);
    }

    /// How many messages with the first byte `kind` were sent to `address`.
    pub fn sent(&self, address: &Address, kind: u8) -> usize {
        self.state()
            .sent
            .get(&(address.0.clone(), kind))
            .copied()
            .unwrap_or_default()
    }

    /// Restores all links.
    pub fn mend(&self) {
        let mut state = self.state();
        state.cut.clear();
        state.refusing.clear();
    }

    /// Ends all faults.
    pub fn calm(&self) {
        let mut state = self.state();
        state.cut.clear();
        state.trouble = Trouble::default();
    }

    /// The port through which the process at `address` sends.
    pub fn from(&self, address: &Address) -> Arc<dyn Peers> {
        Arc::new(Line {
            network: self.clone(),
            from: address.clone(),
        })
    }

    fn is_cut(&self, from: &Address, to: &Address) -> bool {
        self.state().cut.contains(&(from.0.clone(), to.0.clone()))
    }

    fn at(&self, address: &Address) -> Option<(Engine, Life)> {
        self.state()
            .processes
            .get(&address.0)
            .filter(|(_, life)| !life.is_over())
            .cloned()
    }

    fn draw(&self) -> MessageFaults {
        let mut state = self.state();
        let Trouble {
            one_lost_in,
            one_doubled_in,
            one_late_in,
        } = state.trouble;
        let rng = &mut state.rng;
        let mut strikes = |one_in: usize| one_in > 0 && rng.usize(..one_in) == 0;
        let (is_lost, is_answer_lost) = (strikes(one_lost_in), strikes(one_lost_in));
        let (is_doubled, is_late) = (strikes(one_doubled_in), strikes(one_late_in));
        let mut delay = |most_ms: u64| DELAY_MIN + Duration::from_millis(rng.u64(..=most_ms));
        let there = delay(if is_late { 10_000 } else { 4 });
        let again_after = is_doubled.then(|| delay(5_000));
        MessageFaults {
            there,
            back: delay(4),
            is_lost,
            is_answer_lost,
            again_after,
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Delivers a message after its delay; none: it does not arrive.
    async fn deliver(
        &self,
        after: Duration,
        from: Address,
        to: Address,
        message: Bytes,
    ) -> Option<Result<Bytes, NoAnswer>> {
        tokio::time::sleep(after).await;
        if self.is_cut(&from, &to) {
            return None;
        }
        let Some((engine, life)) = self.at(&to) else {
            return Some(Err(NoAnswer::Silence("no process listens there".into())));
        };
        if let Some((bytes, why)) = self.state().refusing.get(&to.0)
            && message.len() > *bytes
        {
            return Some(Err(why.clone()));
        }
        let answer = tokio::select! {
            biased;
            () = life.over() => return None,
            answer = engine.answer_peer(message) => answer,
        };
        (!self.is_cut(&to, &from)).then_some(Ok(answer))
    }
}

#[derive(Debug)]
struct Line {
    network: Network,
    from: Address,
}

#[async_trait]
impl Peers for Line {
    async fn call(&self, address: &Address, message: Bytes) -> Result<Bytes, NoAnswer> {
        if let Some(kind) = message.first() {
            *self
                .network
                .state()
                .sent
                .entry((address.0.clone(), *kind))
                .or_default() += 1;
        }
        let mut faults = self.network.draw();
        if let Some(bytes_per_ms) = self.network.state().bytes_per_ms {
            faults.there += Duration::from_millis((message.len() / bytes_per_ms) as u64);
        }
        let deliver = |after| {
            let (network, from, to) = (self.network.clone(), self.from.clone(), address.clone());
            let message = message.clone();
            async move { network.deliver(after, from, to, message).await }
        };
        if let Some(after) = faults.again_after {
            tokio::spawn(deliver(faults.there + after));
        }
        if faults.is_lost {
            return pending().await;
        }
        let (told, answered) = oneshot::channel();
        let delivered = deliver(faults.there);
        tokio::spawn(async move {
            if let Some(answer) = delivered.await
                && !faults.is_answer_lost
            {
                tokio::time::sleep(faults.back).await;
                // The caller may have timed out.
                let _ = told.send(answer);
            }
        });
        match answered.await {
            Ok(answer) => answer,
            Err(_) => pending().await,
        }
    }
}
