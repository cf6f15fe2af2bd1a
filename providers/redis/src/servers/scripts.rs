//! The scripts that change the store, and how they are loaded into a server.
//!
//! Each text begins with its incarnation. Since Redis 7.0, servers neither persist nor replicate
//! loaded scripts. A script that is still loaded therefore proves that the server has neither
//! restarted nor been replaced since. `NOSCRIPT` tells a store that its server restarted. That is
//! why we never use `EVAL`.

use redis::{Cmd, Pipeline, Value, cmd, pipe};

use crate::{
    error::Failure,
    servers::{node::Node, reply},
};

/// The name of a script.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Script {
    Begin,
    Fence,
    Apply,
    /// [`Script::Apply`] for deletions alone: a server without free memory runs it.
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
    QueueWaiting,
    QueueBacklog,
}

const PRELUDE: &str = include_str!("scripts/prelude.lua");
const QUEUE: &str = include_str!("scripts/queue.lua");

macro_rules! texts_of {
    ($($script:ident $file:literal,)*) => {
        [$((Script::$script, include_str!(concat!("scripts/", $file, ".lua"))),)*]
    };
}

/// The queue operations, one text each. They are loaded as one script, because the scripts of every
/// incarnation stay in the server's memory until it restarts.
const QUEUE_OPERATIONS: [(Script, &str); 14] = texts_of! {
    QueueCreate "queue_create",
    QueueSend "queue_send",
    QueueReceive "queue_receive",
    QueueAcknowledge "queue_acknowledge",
    QueueRelease "queue_release",
    QueueGiveUp "queue_give_up",
    QueueExtend "queue_extend",
    QueueOutlook "queue_outlook",
    QueueDead "queue_dead",
    QueueRedrive "queue_redrive",
    QueuePurge "queue_purge",
    QueueBlocked "queue_blocked",
    QueueWaiting "queue_waiting",
    QueueBacklog "queue_backlog",
};

/// The first line of a script that runs even at `maxmemory` (Redis 7.0).
const ALLOW_OOM: &str = "#!lua flags=allow-oom\n";

/// The number of loaded texts.
const TEXT_COUNT: usize = 6;

impl Script {
    /// The index of the loaded text that contains it.
    fn text(self) -> usize {
        match self {
            Self::Begin => 0,
            Self::Fence => 1,
            Self::Apply => 2,
            Self::Scan => 3,
            Self::Delete => 4,
            _ => TEXT_COUNT - 1,
        }
    }
}

/// The texts of incarnation `started`.
fn texts(started: u64) -> Vec<String> {
    let mut queue = format!("{PRELUDE}\n{QUEUE}\n");
    for (script, body) in QUEUE_OPERATIONS {
        let head = format!("operations['{script:?}'] = function()\n");
        queue.extend([head.as_str(), body, "\nend\n"]);
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
    .into_iter()
    .enumerate()
    .map(|(place, text)| {
        // The script advances the clock before it deletes. Without this flag a full server would
        // refuse that.
        let flags = if place == Script::Delete.text() {
            ALLOW_OOM
        } else {
            ""
        };
        format!("{flags}local STARTED = {started}\n{text}")
    })
    .collect()
}

/// The scripts of one incarnation, as loaded into a server.
#[derive(Debug)]
pub(crate) struct Scripts {
    /// Their incarnation; zero in a cluster.
    pub(crate) started: u64,
    /// The SHA-1 digest of each text.
    digests: Vec<String>,
}

impl Scripts {
    /// Loads the scripts of incarnation `started` into `node`.
    pub(crate) async fn load(node: &Node, started: u64) -> Result<Self, Failure> {
        let mut pipeline = pipe();
        for text in texts(started) {
            load(&mut pipeline, &text);
        }
        let replies = node.pipeline(&pipeline, TEXT_COUNT).await?;
        let digests = replies
            .into_iter()
            .map(reply::text)
            .collect::<Result<_, _>>()?;
        Ok(Self { started, digests })
    }

    /// The scripts of incarnation `started`, if all of them are loaded in `node`. The server has
    /// then not restarted since, and this release has the same scripts.
    pub(crate) async fn loaded(node: &Node, started: u64) -> Result<Option<Self>, Failure> {
        let digests: Vec<String> = texts(started)
            .iter()
            .map(|text| redis::Script::new(text).get_hash().to_owned())
            .collect();
        let known = node
            .command(cmd("SCRIPT").arg("EXISTS").arg(&digests))
            .await?;
        let known: Result<Vec<u64>, Failure> =
            reply::array(known)?.iter().map(reply::number).collect();
        Ok(known?
            .iter()
            .all(|is_known| *is_known == 1)
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
        if script.text() == TEXT_COUNT - 1 {
            command.arg(format!("{script:?}"));
        }
        command
    }
}

/// Loads a script that is unique to the present run of a server: its text contains `nonce`.
pub(crate) async fn load_run_marker(node: &Node, nonce: u64) -> Result<String, Failure> {
    let mut pipeline = pipe();
    let text = format!("-- {nonce}\nreturn redis.call('SET', KEYS[1], '', 'PX', ARGV[1])");
    load(&mut pipeline, &text);
    let digest = node
        .pipeline(&pipeline, 1)
        .await?
        .pop()
        .unwrap_or(Value::Nil);
    reply::text(digest)
}

fn load(pipeline: &mut Pipeline, text: &str) {
    pipeline.cmd("SCRIPT").arg("LOAD").arg(text);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_incarnation_has_its_own_texts() {
        assert!(
            texts(1)
                .iter()
                .zip(&texts(2))
                .all(|(one, other)| one != other)
        );
    }
}
