//! How long a deleted item remembers its operations (K8).

use std::time::Duration;

use ports::{
    ErrorKind, Update,
    key_value::{Action, OperationId, Version},
};
use simulated::{World, run};

use crate::{integer, key};

/// K8: a repeat of an operation on a deleted item is recognised within the retention of the limits,
/// and unknown afterwards.
#[test]
fn a_deleted_item_remembers_within_the_retention_of_the_limits() {
    run(async {
        let world = World::new(1);
        let key_value = world.key_value();
        let retention_ms = key_value.limits().operation_retention_ms;
        let add = Update::modify(key("a"), vec![Action::Add("n".into(), 1)]);
        let add = add.as_operation(OperationId(1), Version(0));
        key_value.update(add.clone()).await.expect("calm");
        key_value
            .update(Update::delete(key("a")))
            .await
            .expect("calm");
        world
            .clock()
            .sleep(Duration::from_millis(retention_ms - 1))
            .await;
        key_value
            .update(add.clone())
            .await
            .expect("it is recognised");
        assert_eq!(
            integer(&*key_value, &key("a"), "n").await,
            0,
            "and not applied again"
        );
        world.clock().sleep(Duration::from_millis(2)).await;
        match key_value.update(add).await {
            Ok(_) => assert_eq!(
                integer(&*key_value, &key("a"), "n").await,
                1,
                "it is unknown by now"
            ),
            Err(error) => assert_eq!(error.kind(), ErrorKind::OutcomeUnknown),
        }
    });
}
