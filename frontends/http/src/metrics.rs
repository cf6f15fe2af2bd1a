//! The status as metrics, in the OpenMetrics text format that Prometheus reads.
//!
//! The table [`FIGURES`] names the metrics. Their values are those of the status's JSON at the
//! moment of the scrape: nothing is counted twice, and between two scrapes nothing is done.

use std::fmt::Write as _;

use serde_json::Value;

use crate::status::{Phase, Status};

/// The content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics of a running server, one to a line: kind, name, place in the status, help.
///
/// - A place that the status does not have yields no metric. A missing member is 0, a text is 1.
/// - `name{label}` is a family, of which each member of the object at that place is one figure.
/// - `name{label=value}` is one figure of a family. The first line of a family has its help.
/// - `name{label:member}` is a family with a figure of each item of the list before the place's
///   last part, named by that member.
/// - A `float` is a gauge with a decimal point. `seconds` are such a gauge, from milliseconds.
const FIGURES: &str = "\
gauge objects_full /objects_full 1 if the disk of --objects is full: values over 1 KiB are refused
gauge objects_missing /objects_missing 1 if the directory of --objects is not the one that was opened, as where a mount has fallen off
gauge blocked_groups /blocked_groups Queue groups whose first message has failed for good and blocks those behind it
counter log_lines_dropped /log_lines_dropped Lines of the log that were dropped: their reader was too slow, or the disk was full
gauge coordination_sessions /coordination/sessions Sessions this process answers for
gauge coordination_connections /coordination/connections Connections of clients
gauge coordination_watches /coordination/watches Watches that clients have armed
gauge coordination_zxid /coordination/zxid The last zxid applied
counter coordination_requests /coordination/requests Requests read from clients
counter coordination_responses /coordination/responses Replies and events written to clients
counter coordination_malformed /coordination/malformed Connections closed, and requests refused, for what no client sends
gauge transactions_open /transactions/open Transactions open now
gauge transactions_index_size_bytes /transactions/index_bytes Bytes of the index of versions
gauge transactions_cache_size_bytes /transactions/data_cache_bytes Bytes of values cached
gauge transactions_buffered_bytes /transactions/buffered_bytes Bytes of values not written yet
gauge transactions_effects_unsent /transactions/effects_unsent Effects of commits not sent yet
gauge transactions_effects_failing /transactions/effects_failing Transactions whose next effect was refused when it was last tried
counter transactions_effects_sent /transactions/effects_sent Effects sent
counter transactions_spilled_bytes /transactions/spilled_bytes Bytes written ahead of commits
counter transactions_begun /transactions/begun Transactions begun
counter transactions_committed /transactions/committed Transactions committed
counter transactions_aborted /transactions/aborted Transactions aborted or begun anew
counter transactions_expired /transactions/expired Transactions that ran out of time
counter transactions_conflicts /transactions/conflicts Serializable transactions that ended because another had written what they read
counter transactions_no_valid_version /transactions/no_valid_version Reads without a version that is consistent with earlier reads
counter transactions_loads /transactions/loads Keys looked up in the store
gauge transactions_sequenced_keyspaces /transactions/sequenced_keyspaces Keyspaces that a serializable transaction has made sequenced permanently
gauge transactions_slots /transactions/slots Slots written to the node's log
gauge transactions_log_slots /transactions/log_slots Slots of logs within their window
gauge transactions_kept_names /transactions/kept_names Names whose outcome is kept
gauge transactions_clock_ahead_ms /transactions/clock_ahead_ms Milliseconds that this machine's clock is ahead of the other nodes'; beyond 10,000 it takes no writes
gauge transactions_members_unheard /transactions/members_unheard Members not heard for ten seconds: until they are, what was overwritten is kept
counter transactions_collected_versions /transactions/collected_versions Versions collected
counter transactions_collected_bytes /transactions/collected_bytes Bytes of values collected
counter transactions_overtaken /transactions/overtaken Transactions that no longer kept their versions
counter transactions_swept /transactions/swept Versions and rows found that no log named
gauge transactions_packs /transactions/packs Packs of values in the object store
gauge transactions_packs_size_bytes /transactions/packs_bytes Bytes of values in packs, dead ones included
counter transactions_packed /transactions/packed Packs put
counter transactions_packed_bytes /transactions/packed_bytes Bytes of values put into packs
counter transactions_compacted /transactions/compacted Packs compacted
gauge functions_deployed /functions/deployed Functions that are deployed
gauge functions_instances{state=busy} /functions/instances_busy Instances of functions by state: busy with an invocation, idle, or idle and frozen
gauge functions_instances{state=warm} /functions/instances_warm
gauge functions_instances{state=frozen} /functions/instances_frozen
counter functions_failures{kind} /functions/failures Invocations that failed, by cause
counter functions_invocations /functions/invocations Invocations given to an instance
counter functions_cold_starts /functions/cold_starts Instances started for a call
counter functions_adopted /functions/adopted Cold starts for which a spare interpreter stood ready
counter functions_throttled /functions/throttled Calls refused since all instances were at work
counter functions_unavailable /functions/unavailable Calls refused since no instance could be started
gauge functions_spares /functions/spares Interpreters that stand ready for instances to come
gauge functions_events_waiting /functions/events_waiting Events and messages that wait for a function or are with one
gauge functions_dead_letters /functions/dead_letters Events and messages that were given up
gauge workflows_active /workflows/active Runs under way
counter workflows_begun /workflows/begun Runs begun
counter workflows_ended{status=succeeded} /workflows/succeeded Runs that ended, by how
counter workflows_ended{status=failed} /workflows/failed
counter workflows_ended{status=cancelled} /workflows/cancelled
float far_store_reachable{store:address} /workflows/far_stores/reachable 1 if the far store answered as it should when it was last needed
float far_store_waiting_bytes{store:address} /workflows/far_stores/waiting_bytes Bytes ordered here that are not durable there
seconds far_store_waiting_seconds{store:address} /workflows/far_stores/waiting_ms How long the oldest of them has waited
float far_store_stopped_runs{store:address} /workflows/far_stores/stopped_runs Runs whose writes a permanent error has stopped
gauge far_stores_more /workflows/far_stores_more Far stores beyond those that are shown one by one
gauge journal_size_bytes /journal/bytes Bytes not yet folded into the checkpoint store
gauge journal_position /journal/position Position of the last change in order
gauge journal_durable_position /journal/durable Position up to which changes are durable
gauge journal_full /journal/full 1 if the disk is full: writes fail, reads go on
gauge journal_serving /journal/serving 1 if it takes changes
gauge journal_trouble /journal/trouble 1 if something is wrong; see the status
counter journal_checkpoints /journal/checkpoints Folds into the checkpoint store
counter journal_syncs /journal/syncs Syncs of the journal to disk
gauge store_serving /store/serving 1 if every server of the shared store could be used when it was last needed
gauge memory_instances /memory/instances Instances of function memory
gauge memory_fragments /memory/fragments Fragments of objects in function memory
gauge memory_groups{phase=active} /memory/groups_active Groups of instances of function memory
gauge memory_groups{phase=degraded} /memory/groups_degraded
counter memory_groups_released /memory/groups_released Groups of instances that were released
counter memory_invocations{category=io} /memory/metered/io/count Invocations of functions of function memory that a cloud would bill
counter memory_invocations{category=warm_up} /memory/metered/warm_up/count
counter memory_invocations{category=recovery} /memory/metered/recovery/count
gauge memory_running_bytes /memory/metered/running_bytes Memory of the instances of function memory
counter memory_running_byte_seconds /memory/metered/running_byte_seconds The same times the seconds that it ran
gauge memory_resident_bytes /memory/metered/resident_bytes Content of objects in function memory, without parity
counter memory_fragments_refused /memory/fragments_refused Fragments that had no place in function memory
gauge memory_buffered_bytes /memory/buffered_bytes Bytes in the buffer before a distant object store
gauge memory_buffered_fragments /memory/buffered_fragments Fragments in the buffer, which the object store does not have yet
counter port_calls{operation:operation} /usage/calls Calls of a port's operation
counter port_failures{operation:operation} /usage/failures Calls that returned an error
counter port_carried_items{operation:operation} /usage/items Items, messages or objects carried by calls
counter port_carried_bytes{operation:operation} /usage/bytes Bytes carried by calls, in either direction
";

