//! ZooKeeper's commands for operators: four letters in place of the first packet, answered with
//! text.
//!
//! The texts have ZooKeeper's form, because exporters and scripts parse them. Commands that need
//! Java's or an ensemble's figures (`gtmk`, `stmk`, `hash`) get the line for commands that are not
//! allowed.

use std::{collections::BTreeMap, fmt::Write as _, fs, net::SocketAddr, path::Path};

use coordination::model::{SessionId, Sizes};

use crate::{
    figures::Figures,
    latency::{LastReply, Latency},
    shared::Shared,
};

/// Tools expect a version number of ZooKeeper here, so it is the version whose protocol we
/// implement.
const VERSION: &str = concat!("3.9.5-landfast-", env!("CARGO_PKG_VERSION"));

/// ZooKeeper's answer while it starts or stops.
const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests\n";

/// The most files whose sizes are added up for `dirs` and `conf`. The rest is not counted.
const FILES_MAX: usize = 10_000;

/// The text that answers a command.
pub(crate) async fn answer(word: &str, peer: SocketAddr, shared: &Shared) -> String {
    if !shared.config.allows(word, peer) {
        return refusal(word);
    }
    match word {
        "ruok" => "imok".to_owned(),
        "isro" => "rw".to_owned(),
        "conf" => configuration(shared),
        "dirs" => {
            let bytes = directory_bytes(shared);
            format!("datadir_size: {bytes}\nlogdir_size: {bytes}\n")
        }
        "envi" => environment(),
        "cons" => connections(shared, detail) + "\n",
        "crst" => {
            shared.figures.reset_connections();
            "Connection stats reset.\n".to_owned()
        }
        "srst" => {
            shared.figures.reset_server();
            shared.statistics.start_again();
            "Server stats reset.\n".to_owned()
        }
        "wchs" => watch_summary(&shared.gateway.watched_paths()),
        "wchc" => by_session(shared.gateway.watched_paths()),
        "wchp" => by_path(shared.gateway.watched_paths()),
        "dump" => match shared.gateway.sessions().await {
            Ok(sessions) => dump(shared, &sessions),
            Err(_) => NOT_SERVING.to_owned(),
        },
        "srvr" | "stat" | "mntr" => match shared.gateway.sizes().await {
            Ok(sizes) if word == "mntr" => monitor(shared, sizes),
            Ok(sizes) => server(shared, sizes, word == "stat"),
            Err(_) => NOT_SERVING.to_owned(),
        },
        _ => refusal(word),
    }
}

fn refusal(word: &str) -> String {
    format!("{word} is not executed because it is not in the whitelist.\n")
}

fn server(shared: &Shared, sizes: Sizes, lists_clients: bool) -> String {
    let clients = if lists_clients {
        format!("Clients:\n{}\n", connections(shared, |_| String::new()))
    } else {
        String::new()
    };
    let (statistics, latency) = (&shared.statistics, shared.figures.latency());
    format!(
        "Zookeeper version: {VERSION}\n{clients}Latency min/avg/max: {}/{:?}/{}\nReceived: {}\nSent: {}\n\
         Connections: {}\nOutstanding: {}\nZxid: {:#x}\nMode: standalone\nNode count: {}\n",
        latency.min.unwrap_or_default(),
        latency.average(),
        latency.max,
        statistics.received_again(),
        statistics.sent_again(),
        statistics.connections_open(),
        outstanding(&shared.figures.snapshot()),
        shared.gateway.applied().0,
        sizes.znodes,
    )
}

fn outstanding(figures: &[Figures]) -> usize {
    figures.iter().map(|figures| figures.queued).sum()
}

