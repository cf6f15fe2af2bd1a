"""Clients over TCP that ask for whatever a seed says, and record what they see as a `history`."""

import itertools
import random
import time

import wire
from history import CREATE, DELETE, READ, SET, SET_ACL, Moment, arms
from wire import (
    ALL_PERMISSIONS,
    EVENT_XID,
    MULTI,
    OK,
    Event,
    Session,
    acl,
    boolean,
    buffer,
    create_body,
    integer,
    string,
)

PATHS = ["/history/a", "/history/b", "/history/a/c", "/history/a/d"]
# It forbids reads at times, and then its watches do not fire.
PRIVATE = "/history/private"
# A server that is silent for longer is left for another, as ZooKeeper's client does with three servers and 30 s.
SILENCE_SECONDS = 10


class Client:
    """Asks for whatever its generator says, window by window, and records what it sees.

    Now and then it moves its session to another of the servers, sometimes before it has received all replies.
    """

    def __init__(self, servers, seed, stop):
        self.servers, self.stop = servers, stop
        self.rng = random.Random(seed)
        self.seed = seed
        self.history = []
        self.last_zxid = 0
        self.resume = {}
        self.armed = {}
        """The paths with a watch, and whether a znode was there."""
        self.numbers = itertools.count()
        self.has_ended = False

    def run(self):
        while not self.stop.is_set():
            port = self.rng.choice(self.servers).port
            try:
                self.session = Session(port, SILENCE_SECONDS, timeout_ms=30_000, last_zxid=self.last_zxid, **self.resume)
            except OSError:
                self.stop.wait(0.02)
                continue
            if self.session.id == 0:
                self.resume = {}
                continue
            self.resume = {"session": self.session.id, "password": self.session.password}
            self.history.append(Moment("connected", session=self.session.id))
            try:
                self.receive([self.ask(self.watches())])
                while not self.stop.is_set() and self.rng.randrange(40):
                    self.window()
                if self.stop.is_set():
                    self.close()
                elif self.rng.random() < 0.5:
                    self.ask(self.operation())
            except OSError:
                pass
            self.history.append(Moment("lost"))
            self.session.drop()
        self.has_ended = True

    def close(self):
        """Ends the session. Its reply checks nothing: the server may be killed meanwhile."""
        try:
            self.session.close()
        except AssertionError:
            pass

    def window(self):
        self.receive([self.ask(self.operation()) for _ in range(self.rng.randint(1, 6))])

    def ask(self, operation):
        at = time.monotonic_ns()
        xid = self.session.send(*encoded(operation))
        self.history.append(Moment("asked", xid=xid, operation=operation, at=at))
        return xid, operation

    def receive(self, asked):
        for xid, operation in asked:
            while True:
                reply = self.session.receive()
                if reply is None:
                    raise ConnectionError
                self.last_zxid = max(self.last_zxid, reply.zxid)
                if reply.xid == EVENT_XID:
                    event = Event.of(reply)
                    self.history.append(Moment("event", zxid=event.zxid, operation=(event.kind, event.path)))
                    if event.kind != wire.NODE_CHILDREN_CHANGED:
                        self.armed.pop(event.path, None)
                    continue
                if reply.xid != xid:
                    self.history.append(Moment("disorder", xid=xid, zxid=reply.zxid, result=reply.xid))
                    raise ConnectionError
                result = decoded(operation, reply)
                self.history.append(Moment("replied", xid=xid, zxid=reply.zxid, result=result, at=time.monotonic_ns()))
                if arms(operation, result):
                    self.armed[operation[1]] = result is not None
                break

    def watches(self):
        """Sets the watches of the connection before again."""
        exist = [path for path, exists in self.armed.items() if exists]
        return ("set watches", self.last_zxid, exist, [path for path, exists in self.armed.items() if not exists])

    def operation(self):
        rng, path = self.rng, self.rng.choice(PATHS)
        value = f"{self.seed}.{next(self.numbers)}".encode()
        match rng.randrange(16):
            case 0 | 1:
                return (CREATE, path, value)
            case 2 | 3 | 4:
                return (SET, path, value)
            case 5:
                return (DELETE, path)
            case 6:
                return (SET_ACL, path, rng.choice([ALL_PERMISSIONS, ALL_PERMISSIONS - 4]))
            case 7 | 8:
                one, other = rng.sample(PATHS, 2)
                return ("multi", [(SET, one, value), rng.choice([(SET, other, value), (CREATE, other, value), (DELETE, other)])])
            case 9:
                return ("add watch", path)
            case 10:
                return ("sync", path)
            case 11:
                hidden = (SET_ACL, PRIVATE, rng.choice([ALL_PERMISSIONS, ALL_PERMISSIONS - READ]))
                return rng.choice([hidden, hidden, (CREATE, PRIVATE, value), (DELETE, PRIVATE), ("get", PRIVATE, False)])
            case 12:
                return ("exists", path, rng.random() < 0.5)
            case _:
                return ("get", path, rng.random() < 0.5)


def part_header(opcode):
    return integer(opcode) + boolean(opcode == -1) + integer(-1)


def encoded(operation):
    name = operation[0]
    if name == "multi":
        parts = (part_header(encoded(part)[0]) + encoded(part)[1] for part in operation[1])
        return MULTI, b"".join(parts) + part_header(-1)
    if name == "set watches":
        body = wire.long(operation[1]) + wire.strings(operation[2]) + wire.strings(operation[3]) + wire.strings([])
        return wire.SET_WATCHES, body
    path = operation[1]
    if name == "sync":
        return wire.SYNC, string(path)
    if name == CREATE:
        return wire.CREATE, create_body(path, operation[2])
    if name == SET:
        return wire.SET_DATA, string(path) + buffer(operation[2]) + integer(-1)
    if name == DELETE:
        return wire.DELETE, string(path) + integer(-1)
    if name == SET_ACL:
        return wire.SET_ACL, string(path) + acl([(operation[2], "world", "anyone")]) + integer(-1)
    if name == "add watch":
        return wire.ADD_WATCH, string(path) + integer(0)
    opcode = wire.GET_DATA if name == "get" else wire.EXISTS
    return opcode, string(path) + boolean(operation[2])


def decoded(operation, reply):
    """An error's number; of a read None for no such znode, else its Stat and data; of a set likewise."""
    name, body = operation[0], reply.body
    if reply.error == wire.NO_NODE and name in ("get", "exists"):
        return None
    if reply.error != OK:
        return reply.error
    if name == "multi":
        opcode, _done, error = body.integer(), body.take("!?"), body.integer()
        return [OK] if opcode != -1 else error
    if name == "get":
        data = body.buffer()
        return body.stat(), data
    if name == "exists":
        return body.stat(), None
    if name == SET:
        return body.stat(), operation[2]
    if name == SET_ACL:
        return body.stat(), None
    return (None,) if name in (CREATE, DELETE) else OK
