"""The HTTP interface as data: what is sent, and in words, what for.

Everything here is free of I/O, so that the blocking client and the asyncio client send the same bytes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Optional, Union
from urllib.parse import quote

from ._problems import NO_SUCH_KEY, InvalidRequest, TooLarge, problem_type

Key = Union[str, bytes]
Value = Union[bytes, bytearray, memoryview]

VALUE_BYTES_MAX = 64 * 1024 * 1024
"""Larger values are refused here, before they are sent: a server refuses them by closing the connection."""
ANSWER_BYTES_MAX = VALUE_BYTES_MAX + 64 * 1024

ATTEMPT_HEADER = "Landfast-Attempt"
AFTER_HEADER = "Landfast-After"
EFFECT_HEADER = "Landfast-Effect"


@dataclass(frozen=True)
class Request:
    """What goes over the wire, but for the headers that every request has."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True)
class Response:
    """What came back. Names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Lost:
    """No answer came. `was_sent` is false only if not one byte can have reached the server."""

    reason: str
    was_sent: bool


@dataclass(frozen=True)
class Call:
    """A request, what it is for in words, and what it means when no answer comes."""

    what: str
    request: Request
    transaction: Optional[str] = None
    is_change: bool = False
    """Whether it takes effect by itself, so that a lost answer leaves its outcome unknown."""
    may_be_absent: bool = False
    """Whether `no-such-key` is an answer rather than a refusal."""

    def accepts(self, response: Response) -> bool:
        """Whether `response` is an answer rather than a refusal."""
        if 200 <= response.status < 300:
            return True
        return self.may_be_absent and response.status == 404 and problem_type(response.body) == NO_SUCH_KEY


def begin(id: str, isolation: Optional[str], after: Optional[str]) -> Call:
    body: Dict[str, Any] = {"id": id}
    if isolation is not None:
        body["isolation"] = isolation
    headers = {"Content-Type": "application/json"}
    if after is not None:
        headers[AFTER_HEADER] = after
    request = Request("POST", "/v1/transactions", headers, json.dumps(body).encode())
    return Call(f"begin transaction {id!r}", request, id)


def status(id: str) -> Call:
    return Call(f"ask for the status of transaction {id!r}", Request("GET", _transaction(id)), id)


def get(id: str, attempt: str, key: Key) -> Call:
    what = f"get {_shown(key)} in transaction {id!r}"
    return Call(what, Request("GET", _key(id, key, what), _of(attempt)), id, may_be_absent=True)


def put(id: str, attempt: str, key: Key, value: Value) -> Call:
    what = f"put {_shown(key)} in transaction {id!r}"
    return Call(what, Request("PUT", _key(id, key, what), _raw(attempt), _bytes(value, what, id)), id)


def delete(id: str, attempt: str, key: Key) -> Call:
    what = f"delete {_shown(key)} in transaction {id!r}"
    return Call(what, Request("DELETE", _key(id, key, what), _of(attempt)), id)


def send(id: str, attempt: str, place: int, queue: str, body: Value, group: Optional[str]) -> Call:
    """`place` says which effect of the attempt it is, so that the server knows a repeat for one."""
    what = f"send to queue {queue!r} in transaction {id!r}"
    path = f"{_transaction(id)}/messages/{_segment(queue, what)}"
    if group is not None:
        path += f"?group={quote(group, safe='')}"
    return Call(what, Request("POST", path, _effect(attempt, place), _bytes(body, what, id)), id)


def invoke(id: str, attempt: str, place: int, function: str, payload: Value) -> Call:
    what = f"invoke function {function!r} in transaction {id!r}"
    path = f"{_transaction(id)}/invocations/{_segment(function, what)}"
    return Call(what, Request("POST", path, _effect(attempt, place), _bytes(payload, what, id)), id)


def commit(id: str, attempt: str) -> Call:
    request = Request("POST", f"{_transaction(id)}/commit", _of(attempt))
    return Call(f"commit transaction {id!r}", request, id, is_change=True)


def abort(id: str, attempt: str) -> Call:
    return Call(f"abort transaction {id!r}", Request("DELETE", _transaction(id), _of(attempt)), id)


def get_state(key: Key) -> Call:
    what = f"get {_shown(key)}"
    return Call(what, Request("GET", _state(key, what)), may_be_absent=True)


def put_state(key: Key, value: Value) -> Call:
    what = f"put {_shown(key)}"
    headers = {"Content-Type": "application/octet-stream"}
    return Call(what, Request("PUT", _state(key, what), headers, _bytes(value, what, None)), is_change=True)


def delete_state(key: Key) -> Call:
    what = f"delete {_shown(key)}"
    return Call(what, Request("DELETE", _state(key, what)), is_change=True)


def valid_id(id: str) -> str:
    """`id`, or `InvalidRequest` where it cannot stand in a path at all."""
    if not isinstance(id, str):
        raise TypeError(f"a transaction id is a str, not {type(id).__name__}")
    if not id:
        raise InvalidRequest("begin a transaction with an empty id")
    _encoded(id, f"begin transaction {id!r}")
    return id


def _of(attempt: str) -> Dict[str, str]:
    return {ATTEMPT_HEADER: attempt}


def _raw(attempt: str) -> Dict[str, str]:
    return {ATTEMPT_HEADER: attempt, "Content-Type": "application/octet-stream"}


def _effect(attempt: str, place: int) -> Dict[str, str]:
    return {**_raw(attempt), EFFECT_HEADER: str(place)}


def _transaction(id: str) -> str:
    return f"/v1/transactions/{_segment(id, id)}"


def _key(id: str, key: Key, what: str) -> str:
    return f"{_transaction(id)}/keys/{_segment(key, what)}"


def _state(key: Key, what: str) -> str:
    return f"/v1/state/{_segment(key, what)}"


def _segment(name: Key, what: str) -> str:
    """One segment of a path. Dots alone are escaped too: `..` unescaped would be walked by proxies."""
    encoded = _encoded(name, what)
    if encoded and not encoded.strip(b"."):
        return "%2E" * len(encoded)
    return quote(encoded, safe="")


def _encoded(name: Key, what: str) -> bytes:
    if isinstance(name, bytes):
        return name
    if not isinstance(name, str):
        raise TypeError(f"a key is str or bytes, not {type(name).__name__}")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(what, f"not valid Unicode: {error.reason}") from None


def _bytes(value: Value, what: str, transaction: Optional[str]) -> bytes:
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what}: a value is bytes, not {type(value).__name__}; encode it first")
    # A copy of what may still be changed: a repeat has to send the same bytes.
    copied = value if isinstance(value, bytes) else bytes(value)
    if len(copied) > VALUE_BYTES_MAX:
        raise TooLarge(what, f"{len(copied):,} bytes, at most {VALUE_BYTES_MAX:,}", transaction=transaction)
    return copied


def _shown(key: Key) -> str:
    return f"key {key!r}"
