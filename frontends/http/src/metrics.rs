//! The status as metrics, read at the moment of the scrape: nothing is counted twice, and between two
//! scrapes nothing is done.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeGaugeValue, NoLabelSet, text::encode},
    metrics::MetricType,
    registry::Registry,
};
use transactions::Figures;

use crate::status::{Coordination, FarStore, Functions, Journal, Phase, Status, Usage, Workflows};

/// The content type of the text.
pub(crate) const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// `status` as text, in the OpenMetrics format that Prometheus reads.
pub(crate) fn render(status: Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("landfast");
    registry.register_collector(Box::new(Scrape(status)));
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

#[derive(Debug)]
struct Scrape(Status);

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let status = &self.0;
        server(&mut encoder, status)?;
        if let Some(numbers) = &status.coordination {
            coordination(&mut encoder, numbers)?;
        }
        if let Some(numbers) = &status.transactions {
            transactions(&mut encoder, numbers)?;
        }
        if let Some(numbers) = &status.functions {
            functions(&mut encoder, numbers)?;
        }
        if let Some(numbers) = &status.workflows {
            workflows(&mut encoder, numbers)?;
        }
        if let Some(numbers) = &status.journal {
            journal(&mut encoder, numbers)?;
        }
        if let Some(store) = &status.store {
            let help =
                "1 if every server of the shared store could be used when it was last needed";
            gauge(
                &mut encoder,
                "store_serving",
                help,
                i64::from(store.serving),
            )?;
        }
        usage(&mut encoder, &status.usage)
    }
}

fn server(encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
    let mut build =
        encoder.encode_descriptor("build", "What is running", None, MetricType::Info)?;
    build.encode_info(&[
        ("version", status.version.as_str()),
        ("provider", status.provider.as_str()),
    ])?;
    gauge(
        encoder,
        "ready",
        "1 if every listener accepts",
        i64::from(status.phase == Phase::Ready),
    )?;
    gauge(
        encoder,
        "uptime_seconds",
        "Seconds since the start",
        status.uptime_ms as f64 / 1000.0,
    )?;
    let help = "1 if the disk of --objects is full: values over 1 KiB are refused";
    gauge(
        encoder,
        "objects_full",
        help,
        i64::from(status.objects_full),
    )?;
    let help = "1 if the directory of --objects is not the one that was opened, as where a mount has fallen off";
    gauge(
        encoder,
        "objects_missing",
        help,
        i64::from(status.objects_missing),
    )?;
    let help = "Queue groups whose first message has failed for good and blocks those behind it";
    gauge(encoder, "blocked_groups", help, status.blocked_groups)?;
    let help =
        "Lines of the log that were dropped: their reader was too slow, or the disk was full";
    counter(encoder, "log_lines_dropped", help, status.log_lines_dropped)
}

fn coordination(encoder: &mut DescriptorEncoder<'_>, numbers: &Coordination) -> fmt::Result {
    gauge(
        encoder,
        "coordination_sessions",
        "Sessions this process answers for",
        numbers.sessions,
    )?;
    gauge(
        encoder,
        "coordination_connections",
        "Connections of clients",
        numbers.connections,
    )?;
    gauge(
        encoder,
        "coordination_watches",
        "Watches that clients have armed",
        numbers.watches,
    )?;
    gauge(
        encoder,
        "coordination_zxid",
        "The last zxid applied",
        numbers.zxid,
    )?;
    counter(
        encoder,
        "coordination_requests",
        "Requests read from clients",
        numbers.requests,
    )?;
    counter(
        encoder,
        "coordination_responses",
        "Replies and events written to clients",
        numbers.responses,
    )?;
    let help = "Connections closed, and requests refused, for what no client sends";
    counter(encoder, "coordination_malformed", help, numbers.malformed)
}

fn transactions(encoder: &mut DescriptorEncoder<'_>, numbers: &Figures) -> fmt::Result {
    gauge(
        encoder,
        "transactions_open",
        "Transactions open now",
        numbers.open,
    )?;
    gauge(
        encoder,
        "transactions_index_size_bytes",
        "Bytes of the index of versions",
        numbers.index_bytes,
    )?;
    gauge(
        encoder,
        "transactions_cache_size_bytes",
        "Bytes of values cached",
        numbers.data_cache_bytes,
    )?;
    gauge(
        encoder,
        "transactions_buffered_bytes",
        "Bytes of values not written yet",
        numbers.buffered_bytes,
    )?;
    gauge(
        encoder,
        "transactions_effects_unsent",
        "Effects of commits not sent yet",
        numbers.effects_unsent,
    )?;
    gauge(
        encoder,
        "transactions_effects_failing",
        "Transactions whose next effect was refused when it was last tried",
        numbers.effects_failing,
    )?;
    counter(
        encoder,
        "transactions_effects_sent",
        "Effects sent",
        numbers.effects_sent,
    )?;
    transaction_counts(encoder, numbers)?;
    collection(encoder, numbers)
}

