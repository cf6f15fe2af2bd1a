//! The death of an instance: X4, X5.

use futures_util::future::{Either, join, select};

use super::{A_WHILE, Command, Subject, send};
use crate::{contract::within, instances::Death};

/// Far more than the memory of the case's instance, in MB.
const TOO_MUCH_MB: u64 = 2_000;

/// X4.
pub(super) async fn every_waiter_learns_the_cause_of_a_death(subject: Subject) {
    let instance = subject.start().await;
    let channel = subject.open(&instance).await;
    match select(instance.died(), subject.clock.sleep(A_WHILE)).await {
        Either::Left((death, _)) => panic!("it is alive: {death:?}"),
        Either::Right(_) => {}
    }
    let asked = async {
        send(&channel, &Command::Exit(7)).await;
    };
    let (death, ()) = join(instance.died(), asked).await;
    assert_eq!(death, Death::Exited(7));
    let again = within(&*subject.clock, "its death", instance.died()).await;
    assert_eq!(again, death, "a later waiter");
}

/// X4.
pub(super) async fn a_dead_instance_takes_no_message_and_no_channel(subject: Subject) {
    let instance = subject.start().await;
    let channel = subject.open(&instance).await;
    send(&channel, &Command::Echo("last".to_owned())).await;
    let answer = within(&*subject.clock, "an answer", channel.receive()).await;
    assert!(answer.expect("it is received").is_some());
    send(&channel, &Command::Exit(0)).await;
    assert_eq!(instance.died().await, Death::Exited(0));
    let end = within(&*subject.clock, "the end of the channel", channel.receive()).await;
    assert_eq!(end.expect("it is closed"), None);
    let sent = channel.send("more".into()).await;
    sent.expect_err("it is dead");
    instance.channel().await.expect_err("it is dead");
}

/// X4.
pub(super) async fn an_instance_over_its_memory_dies_of_it(subject: Subject) {
    if !subject.instances.limits().bounds_memory {
        return;
    }
    let instance = subject.start().await;
    let channel = subject.open(&instance).await;
    assert_eq!(subject.ask(&channel, Command::Hold(1)).await, "held");
    send(&channel, &Command::Hold(TOO_MUCH_MB)).await;
    let death = within(&*subject.clock, "its death", instance.died()).await;
    assert_eq!(death, Death::OutOfMemory);
}

/// X5.
pub(super) async fn an_ended_instance_dies_with_its_children(subject: Subject) {
    let instance = subject.start().await;
    let channel = subject.open(&instance).await;
    let children = Command::Children(2);
    assert_eq!(subject.ask(&channel, children).await, "started");
    instance.end();
    let death = within(&*subject.clock, "its death", instance.died()).await;
    assert!(matches!(death, Death::Killed(_)), "{death:?}");
    instance.end();
    assert_eq!(instance.died().await, death, "nothing has changed");
}

/// X5.
pub(super) async fn an_instance_without_handles_is_ended(subject: Subject) {
    let instance = subject.start().await;
    let channel = subject.open(&instance).await;
    assert_eq!(
        subject.ask(&channel, Command::Echo("on".to_owned())).await,
        "on"
    );
    drop(instance);
    let end = within(&*subject.clock, "the end of the channel", channel.receive()).await;
    assert_eq!(end.expect("it is closed"), None);
}
