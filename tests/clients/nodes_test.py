"""The tree: the responses to creates, sets, deletes and reads, field by field."""

import time

import pytest
from kazoo.exceptions import BadVersionError, NoChildrenForEphemeralsError, NodeExistsError, NoNodeError, NotEmptyError

import waiting
import wire
from wire import BAD_VERSION, EPHEMERAL, NO_NODE, NOT_EMPTY, OK, SEQUENTIAL

DATA_BYTES = 1_000_000
PACKET_BYTES_MAX = 1_048_575


def a_new_node_has_the_stat_of_its_creation(session, path):
    before = int(time.time() * 1000)
    reply = session.ask(wire.CREATE2, wire.create_body(path, b"data"))
    assert reply.error == OK
    assert reply.body.string() == path
    stat = reply.body.stat()
    assert stat == session.stat(path)
    assert stat.czxid == stat.mzxid == stat.pzxid == reply.zxid
    assert stat.ctime == stat.mtime
    assert abs(stat.ctime - before) < 60_000
    assert (stat.version, stat.cversion, stat.aversion) == (0, 0, 0)
    assert (stat.ephemeral_owner, stat.data_length, stat.num_children) == (0, 4, 0)


def a_set_moves_version_and_mzxid_alone(session, path):
    session.created(path, b"one")
    before = session.stat(path)
    reply = session.set(path, b"three")
    after = reply.body.stat()
    assert after == session.stat(path)
    assert after.mzxid == reply.zxid > before.mzxid
    assert (after.version, after.data_length) == (1, 5)
    assert after.mtime >= before.mtime
    unchanged = "czxid ctime cversion aversion ephemeral_owner num_children pzxid".split()
    assert [getattr(after, field) for field in unchanged] == [getattr(before, field) for field in unchanged]


def a_set_of_equal_data_counts_as_a_change(session, node):
    assert session.set(node, b"").body.stat().version == 1
    assert session.set(node, b"").body.stat().version == 2


def creating_and_deleting_children_moves_cversion_and_pzxid_of_the_parent_alone(session, node):
    before = session.stat(node)
    first = session.create(node + "/a")
    assert session.stat(node).pzxid == first.zxid
    session.created(node + "/b")
    last = session.delete(node + "/a")
    after = session.stat(node)
    assert (after.cversion, after.num_children, after.pzxid) == (3, 1, last.zxid)
    assert (after.version, after.mzxid, after.mtime) == (before.version, before.mzxid, before.mtime)


def a_change_below_a_child_leaves_the_grandparent_alone(session, node):
    session.created(node + "/child")
    before = session.stat(node)
    session.created(node + "/child/grandchild")
    session.set(node + "/child", b"new")
    assert session.stat(node) == before


def an_ephemeral_node_names_its_session_as_owner(session, path):
    session.created(path, b"", EPHEMERAL)
    assert session.stat(path).ephemeral_owner == session.id


def an_ephemeral_node_has_no_children(client, path):
    client.create(path, ephemeral=True)
    with pytest.raises(NoChildrenForEphemeralsError):
        client.create(path + "/child")


def a_sequence_number_counts_every_create_below_the_parent(session, node):
    assert session.created(node + "/s-", flags=SEQUENTIAL) == node + "/s-0000000000"
    session.created(node + "/plain")
    assert session.created(node + "/t-", flags=SEQUENTIAL) == node + "/t-0000000002"


def a_sequence_number_is_not_moved_by_deletes(session, node):
    session.created(node + "/a")
    session.created(node + "/b")
    session.delete(node + "/a")
    assert session.stat(node).cversion == 3
    assert session.created(node + "/s-", flags=SEQUENTIAL) == node + "/s-0000000002"


def a_sequential_name_may_be_empty(session, node):
    assert session.created(node + "/", flags=SEQUENTIAL) == node + "/0000000000"


def sequence_numbers_of_concurrent_creates_are_all_different(clients, server, node):
    rivals = [clients(server) for _ in range(4)]
    pending = [rival.create_async(node + "/s-", sequence=True) for _ in range(25) for rival in rivals]
    numbers = sorted(int(result.get(timeout=waiting.GUARD_SECONDS)[-10:]) for result in pending)
    assert numbers == list(range(100))


def a_node_is_created_once(client, path):
    client.create(path)
    with pytest.raises(NodeExistsError):
        client.create(path)


def a_node_needs_its_parent(client, path):
    with pytest.raises(NoNodeError):
        client.create(path + "/child")


def a_write_with_another_version_changes_nothing(client, path):
    client.create(path, b"one")
    with pytest.raises(BadVersionError):
        client.set(path, b"two", version=1)
    with pytest.raises(BadVersionError):
        client.delete(path, version=1)
    data, stat = client.get(path)
    assert (data, stat.version) == (b"one", 0)
    client.set(path, b"two", version=0)
    client.delete(path, version=1)
    assert client.exists(path) is None


