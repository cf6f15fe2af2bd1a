"""Volumes and their files: the calls as steps for both kinds of client, and the blocking client's methods."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple
from urllib.parse import quote, unquote_to_bytes

from ._connection import Connections
from ._nodes import Route
from ._problems import InvalidRequest, UnexpectedAnswer
from ._repeat import Limits, Steps, exchange
from ._requests import Call, Key, Request, Response, Value, bytes_of, condition, encoded, of_step, segment

PART_BYTES = 16 * 1024 * 1024
"""The bytes of one request for a part of a file."""
ENTRIES_MAX = 1_000
"""The most entries of one page."""

_JSON = {"Content-Type": "application/json"}
_BYTES = {"Content-Type": "application/octet-stream"}


class Volume(NamedTuple):
    """A volume, and the space that it takes."""

    name: str
    block_bytes: int
    """The size of its blocks."""
    created: datetime
    """When it was created, in UTC."""
    bytes: int
    """The bytes of its names and values. Freed bytes count until they are collected."""
    keys: int
    quota_bytes: Optional[int]
    """The most bytes that it may take; None: no bound."""


class Entry(NamedTuple):
    """What the file system tells of a file, a directory or a symbolic link."""

    name: bytes
    """Its name in its directory; empty from `stat`."""
    type: str
    """`file`, `directory` or `symlink`."""
    size: int
    """Bytes; of a directory 0."""
    mode: int
    """The permission bits."""
    uid: int
    gid: int
    links: int
    ino: int
    mtime_ns: int
    """The last change of the data, in nanoseconds since 1970."""
    ctime_ns: int
    etag: Optional[str]
    """Opaque; it changes with each write of a file. None for what is no file."""


class EntryPage(NamedTuple):
    """Some entries of a directory, in the order of their names."""

    entries: List[Entry]
    next: Optional[str]
    """The `page` of the next call; None after the last page."""


class Part(NamedTuple):
    """Bytes of a file."""

    data: bytes
    size: int
    """The length of the whole file."""
    etag: str


class VolumeCalls:
    """The calls for volumes as steps, for both kinds of client."""

    def __init__(self, route: Route, limits: Limits) -> None:
        self._route = route
        self._limits = limits

    def send(self, call: Call) -> Steps[Response]:
        answer = yield from exchange(call, self._route, self._limits)
        return answer.response

    def list(self) -> Steps[List[Volume]]:
        call = Call("list the volumes", Request("GET", "/v1/volumes"))
        found = yield from self.found(call, lambda said: [_volume(one) for one in said["volumes"]])
        volumes: List[Volume] = found
        return volumes

    def get(self, name: str) -> Steps[Volume]:
        what = f"get the volume {name!r}"
        found = yield from self.found(Call(what, Request("GET", _path(name, what))), _volume)
        volume: Volume = found
        return volume

    def create(self, name: str, block_bytes: Optional[int], quota_bytes: Optional[int]) -> Steps[None]:
        settings: Dict[str, Any] = {"quota_bytes": quota_bytes}
        if block_bytes is not None:
            settings["block_bytes"] = block_bytes
        # A repeat would be told that the volume exists.
        yield from self._change(f"create the volume {name!r}", "PUT", name, "", settings, is_repeatable=False)

    def set_quota(self, name: str, quota_bytes: Optional[int]) -> Steps[None]:
        what = f"set the quota of the volume {name!r}"
        yield from self._change(what, "PATCH", name, "", {"quota_bytes": quota_bytes})

    def delete(self, name: str) -> Steps[None]:
        yield from self._change(f"delete the volume {name!r}", "DELETE", name, is_repeatable=False)

    def clone(self, name: str, to: str, snapshot: Optional[str]) -> Steps[None]:
        form = {"to": to} if snapshot is None else {"to": to, "snapshot": snapshot}
        what = f"clone the volume {name!r}"
        yield from self._change(what, "POST", name, "/clones", form, is_repeatable=False)

    def snapshots(self, name: str) -> Steps[List[str]]:
        what = f"list the snapshots of the volume {name!r}"
        call = Call(what, Request("GET", _path(name, what) + "/snapshots"))
        found = yield from self.found(call, lambda said: [str(one["name"]) for one in said["snapshots"]])
        names: List[str] = found
        return names

    def take_snapshot(self, name: str, snapshot: str) -> Steps[None]:
        what = f"take a snapshot of the volume {name!r}"
        yield from self._change(what, "PUT", name, f"/snapshots/{segment(snapshot, what)}")

    def delete_snapshot(self, name: str, snapshot: str) -> Steps[None]:
        what = f"delete a snapshot of the volume {name!r}"
        yield from self._change(what, "DELETE", name, f"/snapshots/{segment(snapshot, what)}")

    def _change(
        self, what: str, method: str, name: str, rest: str = "", form: Any = None, is_repeatable: bool = True
    ) -> Steps[None]:
        body = b"" if form is None else json.dumps(form).encode()
        request = Request(method, _path(name, what) + rest, {} if form is None else _JSON, body)
        yield from self.send(Call(what, request, is_change=True, is_repeatable=is_repeatable))

    def found(self, call: Call, parse: Any) -> Steps[Any]:
        response = yield from self.send(call)
        try:
            return parse(json.loads(response.body))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnexpectedAnswer(call.what, "the answer has another form") from error


class FileCalls:
    """The calls for the files of one volume as steps, for both kinds of client."""

    def __init__(self, calls: VolumeCalls, volume: str, headers: Mapping[str, str] = {}) -> None:
        """`headers` name the transaction that the calls belong to, if any."""
        self._calls = calls
        self._volume = volume
        self._headers = headers

    def stat(self, path: Key, snapshot: Optional[str]) -> Steps[Entry]:
        call = self._call("stat", "GET", path, ["stat", *_of_snapshot(snapshot)])
        found = yield from self._calls.found(call, _entry)
        entry: Entry = found
        return entry

    def list(self, path: Key, page: Optional[str], limit: int, snapshot: Optional[str]) -> Steps[EntryPage]:
        if not 1 <= limit <= ENTRIES_MAX:
            raise InvalidRequest(f"list {path!r}", f"a limit is between 1 and {ENTRIES_MAX:,}, not {limit}")
        query = ["list", f"limit={limit}", *_of_snapshot(snapshot)]
        query += [f"page={quote(page, safe='')}"] if page is not None else []
        call = self._call("list", "GET", path, query)

        def parse(said: Any) -> EntryPage:
            next = said["next"]
            return EntryPage([_entry(one) for one in said["entries"]], None if next is None else str(next))

        found = yield from self._calls.found(call, parse)
        entries: EntryPage = found
        return entries

    def read(self, path: Key, snapshot: Optional[str]) -> Steps[bytes]:
        """The whole file, in parts that all have one ETag."""
        first = yield from self.read_part(path, 0, PART_BYTES, None, snapshot)
        parts, length = [first.data], len(first.data)
        while length < first.size:
            part = yield from self.read_part(path, length, PART_BYTES, first.etag, snapshot)
            parts.append(part.data)
            length += len(part.data)
        return b"".join(parts)

    def read_part(
        self, path: Key, offset: int, count: int, etag: Optional[str], snapshot: Optional[str]
    ) -> Steps[Part]:
        """Up to `count` bytes from `offset` on: none at or after the end."""
        if offset < 0 or count < 1:
            raise InvalidRequest(f"read {path!r}", f"{count} bytes at {offset}")
        headers = {"Range": f"bytes={offset}-{offset + count - 1}", **condition(False, etag)}
        call = self._call("read", "GET", path, _of_snapshot(snapshot), headers, may_be_beyond=True)
        response = yield from self._calls.send(call)
        if response.status == 416:
            # Past the end: the length and the ETag are those of now.
            entry = yield from self.stat(path, snapshot)
            return Part(b"", entry.size, entry.etag or "")
        etag, range = response.headers.get("etag"), response.headers.get("content-range", "")
        size = range.rpartition("/")[2]
        if etag is None or not size.isdecimal():
            raise UnexpectedAnswer(call.what, "the answer is no part of a file")
        return Part(response.body, int(size), etag)

    def write(
        self,
        path: Key,
        data: Value,
        offset: Optional[int],
        mode: Optional[int],
        parents: bool,
        if_absent: bool,
        if_match: Optional[str],
    ) -> Steps[Optional[str]]:
        query = _made(mode, parents) + ([f"offset={offset}"] if offset is not None else [])
        conditions = condition(if_absent, if_match)
        call = self._call("write", "PUT", path, query, {**_BYTES, **conditions}, data, is_repeatable=not conditions)
        response = yield from self._calls.send(call)
        return response.headers.get("etag")

    def append(self, path: Key, data: Value, mode: Optional[int], parents: bool) -> Steps[None]:
        query = ["append", *_made(mode, parents)]
        yield from self._calls.send(self._call("append to", "POST", path, query, _BYTES, data, is_repeatable=False))

    def mkdir(self, path: Key, mode: Optional[int], parents: bool) -> Steps[None]:
        query = ["mkdir", *_made(mode, parents)]
        yield from self._calls.send(self._call("make", "POST", path, query, is_repeatable=parents))

    def rename(self, path: Key, to: Key, replace: bool) -> Steps[None]:
        query = [f"rename-to={quote(encoded(to, f'rename to {to!r}'), safe='/')}"]
        query += [] if replace else ["noreplace"]
        yield from self._calls.send(self._call("rename", "POST", path, query, is_repeatable=False))

    def set_attributes(self, path: Key, changes: Mapping[str, int]) -> Steps[None]:
        call = self._call("change", "PATCH", path, [], _JSON, json.dumps(changes).encode())
        yield from self._calls.send(call)

    def remove(self, path: Key, if_match: Optional[str]) -> Steps[None]:
        call = self._call("remove", "DELETE", path, [], condition(False, if_match), is_repeatable=False)
        yield from self._calls.send(call)

    def _call(
        self,
        verb: str,
        method: str,
        path: Key,
        query: Sequence[str],
        headers: Mapping[str, str] = {},
        body: Value = b"",
        is_repeatable: bool = True,
        may_be_beyond: bool = False,
    ) -> Call:
        what = f"{verb} {path!r} in the volume {self._volume!r}"
        names = [name for name in encoded(path, what).split(b"/") if name]
        url = f"{_path(self._volume, what)}/files/" + "/".join(segment(name, what) for name in names)
        request = Request(
            method, url + ("?" + "&".join(query) if query else ""), {**of_step(), **self._headers, **headers}, bytes_of(body, what)
        )
        return Call(
            what, request, is_change=method != "GET", is_repeatable=is_repeatable, may_be_beyond=may_be_beyond
        )


def _path(volume: str, what: str) -> str:
    return f"/v1/volumes/{segment(volume, what)}"


def _of_snapshot(snapshot: Optional[str]) -> List[str]:
    return [] if snapshot is None else [f"snapshot={quote(snapshot, safe='')}"]


def _made(mode: Optional[int], parents: bool) -> List[str]:
    return ([f"mode={mode:o}"] if mode is not None else []) + (["parents"] if parents else [])


def _volume(said: Any) -> Volume:
    created = datetime.fromtimestamp(said["created_ms"] / 1000, timezone.utc)
    quota = said["quota_bytes"]
    return Volume(
        str(said["name"]), int(said["block_bytes"]), created, int(said["bytes"]), int(said["keys"]),
        None if quota is None else int(quota),
    )  # fmt: skip


def _entry(said: Any) -> Entry:
    numbers: Tuple[int, ...] = tuple(int(said[name]) for name in ("size", "mode", "uid", "gid", "links", "ino"))
    size, mode, uid, gid, links, ino = numbers
    etag = said.get("etag")
    return Entry(
        unquote_to_bytes(said.get("name", "")), str(said["type"]), size, mode, uid, gid, links, ino,
        int(said["mtime_ns"]), int(said["ctime_ns"]), None if etag is None else str(etag),
    )  # fmt: skip


class Volumes:
    """The volumes of the server."""

    def __init__(self, calls: VolumeCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    def list(self) -> List[Volume]:
        """All volumes, in the order of their names."""
        return self._connections.drive(self._calls.list())

    def get(self, name: str) -> Volume:
        """A volume, and the space that it takes."""
        return self._connections.drive(self._calls.get(name))

    def create(self, name: str, *, block_bytes: Optional[int] = None, quota_bytes: Optional[int] = None) -> None:
        """Creates an empty volume. Raises `VolumeExists` if there is one.

        `block_bytes` is a power of two from 4,096 to 262,144; without it, the server chooses.
        """
        self._connections.drive(self._calls.create(name, block_bytes, quota_bytes))

    def set_quota(self, name: str, quota_bytes: Optional[int]) -> None:
        """Sets the most bytes that a volume may take. None: no bound. What it has already stays."""
        self._connections.drive(self._calls.set_quota(name, quota_bytes))

    def delete(self, name: str) -> None:
        """Deletes a volume with all its files and snapshots."""
        self._connections.drive(self._calls.delete(name))

    def clone(self, name: str, to: str, *, snapshot: Optional[str] = None) -> None:
        """Creates the volume `to` with the content of `name`, now or at a snapshot, without copying it."""
        self._connections.drive(self._calls.clone(name, to, snapshot))

    def snapshots(self, name: str) -> List[str]:
        """The names of a volume's snapshots, in order."""
        return self._connections.drive(self._calls.snapshots(name))

    def take_snapshot(self, name: str, snapshot: str) -> None:
        """Keeps a volume as it is now readable under a name; a snapshot of this name moves."""
        self._connections.drive(self._calls.take_snapshot(name, snapshot))

    def delete_snapshot(self, name: str, snapshot: str) -> None:
        """Deletes a snapshot, whether or not it exists."""
        self._connections.drive(self._calls.delete_snapshot(name, snapshot))


