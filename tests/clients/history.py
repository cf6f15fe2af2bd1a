"""Histories of clients over TCP, and the check that they obey the appendices A and B of the FaaSKeeper paper.

A history is what one client saw, in order: its connections, requests, replies and events. The check needs no
knowledge of the server. A request whose connection broke before its reply may or may not have happened, so the
check holds each answer only against what other answers prove.

- *Atomicity, one order*: each update has a zxid of its own, and all parts of a multi have the same one. The updates
  of a session have their zxids in the order of sending. Replies come in the order of their requests.
- *Linearised writes*: an update, and a sync, has a higher zxid than all updates that were answered before a client
  asked for it.
- *Single system image*: the zxids that a client sees never decrease, also when it moves to another server. An answer
  at zxid Z shows every update that is proven to have a zxid up to Z, and none beyond. The version, data and zxid of
  a znode agree in all answers, and no answer shows data under an ACL that forbids it.
- *Ordered notifications*: an answer at zxid Z comes after the events of all changes up to Z that its connection
  watches. A client that reconnects sets its watches again, and then receives the events that it missed.
"""

import bisect
import collections
import dataclasses

CREATE, SET, SET_ACL, DELETE = "create", "set", "set ACL", "delete"
READ = 1
CHILDREN_CHANGED = 4


