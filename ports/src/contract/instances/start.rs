//! Which instance a handle addresses: X1.

use super::{Command, Subject};

/// X1.
pub(super) async fn a_handle_addresses_one_instance(subject: Subject) {
    let (one, other) = (subject.start().await, subject.start().await);
    let channels = [
        subject.open(&one).await,
        subject.open(&other).await,
        subject.open(&one).await,
    ];
    let mut names = Vec::new();
    for channel in &channels {
        names.push(subject.ask(channel, Command::Instance).await);
    }
    assert_eq!(names[0], names[2], "two channels of one instance");
    assert_ne!(names[0], names[1], "two instances");
    for channel in &channels[..2] {
        let again = subject.ask(channel, Command::Instance).await;
        assert!(names.contains(&again), "it lives on");
    }
}

/// X1.
pub(super) async fn a_program_sees_its_environment(subject: Subject) {
    let mut values = Vec::new();
    for value in ["one", "two words"] {
        let instance = subject
            .start_with(|spec| {
                spec.environment.insert("SHARD".into(), value.into());
            })
            .await;
        let channel = subject.open(&instance).await;
        let variable = Command::Variable("SHARD".to_owned());
        values.push(subject.ask(&channel, variable).await);
    }
    assert_eq!(values, ["one", "two words"]);
}
