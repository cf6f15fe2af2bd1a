//! `landfast status`: the status of a running server.

use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use http_frontend::{
    Status,
    status::{Coordination, FarStore, Functions, Journal, Memory, Store, Workflows},
};
use transactions::Figures;

use super::request::Target;

/// The server, and the output format.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print the server's JSON as it is
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let body = arguments.target.get("/v1/status")?;
    let status = read(&body)?;
    let text = if arguments.json {
        format!("{}\n", body.trim_end())
    } else {
        table(&status)
    };
    super::print(&text)
}

/// The status in the body of a response.
pub(crate) fn read(body: &str) -> anyhow::Result<Status> {
    serde_json::from_str(body).context("the answer is not the status of a Landfast server")
}

/// The table: in each line a name, and what it stands for.
fn table(status: &Status) -> String {
    let readiness = status
        .why_not_ready()
        .map_or("ready".to_owned(), |reason| format!("not ready: {reason}"));
    let (version, up) = (&status.version, duration(status.uptime_ms));
    let mut lines = vec![
        format!("landfast {version} {readiness}, up {up}"),
        format!("provider      {}", status.provider),
    ];
    let listeners = status.listeners.iter();
    lines.extend(listeners.map(|(name, address)| format!("{name:<13} {address}")));
    lines.extend(status.coordination.iter().flat_map(coordination));
    lines.extend(status.transactions.iter().flat_map(transactions));
    lines.extend(status.functions.iter().flat_map(functions));
    lines.extend(status.workflows.iter().flat_map(workflows));
    lines.extend(status.memory.iter().flat_map(memory));
    lines.extend(status.journal.iter().flat_map(journal));
    lines.extend(status.store.iter().flat_map(store));
    if status.objects_missing {
        lines.push("objects       MISSING: the directory is not the one that was opened; values over 1 KiB wait for it".into());
    }
    if status.objects_full {
        lines.push(
            "objects       FULL: values over 1 KiB are refused until room is made, reads go on"
                .into(),
        );
    }
    let (blocked, dropped) = (status.blocked_groups, status.log_lines_dropped);
    if blocked > 0 {
        lines.push(format!(
            "blocked       {blocked} queue groups: their first message has failed for good"
        ));
    }
    if dropped > 0 {
        lines.push(format!(
            "log           {dropped} lines dropped: their reader was too slow"
        ));
    }
    lines.extend(status.usage.iter().map(|line| {
        let (operation, calls) = (&line.operation, line.calls);
        let (failures, bytes) = (line.failures, line.bytes);
        format!("{operation:<24} {calls:>12} calls {failures:>8} failed {bytes:>14} bytes")
    }));
    lines.join("\n") + "\n"
}

fn coordination(numbers: &Coordination) -> Vec<String> {
    let (sessions, connections) = (numbers.sessions, numbers.connections);
    let (requests, responses) = (numbers.requests, numbers.responses);
    let (watches, zxid, malformed) = (numbers.watches, numbers.zxid, numbers.malformed);
    let mut lines = vec![
        format!("sessions      {sessions} on {connections} connections, {watches} watches"),
        format!("zxid          {zxid:#x}"),
        format!("requests      {requests} in, {responses} replies and events out"),
    ];
    if malformed > 0 {
        lines.push(format!(
            "malformed     {malformed} packets that no client sends; the log says whose"
        ));
    }
    lines
}

fn transactions(numbers: &Figures) -> Vec<String> {
    let (open, committed) = (numbers.open, numbers.committed);
    let (aborted, expired) = (numbers.aborted, numbers.expired);
    let (packs, packs_bytes) = (numbers.packs, numbers.packs_bytes);
    let mut lines = vec![format!(
        "transactions  {open} open, {committed} committed, {aborted} aborted, {expired} expired"
    )];
    if numbers.sequenced_keyspaces > 0 {
        lines.push("sequenced     yes, permanently since the first serializable transaction: one log orders all commits".into());
    }
    if packs > 0 {
        lines.push(format!(
            "packs         {packs} of values, {packs_bytes} bytes"
        ));
    }
    lines
}

