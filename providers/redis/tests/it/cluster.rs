//! A real cluster on loopback: two masters, with a replica each or without.
//!
//! `redis-cli --cluster create` refuses fewer than three masters, so this file assigns the slots.
//! Two masters have no majority when one dies, so the tests order the replica to take over.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use ports::Key;

use crate::server::{Persistence, Server, eventually};

/// The first slot of the second master.
const SECOND_HALF: u16 = 8192;

/// How long a server is silent before the others report it as failed.
/// No test waits for that.
const NODE_TIMEOUT_MS: &str = "60000";

/// A running cluster.
#[derive(Debug)]
pub(crate) struct Cluster {
    masters: [Server; 2],
    /// One per master, or none.
    replicas: Vec<Server>,
}

impl Cluster {
    /// Two masters and two replicas.
    pub(crate) fn replicated(persistence: Persistence) -> Self {
        let cluster = Self {
            masters: [start(persistence), start(persistence)],
            replicas: vec![start(persistence), start(persistence)],
        };
        cluster.assemble();
        cluster
    }

    /// Two masters without replicas.
    pub(crate) fn bare(persistence: Persistence) -> Self {
        let cluster = Self {
            masters: [start(persistence), start(persistence)],
            replicas: Vec::new(),
        };
        cluster.assemble();
        cluster
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        self.masters.iter().chain(&self.replicas)
    }

    fn assemble(&self) {
        let [first, second] = &self.masters;
        let (end, start) = ((SECOND_HALF - 1).to_string(), SECOND_HALF.to_string());
        first.tell::<()>(&["CLUSTER", "ADDSLOTSRANGE", "0", &end]);
        second.tell::<()>(&["CLUSTER", "ADDSLOTSRANGE", &start, "16383"]);
        for (epoch, server) in self.servers().enumerate() {
            server.tell::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(epoch + 1).to_string()]);
            if epoch > 0 {
                let (port, bus_port) = (server.port().to_string(), server.bus_port().to_string());
                first.tell::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port]);
            }
        }
        let known_nodes = format!("cluster_known_nodes:{}\r", self.servers().count());
        self.eventually_all("all servers know each other", &known_nodes);
        for (replica, master) in self.replicas.iter().zip(&self.masters) {
            let id: String = master.tell(&["CLUSTER", "MYID"]);
            eventually("the replica follows", || {
                replica.ask::<()>(&["CLUSTER", "REPLICATE", &id]).is_ok()
            });
        }
        self.wait_until_synced();
    }

    /// Waits until all slots are served and every replica is up to date.
    pub(crate) fn wait_until_synced(&self) {
        self.eventually_all("the slots are served", "cluster_state:ok\r");
        for replica in &self.replicas {
            eventually("the replica is up to date", || {
                info(replica, "replication").contains("master_link_status:up\r")
            });
        }
        for master in self.masters.iter().filter(|_| !self.replicas.is_empty()) {
            eventually("the master sees its replica", || {
                info(master, "replication").contains("connected_slaves:1\r")
            });
        }
    }

    fn eventually_all(&self, what: &str, line: &str) {
        for server in self.servers() {
            eventually(what, || {
                server
                    .ask::<String>(&["CLUSTER", "INFO"])
                    .is_ok_and(|reply| reply.contains(line))
            });
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.servers().map(Server::url).collect()
    }

    /// The master that first served the lower half of the slots, and its replica.
    pub(crate) fn first(&self) -> (&Server, &Server) {
        (&self.masters[0], &self.replicas[0])
    }

    /// Both masters.
    pub(crate) fn masters(&self) -> &[Server; 2] {
        &self.masters
    }

    /// Kills both masters at once and restarts them before the others report them as failed.
    pub(crate) fn crash(&self) {
        self.masters.iter().for_each(Server::kill);
        self.masters.iter().for_each(Server::restart);
        self.wait_until_synced();
    }

    /// Kills the first master and promotes its replica.
    pub(crate) fn fail_over(&self) {
        let (master, replica) = self.first();
        master.kill();
        eventually("the replica takes over", || {
            drop(replica.ask::<()>(&["CLUSTER", "FAILOVER", "TAKEOVER"]));
            info(replica, "replication").contains("role:master\r")
        });
    }
}

fn start(persistence: Persistence) -> Server {
    Server::start_with(
        persistence,
        &[
            "--cluster-enabled",
            "yes",
            "--cluster-config-file",
            "nodes.conf",
            "--cluster-node-timeout",
            NODE_TIMEOUT_MS,
        ],
    )
}

fn info(server: &Server, section: &str) -> String {
    server.ask(&["INFO", section]).unwrap_or_default()
}

/// A replicated cluster that tests share while any of them uses it.
pub(crate) fn shared() -> Arc<Cluster> {
    static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
    let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
    shared.upgrade().unwrap_or_else(|| {
        let cluster = Arc::new(Cluster::replicated(Persistence::Memory));
        *shared = Arc::downgrade(&cluster);
        cluster
    })
}

impl Cluster {
    /// Begins to move a slot from its master to the other one.
    pub(crate) fn begin_moving(&self, slot: u16) {
        let (from, to) = self.source_and_target(slot);
        let (from_id, to_id): (String, String) = (
            from.tell(&["CLUSTER", "MYID"]),
            to.tell(&["CLUSTER", "MYID"]),
        );
        to.tell::<()>(&[
            "CLUSTER",
            "SETSLOT",
            &slot.to_string(),
            "IMPORTING",
            &from_id,
        ]);
        from.tell::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "MIGRATING", &to_id]);
    }

    /// Moves the keys of a slot whose move has begun.
    pub(crate) fn move_keys(&self, slot: u16) {
        let (from, to) = self.source_and_target(slot);
        let (slot, port) = (slot.to_string(), to.port().to_string());
        loop {
            let keys: Vec<Vec<u8>> = from.tell(&["CLUSTER", "GETKEYSINSLOT", &slot, "10"]);
            if keys.is_empty() {
                return;
            }
            for key in keys {
                let key = String::from_utf8(key).expect("these tests name keys by text");
                from.tell::<()>(&["MIGRATE", "127.0.0.1", &port, &key, "0", "5000"]);
            }
        }
    }

    /// Moves the remaining keys of a slot, then the slot.
    pub(crate) fn finish_moving(&self, slot: u16) {
        let (from, to) = self.source_and_target(slot);
        self.move_keys(slot);
        let to_id: String = to.tell(&["CLUSTER", "MYID"]);
        for server in [to, from] {
            server.tell::<()>(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &to_id]);
        }
    }

    /// Whether the first master initially served the slot of `place`.
    pub(crate) fn is_in_first_half(&self, place: &Key) -> bool {
        let index = format!("landfast{{p{}}}s", place.partition().escape_ascii());
        self.masters[1].tell::<u16>(&["CLUSTER", "KEYSLOT", &index]) < SECOND_HALF
    }

    fn source_and_target(&self, slot: u16) -> (&Server, &Server) {
        let [first, second] = &self.masters;
        if slot < SECOND_HALF {
            (first, second)
        } else {
            (second, first)
        }
    }
}
