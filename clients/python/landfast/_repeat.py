"""Sending one request until it has a response: to which node, when to repeat it, and when to give
up.

This module only decides: `exchange` is a generator that yields the next step (`Send`, `Pause`) and
receives its result. The blocking client and the asyncio client each drive it with their own sockets
and their own sleep.

Invariants
- A request goes to the next node at the first sign that a node is gone; a pause comes only after
  every node has been tried.
- A commit whose outcome a node does not know goes to the next node: the node may be cut off from
  the commit sequencer. A query about a run goes to the node where the run was begun.
- A request that is not repeatable is sent again only if its last copy certainly had no effect.
- A repeat that the end of the time cuts short does not hide the server's earlier response, unless
  that repeat alone leaves the outcome of a change unknown.
- A change whose last response is missing ends as `OutcomeUnknown`, never as an error that denies
  it.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from typing import Generator, Optional, Tuple, TypeVar, Union

from . import _problems
from ._nodes import Node, Route
from ._problems import Error, Meaning, OutcomeUnknown, Repeat, Unavailable
from ._requests import Call, Lost, Request, Response

T = TypeVar("T")


@dataclass(frozen=True)
class Limits:
    """Bounds on durations, in seconds."""

    call_s: float = 30.0
    """One call in all, repeats and pauses included; a response that has begun by then is read to
    its end (`_pace.py`).
    """
    connect_s: float = 2.0
    reply_s: float = 10.0
    """Until a response begins. A server answers a call within 8 s, a commit if only to say that
    the outcome is still unknown.
    """
    abort_s: float = 2.0
    """Bound of an abort, which is a courtesy: the attempt would time out by itself."""

    def for_body(self, body_bytes: int) -> Limits:
        """The same with the time that a large body of a request needs on a slow line."""
        extra = body_bytes / _BYTES_PER_SECOND_MIN
        return replace(self, call_s=self.call_s + extra, reply_s=self.reply_s + extra)


_BYTES_PER_SECOND_MIN = 1024 * 1024
_PAUSE_FIRST_S = 0.02
_PAUSE_MAX_S = 1.0
_DOUBLINGS_MAX = 16


@dataclass(frozen=True)
class Send:
    """Send this and report a `Response` or `Lost`."""

    node: Node
    request: Request
    connect_s: float
    reply_s: float


@dataclass(frozen=True)
class Pause:
    """Wait, then report None."""

    seconds: float


@dataclass(frozen=True)
class Answer:
    """A response, and whether another copy of the request may still be in flight to the server."""

    response: Response
    node: Node
    is_doubled: bool


Action = Union[Send, Pause]
Event = Union[Response, Lost, None]
Steps = Generator[Action, Event, T]


def full_jitter(failures: int) -> float:
    """The pause in seconds after this many failures, drawn between zero and a bound that doubles."""
    bound = min(_PAUSE_MAX_S, _PAUSE_FIRST_S * 2.0 ** min(failures, _DOUBLINGS_MAX))
    return random.uniform(0, bound)


def exchange(call: Call, route: Route, limits: Limits) -> Steps[Answer]:
    """Sends `call` until it succeeds, is refused permanently, or runs out of time."""
    limits = limits.for_body(len(call.request.body))
    deadline = time.monotonic() + limits.call_s
    may_have_happened = False
    said: Optional[Tuple[Error, Meaning]] = None
    failures = 0
    while True:
        node = route.node
        left = max(deadline - time.monotonic(), 0.001)
        event = yield Send(node, call.request, min(limits.connect_s, left), min(limits.reply_s, left))
        assert event is not None, "a request is answered by a response or its loss"
        if isinstance(event, Response) and call.accepts(event):
            return Answer(event, node, is_doubled=may_have_happened)
        error, meaning = _failure(call, event, node)
        may_have_happened = may_have_happened or not meaning.is_certain
        if isinstance(event, Response):
            said = error, meaning
        elif said is not None and time.monotonic() >= deadline:
            is_denial = call.is_change and may_have_happened and said[1].is_certain
            raise _given_up(call, error if is_denial else said[0], may_have_happened)
        if meaning.repeat is Repeat.NEVER and error.ends_attempt:
            # The refusal is about the attempt itself, and so holds for every copy of the request.
            raise error
        if meaning.repeat is Repeat.NEVER or (may_have_happened and not call.is_repeatable):
            raise _given_up(call, error, may_have_happened)
        failures += 1
        has_another_node = meaning.repeat is Repeat.ELSEWHERE and failures % len(route.nodes) != 0
        if meaning.repeat is Repeat.ELSEWHERE:
            route.leave(node)
        pause = 0.0 if has_another_node else max(full_jitter(failures // len(route.nodes)), error.retry_after or 0)
        if time.monotonic() + pause >= deadline:
            raise _given_up(call, error, may_have_happened)
        if pause:
            yield Pause(pause)


def _failure(call: Call, event: Union[Response, Lost], node: Node) -> tuple[Error, Meaning]:
    what = f"{call.what} at {node}"
    if isinstance(event, Lost):
        error: Error = Unavailable(what, event.reason, transaction=call.transaction)
        return error, Meaning(Unavailable, Repeat.ELSEWHERE, is_certain=not event.was_sent)
    code = event.headers.get("x-amzn-errortype")
    meaning = _problems.meaning_of(_problems.problem_type(event.body, code), event.status)
    seconds = retry_after_seconds(event.headers.get("retry-after"))
    error = _problems.error_from(what, event.status, event.body, seconds, call.transaction, code)
    # For a run with an unknown outcome, the response has the id, and the call goes on at the node
    # where the run was begun.
    return error, meaning if error.run is None else replace(meaning, repeat=Repeat.HERE)


def _given_up(call: Call, last: Error, may_have_happened: bool) -> Error:
    if call.is_change and may_have_happened and not isinstance(last, OutcomeUnknown):
        unknown = OutcomeUnknown(
            last.what,
            last.detail,
            problem=last.problem,
            status=last.status,
            retry_after=last.retry_after,
            transaction=last.transaction,
            run=last.run or call.run,
            code=last.code,
        )
        unknown.__cause__ = last
        last = unknown
    last.may_have_happened = may_have_happened
    return last


def retry_after_seconds(value: Optional[str]) -> Optional[float]:
    """The pause in a `Retry-After` header: seconds, or a date."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(parsedate_to_datetime(value).timestamp() - time.time(), 0.0)
    except (TypeError, ValueError, IndexError, OverflowError):
        return None