/// Empty while no function is deployed.
fn functions(numbers: &Functions) -> Vec<String> {
    let (deployed, spares, failures) = (numbers.deployed, numbers.spares, &numbers.failures);
    let (busy, warm) = (numbers.instances_busy, numbers.instances_warm);
    let (frozen, waiting) = (numbers.instances_frozen, numbers.events_waiting);
    let (invocations, cold_starts) = (numbers.invocations, numbers.cold_starts);
    let adopted = numbers.adopted;
    if deployed == 0 && invocations == 0 {
        return Vec::new();
    }
    let failed: u64 = failures.values().sum();
    let refused = numbers.throttled + numbers.unavailable;
    let mut lines = vec![
        format!(
            "functions     {deployed} deployed, instances: {busy} busy, {warm} warm, {frozen} frozen, {spares} spare"
        ),
        format!(
            "invocations   {invocations} on {cold_starts} started instances ({adopted} of them spares), {failed} failed, {refused} refused"
        ),
    ];
    if failed > 0 {
        let kinds = failures.iter().filter(|(_, count)| **count > 0);
        let kinds = kinds.map(|(kind, count)| format!("{count} {kind}"));
        let kinds = kinds.collect::<Vec<_>>().join(", ");
        lines.push(format!("failures      {kinds}"));
    }
    let dead = numbers.dead_letters;
    lines.push(format!(
        "events        {waiting} waiting, {dead} dead letters"
    ));
    lines
}

/// Empty while no run was ever begun.
fn memory(numbers: &Memory) -> Vec<String> {
    let (instances, fragments) = (numbers.instances, numbers.fragments);
    let mut lines = vec![format!(
        "memory        {fragments} fragments of objects on {instances} instances"
    )];
    if numbers.buffered_fragments > 0 {
        lines.push(format!(
            "buffer        {} bytes of objects wait for the object store",
            numbers.buffered_bytes
        ));
    }
    if !numbers.credentials.is_empty() {
        lines.push(format!(
            "s3 keys       {} (AWS_SHARED_CREDENTIALS_FILE takes it)",
            numbers.credentials
        ));
    }
    lines
}

fn workflows(numbers: &Workflows) -> Vec<String> {
    let (active, begun, succeeded) = (numbers.active, numbers.begun, numbers.succeeded);
    let (failed, cancelled) = (numbers.failed, numbers.cancelled);
    let mut lines = Vec::new();
    if *numbers != Workflows::default() {
        lines.push(format!(
            "workflows     {active} runs under way, {begun} begun, {succeeded} succeeded, {failed} failed, {cancelled} cancelled"
        ));
    }
    for store in &numbers.far_stores {
        let (address, how, stopped) = (&store.address, far_store(store), store.stopped_runs);
        let (bytes, waited) = (store.waiting_bytes, duration(store.waiting_ms));
        lines.push(format!(
            "far store     {address} {how}; {bytes} bytes wait, for {waited}"
        ));
        if stopped > 0 {
            lines.push(format!(
                "stopped       {stopped} runs by a permanent error of it"
            ));
        }
    }
    if numbers.far_stores_more > 0 {
        lines.push(format!("far stores    {} more", numbers.far_stores_more));
    }
    lines
}

/// The status sends no request to a far store: it shows the state of its last use, and how old that
/// is.
fn far_store(store: &FarStore) -> String {
    let answered = store
        .answered_ms_ago
        .map(|ago| format!("it answered {} ago", duration(ago)));
    match (&store.trouble, answered) {
        (None, answered) => answered.unwrap_or_else(|| "it was reachable".to_owned()),
        (Some(why), None) => format!("UNREACHABLE: {why}"),
        (Some(why), Some(answered)) => format!("UNREACHABLE, {answered}: {why}"),
    }
}

fn journal(numbers: &Journal) -> Vec<String> {
    let (bytes, syncs, checkpoints) = (numbers.bytes, numbers.syncs, numbers.checkpoints);
    let position = numbers.position;
    let waiting = position.saturating_sub(numbers.durable);
    let mut lines = vec![
        format!("journal       {bytes} bytes, {syncs} syncs, {checkpoints} checkpoints"),
        format!("changes       {position} ordered, {waiting} of them not yet durable"),
    ];
    if numbers.full {
        lines.push("disk          FULL: writes fail until room is made, reads go on".to_owned());
    }
    lines.extend(trouble(numbers.trouble.as_ref()));
    lines
}

fn store(store: &Store) -> Vec<String> {
    let (servers, acknowledged) = (store.servers.join(", "), &store.acknowledged);
    let mut lines = vec![format!(
        "store         {servers} (acknowledged: {acknowledged})"
    )];
    lines.extend(trouble(store.trouble.as_ref()));
    lines
}

fn trouble(trouble: Option<&String>) -> Option<String> {
    trouble.map(|trouble| format!("trouble       {trouble}"))
}

fn duration(ms: u64) -> String {
    let seconds = ms / 1000;
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3_600 % 24, seconds / 60 % 60);
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3_600 => format!("{minutes} min {} s", seconds % 60),
        3_600..86_400 => format!("{hours} h {minutes} min"),
        _ => format!("{days} d {hours} h"),
    }
}
