//! N4: whoever disarms a timer that was just going off hears of it no sooner than it has begun, whoever else disarms it.

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

/// Has its thread for itself until it is told to go on, so that it is neither begun nor forgotten meanwhile.
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
            .expect("nobody panics holding it")
            .recv()
            .expect("the test ends it");
        Ok(Bytes::new())
    }
}

const PERIOD: Duration = Duration::from_millis(1);

/// Functions of which one, called `ticks`, is just beginning as its timer went off.
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
    begun.recv().await.expect("it goes off");
    (functions, go_on, begun)
}

/// N4.
#[test]
fn whoever_disarms_beside_another_waits_for_the_same() {
    block_on(async {
        let (functions, go_on, mut begun) = beginning().await;
        let (mut first, mut second) = (
            pin!(functions.disarm_timer("ticks")),
            pin!(functions.disarm_timer("ticks")),
        );
        assert!(first.as_mut().now_or_never().is_none(), "it has not begun");
        assert!(
            second.as_mut().now_or_never().is_none(),
            "nor has it for the second"
        );
        go_on.send(()).expect("it waits");
        first.await.expect("disarm_timer answers");
        second.await.expect("disarm_timer answers");
        assert!(begun.try_recv().is_err(), "it goes off no more");
    });
}

/// N4: the first gave up waiting, and somebody has armed the timer anew since.
#[test]
fn whoever_disarms_after_one_who_gave_up_waits_for_the_same() {
    block_on(async {
        let (functions, go_on, _begun) = beginning().await;
        assert!(
            functions.disarm_timer("ticks").now_or_never().is_none(),
            "it has not begun"
        );
        functions
            .arm_timer("ticks", Duration::from_hours(1))
            .await
            .expect("it is armed");
        let mut second = pin!(functions.disarm_timer("ticks"));
        assert!(
            second.as_mut().now_or_never().is_none(),
            "it has not begun yet"
        );
        go_on.send(()).expect("it waits");
        second.await.expect("disarm_timer answers");
        functions
            .disarm_timer("ticks")
            .await
            .expect("there is nothing to wait for");
    });
}