/// The transactions and their effects since the start.
fn transaction_counts(encoder: &mut DescriptorEncoder<'_>, numbers: &Figures) -> fmt::Result {
    counter(
        encoder,
        "transactions_spilled_bytes",
        "Bytes written ahead of commits",
        numbers.spilled_bytes,
    )?;
    counter(
        encoder,
        "transactions_begun",
        "Transactions begun",
        numbers.begun,
    )?;
    counter(
        encoder,
        "transactions_committed",
        "Transactions committed",
        numbers.committed,
    )?;
    counter(
        encoder,
        "transactions_aborted",
        "Transactions aborted or begun anew",
        numbers.aborted,
    )?;
    counter(
        encoder,
        "transactions_expired",
        "Transactions that ran out of time",
        numbers.expired,
    )?;
    counter(
        encoder,
        "transactions_conflicts",
        "Serializable transactions that ended because another had written what they read",
        numbers.conflicts,
    )?;
    counter(
        encoder,
        "transactions_no_valid_version",
        "Reads without a version that is consistent with earlier reads",
        numbers.no_valid_version,
    )?;
    counter(
        encoder,
        "transactions_loads",
        "Keys looked up in the store",
        numbers.loads,
    )?;
    // A gauge: a node that starts over counts its new log's slots.
    gauge(
        encoder,
        "transactions_slots",
        "Slots written to the node's log",
        numbers.slots,
    )
}

fn collection(encoder: &mut DescriptorEncoder<'_>, numbers: &Figures) -> fmt::Result {
    let gauges = [
        (
            "transactions_log_slots",
            "Slots of logs within their window",
            numbers.log_slots,
        ),
        (
            "transactions_kept_names",
            "Names whose outcome is kept",
            numbers.kept_names,
        ),
        (
            "transactions_clock_ahead_ms",
            "Milliseconds that this machine's clock is ahead of the other nodes'; beyond 10,000 it takes no writes",
            numbers.clock_ahead_ms,
        ),
        (
            "transactions_members_unheard",
            "Members not heard for ten seconds: until they are, what was overwritten is kept",
            numbers.members_unheard,
        ),
    ];
    for (name, help, value) in gauges {
        gauge(encoder, name, help, value)?;
    }
    let counters = [
        (
            "transactions_collected_versions",
            "Versions collected",
            numbers.collected_versions,
        ),
        (
            "transactions_collected_bytes",
            "Bytes of values collected",
            numbers.collected_bytes,
        ),
        (
            "transactions_overtaken",
            "Transactions that no longer kept their versions",
            numbers.overtaken,
        ),
        (
            "transactions_swept",
            "Versions and rows found that no log named",
            numbers.swept,
        ),
    ];
    counters
        .into_iter()
        .try_for_each(|(name, help, value)| counter(encoder, name, help, value))?;
    packs(encoder, numbers)
}

fn packs(encoder: &mut DescriptorEncoder<'_>, numbers: &Figures) -> fmt::Result {
    gauge(
        encoder,
        "transactions_packs",
        "Packs of values in the object store",
        numbers.packs,
    )?;
    let help = "Bytes of values in packs, dead ones included";
    gauge(
        encoder,
        "transactions_packs_size_bytes",
        help,
        numbers.packs_bytes,
    )?;
    counter(encoder, "transactions_packed", "Packs put", numbers.packed)?;
    counter(
        encoder,
        "transactions_packed_bytes",
        "Bytes of values put into packs",
        numbers.packed_bytes,
    )?;
    counter(
        encoder,
        "transactions_compacted",
        "Packs compacted",
        numbers.compacted,
    )
}

fn functions(encoder: &mut DescriptorEncoder<'_>, numbers: &Functions) -> fmt::Result {
    gauge(
        encoder,
        "functions_deployed",
        "Functions that are deployed",
        numbers.deployed,
    )?;
    let states = [
        ("busy", numbers.instances_busy),
        ("warm", numbers.instances_warm),
        ("frozen", numbers.instances_frozen),
    ];
    let help = "Instances of functions by state: busy with an invocation, idle, or idle and frozen";
    let mut family =
        encoder.encode_descriptor("functions_instances", help, None, MetricType::Gauge)?;
    for (state, value) in states {
        family
            .encode_family(&[("state", state)])?
            .encode_gauge(&value)?;
    }
    let help = "Invocations that failed, by cause";
    let mut family =
        encoder.encode_descriptor("functions_failures", help, None, MetricType::Counter)?;
    for (kind, value) in &numbers.failures {
        let labels = [("kind", kind.as_str())];
        family
            .encode_family(&labels)?
            .encode_counter::<NoLabelSet, _, u64>(value, None)?;
    }
    function_counts(encoder, numbers)
}

