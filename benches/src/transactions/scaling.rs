//! More and more nodes on one store, in virtual time (`aft.txt`, section 6.5.2): whether they slow
//! each other down.
//!
//! Every call of the store takes about as long as DynamoDB's in the paper, and every message
//! between nodes takes a few milliseconds. Computing takes no time at all. So throughput shows only
//! the nodes' waits. The cost of more nodes in computing is the CPU time for each transaction. This
//! time is real: one process runs all nodes, their store, the network and the clients.

use std::{ops::RangeInclusive, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use fastrand::Rng;
use serde::Serialize;
use simulated::{Options, World};
use simulation::transactions::{
    crashable::Life,
    ensemble::Ensemble,
    network::{Network, Trouble},
    workload::Mix,
};
use transactions::{Config, Engine, Parts, Service, membership::Address};

use super::{
    run::{Amount, Clients, Figures, Watching},
    target::Target,
};
use crate::{server::own_cpu, table};

/// One way of a call to the store: DynamoDB answers within 3 to 9 ms.
const STORE_LATENCY: RangeInclusive<Duration> =
    Duration::from_micros(1_500)..=Duration::from_micros(4_500);
/// By this time all nodes have learned of the commits before the run.
const HEARD_AFTER: Duration = Duration::from_secs(3);

/// The result for this many nodes.
#[derive(Debug, Clone, Serialize)]
pub struct Scale {
    /// Nodes on one store.
    pub nodes: usize,
    /// Concurrent clients, over all nodes.
    pub clients: usize,
    /// The figures, in virtual time.
    pub figures: Figures,
    /// Calls of the store for each transaction, those of housekeeping included.
    pub store_calls: f64,
    /// CPU time of the whole process for each transaction, in microseconds of real time.
    pub cpu_us: f64,
}

/// Runs `mix` with its clients and its transactions at each of `nodes` nodes, after as many clients
/// have run `warm_up` transactions each. A node's memory is empty at first, except for its own
/// writes.
pub fn measure(nodes: usize, mix: Mix, warm_up: usize, seed: u64) -> Result<Scale> {
    let all = Mix {
        clients: mix.clients * nodes,
        transactions: mix.transactions * nodes,
        ..mix
    };
    simulated::run(async {
        let options = Options {
            latency: Some(STORE_LATENCY),
            durable_at_once: true,
            ..Options::default()
        };
        let world = World::with_options(seed, options);
        let (engines, services) = start(&world, nodes, seed).await?;
        let targets = (0..all.clients)
            .map(|client| Target::engine(&engines[client % nodes]))
            .collect();
        let mut clients = Clients::prepare(targets, all, Watching::Times, seed).await?;
        tokio::time::sleep(HEARD_AFTER).await;
        clients
            .run(Amount::Transactions(warm_up * all.clients))
            .await?;
        let (calls_before, cpu_before) = (world.trace().port_calls(), own_cpu()?);
        let figures = clients
            .run(Amount::Transactions(all.transactions))
            .await?
            .figures();
        let (calls, cpu) = (
            world.trace().port_calls() - calls_before,
            own_cpu()?.saturating_sub(cpu_before),
        );
        drop(services);
        let each = |sum: f64| sum / figures.transactions.max(1) as f64;
        Ok(Scale {
            nodes,
            clients: all.clients,
            figures,
            store_calls: each(calls as f64),
            cpu_us: each(cpu.as_secs_f64() * 1e6),
        })
    })
}

/// This many nodes that reach each other, and their background tasks.
async fn start(world: &World, nodes: usize, seed: u64) -> Result<(Vec<Engine>, Vec<Arc<Service>>)> {
    let mut rng = Rng::with_seed(seed);
    let (network, ensemble) = (
        Network::new(rng.fork(), Trouble::default()),
        Ensemble::new(rng.fork()),
    );
    let (mut engines, mut services) = (Vec::new(), Vec::new());
    for node in 0..nodes {
        let (address, life) = (Address(format!("node {node}")), Life::default());
        let parts = Parts {
            key_value: world.key_value(),
            clock: world.clock(),
            entropy: world.entropy(),
        };
        let seat = ensemble.seat(&address, life.clone(), world.clock());
        let peers = network.from(&address);
        let service = Service::builder(parts)
            .among(seat, peers)
            .build(Config::default());
        let (engine, service) = (service.engine(), Arc::new(service));
        network.listen(&address, engine.clone(), life);
        service
            .start()
            .await
            .with_context(|| format!("node {node} starts"))?;
        let runner = Arc::clone(&service);
        tokio::spawn(async move { runner.run().await });
        engines.push(engine);
        services.push(service);
    }
    Ok((engines, services))
}

/// The throughput of each run relative to the first, per node; 1 is ideal.
pub fn slopes(scales: &[Scale]) -> Vec<f64> {
    let per_node = |scale: &Scale| scale.figures.per_second / scale.nodes as f64;
    let first = scales.first().map_or(1.0, per_node);
    scales.iter().map(|scale| per_node(scale) / first).collect()
}

/// As a table.
pub fn markdown(scales: &[Scale]) -> String {
    let heads = [
        "nodes",
        "clients",
        "per second",
        "of the ideal",
        "p50 ms",
        "p99 ms",
        "store calls each",
        "CPU us each",
    ];
    let mut rows = vec![table::strings(heads)];
    rows.extend(scales.iter().zip(slopes(scales)).map(|(scale, slope)| {
        vec![
            scale.nodes.to_string(),
            scale.clients.to_string(),
            table::thousands(scale.figures.per_second),
            format!("{:.1} %", slope * 100.0),
            format!("{:.1}", scale.figures.p50_ms),
            format!("{:.1}", scale.figures.p99_ms),
            format!("{:.2}", scale.store_calls),
            format!("{:.0}", scale.cpu_us),
        ]
    }));
    let mut text = String::new();
    table::grid(&mut text, &rows);
    text
}
