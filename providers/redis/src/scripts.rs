//! The scripts that change the store, and how they are told to a server.
//!
//! A text begins with the incarnation it belongs to. Servers keep loaded scripts neither in their files nor on
//! their replicas (since Redis 7.0), so a script that is still known proves that the server is the one it was
//! loaded into, without a restart or a failover in between; `NOSCRIPT` is how a store learns that its server has
//! begun anew. That is why nothing is ever sent by `EVAL`.

use redis::{Cmd, Pipeline, Value, cmd, pipe};

use crate::{answer, error::Failure, node::Node};

/// A script's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Begin,
    Fence,
    Apply,
    /// The same where nothing but deletions is asked for: a server without room takes those.
    Delete,
    Scan,
    QueueCreate,
    QueueSend,
    QueueReceive,
    QueueAcknowledge,
    QueueRelease,
    QueueGiveUp,
    QueueExtend,
    QueueOutlook,
    QueueDead,
    QueueRedrive,
    QueuePurge,
    QueueBlocked,
    QueueBacklog,
}

const PRELUDE: &str = include_str!("scripts/prelude.lua");
const QUEUE: &str = include_str!("scripts/queue.lua");

/// What queues do, one text each. They are loaded as one script, because every incarnation leaves its scripts in
/// the server's memory until it restarts.
const QUEUE_OPERATIONS: [(Script, &str); 13] = [
    (
        Script::QueueCreate,
        include_str!("scripts/queue_create.lua"),
    ),
    (Script::QueueSend, include_str!("scripts/queue_send.lua")),
    (
        Script::QueueReceive,
        include_str!("scripts/queue_receive.lua"),
    ),
    (
        Script::QueueAcknowledge,
        include_str!("scripts/queue_acknowledge.lua"),
    ),
    (
        Script::QueueRelease,
        include_str!("scripts/queue_release.lua"),
    ),
    (
        Script::QueueGiveUp,
        include_str!("scripts/queue_give_up.lua"),
    ),
    (
        Script::QueueExtend,
        include_str!("scripts/queue_extend.lua"),
    ),
    (
        Script::QueueOutlook,
        include_str!("scripts/queue_outlook.lua"),
    ),
    (Script::QueueDead, include_str!("scripts/queue_dead.lua")),
    (
        Script::QueueRedrive,
        include_str!("scripts/queue_redrive.lua"),
    ),
    (Script::QueuePurge, include_str!("scripts/queue_purge.lua")),
    (
        Script::QueueBlocked,
        include_str!("scripts/queue_blocked.lua"),
    ),
    (
        Script::QueueBacklog,
        include_str!("scripts/queue_backlog.lua"),
    ),
];

/// The first line of a script that a server runs at `maxmemory`, too (Redis 7.0).
const TAKEN_WITHOUT_ROOM: &str = "#!lua flags=allow-oom";

/// The texts that are loaded.
const TEXTS: usize = 6;

impl Script {
    fn name(self) -> String {
        format!("{self:?}")
    }

    /// Which of the loaded texts it is in.
    fn text(self) -> usize {
        match self {
            Self::Begin => 0,
            Self::Fence => 1,
            Self::Apply => 2,
            Self::Scan => 3,
            Self::Delete => 4,
            _ => TEXTS - 1,
        }
    }
}

/// The texts of incarnation `started`.
fn texts(started: u64) -> Vec<String> {
    let mut queue = format!("{PRELUDE}\n{QUEUE}\n");
    for (script, body) in QUEUE_OPERATIONS {
        queue += &[
            "operations['",
            &script.name(),
            "'] = function()\n",
            body,
            "\nend\n",
        ]
        .concat();
    }
    queue.push_str("return operations[ARGV[#ARGV]]()");
    [
        include_str!("scripts/begin.lua").to_owned(),
        [PRELUDE, include_str!("scripts/fence.lua")].join("\n"),
        [PRELUDE, include_str!("scripts/apply.lua")].join("\n"),
        [PRELUDE, include_str!("scripts/scan.lua")].join("\n"),
        [PRELUDE, include_str!("scripts/apply.lua")].join("\n"),
        queue,
    ]
    .map(|text| format!("local STARTED = {started}\n{text}"))
    .into_iter()
    .enumerate()
    // A script counts its change before it deletes, which a server without room would refuse.
    .map(|(place, text)| {
        if place == Script::Delete.text() {
            format!("{TAKEN_WITHOUT_ROOM}\n{text}")
        } else {
            text
        }
    })
    .collect()
}

/// The scripts of one incarnation, as a server knows them.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// The incarnation they belong to; zero in a cluster.
    pub(crate) started: u64,
    /// The digest that names each.
    digests: Vec<String>,
}

impl Scripts {
    /// Tells `node` the scripts of incarnation `started`.
    pub(crate) async fn load(node: &Node, started: u64) -> Result<Self, Failure> {
        let mut pipeline = pipe();
        for text in texts(started) {
            load(&mut pipeline, &text);
        }
        let answers = node.pipeline(&pipeline, TEXTS).await?;
        let digests = answers
            .into_iter()
            .map(answer::text)
            .collect::<Result<_, _>>()?;
        Ok(Self { started, digests })
    }

    /// The scripts of incarnation `started`, if `node` still knows all of them: then it is in the life in which they
    /// were loaded, and this release has the same ones.
    pub(crate) async fn known(node: &Node, started: u64) -> Result<Option<Self>, Failure> {
        let digests: Vec<String> = texts(started)
            .iter()
            .map(|text| redis::Script::new(text).get_hash().to_owned())
            .collect();
        let there = node
            .command(cmd("SCRIPT").arg("EXISTS").arg(&digests))
            .await?;
        let there: Result<Vec<u64>, Failure> =
            answer::array(there)?.iter().map(answer::number).collect();
        Ok(there?
            .iter()
            .all(|is_there| *is_there == 1)
            .then_some(Self { started, digests }))
    }

    /// The command that runs `script`.
    pub(crate) fn command(
        &self,
        script: Script,
        keys: &[impl AsRef<[u8]>],
        arguments: &[impl AsRef<[u8]>],
    ) -> Cmd {
        let mut command = cmd("EVALSHA");
        command.arg(&self.digests[script.text()]).arg(keys.len());
        for part in keys {
            command.arg(part.as_ref());
        }
        for part in arguments {
            command.arg(part.as_ref());
        }
        if script.text() == TEXTS - 1 {
            command.arg(script.name());
        }
        command
    }
}

/// The mark of one life of a server: a script that nobody else loads.
pub(crate) async fn load_mark(node: &Node, mark: u64) -> Result<String, Failure> {
    let mut pipeline = pipe();
    let text = format!("-- {mark}\nreturn redis.call('SET', KEYS[1], '', 'PX', ARGV[1])");
    load(&mut pipeline, &text);
    let digest = node
        .pipeline(&pipeline, 1)
        .await?
        .pop()
        .unwrap_or(Value::Nil);
    answer::text(digest)
}

fn load(pipeline: &mut Pipeline, text: &str) {
    pipeline.cmd("SCRIPT").arg("LOAD").arg(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_incarnation_has_texts_of_its_own() {
        assert!(
            texts(1)
                .iter()
                .zip(&texts(2))
                .all(|(one, other)| one != other)
        );
    }
}
