//! Clients as functions: an invocation is an iteration, and its result are the counts.

use std::{env, path::Path};

use anyhow::{Context as _, Result, ensure};
use serde::{Deserialize, Serialize};

use super::{Client, Counts, Personality, Scale, client::State};
use crate::{
    connection::Connection,
    files::{functions::AT, targets::Target},
};

/// The client that a function is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Event {
    personality: Personality,
    number: u32,
    clients: u32,
    files: u32,
}

/// One invocation.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
struct Call {
    event: Event,
    /// Whether the last one failed, so that nothing of it took effect.
    is_undone: bool,
}

/// The caller of one function.
#[derive(Debug)]
pub(super) struct Caller {
    connection: Connection,
    path: String,
    call: Call,
}

impl Caller {
    /// Deploys this program as a function for each client.
    pub(super) fn deploy(
        target: &Target,
        personality: Personality,
        scale: Scale,
        scratch: &Path,
    ) -> Result<Vec<Self>> {
        let server = { target.server.as_ref() }.context("the bench started no server")?;
        let program = env::current_exe()?;
        let file = program.file_name().unwrap_or_default().display();
        let lines = format!("runtime = \"executable\"\nhandler = \"{file}\"\nconcurrency = 1");
        let name = |number| format!("client{number}");
        let functions = (0..scale.clients).map(|number| (name(number), lines.clone()));
        let functions: Vec<_> = functions.collect();
        server.deploy(&scratch.join("functions"), &program, &functions)?;
        let host = server.url.trim_start_matches("http://");
        let caller = |number| {
            let event = Event {
                personality,
                number,
                clients: scale.clients,
                files: personality.files(scale),
            };
            let url = server.invocations(&name(number));
            Ok(Self {
                connection: Connection::open(host.to_owned())?,
                path: url.trim_start_matches(&server.url).to_owned(),
                call: Call {
                    event,
                    is_undone: false,
                },
            })
        };
        (0..scale.clients).map(caller).collect()
    }

    /// One iteration.
    pub(super) fn call(&mut self) -> Counts {
        let counts = self.try_call();
        self.call.is_undone = counts.is_err();
        counts.unwrap_or_else(|error| Counts {
            errors: 1,
            first: Some(format!("{error:#}")),
            ..Counts::default()
        })
    }

    fn try_call(&mut self) -> Result<Counts> {
        let body = serde_json::to_vec(&self.call)?;
        let answer = self.connection.ask("POST", &self.path, &body)?;
        ensure!(
            answer.status == 200 && !answer.is_failed,
            "{}: {}",
            answer.status,
            String::from_utf8_lossy(&answer.body)
        );
        Ok(serde_json::from_slice(&answer.body)?)
    }
}

/// Serves the invocations of a function for ever. The server sends an invocation again, with its
/// id, if its transaction met a conflict.
pub fn serve(host: String) -> Result<()> {
    let mut connection = Connection::open(host)?;
    let mut running: Option<(Event, Client, State, String, u64)> = None;
    loop {
        let next = connection.ask("GET", "/2018-06-01/runtime/invocation/next", b"")?;
        let Call { event, is_undone } = serde_json::from_slice(&next.body)?;
        let (mut client, conflicts) = match running.take() {
            Some((same, mut client, before, id, conflicts)) if same == event => {
                let is_repeat = id == next.id;
                if is_repeat || is_undone {
                    client.restore(before);
                }
                (client, if is_repeat { conflicts + 1 } else { 0 })
            }
            _ => (event.client(), 0),
        };
        let before = client.state();
        let outcome = event.personality.iterate(&mut client);
        client.note(outcome);
        let counts = Counts {
            conflicts,
            ..std::mem::take(&mut client.counts)
        };
        let path = format!("/2018-06-01/runtime/invocation/{}/response", next.id);
        connection.ask("POST", &path, &serde_json::to_vec(&counts)?)?;
        running = Some((event, client, before, next.id, conflicts));
    }
}

impl Event {
    fn client(self) -> Client {
        let directory = Path::new(AT).join(self.personality.name());
        let Self {
            personality,
            number,
            clients,
            files,
        } = self;
        let mut client = Client::new(personality, number, clients, files, directory);
        client.adopt();
        client
    }
}
