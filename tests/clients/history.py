"""Histories of clients over TCP, and the check that they obey the appendices A and B of the FaaSKeeper paper.

A history is what one client saw, in order: its connections, requests, replies and events. The check needs no
knowledge of the server. A request whose connection broke before its reply may or may not have happened, so the
check holds each answer only against what other answers prove.

- *Atomicity, one order*: each update has a zxid of its own, and all parts of a multi have the same one. The updates
  of a session have their zxids in the order of sending. Replies come in the order of their requests.
- *Single system image*: the zxids of a connection never decrease. An answer at zxid Z shows every update that is
  proven to have a zxid up to Z, and the version, data and zxid of a znode agree in all answers.
- *Ordered notifications*: an answer at zxid Z comes after the events of all changes up to Z that its connection
  watches.
"""

import collections
import dataclasses

CREATE, SET, SET_ACL, DELETE = "create", "set", "set ACL", "delete"
DATA_CHANGES = (CREATE, SET, DELETE)


@dataclasses.dataclass
class Moment:
    """One thing that a client saw. `kind` is connected, asked, replied, disorder, event or lost."""

    kind: str
    session: int = 0
    xid: int = 0
    zxid: int = -1
    operation: object = None
    """Asked: a tuple (name, path, ...); multi: ("multi", [tuples])."""
    result: object = None
    """Replied: an error code, or for each kind what it returns. Disorder: the xid that came in place of `xid`."""


@dataclasses.dataclass(frozen=True)
class Update:
    """An update that an answer proves."""

    zxid: int
    kind: str
    path: str
    value: object = None
    version: object = None


