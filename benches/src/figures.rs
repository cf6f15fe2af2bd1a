//! The workloads, and the results of a run.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The clients' requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    /// `getData` of a random node.
    Get,
    /// `setData` of a random node.
    Set,
    /// Nine gets to one set.
    Mix,
    /// `create` of a new node, then `delete` of it; each counts as one operation.
    CreateDelete,
    /// A multi that sets 100 nodes; it counts as one operation.
    Multi,
}

impl Workload {
    /// The usual ones, in the order of the table.
    pub const ALL: [Self; 4] = [Self::Get, Self::Set, Self::Mix, Self::CreateDelete];
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Get => "get",
            Self::Set => "set",
            Self::Mix => "mix 90/10",
            Self::CreateDelete => "create+delete",
            Self::Multi => "multi of 100",
        })
    }
}

/// The number of connections, and of requests that each keeps outstanding; written `8x16`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Connections, each a session of its own.
    pub connections: usize,
    /// Requests outstanding on each.
    pub outstanding: usize,
}

/// The most connections of a shape.
const CONNECTIONS_MAX: usize = 1000;
/// The most requests outstanding on one connection.
const OUTSTANDING_MAX: usize = 1024;

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}", self.connections, self.outstanding)
    }
}

impl std::str::FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (connections, outstanding) = text
            .split_once('x')
            .ok_or("write it as CONNECTIONSxOUTSTANDING")?;
        let number = |text: &str, most: usize| match text.parse() {
            Ok(number) if (1..=most).contains(&number) => Ok(number),
            _ => Err(format!("`{text}` is not a number from 1 to {most}")),
        };
        Ok(Self {
            connections: number(connections, CONNECTIONS_MAX)?,
            outstanding: number(outstanding, OUTSTANDING_MAX)?,
        })
    }
}

/// One server under one load.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Load {
    /// Operations answered during the measurement.
    pub operations: u64,
    /// Operations answered per second.
    pub operations_per_second: f64,
    /// Median latency of an operation.
    pub p50_ms: f64,
    /// 99th percentile of the latency.
    pub p99_ms: f64,
    /// CPU time the server took, user and system together.
    pub cpu_seconds: f64,
    /// CPU time for each operation.
    pub cpu_us_per_operation: f64,
}

/// One row: both servers under the same load.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The workload.
    pub workload: Workload,
    /// The connections and their outstanding requests.
    pub shape: Shape,
    /// The peer, unless it was left out.
    pub zookeeper: Option<Load>,
    /// Ours, unless it was left out.
    pub landfast: Option<Load>,
}

impl Row {
    /// Ours over the peer's, in throughput; above one is better.
    pub fn throughput_ratio(&self) -> Option<f64> {
        Some(self.landfast?.operations_per_second / self.zookeeper?.operations_per_second)
    }

    /// Ours over the peer's, in CPU per operation; below one is better.
    pub fn cpu_ratio(&self) -> Option<f64> {
        Some(self.landfast?.cpu_us_per_operation / self.zookeeper?.cpu_us_per_operation)
    }
}

/// A server's resource use outside its loads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Footprint {
    /// Its name and version.
    pub name: String,
    /// From the start of the process on an empty directory until it answers.
    pub ready_ms: f64,
    /// Resident memory after the start, before the first request.
    pub idle_rss_bytes: u64,
    /// The most resident memory of the whole run.
    pub peak_rss_bytes: u64,
}

/// The machine of the measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// Processors that this process may use.
    pub processors: usize,
    /// Main memory.
    pub memory_bytes: u64,
    /// The operating system's kernel.
    pub kernel: String,
    /// Load average of the last minute when the run began.
    pub load_average: String,
    /// When it was measured, in UTC.
    pub date: String,
}

/// A measure beside the rows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measure {
    /// What is measured, with its unit.
    pub name: String,
    /// The peer's figure, if it has one.
    pub zookeeper: Option<f64>,
    /// Ours, or that of the machine.
    pub landfast: Option<f64>,
}

/// All results of one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The command line.
    pub command: String,
    /// The machine.
    pub machine: Machine,
    /// The peer, unless it was left out.
    pub zookeeper: Option<Footprint>,
    /// Ours, unless it was left out.
    pub landfast: Option<Footprint>,
    /// The rows, in the order they were measured.
    pub rows: Vec<Row>,
    /// The measures beside them.
    pub measures: Vec<Measure>,
}

impl Report {
    /// Adds a measure beside the rows: ZooKeeper's figure, then ours.
    pub fn add(&mut self, name: impl Into<String>, [zookeeper, landfast]: [Option<f64>; 2]) {
        self.measures.push(Measure {
            name: name.into(),
            zookeeper,
            landfast,
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shape_reads_back_what_it_prints() {
        let shape: Shape = "8x16".parse().expect("a valid shape");
        assert_eq!(
            shape,
            Shape {
                connections: 8,
                outstanding: 16
            }
        );
        assert_eq!(shape.to_string(), "8x16");
    }

    #[test]
    fn a_shape_out_of_bounds_is_refused() {
        for text in ["8", "0x1", "1x0", "1001x1", "1x1025", "axb"] {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
    }
}
