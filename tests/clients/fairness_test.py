"""One connection that sends requests without a pause, and the others beside it."""

import statistics
import threading
import time

import pytest

import server as servers
import waiting
import wire

# Each response has the same number of bytes: an error has no body.
REQUESTS = b"".join(
    wire.buffer(wire.integer(number) + wire.integer(wire.EXISTS) + wire.string("/missing") + wire.boolean(False))
    for number in range(1, 1001)
)
ANSWER_BYTES = 20
PINGS = 15
# More than sockets hold.
LARGE = 1_000_000
READS = 32
PIECE_BYTES = 4_096
TIMEOUT_MS = 4_000
# A turn of a connection has a thousand requests; responses are counted late, because they wait in
# sockets.
ANSWERS_BETWEEN_MAX = 40_000


class Flood:
    """Sends as fast as the server accepts, and counts the responses."""

    def __init__(self, session):
        self.session = session
        self.received_bytes = 0
        self.begun = threading.Event()
        self.threads = [threading.Thread(target=run, daemon=True) for run in (self.send, self.receive)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        assert self.begun.wait(waiting.GUARD_SECONDS), "it is answered"
        return self

    def __exit__(self, *_):
        self.session.drop()
        for thread in self.threads:
            thread.join(waiting.GUARD_SECONDS)

    def send(self):
        try:
            while True:
                self.session.socket.sendall(REQUESTS)
        except OSError:
            pass  # the test is over

    def receive(self):
        try:
            while received := self.session.socket.recv(1 << 20):
                self.received_bytes += len(received)
                self.begun.set()
        except OSError:
            pass  # the test is over

    @property
    def answers(self):
        return self.received_bytes // ANSWER_BYTES


@pytest.fixture
def lone_worker(tmp_path, monkeypatch):
    """A server on one thread: a connection that occupies it shuts out all others."""
    monkeypatch.setenv("LANDFAST_THREADS", "1")
    server = servers.new(tmp_path)
    if not isinstance(server, servers.Landfast):
        pytest.skip("it has no threads to be asked for")
    yield server.start()
    server.shut_down()


def a_flood_on_one_connection_leaves_the_others_their_turn(lone_worker, sessions):
    beside = sessions(lone_worker)
    with Flood(sessions(lone_worker)) as flood:
        between = []
        for _ in range(PINGS):
            before = flood.answers
            assert beside.ping().error == wire.OK
            between.append(flood.answers - before)
        assert wire.Session(lone_worker.port).ping().error == wire.OK
    assert statistics.median(between) < ANSWERS_BETWEEN_MAX, between


def who_reads_slowly_and_pings_keeps_its_session(sessions, server, session, path):
    session.create(path)
    large = session.created(f"{path}/large", bytes(LARGE))
    slow = sessions(server, timeout_ms=TIMEOUT_MS)
    mark = slow.created(f"{path}/mark", b"", wire.EPHEMERAL)
    for _ in range(READS):
        slow.send(wire.GET_DATA, wire.string(large) + wire.boolean(False))
    began, lasts = time.monotonic(), 2.5 * TIMEOUT_MS / 1000
    received = 0
    while (elapsed := time.monotonic() - began) < lasts:
        slow.send(wire.PING, xid=wire.PING_XID)
        # However fast the server is, half of it is left at the end.
        if received < READS * LARGE / 2 * elapsed / lasts:
            received += len(slow.socket.recv(PIECE_BYTES))
        # The other connections' round trips set its pace.
        for _ in range(50):
            assert session.ping().error == wire.OK
    assert received < READS * LARGE, "it was still reading"
    assert session.ask(wire.EXISTS, wire.string(mark) + wire.boolean(False)).error == wire.OK