fn monitor(shared: &Shared, sizes: Sizes) -> String {
    let statistics = &shared.statistics;
    let latency = shared.figures.latency();
    let (sessions, watches) = shared.gateway.counts();
    let mut text = format!(
        "zk_version\t{VERSION}\nzk_server_state\tstandalone\nzk_avg_latency\t{:?}\n",
        latency.average()
    );
    let numbers: [(&str, u64); 20] = [
        ("min_latency", latency.min.unwrap_or_default().into()),
        ("max_latency", latency.max.into()),
        ("packets_received", statistics.received_again()),
        ("packets_sent", statistics.sent_again()),
        ("num_alive_connections", statistics.connections_open()),
        (
            "outstanding_requests",
            outstanding(&shared.figures.snapshot()) as u64,
        ),
        ("znode_count", sizes.znodes),
        ("watch_count", watches as u64),
        ("ephemerals_count", sizes.ephemerals),
        ("approximate_data_size", sizes.data_bytes),
        ("global_sessions", sessions as u64),
        ("local_sessions", 0),
        ("open_file_descriptor_count", open_files()),
        ("max_file_descriptor_count", open_files_max()),
        (
            "uptime",
            shared.figures.started.elapsed().as_millis() as u64,
        ),
        ("bytes_received_count", statistics.bytes_received.get()),
        ("response_bytes", statistics.bytes_sent.get()),
        (
            "connection_request_count",
            statistics.connections_accepted.get(),
        ),
        ("connection_rejected", statistics.connections_refused.get()),
        ("throttled_ops", 0),
    ];
    for (name, value) in numbers {
        let _ = writeln!(text, "zk_{name}\t{value}");
    }
    text
}

/// One line for each connection.
fn connections(shared: &Shared, detail: fn(&Figures) -> String) -> String {
    let mut text = String::new();
    for figures in shared.figures.snapshot() {
        let is_open = u8::from(figures.session != 0);
        let _ = writeln!(
            text,
            " /{}[{is_open}](queued={},recved={},sent={}{})",
            figures.peer,
            figures.queued,
            figures.received,
            figures.sent,
            detail(&figures),
        );
    }
    text
}

fn detail(figures: &Figures) -> String {
    let Figures {
        session,
        latency,
        last,
        ..
    } = figures;
    if *session == 0 {
        return String::new();
    }
    let (name, xid, zxid, at_ms) = match last {
        None => ("SESS", 0, 0, 0),
        Some(LastReply {
            operation,
            xid,
            zxid,
            at_ms,
        }) => (
            operation.short_name(),
            xid.unwrap_or_default(),
            zxid.0,
            *at_ms,
        ),
    };
    let Latency { min, max, last, .. } = latency;
    format!(
        ",sid={session:#x},lop={name},est={},to={},lcxid={xid:#x},lzxid={zxid:#x},lresp={at_ms},llat={last},\
         minlat={},avglat={},maxlat={max}",
        figures.established_ms,
        figures.timeout_ms,
        min.unwrap_or_default(),
        latency.average() as u64,
    )
}

type WatchedPaths = BTreeMap<SessionId, Vec<String>>;

fn watch_summary(watched: &WatchedPaths) -> String {
    let mut paths: Vec<_> = watched.values().flatten().collect();
    let total = paths.len();
    paths.sort_unstable();
    paths.dedup();
    let (sessions, paths) = (watched.len(), paths.len());
    format!("{sessions} connections watching {paths} paths\nTotal watches:{total}\n")
}

fn by_session(watched: WatchedPaths) -> String {
    let groups = watched.into_iter();
    groups_of_lines(groups.map(|(session, paths)| (format!("{:#x}", session.0), paths)))
}

fn by_path(watched: WatchedPaths) -> String {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (session, paths) in watched {
        for path in paths {
            groups
                .entry(path)
                .or_default()
                .push(format!("{:#x}", session.0));
        }
    }
    groups_of_lines(groups.into_iter())
}

fn groups_of_lines(groups: impl Iterator<Item = (String, Vec<String>)>) -> String {
    let mut text = String::new();
    for (head, lines) in groups {
        let _ = writeln!(text, "{head}");
        for line in lines {
            let _ = writeln!(text, "\t{line}");
        }
    }
    text + "\n"
}

