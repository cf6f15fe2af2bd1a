//! ZooKeeper's commands for operators: four letters in place of the first packet, answered with
//! text.
//!
//! Only the commands that need this server's own counters are answered. The others get the line
//! that ZooKeeper returns for disabled commands.

use std::fmt::Write as _;

use coordination::model::Zxid;

use crate::Statistics;

/// Tools expect a version number of ZooKeeper here, so it is the version whose protocol we
/// implement.
const VERSION: &str = concat!("3.9.5-landfast-", env!("CARGO_PKG_VERSION"));

/// The text that answers a command.
pub(crate) fn answer(word: &str, statistics: &Statistics, applied: Zxid) -> String {
    match word {
        "ruok" => "imok".to_owned(),
        "isro" => "rw".to_owned(),
        "srvr" => server(statistics, applied),
        "mntr" => monitor(statistics),
        _ => format!("{word} is not executed because it is not in the whitelist.\n"),
    }
}

fn server(statistics: &Statistics, applied: Zxid) -> String {
    format!(
        "Zookeeper version: {VERSION}\nReceived: {}\nSent: {}\nConnections: {}\nZxid: {:#x}\nMode: standalone\n",
        statistics.requests.get(),
        statistics.packets_sent.get(),
        statistics.connections_open(),
        applied.0,
    )
}

fn monitor(statistics: &Statistics) -> String {
    let mut text = format!("zk_version\t{VERSION}\nzk_server_state\tstandalone\n");
    for (name, value) in [
        ("packets_received", statistics.requests.get()),
        ("packets_sent", statistics.packets_sent.get()),
        ("num_alive_connections", statistics.connections_open()),
        ("bytes_received_count", statistics.bytes_received.get()),
        ("connection_rejected", statistics.connections_refused.get()),
    ] {
        let _ = writeln!(text, "zk_{name}\t{value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_healthy_server_says_so_and_refuses_unknown_words() {
        let statistics = Statistics::default();
        assert_eq!(answer("ruok", &statistics, Zxid(1)), "imok");
        assert_eq!(answer("isro", &statistics, Zxid(1)), "rw");
        assert!(
            answer("srvr", &statistics, Zxid(0x1f)).contains("\nZxid: 0x1f\nMode: standalone\n")
        );
        assert!(answer("mntr", &statistics, Zxid(1)).contains("\nzk_server_state\tstandalone\n"));
        assert_eq!(
            answer("dump", &statistics, Zxid(1)),
            "dump is not executed because it is not in the whitelist.\n"
        );
    }
}
