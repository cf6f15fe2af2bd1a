"""A ZooKeeper session by hand: every byte that is sent, every packet that comes back, in their order.

Client libraries hide what some promises are about (the order of an event and a reply, the zxid of a failed
write, null data), and they refuse to send what a hostile client sends.
"""

import dataclasses
import socket
import struct

import waiting

CREATE, DELETE, EXISTS, GET_DATA, SET_DATA, GET_ACL, SET_ACL, GET_CHILDREN, SYNC = range(1, 10)
PING, GET_CHILDREN2, CHECK, MULTI, CREATE2 = 11, 12, 13, 14, 15
CHECK_WATCHES, REMOVE_WATCHES = 17, 18
CREATE_CONTAINER, DELETE_CONTAINER, CREATE_TTL, MULTI_READ = 19, 20, 21, 22
AUTH, SET_WATCHES, GET_EPHEMERALS, COUNT_DESCENDANTS, SET_WATCHES2, ADD_WATCH = 100, 101, 103, 104, 105, 106
WHO_AM_I, CLOSE_SESSION = 107, -11

PERSISTENT, EPHEMERAL, SEQUENTIAL, EPHEMERAL_SEQUENTIAL, CONTAINER, WITH_TTL = range(6)

PING_XID, AUTH_XID, SET_WATCHES_XID, EVENT_XID = -2, -4, -8, -1

NODE_CREATED, NODE_DELETED, NODE_DATA_CHANGED, NODE_CHILDREN_CHANGED = 1, 2, 3, 4

QUOTA_EXCEEDED = -125
OK, NO_NODE, BAD_VERSION, EPHEMERAL_PARENT, NODE_EXISTS, NOT_EMPTY = 0, -101, -103, -108, -110, -111
MARSHALLING, UNIMPLEMENTED, BAD_ARGUMENTS, INVALID_ACL, AUTHENTICATION_FAILED = -5, -6, -8, -114, -115
NO_WATCHER = -121

ALL_PERMISSIONS = 0x1F
OPEN_ACL = ((ALL_PERMISSIONS, "world", "anyone"),)

STAT_FIELDS = (
    "czxid mzxid ctime mtime version cversion aversion ephemeral_owner data_length num_children pzxid"
).split()
Stat = dataclasses.make_dataclass("Stat", STAT_FIELDS, frozen=True)


def integer(value):
    return struct.pack("!i", value)


def long(value):
    return struct.pack("!q", value)


def boolean(value):
    return b"\1" if value else b"\0"


def buffer(value):
    return integer(-1) if value is None else integer(len(value)) + bytes(value)


def string(value):
    return buffer(None if value is None else value.encode(errors="surrogateescape"))


def strings(values):
    return integer(len(values)) + b"".join(map(string, values))


def part_header(opcode, is_done=False):
    """The header of a part of a multi, or the one after the last part."""
    return integer(opcode) + boolean(is_done) + integer(-1)


def acl(entries=OPEN_ACL):
    return integer(len(entries)) + b"".join(integer(mask) + string(scheme) + string(name) for mask, scheme, name in entries)


class Reader:
    """Reads a packet's fields in order."""

    def __init__(self, data):
        self.data = data
        self.offset = 0

    def take(self, form):
        (value,) = struct.unpack_from(form, self.data, self.offset)
        self.offset += struct.calcsize(form)
        return value

    def integer(self):
        return self.take("!i")

    def long(self):
        return self.take("!q")

    def buffer(self):
        length = self.integer()
        if length < 0:
            return None
        self.offset += length
        return self.data[self.offset - length : self.offset]

    def string(self):
        value = self.buffer()
        return None if value is None else value.decode(errors="backslashreplace")

    def strings(self):
        return [self.string() for _ in range(self.integer())]

    def stat(self):
        values = struct.unpack_from("!qqqqiiiqiiq", self.data, self.offset)
        self.offset += 68
        return Stat(*values)

    def finished(self):
        return self.offset == len(self.data)


@dataclasses.dataclass
class Reply:
    """A reply, or with the xid of events a notification."""

    xid: int
    zxid: int
    error: int
    body: Reader

    @property
    def is_event(self):
        return self.xid == EVENT_XID


@dataclasses.dataclass
class Event:
    """A watch that fired."""

    zxid: int
    kind: int
    state: int
    path: str

    @classmethod
    def of(cls, reply):
        return cls(reply.zxid, reply.body.integer(), reply.body.integer(), reply.body.string())


def connect_request(timeout_ms=30000, session=0, password=bytes(16), last_zxid=0, read_only=False):
    body = integer(0) + long(last_zxid) + integer(timeout_ms) + long(session) + buffer(password)
    return body if read_only is None else body + boolean(read_only)


