//! More and more transaction nodes on one simulated store: whether they slow each other down.

use std::{fs, path::PathBuf};

use anyhow::{Context, Result};
use benches::{
    figures::Machine,
    transactions::scaling::{self, Scale},
};
use clap::Parser;
use simulation::transactions::workload::Mix;

/// Runs the same transactions on 1 to 64 nodes of one simulated store, in virtual time
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Node counts, one run each; the first run is the reference for the others.
    #[arg(long, value_delimiter = ',', default_value = "1,2,4,8,16,32,64", value_parser = clap::value_parser!(u16).range(1..=64))]
    nodes: Vec<u16>,
    /// Concurrent clients at each node.
    #[arg(long, default_value_t = 40, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    clients: u32,
    /// Warm-up transactions of each client, before the measured ones.
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(0..=100_000))]
    warm_up: u32,
    /// Transactions of each client.
    #[arg(long, default_value_t = 150, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    transactions: u32,
    /// Skew of the key popularity: the exponent of Zipf's law.
    #[arg(long, default_value_t = 1.0)]
    zipf: f64,
    /// The seed of all randomness.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Print JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Write the Markdown here as well.
    #[arg(long, value_name = "PATH")]
    markdown: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let machine = Machine::here()?;
    let clients = arguments.clients as usize;
    let transactions = clients * arguments.transactions as usize;
    let mix = Mix {
        zipf: arguments.zipf,
        clients,
        transactions,
        ..Mix::default()
    };
    let mut scales: Vec<Scale> = Vec::new();
    for &nodes in &arguments.nodes {
        let scale = scaling::measure(
            nodes.into(),
            mix,
            arguments.warm_up as usize,
            arguments.seed,
        )?;
        eprintln!(
            "{nodes} nodes: {:.0} per virtual second",
            scale.figures.per_second
        );
        scales.push(scale);
    }
    let command = std::iter::once("bench-scaling".to_owned()).chain(std::env::args().skip(1));
    let text = format!(
        "`{}`, {}\n\n{}",
        command.collect::<Vec<_>>().join(" "),
        machine.date,
        scaling::markdown(&scales)
    );
    let json = serde_json::to_string_pretty(&scales)?;
    println!("{}", if arguments.json { &json } else { &text });
    if let Some(path) = &arguments.markdown {
        fs::write(path, &text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
