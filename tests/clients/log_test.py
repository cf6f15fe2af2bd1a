"""The log: what cannot be written there is dropped, and nobody who is served notices."""

import os

import pytest

import server as servers
import wire
from wire import OK


@pytest.fixture
def started(tmp_path):
    """Starts a server of landfast's own, with its log at this file."""
    if not isinstance(servers.new(tmp_path), servers.Landfast):
        pytest.skip("it looks at the log of landfast")
    (tmp_path / "server.log").touch()
    running = []

    def start(log):
        running.append(servers.new(tmp_path))
        running[0].open_log = lambda: log
        return running[0].start()

    yield start
    for server in running:
        server.shut_down()


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
