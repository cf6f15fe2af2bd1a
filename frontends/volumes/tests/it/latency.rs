//! Measures round trips. Run by hand, in a release:
//! `cargo test --release -p landfast-volumes --test it -- --ignored --nocapture latency`.

use std::{sync::Arc, time::Instant};

use futures_util::future::join_all;

use crate::world::{World, open, put};

const CALLS: u32 = 50_000;

#[test]
#[ignore = "a figure, not a test"]
fn latency_of_a_round_trip() {
    // The server has threads of its own, as in its process.
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let world = threads.block_on(World::new());
    let caller = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    caller.block_on(async {
        let client = world.client().await;
        let volume = open(&client).await;
        let began = Instant::now();
        for _ in 0..CALLS {
            volume.snapshot().await.expect("an answer");
        }
        println!("one caller: {:?} each", began.elapsed() / CALLS);
        let began = Instant::now();
        for number in 0..CALLS {
            let written = volume.commit(put(u64::from(number), "a", &[7; 4096]));
            written.await.expect("an answer");
        }
        println!(
            "one caller, commits of 4 KiB: {:?} each",
            began.elapsed() / CALLS
        );
        let began = Instant::now();
        let callers = (0..16).map(|_| {
            let volume = Arc::clone(&volume);
            tokio::spawn(async move {
                for _ in 0..CALLS / 16 {
                    volume.snapshot().await.expect("an answer");
                }
            })
        });
        join_all(callers).await;
        println!("16 callers: {:?} each", began.elapsed() / CALLS);
    });
    // Another thread than the client's runtime has one hop more, as handlers of a mount.
    let client = threads.block_on(world.client());
    let volume = threads.block_on(open(&client));
    let began = Instant::now();
    for _ in 0..CALLS {
        caller.block_on(volume.snapshot()).expect("an answer");
    }
    println!(
        "a caller on another thread: {:?} each",
        began.elapsed() / CALLS
    );
}
