"""The log: it reports bytes that no client sends, within bounds; lines that cannot be written are
dropped, without any effect on clients.
"""

import fcntl
import os
import re
import struct
import time

import pytest

import http_api
import server as servers
import waiting
import wire
from wire import OK

SECRET = "hunter2"
LINES_MAX = 100
FLOOD = 3000
REFUSED = 10_000

# Bytes of a stranger, or of a client that has lost its position in the stream, and the log line for
# each.
OPENINGS = {
    b"GET / HTTP/1.1\r\n\r\n": "the peer speaks HTTP",
    bytes.fromhex("16030100c8010000c40303"): "the peer speaks TLS",
    struct.pack("!i", -1): "invalid packet length -1",
    wire.integer(2**20): "invalid packet length 1048576, the limit is 1048575 (--zookeeper-packet-bytes-max)",
    wire.integer(8) + bytes(8): "the frame ends within a field",
    b"\0\0": "disconnected in the middle of a packet",
}
REQUESTS = {
    (4242, b""): "opcode 4242",
    (wire.GET_DATA, b"\0\0"): "GetData: the frame ends within a field",
    (wire.GET_DATA, wire.integer(1000) + SECRET.encode()): "GetData: a length does not fit the frame",
    (wire.CREATE, wire.string("/x") + wire.buffer(SECRET.encode()) + wire.integer(2**31 - 1)): "Create: a length does not fit",
    (wire.DELETE, wire.buffer(None) + wire.integer(0)): "Delete: a required field is null",
    (wire.AUTH, wire.integer(0) + wire.string("digest") + wire.string("u" * 4096)): "identities take more than 4096 bytes",
    (wire.AUTH, wire.integer(0) + wire.string("sasl") + wire.string(f"user:{SECRET}")): "authentication failed",
}
# Within a session: bytes after which the server can read nothing more.
FRAMES = {
    struct.pack("!i", -7): "invalid packet length -7",
    wire.integer(2) + b"\0\0": "too short for a request",
    wire.integer(100) + SECRET.encode(): "disconnected in the middle of a packet",
}


@pytest.fixture
def started(tmp_path):
    """Starts a separate server, with its log in this file or on a readable pipe."""
    if not isinstance(servers.new(tmp_path), servers.Landfast):
        pytest.skip("it looks at the log of landfast")
    (tmp_path / "server.log").touch()
    running = []

    def start(log=None):
        running.append(servers.new(tmp_path))
        if log is not None:
            running[0].open_log = lambda: log
        return running[0].start()

    yield start
    for server in running:
        server.shut_down()


def _malformed(server):
    """The server's count of bytes that no client sends."""
    metrics = http_api.Api(server).ask("GET", "/metrics").body.decode()
    return int(re.search(r"^landfast_coordination_malformed_total (\d+)$", metrics, re.MULTILINE).group(1))


def what_no_client_sends_is_said_and_counted_and_not_repeated(sessions, started):
    server = started()
    assert _malformed(server) == 0
    seen = [(line, _opened) for line in OPENINGS.items()]
    seen += [(line, _asked) for line in REQUESTS.items()]
    seen += [(line, _framed) for line in FRAMES.items()]
    for number, ((sent, words), send) in enumerate(seen, 1):
        before = len(server.log_lines(words))
        send(sessions, server, sent)
        waiting.until(lambda: len(server.log_lines(words)) > before, f"a line of {words!r}")
        assert len(server.log_lines(words)) == before + 1
        assert _malformed(server) == number
    assert not server.log_lines(SECRET)
    assert all("peer=127.0.0.1:" in line for line in server.log_lines("WARN"))


def _opened(_, server, sent):
    with wire.open_socket(server.port) as stranger:
        stranger.sendall(sent)
        stranger.shutdown(1)
        wire.drain(stranger)


def _asked(sessions, server, sent):
    assert sessions(server).ask(*sent).error != OK


def _framed(sessions, server, sent):
    session = sessions(server)
    session.socket.sendall(sent)
    session.socket.shutdown(1)
    assert session.receive() is None


def a_flood_of_what_no_client_sends_has_its_lines_and_no_more(sessions, started):
    server = started()
    hostile = sessions(server)
    begun = time.monotonic()
    for _ in range(FLOOD):
        assert hostile.ask(wire.GET_DATA, b"\0\0").error == wire.MARSHALLING
    lines = len(server.log_lines("request refused"))
    assert LINES_MAX <= lines <= LINES_MAX + 1 + time.monotonic() - begun < FLOOD
    assert _malformed(server) == FLOOD
    waiting.until(lambda: _told(hostile, server), "a line that tells of those without one")


def _told(hostile, server):
    hostile.ask(wire.GET_DATA, b"\0\0")
    return server.log_lines("suppressed=")


def _have_a_line_logged(server):
    with wire.open_socket(server.port) as stranger:
        stranger.sendall(b"GET / HTTP/1.1\r\n\r\n")
        wire.drain(stranger)


def a_log_on_a_full_disk_is_no_reason_to_stop(sessions, started):
    server = started(open("/dev/full", "wb"))
    session = sessions(server)
    session.created("/n")
    _have_a_line_logged(server)
    assert session.get("/n").error == OK
    assert sessions(server).set("/n", b"after").error == OK
    assert server.stop() == 0


def a_log_whose_reader_has_gone_is_no_reason_to_stop(sessions, started):
    reader, writer = os.pipe()
    server = started(os.fdopen(writer, "wb"))
    session = sessions(server)
    session.created("/n")
    os.close(reader)
    _have_a_line_logged(server)
    assert session.get("/n").error == OK
    assert sessions(server).set("/n", b"after").error == OK
    assert server.stop() == 0


def _refused(server):
    with wire.open_socket(server.port) as stranger:
        wire.drain(stranger)


def a_log_that_nobody_reads_holds_nobody_up(sessions, started, monkeypatch):
    monkeypatch.setenv("LANDFAST_ZOOKEEPER_CONNECTIONS_PER_ADDRESS", "1")
    reader, writer = os.pipe()
    pipe_bytes = fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    server = started(os.fdopen(writer, "wb"))
    session = sessions(server)
    session.created("/n")
    for number in range(REFUSED):
        _refused(server)
        if number % 100 == 0:
            assert session.ping().error == OK
    assert session.set("/n", b"after").error == OK
    assert session.get("/n").body.buffer() == b"after"
    assert http_api.Api(server).ask("GET", "/metrics").status == 200
    assert server.stop() == 0, "nor is it held up at its end"
    os.set_blocking(reader, False)
    assert len(os.read(reader, 1 << 20)) > pipe_bytes // 2, "the pipe was full of it"
    os.close(reader)


def the_last_lines_are_written(started):
    server = started()
    assert server.stop() == 0
    assert server.log_lines("stopped")
