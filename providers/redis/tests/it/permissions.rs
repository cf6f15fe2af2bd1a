//! Permissions: a forbidden operation is refused permanently, whether the server refuses the
//! command or a call inside a script.

use ports::{ErrorKind, Update, key_value::Action};
use redis_provider::Config;

use crate::{
    fixture::{block_on, count, key, namespace, open},
    server::{Persistence, Server},
};

#[test]
fn a_forbidden_operation_is_refused_permanently_and_changes_nothing() {
    let server = Server::start(Persistence::Always);
    block_on(async {
        let config = Config {
            namespace: namespace(),
            ..Config::single(server.url())
        };
        let store = open(&config).await.key_value();
        let add = || Update::modify(key("n"), vec![Action::Add("n".into(), 1)]);
        store.update(add()).await.expect("it may");
        for (rule, again) in [("-@write", "+@all"), ("-evalsha", "+evalsha")] {
            let () = server.tell(&["ACL", "SETUSER", "default", rule]);
            let refused = store.update(add()).await.expect_err("it may not");
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{rule}: {refused}");
            let () = server.tell(&["ACL", "SETUSER", "default", again]);
            assert_eq!(count(&store, "n").await, 1, "{rule}");
        }
        store.update(add()).await.expect("it may again");
    });
}