class Check:
    def __init__(self, histories):
        self.histories = histories
        self.violations = []
        self.updates = collections.defaultdict(list)
        self.unknown = collections.defaultdict(set)
        """The kinds of updates of each path that may have happened."""
        self.sessions_of_ephemerals = {}

    def violated(self, text):
        self.violations.append(text)

    def run(self):
        for history in self.histories:
            self.collect(history)
        for path in self.updates:
            self.updates[path].sort(key=lambda update: update.zxid)
        self.zxids_are_unique()
        self.versions_agree()
        for number, history in enumerate(self.histories):
            self.connections_are_in_order(number, history)
        return self.violations

    def collect(self, history):
        asked, last = {}, {}
        for moment in history:
            if moment.kind == "connected":
                session = moment.session
                self.give_up(asked)
            elif moment.kind == "asked":
                asked[moment.xid] = moment.operation
            elif moment.kind == "lost":
                self.give_up(asked)
            elif moment.kind == "disorder":
                self.violated(f"session {session:#x}: the reply to {moment.result} came in place of {moment.xid}")
            elif moment.kind == "replied":
                operation = asked.pop(moment.xid)
                proven = list(proven_by(operation, moment))
                for update in proven:
                    self.updates[update.path].append(update)
                if is_update(operation):
                    if moment.zxid <= last.get(session, 0):
                        self.violated(f"session {session:#x}: {operation} has {moment.zxid}, after {last[session]}")
                    last[session] = moment.zxid
        self.give_up(asked)

    def give_up(self, asked):
        for operation in asked.values():
            for kind, path, *_ in operation[1] if operation[0] == "multi" else [operation]:
                if kind in (CREATE, SET, SET_ACL, DELETE):
                    self.unknown[path].add(kind)
        asked.clear()

    def zxids_are_unique(self):
        seen = {}
        for history in self.histories:
            for moment in history:
                if moment.kind == "replied" and is_update(moment.operation):
                    if moment.zxid in seen and seen[moment.zxid] is not moment:
                        self.violated(f"two updates have zxid {moment.zxid}")
                    seen[moment.zxid] = moment

    def versions_agree(self):
        """A znode's incarnation and version determine its zxid and its data."""
        states = {}
        for history in self.histories:
            for moment in history:
                for path, stat, data in shown_by(moment):
                    key = (path, stat.czxid, stat.version)
                    known_mzxid, known_data = states.setdefault(key, (stat.mzxid, data))
                    if known_mzxid != stat.mzxid or None not in (known_data, data) and known_data != data:
                        self.violated(f"{key} is {(stat.mzxid, data)} and {(known_mzxid, known_data)}")
                    if data is not None and known_data is None:
                        states[key] = (stat.mzxid, data)
        by_incarnation = collections.defaultdict(dict)
        for (path, czxid, version), (mzxid, _) in states.items():
            by_incarnation[path, czxid][version] = mzxid
        for incarnation, mzxids in by_incarnation.items():
            ordered = [mzxids[version] for version in sorted(mzxids)]
            if ordered != sorted(set(ordered)):
                self.violated(f"the versions of {incarnation} have zxids {ordered}")

    def connections_are_in_order(self, number, history):
        last, armed, persistent = 0, {}, {}
        for moment in history:
            if moment.kind in ("connected", "lost"):
                last, armed, persistent = 0, {}, {}
            elif moment.kind == "event":
                _, path = moment.operation
                armed.pop(path, None)
                if path in persistent:
                    persistent[path] = max(persistent[path], moment.zxid)
                last = self.advance(number, last, moment)
            elif moment.kind == "replied":
                last = self.advance(number, last, moment)
                self.events_came_first(number, moment, armed, persistent)
                self.shows_proven_updates(number, moment)
                name = moment.operation[0]
                if name in ("get", "exists") and moment.operation[2] and moment.result is not None:
                    armed[moment.operation[1]] = min(armed.get(moment.operation[1], moment.zxid), moment.zxid)
                if name == "add watch" and moment.result == 0:
                    persistent[moment.operation[1]] = moment.zxid

    def advance(self, number, last, moment):
        if moment.zxid < last:
            self.violated(f"client {number} sees zxid {moment.zxid} after {last}")
        return max(last, moment.zxid)

    def events_came_first(self, number, moment, armed, persistent):
        for path, since in [*armed.items(), *persistent.items()]:
            for update in self.updates[path]:
                if update.kind in DATA_CHANGES and since < update.zxid <= moment.zxid:
                    self.violated(f"client {number} sees {moment.zxid} before the event of {update}, watched at {since}")
                    break

    def shows_proven_updates(self, number, moment):
        """A read shows the last proven update up to its zxid, or a later one whose outcome is unknown."""
        if moment.operation[0] not in ("get", "exists"):
            return
        path = moment.operation[1]
        before = [update for update in self.updates[path] if update.zxid <= moment.zxid and update.kind in DATA_CHANGES]
        if not before:
            return
        last = before[-1]
        if moment.result is None:
            may_be_gone = DELETE in self.unknown[path] or path in self.sessions_of_ephemerals
            if last.kind != DELETE and not may_be_gone:
                self.violated(f"client {number} misses {path} at {moment.zxid}, after {last}")
            return
        stat = moment.result[0]
        if stat.mzxid < last.zxid or (last.kind == DELETE and stat.czxid < last.zxid):
            self.violated(f"client {number} sees {path} of {stat.mzxid} at {moment.zxid}, after {last}")


def is_update(operation):
    return operation[0] in (CREATE, SET, SET_ACL, DELETE, "multi")


def proven_by(operation, moment):
    """The updates that a reply proves to have happened."""
    moment.operation = operation
    if operation[0] == "multi":
        if isinstance(moment.result, list):
            for part in operation[1]:
                yield Update(moment.zxid, part[0], part[1])
    elif is_update(operation) and not isinstance(moment.result, int):
        yield Update(moment.zxid, operation[0], operation[1])


def shown_by(moment):
    """What a reply shows of znodes: path, stat, and the data if it is known."""
    if moment.kind != "replied" or moment.operation is None or not isinstance(moment.result, tuple):
        return
    name, path = moment.operation[:2]
    if name in ("get", "exists", SET):
        stat, data = moment.result
        yield path, stat, data


def violations_of(histories):
    """The rules that the histories break, in words; none if they break none."""
    return Check(histories).run()
