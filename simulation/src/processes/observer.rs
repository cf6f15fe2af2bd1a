//! The observer: compares how all processes would answer at each moment.

use std::collections::BTreeMap;

use ports::Monotonic;
use transactions::{
    membership::{Election, Membership},
    model::NodeId,
};

/// The reports, and the violations among them.
#[derive(Debug, Default)]
pub struct Observer {
    /// Since when some process considers a node gone that it had known.
    gone: BTreeMap<NodeId, Monotonic>,
    /// The members that each node has known.
    known: BTreeMap<NodeId, Vec<NodeId>>,
    /// The leaders of each election, in order.
    led: BTreeMap<Election, Vec<NodeId>>,
    /// The violations.
    pub violations: Vec<String>,
}

impl Observer {
    /// Records how `node` would answer at `now`.
    pub fn record(&mut self, node: NodeId, now: Monotonic, membership: &dyn Membership) {
        let may_answer = membership
            .may_answer_until()
            .is_none_or(|until| now < until);
        if !may_answer {
            return;
        }
        if let Some(since) = self.gone.get(&node) {
            self.violations.push(format!(
                "{node:?} answers at {now:?}, and is gone for others since {since:?}"
            ));
        }
        self.acts(node, now, membership);
        for election in [Election::Collector, Election::Sequencer] {
            if membership.leads(election) {
                self.leads(node, now, election);
            }
        }
    }

    /// A process that may answer must know the present members.
    fn acts(&mut self, node: NodeId, now: Monotonic, membership: &dyn Membership) {
        let nodes = membership.members().nodes;
        let known = self.known.entry(node).or_default();
        for missed in known.iter().filter(|known| !nodes.contains_key(known)) {
            self.gone.entry(*missed).or_insert(now);
        }
        *known = nodes.into_keys().filter(|other| *other != node).collect();
    }

    fn leads(&mut self, node: NodeId, now: Monotonic, election: Election) {
        let led = self.led.entry(election).or_default();
        match led.iter().position(|leader| *leader == node) {
            None => led.push(node),
            Some(place) if place + 1 == led.len() => {}
            Some(_) => {
                let latest = led.last();
                self.violations.push(format!(
                    "{node:?} leads {election:?} at {now:?}, after {latest:?} has"
                ));
            }
        }
    }
}
