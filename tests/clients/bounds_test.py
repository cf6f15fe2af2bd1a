"""Bounds on one client's use of the server: memory by its bytes, connections by its address, and
files by all together.
"""

import os
import resource

import pytest

import server as servers
import waiting
import wire
from wire import OK

LARGE = 1_000_000
READS = 500
HELD_BYTES_MAX = 100_000_000
FILES = 256
CONNECTIONS = 300


@pytest.fixture
def started(tmp_path):
    """Starts a separate server, with these in its environment or under these limits."""
    if not isinstance(servers.new(tmp_path), servers.Landfast):
        pytest.skip("it looks at the process of landfast")
    running = []

    def start():
        running.append(servers.new(tmp_path))
        return running[0].start()

    yield start
    for server in running:
        server.shut_down()


def _entered(sessions, server):
    """A session, or none if the server closes the connection."""
    try:
        return sessions(server)
    except OSError:
        return None


def a_client_that_asks_for_much_at_once_is_held_in_little_memory(sessions, started, monkeypatch):
    # Read from a file each time: data in items would be the same bytes for every reply.
    monkeypatch.setenv("LANDFAST_USER_STORE", "objects")
    server = started()
    session = sessions(server)
    path = session.created("/n", bytes(LARGE))
    before = server.peak_resident_bytes()
    sent = [session.send(wire.GET_DATA, wire.string(path) + wire.boolean(False)) for _ in range(READS)]
    for xid in sent:
        reply = session.receive()
        assert (reply.xid, reply.error, len(reply.body.buffer())) == (xid, OK, LARGE)
    assert server.peak_resident_bytes() - before < HELD_BYTES_MAX


def a_client_that_takes_nothing_for_its_session_timeout_is_cut_off(sessions, started):
    server = started()
    path = sessions(server).created("/n", bytes(LARGE))
    deaf = sessions(server, timeout_ms=4000)
    for _ in range(READS):
        deaf.send(wire.GET_DATA, wire.string(path) + wire.boolean(False))
    waiting.until(lambda: server.log_lines("the peer stopped reading"), "the end of its connection")
    assert sessions(server).exists(path).error == OK


def an_address_has_so_many_connections_and_gets_them_back(sessions, started, monkeypatch):
    monkeypatch.setenv("LANDFAST_ZOOKEEPER_CONNECTIONS_PER_ADDRESS", "3")
    server = started()
    held = [sessions(server) for _ in range(3)]
    for _ in range(5):
        with pytest.raises(ConnectionError):
            sessions(server)
    assert all(session.ping().error == OK for session in held)
    held.pop().drop()
    waiting.until(lambda: _entered(sessions, server), "a place for another connection")


@pytest.mark.parametrize(("asked", "given"), [(1_000, 2_000), (90_000, 90_000), (1_000_000, 120_000)])
def an_operator_sets_the_bounds_of_timeouts(sessions, started, monkeypatch, asked, given):
    monkeypatch.setenv("LANDFAST_ZOOKEEPER_SESSION_TIMEOUT_MIN", "2000")
    monkeypatch.setenv("LANDFAST_ZOOKEEPER_SESSION_TIMEOUT_MAX", "120000")
    server = started()
    assert sessions(server, timeout_ms=asked).timeout_ms == given
    with wire.open_socket(server.port) as connection:
        connection.sendall(b"conf")
        assert b"\nminSessionTimeout=2000\nmaxSessionTimeout=120000\n" in connection.makefile("rb").read()


def clients_that_take_all_connections_leave_the_store_its_files(sessions, started):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES, hard))
    try:
        server = started()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    entered = [session for session in (_entered(sessions, server) for _ in range(CONNECTIONS)) if session]
    assert 48 <= len(entered) < FILES
    first = entered[0]
    # A value of its own size travels as a file of its own.
    for number in range(20):
        assert first.create(f"/large-{number}", bytes(LARGE)).error == OK
    assert not server.log_lines("cannot accept")
    for session in entered[1:]:
        session.drop()
    waiting.until(lambda: _entered(sessions, server), "a place for another connection")


def a_server_without_free_descriptors_says_so_once_serves_who_is_there_and_recovers(sessions, started):
    server = started()
    session = sessions(server)
    session.created("/n")
    taken = {int(name) for name in os.listdir(f"/proc/{server.process.pid}/fd")}
    lowest_free = next(number for number in range(len(taken) + 1) if number not in taken)
    soft, hard = resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (lowest_free, hard))
    waits = wire.open_socket(server.port)
    body = wire.connect_request()
    waits.sendall(wire.integer(len(body)) + body)
    waiting.until(lambda: server.log_lines("cannot accept connections"), "the server to say so")
    for number in range(2000):
        assert session.set("/n", str(number).encode()).error == OK
    resource.prlimit(server.process.pid, resource.RLIMIT_NOFILE, (soft, hard))
    waits.settimeout(waiting.GUARD_SECONDS)
    assert len(waits.recv(4)) == 4, "the one that waited is served"
    waits.close()
    assert session.ping().error == OK
    assert len(server.log_lines("cannot accept connections")) == 1
    assert len(server.log_lines("connections are accepted again")) == 1
