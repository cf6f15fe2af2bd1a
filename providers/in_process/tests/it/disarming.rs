//! N4: a call that disarms a firing timer returns only after the function has started, also beside
//! other such calls.

use std::{
    pin::pin,
    sync::{
        Arc, Mutex,
        mpsc::{Receiver, Sender, channel},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::FutureExt;
use in_process::Functions;
use ports::{
    Event, Functions as _, Handler,
    functions::{Definition, Failure, FunctionOptions},
};
use simulated::World;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use crate::block_on;

/// Blocks its thread until the test lets it continue, so that its start stays pending.
#[derive(Debug)]
struct Beginning {
    begins: UnboundedSender<()>,
    may_go_on: Mutex<Receiver<()>>,
}

#[async_trait]
impl Handler for Beginning {
    async fn handle(&self, _: Event) -> Result<Bytes, Failure> {
        self.begins.send(()).expect("the test waits for it");
        self.may_go_on
            .lock()
            .expect("no thread panics while holding it")
            .recv()
            .expect("the test ends it");
        Ok(Bytes::new())
    }
}

const PERIOD: Duration = Duration::from_millis(1);

/// Functions with one, `ticks`, whose timer has fired and whose start is pending.
async fn beginning() -> (Functions, Sender<()>, UnboundedReceiver<()>) {
    let functions = Functions::new(World::new(1).queue());
    let ((begins, mut begun), (go_on, may_go_on)) = (unbounded_channel(), channel());
    let handler = Arc::new(Beginning {
        begins,
        may_go_on: Mutex::new(may_go_on),
    });
    functions.register(Definition {
        name: "ticks".into(),
        options: FunctionOptions::default(),
        handler,
    });
    functions
        .arm_timer("ticks", PERIOD)
        .await
        .expect("it is armed");
    begun.recv().await.expect("it fires");
    (functions, go_on, begun)
}

/// N4.
#[test]
fn concurrent_disarming_calls_wait_for_the_same_start() {
    block_on(async {
        let (functions, go_on, mut begun) = beginning().await;
        let (mut first, mut second) = (
            pin!(functions.disarm_timer("ticks")),
            pin!(functions.disarm_timer("ticks")),
        );
        assert!(
            first.as_mut().now_or_never().is_none(),
            "the start is pending"
        );
        assert!(
            second.as_mut().now_or_never().is_none(),
            "the second call waits too"
        );
        go_on.send(()).expect("it waits");
        first.await.expect("disarm_timer answers");
        second.await.expect("disarm_timer answers");
        assert!(begun.try_recv().is_err(), "it does not fire again");
    });
}

/// N4: the first caller gave up waiting, and the timer was armed again.
#[test]
fn a_disarming_call_after_a_cancelled_one_waits_for_the_same_start() {
    block_on(async {
        let (functions, go_on, _begun) = beginning().await;
        assert!(
            functions.disarm_timer("ticks").now_or_never().is_none(),
            "the start is pending"
        );
        functions
            .arm_timer("ticks", Duration::from_hours(1))
            .await
            .expect("it is armed");
        let mut second = pin!(functions.disarm_timer("ticks"));
        assert!(
            second.as_mut().now_or_never().is_none(),
            "the start is still pending"
        );
        go_on.send(()).expect("it waits");
        second.await.expect("disarm_timer answers");
        functions
            .disarm_timer("ticks")
            .await
            .expect("there is nothing to wait for");
    });
}