class Files:
    """The files of one volume. Each call is one transaction, and durable when it returns.

    Paths are from the root of the volume, with or without a slash at their beginning. A refusal
    that POSIX has a name for is raised with it in `code`: `NoSuchFile` for ENOENT, `FileConflict`
    for EEXIST, EISDIR, ENOTDIR, ENOTEMPTY.
    """

    def __init__(self, calls: FileCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    def read(self, path: Key, *, snapshot: Optional[str] = None) -> bytes:
        """The content of a file. Raises `ConditionNotMet` if a long one changes while it is read."""
        return self._connections.drive(self._calls.read(path, snapshot))

    def read_part(
        self, path: Key, offset: int, count: int, *, if_match: Optional[str] = None, snapshot: Optional[str] = None
    ) -> Part:
        """Up to `count` bytes from `offset` on, fewer at the end of the file.

        With `if_match`, only if the file has this ETag; otherwise it raises `ConditionNotMet`.
        """
        return self._connections.drive(self._calls.read_part(path, offset, count, if_match, snapshot))

    def write(
        self,
        path: Key,
        data: Value,
        *,
        offset: Optional[int] = None,
        mode: Optional[int] = None,
        parents: bool = False,
        if_absent: bool = False,
        if_match: Optional[str] = None,
    ) -> Optional[str]:
        """Replaces the content of a file, or makes it; returns its ETag. At most 64 MiB at once.

        With `offset`, writes the bytes there, leaves the rest, and returns None. With `parents`,
        makes missing directories. The conditions are as of `State.put`.
        """
        steps = self._calls.write(path, data, offset, mode, parents, if_absent, if_match)
        return self._connections.drive(steps)

    def append(self, path: Key, data: Value, *, mode: Optional[int] = None, parents: bool = False) -> None:
        """Appends to a file, or makes it. It is not sent again if the response is lost."""
        self._connections.drive(self._calls.append(path, data, mode, parents))

    def stat(self, path: Key, *, snapshot: Optional[str] = None) -> Entry:
        """The attributes of what is at a path; symbolic links are followed."""
        return self._connections.drive(self._calls.stat(path, snapshot))

    def list(
        self, path: Key = b"", *, page: Optional[str] = None, limit: int = ENTRIES_MAX, snapshot: Optional[str] = None
    ) -> EntryPage:
        """Entries of a directory. Go on with `page=found.next` until that is None; all pages are of
        one moment.
        """
        return self._connections.drive(self._calls.list(path, page, limit, snapshot))

    def mkdir(self, path: Key, *, mode: Optional[int] = None, parents: bool = False) -> None:
        """Makes a directory. With `parents`, also those above; one that is there is no error."""
        self._connections.drive(self._calls.mkdir(path, mode, parents))

    def rename(self, path: Key, to: Key, *, replace: bool = True) -> None:
        """Renames a file or a directory within the volume."""
        self._connections.drive(self._calls.rename(path, to, replace))

    def set_attributes(self, path: Key, **changes: int) -> None:
        """Changes `mode`, `uid`, `gid`, `size`, `atime_ns` or `mtime_ns`."""
        self._connections.drive(self._calls.set_attributes(path, changes))

    def remove(self, path: Key, *, if_match: Optional[str] = None) -> None:
        """Removes a file, a symbolic link or an empty directory."""
        self._connections.drive(self._calls.remove(path, if_match))
