//! A client that works through a plan, even if its connections break.

use std::{collections::VecDeque, time::Duration};

use coordination::{
    Client, ConnectError, Ended,
    model::{Connect, Output, Password, Request, SessionId, Zxid},
};
use fastrand::Rng;

use crate::{
    client_watches::ClientWatches,
    cluster::Cluster,
    history::{History, Moment},
};

/// The plan of a client.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Its requests, in order.
    pub requests: Vec<Request>,
    /// How many requests it sends before it waits for their replies (a window).
    pub window_max: usize,
    /// One in this many windows ends with a broken connection; zero: none does.
    pub one_break_in: usize,
    /// Whether it closes its session at the end, or lets it expire.
    pub closes: bool,
    /// The session timeout that it requests.
    pub timeout: Duration,
    /// The pause between two windows.
    pub pause: Duration,
}

/// The pause between two attempts to connect.
const CONNECT_AGAIN_AFTER: Duration = Duration::from_millis(50);

/// How often a client without news checks whether its gateway is alive.
const PINGS_PER_TIMEOUT: u32 = 3;

/// Works through `plan` as client number `client`.
pub async fn act(cluster: Cluster, client: usize, plan: Plan, mut rng: Rng) -> History {
    let mut actor = Actor {
        cluster,
        history: History {
            client,
            moments: Vec::new(),
        },
        waiting: plan.requests.iter().cloned().collect(),
        plan,
        resume: None,
        last_zxid_seen: Zxid(0),
        tag: 0,
        watching: ClientWatches::default(),
    };
    while !actor.waiting.is_empty() {
        let machine = rng.usize(..8);
        if let Some((connection, generation)) = actor.connect(machine).await {
            actor.work(connection, generation, &mut rng).await;
            actor.history.moments.push(Moment::Disconnected);
        }
    }
    actor.history
}

struct Actor {
    cluster: Cluster,
    plan: Plan,
    history: History,
    waiting: VecDeque<Request>,
    resume: Option<(SessionId, Password)>,
    last_zxid_seen: Zxid,
    tag: i32,
    watching: ClientWatches,
}

impl Actor {
    async fn connect(&mut self, machine: usize) -> Option<(Client, u64)> {
        let (gateway, generation) = self.cluster.gateway(machine).await;
        let connect = Connect {
            last_zxid_seen: self.last_zxid_seen,
            timeout: self.plan.timeout,
            resume: self.resume,
        };
        let connected = tokio::select! {
            biased;
            () = self.cluster.gone(generation) => return None,
            connected = gateway.connect(connect) => connected,
        };
        match connected {
            Ok(client) => {
                self.resume = Some((client.session(), client.password()));
                self.history
                    .moments
                    .push(Moment::Connected(client.session()));
                Some((client, generation))
            }
            Err(ConnectError::Expired) => {
                // None: opening the new session took longer than its timeout.
                self.expired();
                None
            }
            Err(_) => {
                tokio::time::sleep(CONNECT_AGAIN_AFTER).await;
                None
            }
        }
    }

    /// Works until the plan is done or the connection breaks.
    async fn work(&mut self, mut client: Client, generation: u64, rng: &mut Rng) {
        if let Some(again) = self.watching.set_again(self.last_zxid_seen) {
            self.submit(&mut client, again);
            if !self.answered(&mut client, generation, 1).await {
                return;
            }
        }
        while !self.waiting.is_empty() {
            let window = rng.usize(1..=self.plan.window_max).min(self.waiting.len());
            for request in self.waiting.drain(..window).collect::<Vec<_>>() {
                self.submit(&mut client, request);
            }
            let breaks = self.plan.one_break_in > 0 && rng.usize(..self.plan.one_break_in) == 0;
            if breaks {
                // The request was sent: the writer may decide it after the connection has closed.
                let _ = client.pump(&mut Vec::new()).await;
                return;
            }
            if !self.answered(&mut client, generation, window).await {
                return;
            }
            tokio::time::sleep(self.plan.pause).await;
        }
        if self.plan.closes {
            self.submit(&mut client, Request::Close);
            self.answered(&mut client, generation, 1).await;
        }
    }

    fn submit(&mut self, client: &mut Client, request: Request) {
        self.tag += 1;
        self.watching.asked(self.tag, &request);
        self.history
            .moments
            .push(Moment::Asked(self.tag, request.clone()));
        client.submit(self.tag, request);
    }

    /// Its session has expired, and so have the watches of that session.
    fn expired(&mut self) {
        self.history.moments.extend(
            self.resume
                .take()
                .map(|(session, _)| Moment::Expired(session)),
        );
        self.watching = ClientWatches::default();
    }

    /// Waits for `replies` replies. Returns false if the connection broke before.
    async fn answered(&mut self, client: &mut Client, generation: u64, mut replies: usize) -> bool {
        while replies > 0 {
            let mut outputs = Vec::new();
            let pumped = tokio::select! {
                biased;
                () = self.cluster.gone(generation) => return false,
                pumped = client.pump(&mut outputs) => pumped,
            };
            for output in outputs {
                if let Output::Reply { zxid, .. } = &output {
                    self.last_zxid_seen = self.last_zxid_seen.max(*zxid);
                    replies -= 1;
                }
                self.watching.shown(&output);
                self.history.moments.push(Moment::Shown(output));
            }
            match pumped {
                Ok(()) => {}
                Err(Ended::Expired) => {
                    self.expired();
                    return false;
                }
                Err(_) => return false,
            }
            if replies > 0 {
                tokio::select! {
                    biased;
                    () = self.cluster.gone(generation) => return false,
                    () = client.wait() => {}
                    // Real clients ping when they hear nothing, because the reply may be lost.
                    () = tokio::time::sleep(self.plan.timeout / PINGS_PER_TIMEOUT) => {
                        self.submit(client, Request::Ping);
                        replies += 1;
                    }
                }
            }
        }
        true
    }
}
