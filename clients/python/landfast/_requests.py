"""The HTTP interface as data: each request, and its purpose in words.

Everything here is free of I/O, so that the blocking client and the asyncio client send the same
bytes.
"""

from __future__ import annotations

import json
import os
import re
import threading
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional, Tuple, Union
from urllib.parse import quote

from ._problems import NO_SUCH_KEY, InvalidRequest, TooLarge, problem_type

Key = Union[str, bytes]
Value = Union[bytes, bytearray, memoryview]

VALUE_BYTES_MAX = 64 * 1024 * 1024
"""The client refuses larger values before it sends them: a server refuses them by closing the
connection.
"""
KEYS_MAX = 1_000
"""The most keys of one page."""
ANSWER_BYTES_MAX = VALUE_BYTES_MAX + 64 * 1024

ATTEMPT_HEADER = "Landfast-Attempt"
AFTER_HEADER = "Landfast-After"
EFFECT_HEADER = "Landfast-Effect"
TRANSACTION_HEADER = "Landfast-Transaction"
STEP_HEADER = "Landfast-Step"

CURRENT_STEP: ContextVar[Optional[str]] = ContextVar("landfast_step", default=None)
"""The step whose code runs in this context: its reads and writes belong to that step."""
OPEN_STEPS: List[Tuple[int, str]] = []
"""The open steps, the innermost last, each with the thread that began it."""


def current_step() -> Optional[str]:
    """The step of the calling code. A thread that a step started has no context of the step, and
    still belongs to it.
    """
    step = CURRENT_STEP.get()
    if step is None and OPEN_STEPS:
        thread, innermost = OPEN_STEPS[-1]
        return innermost if thread != threading.get_ident() else None
    return step


def is_in_function() -> bool:
    """Whether a function's runtime runs this code: no other code belongs to a workflow's step."""
    return "AWS_LAMBDA_RUNTIME_API" in os.environ


@dataclass
class Request:
    """The content on the wire, without the headers that every request has."""

    method: str
    path: str
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""
    may_have_arrived: bool = field(default=False, compare=False)
    """Whether a byte of it, or of a copy, may have reached a server. The sender sets it, because it
    may be interrupted while it sends.
    """


@dataclass(frozen=True)
class Response:
    """A response. Header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True)
class Lost:
    """No response came. `was_sent` is false only if not one byte can have reached the server."""

    reason: str
    was_sent: bool


@dataclass(frozen=True)
class Call:
    """A request, its purpose in words, and the meaning of a missing response."""

    what: str
    request: Request
    transaction: Optional[str] = None
    run: Optional[str] = None
    """The id of the run that it begins or ends, if the client knows it."""
    is_change: bool = False
    """Whether it takes effect by itself, so that a lost response leaves its outcome unknown."""
    is_repeatable: bool = True
    """Whether it may be sent again although an earlier copy may have taken effect."""
    may_be_absent: bool = False
    """Whether `no-such-key` is a result rather than a refusal."""
    may_be_beyond: bool = False
    """Whether a range at or after the end of a file is a result rather than a refusal."""

    def accepts(self, response: Response) -> bool:
        """Whether `response` is a result rather than a refusal."""
        if 200 <= response.status < 300:
            return True
        if self.may_be_beyond and response.status == 416:
            return True
        return self.may_be_absent and response.status == 404 and problem_type(response.body) == NO_SUCH_KEY


def begin(id: str, isolation: Optional[str], after: Optional[str], volume: Optional[str] = None) -> Call:
    body: Dict[str, Any] = {"id": id}
    if isolation is not None:
        body["isolation"] = isolation
    if volume is not None:
        body["volume"] = volume
    headers = {"Content-Type": "application/json"}
    if after is not None:
        headers[AFTER_HEADER] = after
    request = Request("POST", "/v1/transactions", headers, json.dumps(body).encode())
    return Call(f"begin transaction {id!r}", request, id)


def status(id: str, attempt: Optional[str]) -> Call:
    """If `attempt` is None, the call is about the latest one."""
    headers = {} if attempt is None else _of(attempt)
    return Call(f"ask for the status of transaction {id!r}", Request("GET", _transaction(id), headers), id)


def get(id: str, attempt: str, key: Key) -> Call:
    what = f"get {_shown(key)} in transaction {id!r}"
    return Call(what, Request("GET", _key(id, key, what), _of(attempt)), id, may_be_absent=True)


def put(id: str, attempt: str, key: Key, value: Value) -> Call:
    what = f"put {_shown(key)} in transaction {id!r}"
    return Call(what, Request("PUT", _key(id, key, what), _raw(attempt), bytes_of(value, what, id)), id)


def delete(id: str, attempt: str, key: Key) -> Call:
    what = f"delete {_shown(key)} in transaction {id!r}"
    return Call(what, Request("DELETE", _key(id, key, what), _of(attempt)), id)


def send(id: str, attempt: str, place: int, queue: str, body: Value, group: Optional[str]) -> Call:
    """`place` is the effect's position in its attempt, by which the server recognises a repeat."""
    what = f"send to queue {queue!r} in transaction {id!r}"
    path = f"{_transaction(id)}/messages/{segment(queue, what)}"
    if group is not None:
        path += f"?group={quote(group, safe='')}"
    return Call(what, Request("POST", path, _effect(attempt, place), bytes_of(body, what, id)), id)


