//! Runs of a workflow and invocations of a function, begun over HTTP by clients that wait for each.

use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use serde::Serialize;
use tokio::task::JoinSet;

use crate::{http::Connection, server::Process};

/// The request that clients repeat.
#[derive(Debug, Clone)]
pub struct Request {
    /// The path.
    pub path: String,
    /// The body, in JSON.
    pub body: String,
    /// A substring of every good response.
    pub good: &'static str,
}

impl Request {
    /// A run of a Landfast workflow, to its end.
    pub fn run(workflow: &str, input: &str) -> Self {
        let path = format!("/v1/workflows/{workflow}/runs?wait=60");
        Self {
            path,
            body: input.to_owned(),
            good: "\"succeeded\"",
        }
    }

    /// An invocation.
    pub fn invocation(function: &str) -> Self {
        let path = format!("/2015-03-31/functions/{function}/invocations");
        Self {
            path,
            body: "{}".to_owned(),
            good: "{",
        }
    }
}

/// The results of a measurement.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Answered {
    /// Concurrent clients.
    pub clients: usize,
    /// Responses.
    pub answers: u64,
    /// Responses per second.
    pub per_second: f64,
    /// Median, in milliseconds.
    pub p50_ms: f64,
    /// 99th percentile, in milliseconds.
    pub p99_ms: f64,
    /// CPU time of the server for each response, in milliseconds.
    pub cpu_ms: f64,
}

/// Durations, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Quantiles {
    /// The median.
    pub p50_us: u64,
    /// The 99th percentile.
    pub p99_us: u64,
}

impl Quantiles {
    /// Of `times` in microseconds.
    pub fn of(times: &Histogram<u64>) -> Self {
        Self {
            p50_us: times.value_at_quantile(0.5),
            p99_us: times.value_at_quantile(0.99),
        }
    }
}

/// The number of clients, and the duration of their requests.
#[derive(Debug, Clone, Copy)]
pub struct Pressure {
    /// Clients.
    pub clients: usize,
    /// Time before the measurement.
    pub warm_up: Duration,
    /// Time of the measurement.
    pub measure: Duration,
}

/// Runs clients against the server at `address`, whose process is `server`. Each waits for every
/// response.
pub async fn measure(
    address: SocketAddr,
    request: &Request,
    pressure: Pressure,
    server: &Process,
) -> Result<Answered> {
    let counts_from = Instant::now() + pressure.warm_up;
    let until = counts_from + pressure.measure;
    let mut clients = JoinSet::new();
    for _ in 0..pressure.clients {
        clients.spawn(ask(address, request.clone(), counts_from, until));
    }
    tokio::time::sleep_until(counts_from.into()).await;
    let cpu_before = server.cpu()?;
    let (mut times, mut ended) = (Histogram::<u64>::new(3)?, 0);
    while let Some(asked) = clients.join_next().await {
        let (one, its_ended) = asked??;
        times.add(&one)?;
        ended += its_ended;
    }
    let cpu = server.cpu()?.saturating_sub(cpu_before);
    let seconds = counts_from.elapsed().as_secs_f64();
    let milliseconds = |quantile| times.value_at_quantile(quantile) as f64 / 1e3;
    ensure!(!times.is_empty(), "{} was not answered once", request.path);
    Ok(Answered {
        clients: pressure.clients,
        answers: ended,
        per_second: ended as f64 / seconds,
        p50_ms: milliseconds(0.5),
        p99_ms: milliseconds(0.99),
        cpu_ms: cpu.as_secs_f64() * 1e3 / ended as f64,
    })
}

/// The latency of each response during the measurement, in microseconds, at least one of them; and
/// the number of responses in that time.
async fn ask(
    address: SocketAddr,
    request: Request,
    counts_from: Instant,
    until: Instant,
) -> Result<(Histogram<u64>, u64)> {
    let (mut times, mut ended) = (Histogram::new(3)?, 0);
    let connection = Connection::to(address);
    while Instant::now() < until || times.is_empty() {
        let (began, took) = once(&connection, &request).await?;
        ended += u64::from(began + took >= counts_from);
        if began >= counts_from {
            times.record(took.as_micros() as u64)?;
        }
    }
    Ok((times, ended))
}

/// One request: when it was made and how long its answer took.
pub async fn once(connection: &Connection, request: &Request) -> Result<(Instant, Duration)> {
    let began = Instant::now();
    let headers = [("Content-Type", "application/json")];
    let (status, body) = connection
        .ask("POST", &request.path, &headers, request.body.as_bytes())
        .await?;
    let took = began.elapsed();
    let is_good = body
        .windows(request.good.len())
        .any(|part| part == request.good.as_bytes());
    ensure!(
        (200..300).contains(&status) && is_good,
        "{}: {status} {}",
        request.path,
        body.escape_ascii()
    );
    Ok((began, took))
}