def open_socket(port, seconds=waiting.GUARD_SECONDS):
    connection = socket.create_connection(("127.0.0.1", port), seconds)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def drain(connection):
    """Reads until the server has closed the connection."""
    try:
        while connection.recv(4096):
            pass
    except ConnectionResetError:
        pass


def create_body(path, data=b"", flags=PERSISTENT, entries=OPEN_ACL):
    return string(path) + buffer(data) + acl(entries) + integer(flags)


class Session:
    """One connection and its session."""

    def __init__(self, port, seconds=waiting.GUARD_SECONDS, **connect):
        self.socket = open_socket(port, seconds)
        self.xid = 0
        self.events = []
        self.send_packet(connect_request(**connect))
        answer = self.receive_packet()
        if answer is None:
            raise ConnectionError("closed without an answer to the connect request")
        fields = Reader(answer)
        fields.integer()
        self.timeout_ms, self.id, self.password = fields.integer(), fields.long(), fields.buffer()
        self.answer_bytes = len(answer)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.drop()

    def drop(self):
        """Closes the socket without a message to the server."""
        self.socket.close()

    def close(self):
        """Ends the session; its reply is the last packet of the connection."""
        reply = self.ask(CLOSE_SESSION)
        assert reply.error == OK
        assert self.receive_packet() is None, "the connection stayed open behind closeSession"
        self.socket.close()

    def send_packet(self, body):
        self.socket.sendall(integer(len(body)) + body)

    def receive_bytes(self, count):
        parts = b""
        while len(parts) < count:
            part = self.socket.recv(count - len(parts))
            if not part:
                return None
            parts += part
        return parts

    def receive_packet(self):
        """The next packet's bytes; none if the server closed the connection."""
        try:
            length = self.receive_bytes(4)
            return None if length is None else self.receive_bytes(struct.unpack("!i", length)[0])
        except ConnectionResetError:
            return None

    def send(self, operation, body=b"", xid=None):
        """Sends a request and returns its xid; the reply is fetched by `receive`."""
        if xid is None:
            self.xid += 1
            xid = self.xid
        self.send_packet(integer(xid) + integer(operation) + body)
        return xid

    def receive(self):
        """The next packet as a Reply, whether an event or not; none at the end of the connection."""
        packet = self.receive_packet()
        if packet is None:
            return None
        fields = Reader(packet)
        return Reply(fields.integer(), fields.long(), fields.integer(), fields)

    def ask(self, operation, body=b"", xid=None):
        """Sends a request and returns its reply; events before it are kept in `events`."""
        xid = self.send(operation, body, xid)
        return self.reply_to(xid)

    def reply_to(self, xid):
        while True:
            reply = self.receive()
            assert reply is not None, f"the connection closed before the reply {xid}"
            if not reply.is_event:
                assert reply.xid == xid, f"expected the reply {xid}, got {reply.xid}"
                return reply
            self.events.append(Event.of(reply))

    def event(self):
        """The next event, waiting for it."""
        if not self.events:
            reply = self.receive()
            assert reply is not None and reply.is_event, f"expected an event, got {reply}"
            return Event.of(reply)
        return self.events.pop(0)

    def ping(self):
        return self.ask(PING, xid=PING_XID)

    def create(self, path, data=b"", flags=PERSISTENT, entries=OPEN_ACL):
        # By the operation of other znodes, ZooKeeper creates no container.
        operation = CREATE_CONTAINER if flags == CONTAINER else CREATE
        return self.ask(operation, create_body(path, data, flags, entries))

    def created(self, path, data=b"", flags=PERSISTENT):
        """Creates a node that must not be refused, and returns its path."""
        reply = self.create(path, data, flags)
        assert reply.error == OK, f"create {path}: {reply.error}"
        return reply.body.string()

    def created_with_ttl(self, path, ttl_ms):
        reply = self.ask(CREATE_TTL, create_body(path, flags=WITH_TTL) + long(ttl_ms))
        assert reply.error == OK, f"create {path}: {reply.error}"

    def delete(self, path, version=-1):
        return self.ask(DELETE, string(path) + integer(version))

    def exists(self, path, watch=False):
        return self.ask(EXISTS, string(path) + boolean(watch))

    def get(self, path, watch=False):
        return self.ask(GET_DATA, string(path) + boolean(watch))

    def set(self, path, data, version=-1):
        return self.ask(SET_DATA, string(path) + buffer(data) + integer(version))

    def children(self, path, watch=False):
        return self.ask(GET_CHILDREN, string(path) + boolean(watch))

    def sync(self, path="/"):
        return self.ask(SYNC, string(path))

    def stat(self, path):
        reply = self.exists(path)
        assert reply.error == OK, f"exists {path}: {reply.error}"
        return reply.body.stat()

    def set_watches(self, last_zxid, data=(), exist=(), child=()):
        body = long(last_zxid) + strings(data) + strings(exist) + strings(child)
        return self.ask(SET_WATCHES, body, xid=SET_WATCHES_XID)
