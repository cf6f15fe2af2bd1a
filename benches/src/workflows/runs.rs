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

/// What is asked again and again.
#[derive(Debug, Clone)]
pub struct Request {
    /// The path.
    pub path: String,
    /// The body, in JSON.
    pub body: String,
    /// What a good answer contains.
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

/// What came of it.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Answered {
    /// Clients at once.
    pub clients: usize,
    /// Answers.
    pub answers: u64,
    /// The same in a second.
    pub per_second: f64,
    /// Half took no longer, in milliseconds.
    pub p50_ms: f64,
    /// All but one in a hundred took no longer.
    pub p99_ms: f64,
    /// CPU time of the server for each, in milliseconds.
    pub cpu_ms: f64,
}

/// How long something took, in microseconds.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Quantiles {
    /// Half took no longer.
    pub p50_us: u64,
    /// All but one in a hundred took no longer.
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

/// How many clients ask for how long.
#[derive(Debug, Clone, Copy)]
pub struct Pressure {
    /// Clients.
    pub clients: usize,
    /// What is not counted.
    pub warm_up: Duration,
    /// What is.
    pub measure: Duration,
}

/// Has clients ask the server at `address`, whose process is `server`, and wait for each answer.
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

/// How long each answer took to what was asked while it counts, in microseconds, at least one of them; and how many answers came then.
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