/// `status` as text.
pub(crate) fn render(status: &Status) -> String {
    let mut text = String::new();
    describe(&mut text, "info", "build", "What is running");
    let (version, provider) = (escaped(&status.version), escaped(&status.provider));
    let build = format!("version=\"{version}\",provider=\"{provider}\"");
    line(&mut text, "build_info", &build, 1);
    describe(&mut text, "gauge", "ready", "1 if every listener accepts");
    let ready = u8::from(status.phase == Phase::Ready);
    line(&mut text, "ready", "", ready);
    describe(
        &mut text,
        "gauge",
        "uptime_seconds",
        "Seconds since the start",
    );
    let seconds = format!("{:?}", status.uptime_ms as f64 / 1000.0);
    line(&mut text, "uptime_seconds", "", seconds);
    let status = serde_json::to_value(status).expect("strings and numbers always serialise");
    for row in FIGURES.lines() {
        figure(&mut text, row, &status);
    }
    text.push_str("# EOF\n");
    text
}

/// Writes the metric of one row of the table.
fn figure(text: &mut String, row: &str, status: &Value) {
    let mut parts = row.splitn(4, ' ');
    let mut next = || parts.next().unwrap_or_default();
    let (kind, name, place, help) = (next(), next(), next(), next());
    let (name, label) = name
        .trim_end_matches('}')
        .split_once('{')
        .unwrap_or((name, ""));
    let (list, member) = place.rsplit_once('/').unwrap_or_default();
    let values: Vec<(String, &Value)> = if let Some((label, named_by)) = label.split_once(':') {
        let Some(items) = status.pointer(list).and_then(Value::as_array) else {
            return;
        };
        let figures = items.iter().map(|item| {
            let value = item[named_by].as_str().unwrap_or_default();
            (labelled(label, value), &item[member])
        });
        figures.collect()
    } else {
        match (status.pointer(place), label.split_once('=')) {
            (None, _) => return,
            (Some(found), Some((label, value))) => vec![(labelled(label, value), found)],
            (Some(Value::Object(members)), None) => members
                .iter()
                .map(|(value, found)| (labelled(label, value), found))
                .collect(),
            (Some(found), None) => vec![(String::new(), found)],
        }
    };
    if !help.is_empty() {
        let kind = if kind == "counter" { kind } else { "gauge" };
        describe(text, kind, name, help);
    }
    let suffix = if kind == "counter" { "_total" } else { "" };
    for (labels, value) in values {
        let number = match value {
            Value::Null => 0.into(),
            Value::Bool(is_true) => u8::from(*is_true).into(),
            Value::Number(number) => number.clone(),
            _ => 1.into(),
        };
        let float = number.as_f64().unwrap_or_default();
        let shown = match kind {
            "float" => format!("{float:?}"),
            "seconds" => format!("{:?}", float / 1000.0),
            _ => number.to_string(),
        };
        line(text, &[name, suffix].concat(), &labels, shown);
    }
}

