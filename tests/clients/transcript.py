"""A conversation with a server as text, with what differs from run to run replaced by what it means.

A zxid is named by the turn that first showed it (`z3`: the third one; `z3+2` there if it skipped one), so that
one deviation does not shift all that follows. Session ids are named by the connection that owns them, and clock
times are left out.
"""

import itertools
import re
import struct

import wire

ERROR_NAMES = {
    0: "ok",
    -5: "marshalling",
    -6: "unimplemented",
    -8: "bad arguments",
    -101: "no node",
    -102: "no auth",
    -103: "bad version",
    -108: "no children for ephemerals",
    -110: "node exists",
    -111: "not empty",
    -114: "invalid acl",
    -115: "auth failed",
    -121: "no watcher",
    -123: "reconfig disabled",
}
EVENT_NAMES = {1: "created", 2: "deleted", 3: "data changed", 4: "children changed"}

OPERATIONS = {
    "create": (wire.CREATE, ("path",)),
    "create2": (wire.CREATE2, ("path", "stat")),
    "container": (wire.CREATE_CONTAINER, ("path", "stat")),
    "ttl": (wire.CREATE_TTL, ("path", "stat")),
    "delete": (wire.DELETE, ()),
    "exists": (wire.EXISTS, ("stat",)),
    "get": (wire.GET_DATA, ("data", "stat")),
    "set": (wire.SET_DATA, ("stat",)),
    "children": (wire.GET_CHILDREN, ("names",)),
    "children2": (wire.GET_CHILDREN2, ("names", "stat")),
    "sync": (wire.SYNC, ("path",)),
    "count": (wire.COUNT_DESCENDANTS, ("number",)),
    "ephemerals": (wire.GET_EPHEMERALS, ("names",)),
    "add": (wire.ADD_WATCH, ("number",)),
    "check": (wire.CHECK_WATCHES, ()),
    "remove": (wire.REMOVE_WATCHES, ()),
    "getacl": (wire.GET_ACL, ("acl", "stat")),
    "setacl": (wire.SET_ACL, ("stat",)),
    "whoami": (wire.WHO_AM_I, ("identities",)),
    "multi": (wire.MULTI, ("results",)),
    "multiread": (wire.MULTI_READ, ("results",)),
}
# The results of parts, by their opcodes.
RESULTS = {kind: fields for kind, fields in OPERATIONS.values()} | {wire.CHECK: ()}
MODES = {"persistent": 0, "recursive": 1}
WATCH_KINDS = {"children": 1, "data": 2, "any": 3, "persistent": 4, "recursive": 5}
SET_AGAIN = ("data", "exists", "children")
FLAGS = {"": 0, "ephemeral": 1, "sequential": 2, "ephemeral-sequential": 3}


