//! A user who may not do what is asked: that is refused for good, whether the command is refused or what a script does.

use ports::{ErrorKind, Update, key_value::Action};
use redis_provider::Config;

use crate::{
    server::{Keeps, Server},
    world::{block_on, count, key, namespace, open},
};

#[test]
fn what_the_user_may_not_do_is_refused_for_good_and_changes_nothing() {
    let server = Server::start(Keeps::Always);
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