def invoke(id: str, attempt: str, place: int, function: str, payload: Value) -> Call:
    what = f"invoke function {function!r} in transaction {id!r}"
    path = f"{_transaction(id)}/invocations/{segment(function, what)}"
    return Call(what, Request("POST", path, _effect(attempt, place), bytes_of(payload, what, id)), id)


def commit(id: str, attempt: str, result: Optional[bytes] = None) -> Call:
    """`result`, in JSON, is kept with the commit."""
    # The step that it belongs to: the failures that the step's code has received are persisted
    # before this takes effect.
    headers, body = {**_of(attempt), **of_step()}, b""
    if result is not None:
        headers["Content-Type"], body = "application/json", b'{"result":' + result + b"}"
    request = Request("POST", f"{_transaction(id)}/commit", headers, body)
    return Call(f"commit transaction {id!r}", request, id, is_change=True)


def abort(id: str, attempt: Optional[str]) -> Call:
    """If `attempt` is None, the call ends the latest one."""
    headers = {} if attempt is None else _of(attempt)
    return Call(f"abort transaction {id!r}", Request("DELETE", _transaction(id), headers), id)


def of_transaction(id: str, attempt: str) -> Dict[str, str]:
    """The headers of a call on files that belongs to a transaction on their volume."""
    return {TRANSACTION_HEADER: quote(id, safe=""), **_of(attempt)}


def get_state(key: Key) -> Call:
    what = f"get {_shown(key)}"
    return Call(what, Request("GET", _state(key, what), of_step()), may_be_absent=True)


def put_state(key: Key, value: Value, condition: Mapping[str, str]) -> Call:
    what = f"put {_shown(key)}"
    headers = {**of_step(), **condition, "Content-Type": "application/octet-stream"}
    request = Request("PUT", _state(key, what), headers, bytes_of(value, what))
    return Call(what, request, is_change=True, is_repeatable=not condition)


def delete_state(key: Key, condition: Mapping[str, str]) -> Call:
    what = f"delete {_shown(key)}"
    request = Request("DELETE", _state(key, what), {**of_step(), **condition})
    return Call(what, request, is_change=True, is_repeatable=not condition)


def condition(if_absent: bool, if_match: Optional[str]) -> Mapping[str, str]:
    """The headers of a condition. A write under one is not repeated after a lost response: the
    repeat would meet the effect of the first.
    """
    if if_match is None:
        return {"If-None-Match": "*"} if if_absent else {}
    if if_absent or re.fullmatch(r'\*|"[\x21\x23-\x7e]*"', if_match) is None:
        raise InvalidRequest("write under a condition", f"either if_absent, or if_match with an ETag or '*': {if_match!r}")
    return {"If-Match": if_match}


def scan_state(prefix: Key, after: Optional[Key], limit: int) -> Call:
    what = f"scan keys that begin with {prefix!r}"
    query = [f"prefix={quote(encoded(prefix, what), safe='')}"]
    query += [f"after={quote(encoded(after, what), safe='')}"] if after is not None else []
    query += [f"limit={_limit(limit, what)}"]
    return Call(what, Request("GET", "/v1/state?" + "&".join(query), of_step()))


def begin_run(name: str, input: bytes, id: Optional[str], wait: float) -> Call:
    what = f"run the workflow {name!r}"
    if id is not None and not isinstance(id, str):
        raise TypeError(f"{what}: an id is a str, not {type(id).__name__}")
    query = [f"wait={wait:g}"] if wait else []
    query += [f"id={quote(id, safe='')}"] if id is not None else []
    path = f"/v1/workflows/{segment(name, what)}/runs" + ("?" + "&".join(query) if query else "")
    request = Request("POST", path, {**of_step(), **_JSON}, input)
    return Call(what, request, run=id, is_change=True, is_repeatable=id is not None)


def get_run(name: str, run: str, wait: float) -> Call:
    what = f"get the run {run!r} of the workflow {name!r}"
    return Call(what, Request("GET", _run(name, run, what) + (f"?wait={wait:g}" if wait else "")))


def cancel_run(name: str, run: str) -> Call:
    what = f"cancel the run {run!r} of the workflow {name!r}"
    return Call(what, Request("DELETE", _run(name, run, what), of_step()), run=run, is_change=True)


def list_runs(name: str, status: Optional[str], after: Optional[str]) -> Call:
    what = f"list the runs of the workflow {name!r}"
    query = [f"{key}={quote(value, safe='')}" for key, value in (("status", status), ("after", after)) if value is not None]
    path = f"/v1/workflows/{segment(name, what)}/runs" + ("?" + "&".join(query) if query else "")
    return Call(what, Request("GET", path))