fn describe(text: &mut String, kind: &str, name: &str, help: &str) {
    let _ = writeln!(text, "# HELP landfast_{name} {help}");
    let _ = writeln!(text, "# TYPE landfast_{name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: impl std::fmt::Display) {
    let _ = if labels.is_empty() {
        writeln!(text, "landfast_{name} {value}")
    } else {
        writeln!(text, "landfast_{name}{{{labels}}} {value}")
    };
}

fn labelled(label: &str, value: &str) -> String {
    format!("{label}=\"{}\"", escaped(value))
}

/// A label's value as the format requires it.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::{
        Coordination, FarStore, Functions, Journal, Memory, Store, Usage, Workflows,
    };
    use transactions::Figures;

    /// A figure of another name would vanish without an error.
    #[test]
    fn every_figure_of_the_table_is_in_the_status() {
        let status = Status {
            coordination: Some(Coordination::default()),
            transactions: Some(Figures::default()),
            functions: Some(Functions {
                failures: [("function".to_owned(), 1)].into(),
                ..Functions::default()
            }),
            workflows: Some(Workflows {
                far_stores: vec![FarStore {
                    address: "a\"\n\\".to_owned(),
                    ..FarStore::default()
                }],
                ..Workflows::default()
            }),
            memory: Some(Memory::default()),
            journal: Some(Journal::default()),
            store: Some(Store::default()),
            usage: vec![Usage::default()],
            ..Status::default()
        };
        let text = render(&status);
        let described = text.matches("# HELP").count();
        let helps = FIGURES
            .lines()
            .filter(|row| row.splitn(4, ' ').count() == 4);
        assert_eq!(described, helps.count() + 3, "{text}");
        let samples = text.lines().filter(|line| !line.starts_with('#')).count();
        assert_eq!(samples, FIGURES.lines().count() + 3, "{text}");
        let json = serde_json::to_value(&status).expect("JSON");
        for row in FIGURES.lines() {
            let place = row.split(' ').nth(2).expect("a place");
            let place = place.replace("/usage/", "/usage/0/");
            let place = place.replace("/far_stores/", "/far_stores/0/");
            assert!(json.pointer(&place).is_some(), "{row}");
        }
        assert!(text.contains(r#"{store="a\"\n\\"} 0.0"#), "{text}");
    }
}
