"""The packet limit, ZooKeeper's `jute.maxbuffer`: at it and beyond it, at its default and when
configured.
"""

import random
import struct

import pytest

import server as servers
import wire
from wire import OK

DEFAULT = 1_048_575
MOST = 4 * 1024 * 1024 - 16 * 1024


@pytest.fixture(params=["embedded", "redis"])
def limited(request, tmp_path, monkeypatch):
    """Starts a separate server on each provider, with a packet limit."""
    if not isinstance(servers.new(tmp_path), servers.Landfast):
        pytest.skip("the limit is set as landfast's")
    kinds = {"embedded": servers.Landfast, "redis": servers.LandfastOnRedis}
    server = kinds[request.param](tmp_path)

    def start(packet_bytes_max):
        monkeypatch.setenv("LANDFAST_ZOOKEEPER_PACKET_BYTES_MAX", str(packet_bytes_max))
        return server.start()

    yield start
    server.shut_down()


def _data_for(path, packet_bytes):
    """The data that makes the packet of a create so long."""
    empty = struct.pack("!ii", 1, wire.CREATE) + wire.create_body(path)
    return random.Random(packet_bytes).randbytes(packet_bytes - len(empty))


def _takes_up_to(sessions, server, path, limit):
    session, other = sessions(server), sessions(server)
    for length in (limit - 1, limit):
        data = _data_for(path, length)
        session.created(path, data)
        assert session.get(path).body.buffer() == data
        assert session.delete(path).error == OK
    session.socket.sendall(wire.integer(limit + 1))
    assert session.receive() is None, "a longer packet closes the connection as soon as it is announced"
    assert other.exists(path).error == wire.NO_NODE


def a_packet_has_as_many_bytes_as_zookeeper_takes_by_default(sessions, server, path):
    _takes_up_to(sessions, server, path, DEFAULT)


@pytest.mark.parametrize("limit", [2048, MOST])
def the_limit_can_be_lowered_and_raised(sessions, limited, limit):
    _takes_up_to(sessions, limited(limit), "/n", limit)


def what_was_set_under_a_higher_limit_is_read_under_a_lower_one(sessions, limited, tmp_path):
    """Replies are not limited, as in ZooKeeper."""
    server = limited(MOST)
    sessions(server).created("/n", bytes(2_000_000))
    assert server.stop() == 0
    reply = sessions(limited(2048)).get("/n")
    assert (reply.error, len(reply.body.buffer())) == (OK, 2_000_000)


def many_large_packets_at_once_are_all_kept(sessions, limited):
    session = sessions(limited(MOST))
    paths = [f"/n{number}" for number in range(40)]
    for path in paths:
        session.send(wire.CREATE, wire.create_body(path, _data_for(path, 3_000_000)))
    assert [session.receive().error for _ in paths] == [OK] * len(paths)
    for path in paths[::13]:
        assert session.get(path).body.buffer() == _data_for(path, 3_000_000)
