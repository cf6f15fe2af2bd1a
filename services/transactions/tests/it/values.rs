//! T2, T4, T9: long keys and large values are like others.

use bytes::Bytes;
use transactions::{Config, model::Key};

use crate::house::{Node, in_virtual_time, on_every_provider};

/// A key as long as keys may be; only its last byte tells it from its like.
fn long_key(byte: u8, last: u8) -> Key {
    let mut name = vec![byte; 1_024];
    name[1_023] = last;
    Key::new(name).expect("as long as a key may be")
}

async fn shown(node: &Node, key: &Key) -> Option<Bytes> {
    node.engine.get_now(key).await.expect("a get is answered").value
}

/// T2: what is too long to sort by is found all the same, and apart.
#[test]
fn the_longest_keys_are_written_read_and_deleted() {
    on_every_provider(async |node: Node| {
        let keys = [long_key(b'k', b'a'), long_key(b'k', b'b'), long_key(0, 0), long_key(0, 1)];
        let call = node.begin().await;
        for (number, key) in (0_u8..).zip(&keys) {
            node.engine.put(&call, key.clone(), vec![number].into()).await.expect("taken");
        }
        node.commit(&call).await;
        node.engine.put_now(keys[3].clone(), None).await.expect("deleted");
        let reader = node.begin().await;
        for (number, key) in (0_u8..).zip(&keys) {
            let expected = (number < 3).then(|| Bytes::from(vec![number]));
            assert_eq!(node.engine.get(&reader, key).await.expect("read").value, expected);
            assert_eq!(shown(&node, key).await, expected);
        }
        node.commit(&reader).await;
    });
}

/// T2: they are loaded by who has them from the store alone.
#[test]
fn the_longest_keys_survive_a_restart() {
    in_virtual_time(async |world| {
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        let (first, second) = (long_key(b'k', b'a'), long_key(b'k', b'b'));
        node.engine.put_now(first.clone(), Some(Bytes::from_static(b"v"))).await.expect("written");
        drop(node);
        let node = Node::on(&world, world.key_value(), Config::default()).await;
        assert_eq!(shown(&node, &first).await, Some(Bytes::from_static(b"v")));
        assert_eq!(shown(&node, &second).await, None);
        // The sweep decodes all of it, and keeps it.
        tokio::time::sleep(std::time::Duration::from_mins(30)).await;
        assert_eq!(shown(&node, &first).await, Some(Bytes::from_static(b"v")));
        assert_eq!(node.engine.figures().swept, 0);
    });
}