/// The calls of functions since the start, and the events that wait.
fn function_counts(encoder: &mut DescriptorEncoder<'_>, numbers: &Functions) -> fmt::Result {
    let counters = [
        (
            "functions_invocations",
            "Invocations given to an instance",
            numbers.invocations,
        ),
        (
            "functions_cold_starts",
            "Instances started for a call",
            numbers.cold_starts,
        ),
        (
            "functions_adopted",
            "Cold starts for which a spare interpreter stood ready",
            numbers.adopted,
        ),
        (
            "functions_throttled",
            "Calls refused since all instances were at work",
            numbers.throttled,
        ),
        (
            "functions_unavailable",
            "Calls refused since no instance could be started",
            numbers.unavailable,
        ),
    ];
    counters
        .into_iter()
        .try_for_each(|(name, help, value)| counter(encoder, name, help, value))?;
    let help = "Interpreters that stand ready for instances to come";
    gauge(encoder, "functions_spares", help, numbers.spares)?;
    let help = "Events and messages that wait for a function or are with one";
    gauge(
        encoder,
        "functions_events_waiting",
        help,
        numbers.events_waiting,
    )?;
    gauge(
        encoder,
        "functions_dead_letters",
        "Events and messages that were given up",
        numbers.dead_letters,
    )
}

/// A figure of each far store: its name, its help text, and its value.
type Column = (&'static str, &'static str, fn(&FarStore) -> f64);

fn workflows(encoder: &mut DescriptorEncoder<'_>, numbers: &Workflows) -> fmt::Result {
    gauge(
        encoder,
        "workflows_active",
        "Runs under way",
        numbers.active,
    )?;
    counter(encoder, "workflows_begun", "Runs begun", numbers.begun)?;
    let ends = [
        ("succeeded", numbers.succeeded),
        ("failed", numbers.failed),
        ("cancelled", numbers.cancelled),
    ];
    let mut family = encoder.encode_descriptor(
        "workflows_ended",
        "Runs that ended, by how",
        None,
        MetricType::Counter,
    )?;
    for (status, value) in ends {
        family
            .encode_family(&[("status", status)])?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    let columns: [Column; 4] = [
        (
            "far_store_reachable",
            "1 if the far store answered as it should when it was last needed",
            |store| f64::from(u8::from(store.reachable)),
        ),
        (
            "far_store_waiting_bytes",
            "Bytes ordered here that are not durable there",
            |store| store.waiting_bytes as f64,
        ),
        (
            "far_store_waiting_seconds",
            "How long the oldest of them has waited",
            |store| store.waiting_ms as f64 / 1000.0,
        ),
        (
            "far_store_stopped_runs",
            "Runs whose writes a permanent error has stopped",
            |store| store.stopped_runs as f64,
        ),
    ];
    for (name, help, value) in columns {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for store in &numbers.far_stores {
            family
                .encode_family(&[("store", store.address.as_str())])?
                .encode_gauge(&value(store))?;
        }
    }
    let help = "Far stores beyond those that are shown one by one";
    gauge(encoder, "far_stores_more", help, numbers.far_stores_more)
}

fn journal(encoder: &mut DescriptorEncoder<'_>, numbers: &Journal) -> fmt::Result {
    gauge(
        encoder,
        "journal_size_bytes",
        "Bytes not yet folded into the checkpoint store",
        numbers.bytes,
    )?;
    gauge(
        encoder,
        "journal_position",
        "Position of the last change in order",
        numbers.position,
    )?;
    gauge(
        encoder,
        "journal_durable_position",
        "Position up to which changes are durable",
        numbers.durable,
    )?;
    gauge(
        encoder,
        "journal_full",
        "1 if the disk is full: writes fail, reads go on",
        i64::from(numbers.full),
    )?;
    gauge(
        encoder,
        "journal_serving",
        "1 if it takes changes",
        i64::from(numbers.serving),
    )?;
    gauge(
        encoder,
        "journal_trouble",
        "1 if something is wrong; see the status",
        i64::from(numbers.trouble.is_some()),
    )?;
    counter(
        encoder,
        "journal_checkpoints",
        "Folds into the checkpoint store",
        numbers.checkpoints,
    )?;
    counter(
        encoder,
        "journal_syncs",
        "Syncs of the journal to disk",
        numbers.syncs,
    )
}

fn usage(encoder: &mut DescriptorEncoder<'_>, usage: &[Usage]) -> fmt::Result {
    type Column = (&'static str, &'static str, fn(&Usage) -> u64);
    let columns: [Column; 4] = [
        ("port_calls", "Calls of a port's operation", |line| {
            line.calls
        }),
        ("port_failures", "Calls that returned an error", |line| {
            line.failures
        }),
        (
            "port_carried_items",
            "Items, messages or objects carried by calls",
            |line| line.items,
        ),
        (
            "port_carried_bytes",
            "Bytes carried by calls, in either direction",
            |line| line.bytes,
        ),
    ];
    for (name, help, value) in columns {
        let mut family = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for line in usage {
            let labels = [("operation", line.operation.as_str())];
            family
                .encode_family(&labels)?
                .encode_counter::<NoLabelSet, _, u64>(&value(line), None)?;
        }
    }
    Ok(())
}

fn gauge<V>(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: V) -> fmt::Result
where
    V: EncodeGaugeValue + Copy,
{
    encoder
        .encode_descriptor(name, help, None, MetricType::Gauge)?
        .encode_gauge(&value)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
    metric.encode_counter::<NoLabelSet, _, u64>(&value, None)
}
