//! The Redis under test: one server, or a cluster of two masters with a replica each.
//!
//! `redis-cli --cluster create` refuses fewer than three masters, so this module assigns the slots
//! itself.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};
use redis::{FromRedisValue, aio::MultiplexedConnection, cmd};

use crate::server::Process;

/// The first slot of the second master.
const SECOND_HALF: u16 = 8_192;
/// How long the assembly of a cluster may take.
const ASSEMBLE_WAIT: Duration = Duration::from_secs(30);
const ASSEMBLE_POLL: Duration = Duration::from_millis(50);

/// The running servers.
#[derive(Debug)]
pub struct Servers {
    /// Masters first, in the order of their slots.
    processes: Vec<Process>,
    acknowledged: &'static str,
}

impl Servers {
    /// One server with an empty directory below `directory`; `fsync` is `always`, or `none` for no file.
    pub async fn one(directory: &Path, fsync: &str) -> Result<Self> {
        let processes = vec![Process::redis(directory, fsync).await?];
        Ok(Self {
            processes,
            acknowledged: acknowledged(fsync),
        })
    }

    /// Two masters and two replicas.
    pub async fn cluster(directory: &Path, fsync: &str) -> Result<Self> {
        let mut processes = Vec::new();
        let mut bus_ports = Vec::new();
        for number in 0..4 {
            let data = directory.join(format!("redis-{number}"));
            fs::create_dir_all(&data)?;
            let (process, bus_port) = Process::redis_in_cluster(&data, fsync).await?;
            processes.push(process);
            bus_ports.push(bus_port);
        }
        assemble(&processes, &bus_ports)
            .await
            .context("a cluster of Redis comes together")?;
        Ok(Self {
            processes,
            acknowledged: acknowledged(fsync),
        })
    }

    /// The addresses of plain Redis: each server that has slots, in their order.
    pub fn masters(&self) -> Vec<String> {
        let masters = if self.is_cluster() {
            &self.processes[..2]
        } else {
            &self.processes[..]
        };
        masters
            .iter()
            .map(|process| format!("redis://{}", process.address))
            .collect()
    }

    /// The store address for Landfast.
    pub fn store(&self, namespace: &str) -> String {
        let addresses: Vec<String> = self
            .processes
            .iter()
            .map(|process| process.address.to_string())
            .collect();
        let scheme = if self.is_cluster() {
            "redis+cluster"
        } else {
            "redis"
        };
        format!(
            "{scheme}://{}?acknowledged={}&namespace={namespace}",
            addresses.join(","),
            self.acknowledged
        )
    }

    /// CPU time of the servers so far.
    pub fn cpu(&self) -> Result<Duration> {
        self.processes.iter().map(Process::cpu).sum()
    }

    /// Stops them.
    pub async fn stop(self) -> Result<()> {
        for process in self.processes {
            process.stop().await?;
        }
        Ok(())
    }

    fn is_cluster(&self) -> bool {
        self.processes.len() > 1
    }
}

/// Which of two masters has `key`. The whole key is hashed.
pub(super) fn master_of(key: &[u8]) -> usize {
    usize::from(slot(key) >= SECOND_HALF)
}

fn slot(key: &[u8]) -> u16 {
    crc16(key) % 16_384
}

/// CRC-16/XMODEM, as Redis Cluster has it.
fn crc16(bytes: &[u8]) -> u16 {
    let round = |crc: u16| {
        if crc & 0x8000 == 0 {
            crc << 1
        } else {
            (crc << 1) ^ 0x1021
        }
    };
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| round(crc))
    })
}

fn acknowledged(fsync: &str) -> &'static str {
    if fsync == "always" {
        "append-only-file"
    } else {
        "memory"
    }
}

async fn assemble(processes: &[Process], bus_ports: &[u16]) -> Result<()> {
    let mut servers = Vec::new();
    for process in processes {
        let client = redis::Client::open(format!("redis://{}", process.address))?;
        servers.push(client.get_multiplexed_async_connection().await?);
    }
    let (end, start) = ((SECOND_HALF - 1).to_string(), SECOND_HALF.to_string());
    tell::<()>(&mut servers[0], &["CLUSTER", "ADDSLOTSRANGE", "0", &end]).await?;
    tell::<()>(
        &mut servers[1],
        &["CLUSTER", "ADDSLOTSRANGE", &start, "16383"],
    )
    .await?;
    for (number, server) in servers.iter_mut().enumerate() {
        tell::<()>(
            server,
            &["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()],
        )
        .await?;
    }
    for (process, bus_port) in processes.iter().zip(bus_ports).skip(1) {
        let (port, bus_port) = (process.address.port().to_string(), bus_port.to_string());
        tell::<()>(
            &mut servers[0],
            &["CLUSTER", "MEET", "127.0.0.1", &port, &bus_port],
        )
        .await?;
    }
    let everybody = format!("cluster_known_nodes:{}\r", servers.len());
    for server in &mut servers {
        told(server, &["CLUSTER", "INFO"], &everybody).await?;
    }
    for master in 0..2 {
        let id: String = tell(&mut servers[master], &["CLUSTER", "MYID"]).await?;
        // The replica learns of its master some time after the master learns of it.
        told(&mut servers[master + 2], &["CLUSTER", "NODES"], &id).await?;
        tell::<()>(&mut servers[master + 2], &["CLUSTER", "REPLICATE", &id]).await?;
    }
    for server in &mut servers {
        told(server, &["CLUSTER", "INFO"], "cluster_state:ok\r").await?;
    }
    for replica in &mut servers[2..] {
        told(replica, &["INFO", "replication"], "master_link_status:up\r").await?;
    }
    Ok(())
}

/// Waits until the response to `words` contains `part`.
async fn told(server: &mut MultiplexedConnection, words: &[&str], part: &str) -> Result<()> {
    let asked = Instant::now();
    while !tell::<String>(server, words).await?.contains(part) {
        ensure!(
            asked.elapsed() < ASSEMBLE_WAIT,
            "{} had no {part:?} for 30 s",
            words.join(" ")
        );
        tokio::time::sleep(ASSEMBLE_POLL).await;
    }
    Ok(())
}

async fn tell<T: FromRedisValue>(server: &mut MultiplexedConnection, words: &[&str]) -> Result<T> {
    let mut command = cmd(words[0]);
    command.arg(&words[1..]);
    command
        .query_async(server)
        .await
        .with_context(|| words.join(" "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_hashed_as_redis_cluster_hashes_them() {
        // From the specification of Redis Cluster, appendix A, and `CLUSTER KEYSLOT foo`.
        assert_eq!((crc16(b"123456789"), slot(b"foo")), (0x31c3, 12_182));
        assert_eq!((master_of(b"foo"), master_of(b"bar")), (1, 0));
    }
}