def a_node_with_children_is_not_deleted(client, path):
    client.ensure_path(path + "/child")
    with pytest.raises(NotEmptyError):
        client.delete(path)
    client.delete(path, recursive=True)
    assert client.exists(path) is None


def a_wrong_version_is_told_before_children_are(session, node):
    session.created(node + "/child")
    assert session.delete(node, 7).error == BAD_VERSION
    assert session.delete(node, 0).error == NOT_EMPTY


def only_one_of_two_sets_of_the_same_version_wins(clients, server, node):
    rivals = [clients(server) for _ in range(4)]
    for version in range(10):
        pending = [rival.set_async(node, b"x", version=version) for rival in rivals]
        outcomes = [result.wait(waiting.GUARD_SECONDS) or result.exception for result in pending]
        assert all(result.ready() for result in pending), outcomes
        assert sum(result.successful() for result in pending) == 1


def null_data_stays_null_and_empty_data_stays_empty(session, path):
    session.created(path, None)
    reply = session.get(path)
    assert reply.body.buffer() is None
    assert reply.body.stat().data_length == 0
    session.set(path, b"")
    assert session.get(path).body.buffer() == b""
    session.set(path, None)
    assert session.get(path).body.buffer() is None


def a_megabyte_of_data_is_stored_and_read_back(client, path):
    data = bytes(range(256)) * (DATA_BYTES // 256)
    client.create(path, data)
    assert client.get(path)[0] == data


def the_largest_packet_is_taken_and_one_byte_more_is_not(sessions, server, path):
    session = sessions(server)
    overhead = len(wire.integer(0) + wire.integer(0) + wire.create_body(path, b""))
    data = bytes(PACKET_BYTES_MAX - overhead)
    assert session.create(path, data).error == OK
    # The node's data and Stat make a reply longer than a request may be.
    assert len(session.get(path).body.buffer()) == len(data)
    session.send(wire.CREATE, wire.create_body(path + "x", data))
    assert session.receive() is None, "a packet over the limit must close the connection"
    other = sessions(server)
    assert other.exists(path + "x").error == NO_NODE


def a_thousand_children_are_listed(client, path):
    client.ensure_path(path)
    names = [f"child-{number:04}" for number in range(1000)]
    for result in [client.create_async(f"{path}/{name}") for name in names]:
        result.get(timeout=waiting.GUARD_SECONDS)
    children, stat = client.get_children(path, include_data=True)
    assert sorted(children) == names
    assert (stat.numChildren, stat.cversion) == (1000, 1000)


def children_are_names_without_their_paths(session, node):
    session.created(node + "/a")
    session.created(node + "/a/below")
    assert session.children(node).body.strings() == ["a"]
    assert "a" not in session.children("/").body.strings()


def names_of_any_script_are_kept(client, path):
    client.ensure_path(path)
    for name in ["\u6c34", "sp ace", "per%cent", "...", "\u00fcml\u00e4ut", "\u00a0"]:
        client.create(f"{path}/{name}", name.encode())
        assert client.get(f"{path}/{name}")[0] == name.encode()
        assert name in client.get_children(path)


def two_clients_see_each_others_writes_after_sync(clients, server, path):
    one, other = clients(server), clients(server)
    one.create(path, b"0")
    for number in range(1, 20):
        writer, reader = (one, other) if number % 2 else (other, one)
        writer.set(path, str(number).encode())
        reader.sync(path)
        assert reader.get(path)[0] == str(number).encode()


def a_sync_of_a_missing_node_is_answered_with_its_path(session, path):
    reply = session.sync(path)
    assert (reply.error, reply.body.string()) == (OK, path)


def pipelined_requests_are_answered_in_order_and_reads_see_the_writes_before_them(session, path):
    sent = [session.send(wire.CREATE, wire.create_body(path, b"0"))]
    for number in range(1, 200):
        sent.append(session.send(wire.SET_DATA, wire.string(path) + wire.buffer(str(number).encode()) + wire.integer(-1)))
        sent.append(session.send(wire.GET_DATA, wire.string(path) + wire.boolean(False)))
    replies = [session.receive() for _ in sent]
    assert [reply.xid for reply in replies] == sent
    assert all(reply.error == OK for reply in replies)
    assert [int(reply.body.buffer()) for reply in replies[2::2]] == list(range(1, 200))
    zxids = [reply.zxid for reply in replies]
    assert zxids == sorted(zxids)


def the_zxid_of_a_reply_is_that_of_its_write_or_of_the_last_write_seen(session, path):
    created = session.create(path)
    read = session.get(path)
    assert read.zxid >= created.zxid
    written = session.set(path, b"new")
    assert written.body.stat().mzxid == written.zxid > created.zxid


def a_write_that_is_refused_takes_a_zxid_too(session, node):
    before = session.set(node, b"").zxid
    refused = session.set(node, b"", 99)
    assert (refused.error, refused.zxid) == (BAD_VERSION, before + 1)
    assert refused.body.finished(), "an error reply has no body"
    assert session.set(node, b"").zxid == before + 2
