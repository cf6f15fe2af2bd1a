//! Integration tests of functions and clocks, beside real stores.

#![allow(
    clippy::disallowed_methods,
    reason = "these tests run on real threads, in real time"
)]

mod contract;
mod disarming;
mod failing;
mod hiding;
mod server;
mod whole_batches;

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    runtime.expect("a runtime starts").block_on(future)
}
