//! Workers that take orders at several servers of one store, until their input ends.
//!
//!     cargo run -p landfast-client --example orders -- URL...
//!
//! An order is two values that are written together or not at all, under an id of its own. The
//! program prints each taken order, with the value that its last run has written. Kill any server
//! meanwhile: no order is lost, and none is taken twice.

use std::io;

use anyhow::{Result, ensure};
use landfast_client::Client;
use tokio::{runtime::Runtime, sync::watch};

const WORKERS: usize = 6;

fn main() -> Result<()> {
    let urls: Vec<String> = std::env::args().skip(1).collect();
    ensure!(
        !urls.is_empty(),
        "give the URLs of the servers, such as http://127.0.0.1:7600"
    );
    let (end, has_ended) = watch::channel(false);
    let runtime = Runtime::new()?;
    let start = |worker| {
        // Each worker prefers another server.
        let (before, rest) = urls.split_at(worker % urls.len());
        let urls = [rest, before].concat();
        runtime.spawn(work(worker, urls, has_ended.clone()))
    };
    let workers: Vec<_> = (0..WORKERS).map(start).collect();
    io::copy(&mut io::stdin(), &mut io::sink())?;
    end.send_replace(true);
    workers
        .into_iter()
        .try_for_each(|worker| runtime.block_on(worker)?)
}

async fn work(worker: usize, urls: Vec<String>, has_ended: watch::Receiver<bool>) -> Result<()> {
    let client = Client::connect(urls)?;
    let mut number = 0;
    while !*has_ended.borrow() {
        number += 1;
        let order = format!("{worker}-{number}");
        let mut run = 0;
        let taken = client
            .transaction()
            .id(order.clone())
            .transact(|t| {
                run += 1;
                let (order, written) = (order.clone(), format!("{order} in run {run}"));
                async move {
                    t.put(format!("left {order}"), written.clone()).await?;
                    t.put(format!("right {order}"), written.clone()).await?;
                    landfast_client::Result::Ok(written)
                }
            })
            .await?;
        // None: the order had been taken, and the response was lost.
        println!("{order}\t{}", taken.unwrap_or_default());
    }
    Ok(())
}
