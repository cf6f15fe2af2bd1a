//! `landfast status`: the status of a running server.

use std::{fmt::Write as _, process::ExitCode};

use anyhow::Context as _;
use clap::Args;
use http_frontend::{
    Status,
    status::{Coordination, FarStore, Functions, Journal, Store, Usage, Workflows},
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

/// Gets the status and prints it.
pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let body = arguments.target.get("/v1/status")?;
    let status = read(&body)?;
    let text = if arguments.json {
        format!("{}\n", body.trim_end())
    } else {
        table(&status)?
    };
    super::print(&text)
}

/// The status in the body of a response.
pub(crate) fn read(body: &str) -> anyhow::Result<Status> {
    serde_json::from_str(body).context("the answer is not the status of a Landfast server")
}

fn table(status: &Status) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    let readiness = status
        .why_not_ready()
        .map_or("ready".to_owned(), |reason| format!("not ready: {reason}"));
    writeln!(
        text,
        "landfast {} {readiness}, up {}",
        status.version,
        duration(status.uptime_ms)
    )?;
    writeln!(text, "provider      {}", status.provider)?;
    for (name, address) in &status.listeners {
        writeln!(text, "{name:<13} {address}")?;
    }
    if let Some(numbers) = &status.coordination {
        let Coordination {
            sessions,
            connections,
            watches,
            zxid,
            requests,
            responses,
            malformed,
        } = numbers;
        writeln!(
            text,
            "sessions      {sessions} on {connections} connections, {watches} watches"
        )?;
        writeln!(text, "zxid          {zxid:#x}")?;
        writeln!(
            text,
            "requests      {requests} in, {responses} replies and events out"
        )?;
        if *malformed > 0 {
            writeln!(
                text,
                "malformed     {malformed} packets that no client sends; the log says whose"
            )?;
        }
    }
    if let Some(numbers) = &status.transactions {
        let Figures {
            open,
            committed,
            aborted,
            expired,
            packs,
            packs_bytes,
            ..
        } = numbers;
        writeln!(
            text,
            "transactions  {open} open, {committed} committed, {aborted} aborted, {expired} expired"
        )?;
        if *packs > 0 {
            writeln!(text, "packs         {packs} of values, {packs_bytes} bytes")?;
        }
    }
    if let Some(numbers) = &status.functions {
        functions(&mut text, numbers)?;
    }
    if let Some(numbers) = &status.workflows {
        workflows(&mut text, numbers)?;
    }
    if let Some(numbers) = &status.journal {
        journal(&mut text, numbers)?;
    }
    if let Some(Store {
        servers,
        acknowledged,
        trouble,
        ..
    }) = &status.store
    {
        writeln!(
            text,
            "store         {} (acknowledged: {acknowledged})",
            servers.join(", ")
        )?;
        if let Some(trouble) = trouble {
            writeln!(text, "trouble       {trouble}")?;
        }
    }
    objects(&mut text, status)?;
    if status.blocked_groups > 0 {
        let groups = status.blocked_groups;
        writeln!(
            text,
            "blocked       {groups} queue groups: their first message has failed for good"
        )?;
    }
    if status.log_lines_dropped > 0 {
        writeln!(
            text,
            "log           {} lines dropped: their reader was too slow",
            status.log_lines_dropped
        )?;
    }
    for line in &status.usage {
        let Usage {
            operation,
            calls,
            failures,
            bytes,
            ..
        } = line;
        writeln!(
            text,
            "{operation:<24} {calls:>12} calls {failures:>8} failed {bytes:>14} bytes"
        )?;
    }
    Ok(text)
}

/// Empty while values over 1 KiB are accepted.
fn objects(text: &mut String, status: &Status) -> std::fmt::Result {
    if status.objects_missing {
        writeln!(
            text,
            "objects       MISSING: the directory is not the one that was opened; values over 1 KiB wait for it"
        )?;
    }
    if status.objects_full {
        writeln!(
            text,
            "objects       FULL: values over 1 KiB are refused until room is made, reads go on"
        )?;
    }
    Ok(())
}

/// Empty while no function is deployed.
fn functions(text: &mut String, numbers: &Functions) -> std::fmt::Result {
    let Functions {
        deployed,
        instances_busy,
        instances_warm,
        instances_frozen,
        spares,
        ..
    } = numbers;
    if *deployed == 0 && numbers.invocations == 0 {
        return Ok(());
    }
    writeln!(
        text,
        "functions     {deployed} deployed, instances: {instances_busy} busy, {instances_warm} warm, {instances_frozen} frozen, {spares} spare"
    )?;
    let Functions {
        invocations,
        cold_starts,
        adopted,
        throttled,
        unavailable,
        failures,
        ..
    } = numbers;
    let failed: u64 = failures.values().sum();
    writeln!(
        text,
        "invocations   {invocations} on {cold_starts} started instances ({adopted} of them spares), {failed} failed, {} refused",
        throttled + unavailable
    )?;
    let kinds = failures.iter().filter(|(_, count)| **count > 0);
    let kinds: Vec<_> = kinds
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    if !kinds.is_empty() {
        writeln!(text, "failures      {}", kinds.join(", "))?;
    }
    writeln!(
        text,
        "events        {} waiting, {} dead letters",
        numbers.events_waiting, numbers.dead_letters
    )
}

/// Empty while no run was ever begun.
fn workflows(text: &mut String, numbers: &Workflows) -> std::fmt::Result {
    let Workflows {
        active,
        begun,
        succeeded,
        failed,
        cancelled,
        far_stores,
        far_stores_more,
    } = numbers;
    if *numbers != Workflows::default() {
        writeln!(
            text,
            "workflows     {active} runs under way, {begun} begun, {succeeded} succeeded, {failed} failed, {cancelled} cancelled"
        )?;
    }
    for store in far_stores {
        let how = far_store(store);
        let (bytes, waited) = (store.waiting_bytes, duration(store.waiting_ms));
        writeln!(
            text,
            "far store     {} {how}; {bytes} bytes wait, for {waited}",
            store.address
        )?;
        if store.stopped_runs > 0 {
            writeln!(
                text,
                "stopped       {} runs by a permanent error of it",
                store.stopped_runs
            )?;
        }
    }
    if *far_stores_more > 0 {
        writeln!(text, "far stores    {far_stores_more} more")?;
    }
    Ok(())
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

fn journal(text: &mut String, numbers: &Journal) -> std::fmt::Result {
    let Journal {
        bytes,
        position,
        durable,
        syncs,
        checkpoints,
        ..
    } = numbers;
    let waiting = position.saturating_sub(*durable);
    writeln!(
        text,
        "journal       {bytes} bytes, {syncs} syncs, {checkpoints} checkpoints"
    )?;
    writeln!(
        text,
        "changes       {position} ordered, {waiting} of them not yet durable"
    )?;
    if numbers.full {
        writeln!(
            text,
            "disk          FULL: writes fail until room is made, reads go on"
        )?;
    }
    if let Some(trouble) = &numbers.trouble {
        writeln!(text, "trouble       {trouble}")?;
    }
    Ok(())
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
