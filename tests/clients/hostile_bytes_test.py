"""Bytes that no client sends: they end their own connection, and no other client notices."""

import random
import struct

import pytest

import wire
from wire import OK

SEED = 20260


CONNECT = wire.connect_request()

# Openings that are not a connect request.
OPENINGS = {
    "nothing": b"",
    "half a length": b"\0\0",
    "a negative length": struct.pack("!i", -1),
    "the lowest length": struct.pack("!i", -(2**31)),
    "a huge length": struct.pack("!i", 2**31 - 1),
    "one byte over the limit": struct.pack("!i", 1_048_576) + b"x" * 100,
    "an empty packet": struct.pack("!i", 0),
    "a short connect request": wire.integer(8) + b"\0" * 8,
    "an http request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "a tls hello": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "a password longer than its packet": wire.integer(len(CONNECT)) + CONNECT[:24] + wire.integer(2**30) + CONNECT[28:],
    "a password of negative length": wire.integer(len(CONNECT)) + CONNECT[:24] + wire.integer(-77) + CONNECT[28:],
    "a request before the connect request": wire.integer(16) + struct.pack("!ii", 1, wire.EXISTS) + wire.string("/a") + b"\0\0",
}


@pytest.mark.parametrize("name", OPENINGS)
def a_hostile_opening_ends_its_own_connection_alone(session, server, path, name):
    with wire.open_socket(server.port) as connection:
        connection.sendall(OPENINGS[name])
        connection.shutdown(1)
        wire.drain(connection)
    assert session.create(path).error == OK


def random_bytes_disturb_nobody(session, server, path):
    chance = random.Random(SEED)
    for number in range(200):
        with wire.open_socket(server.port) as connection:
            try:
                connection.sendall(chance.randbytes(chance.randrange(1, 4096)))
                connection.shutdown(1)
                wire.drain(connection)
            except OSError:
                pass  # closed while we still wrote: as good an answer as any
        if number % 20 == 0:
            assert session.ping().error == OK
    assert session.create(path).error == OK


def random_requests_within_a_session_disturb_nobody(sessions, server, session, path):
    chance = random.Random(SEED)
    operations = [*range(-12, 25), 100, 101, 102, 103, 104, 105, 106, 107]
    hostile = sessions(server)
    for _ in range(400):
        body = chance.randbytes(chance.randrange(0, 64))
        try:
            hostile.send(chance.choice(operations), body)
            if hostile.receive() is None:
                raise ConnectionError
        except OSError:
            hostile = sessions(server)
        assert session.ping().error == OK
    assert session.create(path).error == OK


@pytest.mark.parametrize("length", [-1, -(2**31), 1_048_576, 2**31 - 1])
def a_frame_of_impossible_length_closes_the_connection_without_a_reply(sessions, server, session, length):
    hostile = sessions(server)
    hostile.socket.sendall(struct.pack("!i", length))
    assert hostile.receive() is None
    assert session.ping().error == OK


@pytest.mark.parametrize("count", [-2, -(2**31), 2**31 - 1, 2**24])
def a_vector_of_impossible_length_is_refused_without_making_room_for_it(session, path, count):
    body = wire.string(path) + wire.buffer(b"") + wire.integer(count)
    assert session.ask(wire.CREATE, body).error != OK
    assert session.exists(path).error == wire.NO_NODE


def a_packet_that_arrives_byte_by_byte_is_understood(sessions, server, path):
    slow = sessions(server)
    packet = struct.pack("!ii", 1, wire.CREATE) + wire.create_body(path)
    for byte in wire.integer(len(packet)) + packet:
        slow.socket.sendall(bytes([byte]))
    assert slow.receive().error == OK


def a_client_that_never_reads_its_replies_slows_nobody_else(sessions, server, session, path):
    deaf = sessions(server)
    session.created(path, b"x" * 100_000)
    request = struct.pack("!ii", 1, wire.GET_DATA) + wire.string(path) + b"\0"
    deaf.socket.settimeout(1)
    try:
        for _ in range(2000):
            deaf.socket.sendall(wire.integer(len(request)) + request)
    except TimeoutError:
        pass  # the server stopped reading from it, which is right
    for _ in range(20):
        assert session.get(path).error == OK