def externalize() -> Call:
    return Call("externalize", Request("POST", "/v1/run/externalize", of_step()), is_change=True)


def invoke_now(function: str, payload: bytes) -> Call:
    what = f"invoke the function {function!r}"
    path = f"/2015-03-31/functions/{segment(function, what)}/invocations"
    return Call(what, Request("POST", path, {**of_step(), **_JSON}, payload), is_change=True, is_repeatable=False)


def open_step(name: str) -> Call:
    what = f"begin the step {name!r}"
    # Sent once: each copy would be the next step of the code.
    return Call(what, Request("POST", _step(name, what), of_step()), is_change=True, is_repeatable=False)


def finish_step(name: str, output: bytes) -> Call:
    what = f"finish the step {name!r}"
    return Call(what, Request("PUT", _step(name, what), {**of_step(), **_JSON}, output), is_change=True, is_repeatable=False)


def fail_step(name: str, said: bytes) -> Call:
    what = f"give up the step {name!r}"
    request = Request("PUT", _step(name, what) + "/failure", {**of_step(), **_JSON}, said)
    return Call(what, request, is_change=True, is_repeatable=False)


def call_step(function: str, input: bytes) -> Call:
    what = f"call {function!r} as a step"
    path = f"/v1/run/calls/{segment(function, what)}"
    return Call(what, Request("PUT", path, {**of_step(), **_JSON}, input), is_change=True, is_repeatable=False)


def send_from_step(queue: str, body: Value, group: Optional[str]) -> Call:
    what = f"send to queue {queue!r}"
    path = f"/v1/run/messages/{segment(queue, what)}" + (f"?group={quote(group, safe='')}" if group is not None else "")
    request = Request("POST", path, {**of_step(), "Content-Type": "application/octet-stream"}, bytes_of(body, what))
    return Call(what, request, is_change=True, is_repeatable=False)


_JSON = {"Content-Type": "application/json"}


def of_step() -> Dict[str, str]:
    step = current_step()
    return {} if step is None else {STEP_HEADER: step}


def _run(name: str, run: str, what: str) -> str:
    if not run:
        raise InvalidRequest(what, "the id of a run has 1 to 128 bytes, and this one has none")
    return f"/v1/workflows/{segment(name, what)}/runs/{segment(run, what)}"


def _step(name: str, what: str) -> str:
    return f"/v1/run/steps/{segment(name, what)}"


def valid_id(id: str) -> str:
    """`id`, or `InvalidRequest` if it can never stand in a path."""
    if not isinstance(id, str):
        raise TypeError(f"a transaction id is a str, not {type(id).__name__}")
    if not id:
        raise InvalidRequest("begin a transaction", "an id has 1 to 128 bytes, and this one has none")
    encoded(id, f"begin transaction {id!r}")
    return id


def _of(attempt: str) -> Dict[str, str]:
    return {ATTEMPT_HEADER: attempt}


def _raw(attempt: str) -> Dict[str, str]:
    return {ATTEMPT_HEADER: attempt, "Content-Type": "application/octet-stream"}


def _effect(attempt: str, place: int) -> Dict[str, str]:
    return {**_raw(attempt), EFFECT_HEADER: str(place)}


def _transaction(id: str) -> str:
    return f"/v1/transactions/{segment(id, id)}"


def _key(id: str, key: Key, what: str) -> str:
    return f"{_transaction(id)}/keys/{segment(key, what)}"


def _state(key: Key, what: str) -> str:
    return f"/v1/state/{segment(key, what)}"


def segment(name: Key, what: str) -> str:
    """One segment of a path. A segment of dots alone is escaped too, because proxies would resolve
    a plain `..`.
    """
    found = encoded(name, what)
    if found and not found.strip(b"."):
        return "%2E" * len(found)
    return quote(found, safe="")


def encoded(name: Key, what: str) -> bytes:
    if isinstance(name, bytes):
        return name
    if not isinstance(name, str):
        raise TypeError(f"{what}: a name or key is str or bytes, not {type(name).__name__}")
    try:
        return name.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(what, f"not valid Unicode: {error.reason}") from None


def bytes_of(value: Value, what: str, transaction: Optional[str] = None) -> bytes:
    """A value as it is sent. Raises `TooLarge` beyond 64 MiB."""
    if not isinstance(value, (bytes, bytearray, memoryview)):
        raise TypeError(f"{what}: a value is bytes, not {type(value).__name__}; encode it first")
    # A copy of a value that the caller may still change: a repeat has to send the same bytes.
    copied = value if isinstance(value, bytes) else bytes(value)
    if len(copied) > VALUE_BYTES_MAX:
        raise TooLarge(what, f"{len(copied):,} bytes, at most {VALUE_BYTES_MAX:,}", transaction=transaction)
    return copied


def _limit(limit: int, what: str) -> int:
    if not 1 <= limit <= KEYS_MAX:
        raise InvalidRequest(what, f"a limit is between 1 and {KEYS_MAX:,}, not {limit}")
    return limit


def _shown(key: Key) -> str:
    return f"key {key!r}"
