//! `landfast cost`: the use of a running server, and its price in a cloud.
//!
//! The server counts; this command has the prices. Both the counts and the charges are in the JSON,
//! so that a later call can subtract them.

mod bill;
mod price_book;

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};

use anyhow::Context as _;
use bill::{Charge, Counts, OBJECT_STORE};
use clap::Args;
use price_book::{GIB, PriceBook, Provisioned};
use serde::{Deserialize, Serialize};

use super::{request::Target, status};

/// The server, the period, and the output format.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Count from the moment of an earlier `landfast cost --json`, kept in this file
    #[arg(long, value_name = "FILE")]
    since: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The bill as JSON.
#[derive(Debug, Serialize)]
struct Bill {
    hours: f64,
    charges: Vec<Charge>,
    usd: f64,
    /// Warm-up and recovery, in percent of I/O and object store of function memory.
    overhead_percent: Option<f64>,
    provisioned: Option<Provisioned>,
    counts: Counts,
    price_book: PriceBook,
}

#[derive(Debug, Deserialize)]
struct Earlier {
    counts: Counts,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let body = arguments.target.get("/v1/status")?;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.context("the clock of this machine is before 1970")?;
    // `counts` of the JSON are those since the start, so that they serve for the next --since.
    let counts = Counts::of(status::read(&body)?, now.as_millis() as u64);
    let covered = match &arguments.since {
        Some(file) => counts.clone().since(&earlier(file)?)?,
        None => counts.clone(),
    };
    let bill = Bill::of(&covered, counts, PriceBook::aws()?);
    let text = if arguments.json {
        format!("{}\n", serde_json::to_string_pretty(&bill)?)
    } else {
        table(&bill, &covered)?
    };
    super::print(&text)
}

fn earlier(file: &Path) -> anyhow::Result<Counts> {
    let named = || {
        format!(
            "{}: not the output of `landfast cost --json`",
            file.display()
        )
    };
    let text = fs::read_to_string(file).with_context(named)?;
    let earlier: Earlier = serde_json::from_str(&text).with_context(named)?;
    Ok(earlier.counts)
}

impl Bill {
    fn of(covered: &Counts, counts: Counts, price_book: PriceBook) -> Self {
        let charges = bill::charges(covered, &price_book);
        let memory = |categories: [&str; 2]| {
            bill::sum(&charges, |charge| {
                charge.service == "memory" && categories.contains(&charge.category)
            })
        };
        let useful = memory(["I/O", OBJECT_STORE]);
        let extra = memory(["warm-up", "recovery"]);
        let peak = covered.memory.resident_bytes_max;
        Self {
            hours: covered.hours(),
            usd: bill::sum(&charges, |_| true),
            overhead_percent: (useful > 0.0).then(|| extra / useful * 100.0),
            provisioned: price_book.provisioned(peak, covered.hours()),
            charges,
            counts,
            price_book,
        }
    }
}

fn table(bill: &Bill, covered: &Counts) -> anyhow::Result<String> {
    let price = &bill.price_book.prices.lambda_gb_second;
    let (provider, region, date) = (&bill.price_book.provider, &price.region, &price.date);
    let hours = bill.hours;
    let mut text = format!("{hours:.3} hours at prices of {provider} {region}, {date}, in USD\n");
    rows(&bill.charges, &mut text)?;
    if let Some(percent) = bill.overhead_percent {
        writeln!(
            text,
            "overhead       warm-up and recovery cost {percent:.1} % of I/O and object store"
        )?;
    }
    if let Some(Provisioned {
        node, nodes, usd, ..
    }) = &bill.provisioned
    {
        let peak = covered.memory.resident_bytes_max as f64 / GIB;
        writeln!(
            text,
            "provisioned    {nodes} {node} for the peak of {peak:.3} GB in memory cost {usd:.6} in this time"
        )?;
    }
    let ran = covered.memory.running_byte_seconds as f64 / GIB;
    let now = covered.memory.running_bytes as f64 / GIB;
    writeln!(
        text,
        "this machine   instances of function memory: {ran:.1} GB-seconds, {now:.1} GB now"
    )?;
    Ok(text)
}

/// A row for each charge, and the sums.
fn rows(charges: &[Charge], text: &mut String) -> anyhow::Result<()> {
    let mut row = |service: &str, category, amount, unit, cost| {
        writeln!(
            text,
            "{service:<14} {category:<13} {amount:>18} {unit:<16} {cost:>12}"
        )
    };
    let usd = |usd: f64| format!("{usd:.6}");
    row(
        "service",
        "category",
        "amount".to_owned(),
        "unit",
        "cost".to_owned(),
    )?;
    for charges in charges.chunk_by(|one, next| one.service == next.service) {
        for one in charges {
            row(
                &one.service,
                one.category,
                amount(one.amount),
                one.unit,
                usd(one.usd),
            )?;
        }
        let sum = bill::sum(charges, |_| true);
        row(&charges[0].service, "all", String::new(), "", usd(sum))?;
    }
    row(
        "all",
        "all",
        String::new(),
        "",
        usd(bill::sum(charges, |_| true)),
    )?;
    Ok(())
}

/// An amount in whole units, or with the digits that a small one needs.
fn amount(amount: f64) -> String {
    if amount.fract() == 0.0 {
        format!("{amount:.0}")
    } else if amount >= 1.0 {
        format!("{amount:.3}")
    } else {
        format!("{amount:.9}")
    }
}