class Transcript:
    """Plays lines such as `a: create /x data` on named connections.

    A path or data `-` is null, and `''` empty; `raw OPERATION HEX` sends a body as it is, and `ping` a ping with an ordinary xid.
    `watches ZXID KIND:PATH...` sets watches again as of a turn, `z3`; its events come with no zxid of their own.
    `watches2` is the form with persistent ones. `add` takes a mode, `check` and `remove` a kind of watches.
    `multi` and `multiread` take requests between ` ; `; `check` is that of a version there.
    """

    def __init__(self, port, names):
        self.sessions = {name: wire.Session(port) for name in names}
        self.turn = 0
        self.last_zxid = self.sessions[names[0]].sync().zxid
        self.zxids = {self.last_zxid: "z0", -1: "z-1"}
        self.owners = {session.id: name for name, session in self.sessions.items()} | {0: "nobody"}
        self.lines = []

    def close(self):
        for session in self.sessions.values():
            session.drop()

    def play(self, line):
        """Sends the request that `line` describes and records the response."""
        self.turn += 1
        self.lines.append(line)
        name, request = line.split(": ", 1)
        session = self.sessions[name]
        operation, *words = request.split(" ")
        words = [word.strip("'").encode().decode("unicode_escape") for word in words]
        if operation == "ping":
            self.answer(session, session.send(wire.PING), ())
        elif operation == "close":
            self.answer(session, session.send(wire.CLOSE_SESSION), ())
            self.lines.append("    closed" if session.receive() is None else "    open")
        elif operation == "watches":
            self.answer(session, session.send(wire.SET_WATCHES, self.watches(words), wire.SET_WATCHES_XID), ())
        elif operation == "auth":
            self.answer(session, session.send(wire.AUTH, auth(*words), wire.AUTH_XID), ())
            if self.lines[-1].startswith("    auth-failed"):
                self.lines.append("    closed" if session.receive() is None else "    open")
        elif operation == "watches2":
            request = self.watches(words, [*SET_AGAIN, "persistent", "recursive"])
            self.answer(session, session.send(wire.SET_WATCHES2, request, wire.SET_WATCHES_XID), ())
        elif operation == "raw":
            self.answer(session, session.send(int(words[0]), bytes.fromhex("".join(words[1:]))), ())
        else:
            kind, fields = OPERATIONS[operation]
            self.answer(session, session.send(kind, body(operation, words)), fields)

    def answer(self, session, xid, fields):
        while True:
            reply = session.receive()
            if reply is None:
                self.lines.append("    closed")
                return
            if not reply.is_event:
                break
            self.event(reply)
        shown = [self.error(reply.error), self.zxid(reply.zxid)]
        if reply.xid != xid:
            shown.append(f"xid={reply.xid}")
        if reply.error == wire.OK:
            shown += [getattr(self, field)(reply.body) for field in fields]
            assert reply.body.finished() or not fields, "bytes behind the last field"
        self.lines.append("    " + " ".join(shown))

    def expect_event(self, name):
        """Records the next event of a connection without a pending request."""
        reply = self.sessions[name].receive()
        assert reply is not None and reply.is_event
        self.lines.append(f"{name}:")
        self.event(reply)

    def event(self, reply):
        event = wire.Event.of(reply)
        self.lines.append(f"    event {EVENT_NAMES[event.kind]} {event.path} {self.zxid(event.zxid)}")

    def zxid(self, zxid):
        if zxid > self.last_zxid:
            self.zxids[zxid] = f"z{self.turn}"
            skipped = "" if zxid == self.last_zxid + 1 else f"+{zxid - self.last_zxid}"
            self.last_zxid = zxid
            return self.zxids[zxid] + skipped
        return self.zxids.get(zxid, "z?")

    def watches(self, words, kinds=SET_AGAIN):
        since = {name: zxid for zxid, name in self.zxids.items()}[words[0]]
        of = lambda kind: [path for word, path in (word.split(":") for word in words[1:]) if word == kind]
        return wire.long(since) + b"".join(wire.strings(of(kind)) for kind in kinds)

    @staticmethod
    def error(code):
        return ERROR_NAMES.get(code, str(code)).replace(" ", "-")

    def results(self, fields):
        """Each result of a multi in brackets, by its opcode."""
        shown = []
        while True:
            kind, is_done, error = fields.integer(), fields.take("!?"), fields.integer()
            if is_done:
                return " ".join(shown) or "-"
            of = [self.error(fields.integer())] if kind == -1 else [getattr(self, one)(fields) for one in RESULTS[kind]]
            code = [] if error == wire.OK else [str(error)]
            shown.append("[" + " ".join([str(kind), *code, *of]) + "]")

    @staticmethod
    def path(fields):
        """Control characters that end a line are escaped."""
        path = fields.string()
        return "null" if path is None else re.sub(r"[\x00\n-\r\x1c-\x1f\x7f-\x9f]", lambda one: ascii(one[0])[1:-1], path)

    @staticmethod
    def data(fields):
        data = fields.buffer()
        return "null" if data is None else repr(data)

    @staticmethod
    def number(fields):
        return str(fields.integer())

    @staticmethod
    def names(fields):
        return ",".join(sorted(fields.strings())) or "-"

    @staticmethod
    def acl(fields):
        entries = [f"{fields.integer()}:{fields.string()}:{fields.string()}" for _ in range(fields.integer())]
        return ",".join(entries)

    @staticmethod
    def identities(fields):
        """Sorted: ZooKeeper lists them by their hash."""
        return ",".join(sorted(f"{fields.string()}:{fields.string()}" for _ in range(fields.integer())))

    def stat(self, fields):
        stat = fields.stat()
        zxids = [f"{field}={self.zxid(getattr(stat, field))}" for field in ("czxid", "mzxid", "pzxid")]
        numbers = [
            f"{field}={getattr(stat, field)}" for field in "version cversion aversion data_length num_children".split()
        ]
        owner = self.owners.get(stat.ephemeral_owner, stat.ephemeral_owner)
        return " ".join([*zxids, *numbers, f"owner={owner}"])


