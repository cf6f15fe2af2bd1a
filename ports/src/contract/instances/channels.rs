//! Messages to an instance and back: X2.

use bytes::Bytes;
use futures_util::future::join;

use super::{Command, Subject, send};
use crate::{ErrorKind, contract::within};

/// More messages than a channel holds.
const MESSAGES: usize = 2_000;

/// X2.
pub(super) async fn messages_arrive_whole_and_in_order(subject: Subject) {
    let instance = subject.start().await;
    let channel = subject.open(&instance).await;
    let texts: Vec<_> = (0..MESSAGES)
        .map(|number| format!("{number} {}", "x".repeat(number % 500)))
        .collect();
    let sent = async {
        for text in &texts {
            send(&channel, &Command::Echo(text.clone())).await;
        }
    };
    let received = async {
        for text in &texts {
            let message = within(&*subject.clock, "a message", channel.receive()).await;
            let message = message.expect("it is received").expect("it is alive");
            assert_eq!(message, text.as_bytes());
        }
    };
    join(sent, received).await;
    let bytes = subject.instances.limits().message_bytes_max.min(2 << 20);
    let long = subject.ask(&channel, Command::Long(bytes)).await;
    assert_eq!(long.len(), bytes);
    assert_eq!(long.replace('x', ""), "");
}

/// X2.
pub(super) async fn a_message_over_the_bound_is_refused_and_the_channel_goes_on(subject: Subject) {
    let instance = subject.start().await;
    let channel = subject.open(&instance).await;
    let bytes = subject.instances.limits().message_bytes_max + 1;
    let refused = channel.send(Bytes::from(vec![b'x'; bytes])).await;
    let refused = refused.expect_err("it is too long");
    assert_eq!(refused.kind(), ErrorKind::Invalid);
    let answer = subject.ask(&channel, Command::Echo("on".to_owned())).await;
    assert_eq!(answer, "on");
}

/// X2.
pub(super) async fn channels_of_an_instance_are_independent(subject: Subject) {
    let instance = subject.start().await;
    let (one, other) = (subject.open(&instance).await, subject.open(&instance).await);
    send(&one, &Command::Echo("of one".to_owned())).await;
    let answer = subject
        .ask(&other, Command::Echo("of other".to_owned()))
        .await;
    assert_eq!(answer, "of other", "though the first is not read");
    let answer = within(&*subject.clock, "a message", one.receive()).await;
    assert_eq!(
        answer.expect("it is received").as_deref(),
        Some(&b"of one"[..])
    );
    drop(one);
    let answer = subject.ask(&other, Command::Echo("on".to_owned())).await;
    assert_eq!(answer, "on", "though the first is closed");
}