/// The sessions, their ephemerals and the connections. Unlike in ZooKeeper, the sessions form one
/// set, because they have no common times of expiry here.
fn dump(shared: &Shared, sessions: &WatchedPaths) -> String {
    let count = sessions.len();
    let mut text =
        format!("SessionTracker dump:\nSession Sets (1)/({count}):\n{count} sessions:\n");
    for session in sessions.keys() {
        let _ = writeln!(text, "\t{:#x}", session.0);
    }
    let owners = sessions.iter().filter(|(_, paths)| !paths.is_empty());
    let _ = writeln!(
        text,
        "ephemeral nodes dump:\nSessions with Ephemerals ({}):",
        owners.clone().count()
    );
    for (session, paths) in owners {
        let _ = writeln!(text, "{:#x}:", session.0);
        for path in paths {
            let _ = writeln!(text, "\t{path}");
        }
    }
    let open = shared.figures.snapshot();
    let count = open.len();
    let _ = write!(
        text,
        "Connections dump:\nConnections Sets (1)/({count}):\n{count} connections:\n"
    );
    for Figures { peer, session, .. } in open {
        let _ = writeln!(text, "\tip: /{peer} sessionId: {session:#x}");
    }
    text
}

fn configuration(shared: &Shared) -> String {
    let (config, bytes) = (&shared.config, directory_bytes(shared));
    let directory = config.data_directory.as_deref().unwrap_or(Path::new(""));
    let (least, most) = shared.gateway.session_timeouts();
    format!(
        "clientPort={}\nsecureClientPort={}\ndataDir={directory}\ndataDirSize={bytes}\ndataLogDir={directory}\n\
         dataLogSize={bytes}\ntickTime={}\nmaxClientCnxns={}\nminSessionTimeout={}\nmaxSessionTimeout={}\n\
         clientPortListenBacklog=-1\nserverId=0\n",
        shared.port,
        shared.secure_port.map_or(-1, i32::from),
        least.as_millis() / 2,
        config.connections_per_address_max,
        least.as_millis(),
        most.as_millis(),
        directory = directory.display(),
    )
}

/// The size of the files in the data directory, in bytes. Zero without one.
fn directory_bytes(shared: &Shared) -> u64 {
    let mut directories: Vec<_> = shared.config.data_directory.iter().cloned().collect();
    let (mut bytes, mut files) = (0, 0);
    while let Some(directory) = directories.pop() {
        for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
            files += 1;
            match entry.metadata() {
                Ok(found) if found.is_dir() => directories.push(entry.path()),
                Ok(found) => bytes += found.len(),
                Err(_) => {}
            }
            if files >= FILES_MAX {
                return bytes;
            }
        }
    }
    bytes
}

fn environment() -> String {
    let kernel = |name: &str| {
        let text = fs::read_to_string(format!("/proc/sys/kernel/{name}"));
        text.map_or_else(|_| "<NA>".to_owned(), |text| text.trim().to_owned())
    };
    let variable = |name| std::env::var(name).unwrap_or_else(|_| "<NA>".to_owned());
    let directory = std::env::current_dir().unwrap_or_default();
    format!(
        "Environment:\nzookeeper.version={VERSION}\nhost.name={}\njava.version=<NA>\njava.vendor=<NA>\n\
         java.home=<NA>\njava.class.path=<NA>\njava.library.path=<NA>\njava.io.tmpdir={}\njava.compiler=<NA>\n\
         os.name={}\nos.arch={}\nos.version={}\nuser.name={}\nuser.home={}\nuser.dir={}\n",
        kernel("hostname"),
        std::env::temp_dir().display(),
        kernel("ostype"),
        std::env::consts::ARCH,
        kernel("osrelease"),
        variable("USER"),
        variable("HOME"),
        directory.display(),
    )
}

fn open_files() -> u64 {
    fs::read_dir("/proc/self/fd").map_or(0, |open| open.count() as u64)
}

fn open_files_max() -> u64 {
    let limits = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"));
    let soft = line.and_then(|line| line.split_whitespace().next()?.parse().ok());
    soft.unwrap_or_default()
}
