"""Sessions: their lifetime, their moves between servers, and the state that ends with them."""

import random
import socket
import struct
import time

import pytest
from kazoo.client import KazooState
from kazoo.protocol.states import EventType

import waiting
import wire
from wire import EPHEMERAL, NO_NODE, OK

SEED = 11
TIMEOUT_MS_MIN, TIMEOUT_MS_MAX = 4_000, 40_000


@pytest.mark.parametrize(
    ("asked", "given"), [(1, TIMEOUT_MS_MIN), (-5, TIMEOUT_MS_MIN), (12_345, 12_345), (1_000_000, TIMEOUT_MS_MAX)]
)
def a_timeout_is_kept_within_its_bounds(sessions, server, asked, given):
    assert sessions(server, timeout_ms=asked).timeout_ms == given


def a_session_has_a_positive_id_of_its_own_and_a_password(sessions, server):
    opened = [sessions(server) for _ in range(5)]
    assert len({session.id for session in opened}) == 5
    assert all(session.id > 0 and len(session.password) == 16 for session in opened)
    assert all(any(session.password) for session in opened)


def a_client_without_a_read_only_byte_is_answered_without_one(sessions, server):
    assert sessions(server).answer_bytes == 37
    old = sessions(server, read_only=None)
    assert old.answer_bytes == 36
    assert old.ping().error == OK


def a_new_session_takes_a_password_of_any_length(sessions, server):
    for length in (0, 17, 1_000, 100_000):
        assert sessions(server, password=bytes(length)).ping().error == OK


def a_ping_is_answered_in_order_with_the_last_zxid(session, path):
    created = session.create(path)
    reply = session.ping()
    assert (reply.xid, reply.error) == (wire.PING_XID, OK)
    assert reply.zxid >= created.zxid
    assert reply.body.finished()


def a_session_resumes_on_another_connection_with_its_ephemerals(sessions, server, path):
    first = sessions(server)
    first.created(path, flags=EPHEMERAL)
    first.drop()
    second = sessions(server, session=first.id, password=first.password)
    assert (second.id, second.password) == (first.id, first.password)
    assert second.stat(path).ephemeral_owner == first.id


def resuming_a_session_closes_its_older_connection(sessions, server):
    first = sessions(server)
    second = sessions(server, session=first.id, password=first.password)
    assert second.id == first.id
    assert first.receive() is None
    assert second.ping().error == OK


@pytest.mark.parametrize("wrong", ["password", "id"])
def a_session_is_not_resumed_without_its_id_and_password(sessions, server, path, wrong):
    owner = sessions(server)
    owner.created(path, flags=EPHEMERAL)
    if wrong == "password":
        thief = sessions(server, session=owner.id, password=b"x" * 16)
    else:
        thief = sessions(server, session=0x7F00_1234_5678, password=owner.password)
    assert (thief.id, thief.timeout_ms, thief.password) == (0, 0, bytes(16))
    assert thief.receive() is None
    assert sessions(server).stat(path).ephemeral_owner == owner.id


def a_client_that_has_seen_the_future_is_turned_away(sessions, server):
    with pytest.raises(ConnectionError):
        sessions(server, last_zxid=1 << 62)


def closing_a_session_removes_its_ephemerals_before_the_reply(sessions, server, path):
    owner, other = sessions(server), sessions(server)
    owner.created(path, flags=EPHEMERAL)
    owner.close()
    other.sync()
    assert other.exists(path).error == NO_NODE


def a_closed_session_is_not_resumed(sessions, server):
    owner = sessions(server)
    owner.close()
    assert sessions(server, session=owner.id, password=owner.password).id == 0


def a_silent_session_expires_with_its_ephemerals_and_watchers_are_told(sessions, clients, server, path):
    watcher = clients(server)
    begun = time.monotonic()
    silent = sessions(server, timeout_ms=TIMEOUT_MS_MIN)
    silent.created(path, flags=EPHEMERAL)
    events = []
    assert watcher.exists(path, watch=events.append)
    waiting.until(lambda: events, "the ephemeral of the silent session to vanish")
    assert time.monotonic() - begun > TIMEOUT_MS_MIN / 1000 - 0.5, "expired too early"
    assert [(event.type, event.path) for event in events] == [(EventType.DELETED, path)]
    assert watcher.exists(path) is None
    assert silent.receive() is None, "the connection of an expired session is closed"
    assert sessions(server, session=silent.id, password=silent.password).id == 0


