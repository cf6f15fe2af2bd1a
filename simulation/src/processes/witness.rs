//! The witness: what each process would have answered at each moment, compared over all of them.

use std::collections::BTreeMap;

use ports::Monotonic;
use transactions::{
    membership::{Membership, Office},
    model::NodeId,
};

/// What was said, and what of it may not be.
#[derive(Debug, Default)]
pub struct Witness {
    /// Since when somebody takes a node for gone that it had known.
    gone: BTreeMap<NodeId, Monotonic>,
    /// Whom each node has known as a member.
    known: BTreeMap<NodeId, Vec<NodeId>>,
    /// Who has led each office, in order.
    led: BTreeMap<Office, Vec<NodeId>>,
    /// What may not be.
    pub violations: Vec<String>,
}

impl Witness {
    /// Hears at `now` what `node` would do.
    pub fn hears(&mut self, node: NodeId, now: Monotonic, membership: &dyn Membership) {
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
        for office in [Office::Collector, Office::Sequencer] {
            if membership.leads(office) {
                self.leads(node, now, office);
            }
        }
    }

    /// Whoever may answer goes by who is there.
    fn acts(&mut self, node: NodeId, now: Monotonic, membership: &dyn Membership) {
        let nodes = membership.members().nodes;
        let known = self.known.entry(node).or_default();
        for missed in known.iter().filter(|known| !nodes.contains_key(known)) {
            self.gone.entry(*missed).or_insert(now);
        }
        *known = nodes.into_keys().filter(|other| *other != node).collect();
    }

    fn leads(&mut self, node: NodeId, now: Monotonic, office: Office) {
        let led = self.led.entry(office).or_default();
        match led.iter().position(|leader| *leader == node) {
            None => led.push(node),
            Some(place) if place + 1 == led.len() => {}
            Some(_) => {
                let latest = led.last();
                self.violations.push(format!(
                    "{node:?} leads {office:?} at {now:?}, after {latest:?} has"
                ));
            }
        }
    }
}