def body(operation, words):
    """The body of the request that the words describe."""
    if operation == "whoami":
        return b""
    if operation in ("multi", "multiread"):
        parts = [part.split(" ") for part in " ".join(words).split(" ; ")] if words else []
        return b"".join(part_of_multi(*part) for part in parts) + wire.part_header(-1, is_done=True)
    path = wire.string(None if words[0] == "-" else words[0])
    rest = words[1:]
    if operation in ("create", "create2"):
        data = rest[0].encode() if rest and rest[0] != "-" else (None if rest else b"")
        flags = FLAGS.get(rest[1], None) if len(rest) > 1 else 0
        flags = int(rest[1]) if flags is None else flags
        entries = [acl_entry(word) for word in rest[2:]] or wire.OPEN_ACL
        return path + wire.buffer(data) + wire.acl(entries) + wire.integer(flags)
    if operation in ("container", "ttl"):
        data = wire.buffer(rest[0].encode() if rest else b"") + wire.acl()
        flags, *ttl = map(int, rest[1:] or [wire.CONTAINER])
        return path + data + wire.integer(flags) + b"".join(map(wire.long, ttl))
    if operation == "delete":
        return path + wire.integer(int(rest[0]) if rest else -1)
    if operation == "set":
        data = None if rest[0] == "-" else rest[0].encode()
        return path + wire.buffer(data) + struct.pack("!i", int(rest[1]) if len(rest) > 1 else -1)
    if operation == "setacl":
        return path + wire.acl([acl_entry(word) for word in rest[1:]]) + wire.integer(int(rest[0]))
    if operation in ("sync", "count", "getacl", "ephemerals"):
        return path
    if operation in ("add", "check", "remove"):
        named = MODES if operation == "add" else WATCH_KINDS
        return path + wire.integer(named[rest[0]] if rest[0] in named else int(rest[0]))
    return path + wire.boolean(rest == ["watch"])


def part_of_multi(operation, *words):
    """A part of a multi, with its header."""
    if operation == "raw":
        return wire.part_header(int(words[0])) + bytes.fromhex("".join(words[1:]))
    kind = wire.CHECK if operation == "check" else OPERATIONS[operation][0]
    return wire.part_header(kind) + body(operation, words)


def auth(scheme, *proof):
    """The body of an authentication. A scheme or proof `-` is null."""
    scheme, proof = (None if word == "-" else word for word in (scheme, " ".join(proof)))
    return wire.integer(0) + wire.string(scheme) + wire.buffer(None if proof is None else proof.encode())


def acl_entry(word):
    """`31:world:anyone`."""
    permissions, scheme, name = word.split(":", 2)
    return int(permissions), scheme, name


def zxids_of_closes(lines):
    """The zxids at which sessions were closed."""
    return {answer.split()[-1] for turn, answer in itertools.pairwise(lines) if turn.endswith(": close")}


def with_events_sorted(lines, zxids):
    """The lines with those of events in a row at one of `zxids` sorted."""
    is_one = lambda line: line.startswith("    event ") and line.split()[-1] in zxids
    runs = itertools.groupby(lines, is_one)
    return [line for is_event, run in runs for line in (sorted(run) if is_event else run)]