def a_pinging_session_outlives_its_timeout(sessions, server, path):
    session = sessions(server, timeout_ms=TIMEOUT_MS_MIN)
    session.created(path, flags=EPHEMERAL)
    silent = sessions(server, timeout_ms=TIMEOUT_MS_MIN)
    silent.created(path + "-silent", flags=EPHEMERAL)
    observer = sessions(server)

    def silent_is_gone():
        session.ping()
        return observer.exists(path + "-silent").error == NO_NODE

    waiting.until(silent_is_gone, "the silent session to expire")
    assert session.stat(path).ephemeral_owner == session.id


def a_dropped_connection_is_made_anew_by_the_client_with_its_session_and_watches(clients, server, path):
    client, other = clients(server), clients(server)
    states, seen = [], []
    client.add_listener(states.append)
    client.create(path, b"old", ephemeral=True)
    owner = client.client_id[0]
    client.DataWatch(path, lambda data, stat: seen.append(data))
    client._connection._socket.shutdown(2)
    waiting.until(lambda: KazooState.SUSPENDED in states, "the client to notice")
    waiting.until(lambda: states[-1] == KazooState.CONNECTED, "the client to reconnect")
    assert client.client_id[0] == owner
    assert other.get(path)[1].ephemeralOwner == owner
    other.set(path, b"new")
    waiting.until(lambda: seen[-1] == b"new", "the watch to go on")


def requests_behind_a_close_are_not_applied(sessions, server, path):
    session = sessions(server)
    close = struct.pack("!ii", 1, wire.CLOSE_SESSION)
    create = struct.pack("!ii", 2, wire.CREATE) + wire.create_body(path)
    session.socket.sendall(b"".join(wire.integer(len(packet)) + packet for packet in [close, create]))
    assert session.receive().xid == 1
    assert session.receive() is None
    observer = sessions(server)
    observer.sync()
    assert observer.exists(path).error == NO_NODE


def a_session_ends_with_more_ephemerals_than_fit_into_one_decision(clients, server, path):
    owner, other = clients(server), clients(server)
    owner.create(path)
    name = "n" * 150
    created = [owner.create_async(f"{path}/{name}{number}", ephemeral=True) for number in range(6_000)]
    assert all(pending.get(timeout=waiting.GUARD_SECONDS) for pending in created)
    owner.stop()
    waiting.until(lambda: other.get_children(path) == [], "the ephemerals are gone")
    assert other.get(path)[1].cversion == 12_000


def a_session_is_resumed_at_once_whatever_its_older_connection_waits_for(sessions, server, path):
    chance = random.Random(SEED)
    # The test does not wait for a renewal: it comes after a quarter of the timeout.
    older = sessions(server, timeout_ms=40_000)
    older.created(path)
    for _ in range(100):
        sent = [older.send(wire.SET_DATA, wire.string(path) + wire.buffer(b"x" * 500) + wire.integer(-1)) for _ in range(chance.randint(1, 30))]
        older.reply_to(sent[0])
        older.drop()
        started = time.monotonic()
        older = sessions(server, timeout_ms=40_000, session=older.id, password=older.password)
        assert time.monotonic() - started < 8


def what_a_client_has_sent_before_it_stops_is_done(sessions, server, session, path):
    session.created(path)
    leaving = sessions(server)
    for number in range(100):
        leaving.send(wire.CREATE, wire.create_body(f"{path}/{number}"))
        leaving.send(wire.GET_DATA, wire.string(f"{path}/{number}") + wire.boolean(False))
    leaving.socket.shutdown(socket.SHUT_WR)
    waiting.until(lambda: session.stat(path).num_children == 100, "every znode that was asked for is there")