@dataclasses.dataclass
class Moment:
    """One thing that a client saw. `kind` is connected, asked, replied, disorder, event or lost."""

    kind: str
    session: int = 0
    xid: int = 0
    zxid: int = -1
    operation: object = None
    """Asked: a tuple (name, path, ...); multi: ("multi", [tuples]); set watches: (name, zxid, paths, missing paths)."""
    at: int = 0
    """When it was recorded, on one clock for all clients: before a request is sent, after a reply is received."""
    asked_at: int = 0
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
        """The proven updates of each path, without those of its ACL, by zxid."""
        self.unknown = collections.defaultdict(set)
        """The kinds of updates of each path that may have happened."""

    def violated(self, text):
        self.violations.append(text)

    def run(self):
        for history in self.histories:
            self.collect(history)
        for path, updates in self.updates.items():
            self.updates[path] = sorted(updates, key=lambda update: update.zxid)
        self.zxids_are_unique()
        self.updates_follow_answered_ones()
        self.versions_agree()
        self.acls_agree()
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
                asked[moment.xid] = moment
            elif moment.kind == "lost":
                self.give_up(asked)
            elif moment.kind == "disorder":
                self.violated(f"session {session:#x}: the reply to {moment.result} came in place of {moment.xid}")
            elif moment.kind == "replied":
                request = asked.pop(moment.xid)
                operation = moment.operation = request.operation
                moment.asked_at = request.at
                for update in proven_by(operation, moment):
                    if update.kind != SET_ACL:
                        self.updates[update.path].append(update)
                if is_update(operation):
                    if moment.zxid <= last.get(session, 0):
                        self.violated(f"session {session:#x}: {operation} has {moment.zxid}, after {last[session]}")
                    last[session] = moment.zxid
        self.give_up(asked)

    def give_up(self, asked):
        for request in asked.values():
            operation = request.operation
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

    def updates_follow_answered_ones(self):
        replies = [moment for history in self.histories for moment in history if moment.kind == "replied"]
        answered = sorted((moment for moment in replies if is_update(moment.operation)), key=lambda moment: moment.at)
        ordered = (moment for moment in replies if is_update(moment.operation) or moment.operation[0] == "sync")
        count = highest = 0
        for moment in sorted(ordered, key=lambda moment: moment.asked_at):
            while count < len(answered) and answered[count].at < moment.asked_at:
                highest = max(highest, answered[count].zxid)
                count += 1
            if moment.zxid < highest:
                self.violated(f"{moment.operation} has {moment.zxid}, and {highest} was answered before it was asked for")

    def acls_agree(self):
        """A znode's incarnation and ACL version determine its ACL, from one zxid on."""
        shown = [moment for history in self.histories for moment in history if list(shown_by(moment))]
        permissions, since = {}, collections.defaultdict(list)
        for moment in shown:
            if moment.operation[0] == SET_ACL:
                path, stat = moment.operation[1], moment.result[0]
                permissions[path, stat.czxid, stat.aversion] = moment.operation[2]
                since[path, stat.czxid].append((moment.zxid, stat.aversion))
        for moment in shown:
            path, stat = moment.operation[1], moment.result[0]
            if moment.operation[0] == "get" and not permissions.get((path, stat.czxid, stat.aversion), READ) & READ:
                self.violated(f"{path} is read at {moment.zxid} under ACL version {stat.aversion}, which forbids it")
            for zxid, aversion in since[path, stat.czxid]:
                if (stat.aversion >= aversion) != (moment.zxid >= zxid):
                    self.violated(f"{path} has ACL version {stat.aversion} at {moment.zxid}, and {aversion} at {zxid}")

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
        last, armed, persistent, missed = 0, {}, {}, {}
        for moment in history:
            if moment.kind in ("connected", "lost"):
                missed |= armed
                armed, persistent = {}, {}
            elif moment.kind == "event":
                kind, path = moment.operation
                if kind != CHILDREN_CHANGED:
                    armed.pop(path, None)
                    missed.pop(path, None)
                    if path in persistent:
                        persistent[path] = max(persistent[path], moment.zxid)
                # An event that a client had missed has no zxid.
                if moment.zxid != -1:
                    last = self.advance(number, last, moment)
            elif moment.kind == "replied":
                last = self.advance(number, last, moment)
                name = moment.operation[0]
                if name == "set watches":
                    armed, missed = missed, {}
                    # A znode that was created and deleted meanwhile fires no watch that was set before it existed.
                    for path in armed.keys() & moment.operation[3]:
                        if self.may_be_gone(path, moment.zxid):
                            armed[path] = moment.zxid
                self.events_came_first(number, moment, armed, persistent)
                self.shows_proven_updates(number, moment)
                if arms(moment.operation, moment.result):
                    armed[moment.operation[1]] = min(armed.get(moment.operation[1], moment.zxid), moment.zxid)
                if name == "add watch" and moment.result == 0:
                    persistent[moment.operation[1]] = moment.zxid

    def advance(self, number, last, moment):
        if moment.zxid < last:
            self.violated(f"client {number} sees zxid {moment.zxid} after {last}")
        return max(last, moment.zxid)

    def events_came_first(self, number, moment, armed, persistent):
        for path, since in [*armed.items(), *persistent.items()]:
            update = self.last_update(path, moment.zxid)
            if update and update.zxid > since:
                self.violated(f"client {number} sees {moment.zxid} before the event of {update}, watched at {since}")

    def may_be_gone(self, path, zxid):
        last = self.last_update(path, zxid)
        return last is None or last.kind == DELETE or DELETE in self.unknown[path]

    def last_update(self, path, zxid):
        """The last proven update of a znode or its data up to a zxid."""
        updates = self.updates[path]
        index = bisect.bisect_right(updates, zxid, key=lambda update: update.zxid)
        return updates[index - 1] if index else None

    def shows_proven_updates(self, number, moment):
        """A read shows the last proven update up to its zxid, or a later one whose outcome is unknown."""
        if moment.operation[0] not in ("get", "exists") or isinstance(moment.result, int):
            return
        path = moment.operation[1]
        if moment.result is not None and moment.result[0].mzxid > moment.zxid:
            self.violated(f"client {number} sees {path} of {moment.result[0].mzxid} at {moment.zxid}, too early")
        last = self.last_update(path, moment.zxid)
        if last is None:
            return
        if moment.result is None:
            if not self.may_be_gone(path, moment.zxid):
                self.violated(f"client {number} misses {path} at {moment.zxid}, after {last}")
            return
        stat = moment.result[0]
        if stat.mzxid < last.zxid or (last.kind == DELETE and stat.czxid < last.zxid):
            self.violated(f"client {number} sees {path} of {stat.mzxid} at {moment.zxid}, after {last}")


def is_update(operation):
    return operation[0] in (CREATE, SET, SET_ACL, DELETE, "multi")


def arms(operation, result):
    """Whether a read leaves a watch; `get` leaves none on a znode that does not exist."""
    name = operation[0]
    return name in ("get", "exists") and operation[2] and (isinstance(result, tuple) or name == "exists" and result is None)


def proven_by(operation, moment):
    """The updates that a reply proves to have happened."""
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
    if name in ("get", "exists", SET, SET_ACL):
        stat, data = moment.result
        yield path, stat, data


def violations_of(histories):
    """The rules that the histories break, in words; none if they break none."""
    return Check(histories).run()
