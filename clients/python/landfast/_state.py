"""Plain state: one key at a time, or a page of them, outside any transaction."""

from __future__ import annotations

import base64
import json
from typing import Any, List, NamedTuple, Optional, Tuple
from urllib.parse import unquote_to_bytes

from . import _requests
from ._after import After
from ._attempt import value_in
from ._connection import Connections
from ._nodes import Route
from ._problems import UnexpectedAnswer
from ._repeat import Limits, Steps, exchange
from ._requests import AFTER_HEADER, Call, Key, Value


class Page(NamedTuple):
    """Some keys in order, with their values."""

    items: List[Tuple[bytes, bytes]]
    """The keys with their values."""
    next: Optional[bytes]
    """The key after which the next page begins; None after the last page."""


class Versioned(NamedTuple):
    """A value and its version."""

    value: bytes
    etag: str
    """Opaque; it changes with each write of the key."""


class StateCalls:
    """Reads and writes as steps, for both kinds of client."""

    def __init__(self, route: Route, limits: Limits, after: After) -> None:
        self._route = route
        self._limits = limits
        self._after = after

    def get(self, key: Key) -> Steps[Optional[bytes]]:
        answer = yield from exchange(_requests.get_state(key), self._route, self._limits)
        return value_in(answer.response)

    def get_with_etag(self, key: Key) -> Steps[Optional[Versioned]]:
        call = _requests.get_state(key)
        answer = yield from exchange(call, self._route, self._limits)
        value = value_in(answer.response)
        if value is None:
            return None
        etag = answer.response.headers.get("etag")
        if etag is None:
            raise UnexpectedAnswer(call.what, "the answer has no ETag, as in the code of a workflow's step")
        return Versioned(value, etag)

    def scan(self, prefix: Key, after: Optional[Key], limit: int) -> Steps[Page]:
        call = _requests.scan_state(prefix, after, limit)
        answer = yield from exchange(call, self._route, self._limits)
        try:
            entries, next = _entries(json.loads(answer.response.body))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UnexpectedAnswer(call.what, "the answer is no page of keys") from error
        items = []
        for key, value in entries:
            if value is None:
                # The value is too long for a page. If the key is gone by now, it is left out.
                value = yield from self.get(key)
            if value is not None:
                items.append((key, value))
        return Page(items, next)

    def put(self, key: Key, value: Value, if_absent: bool, if_match: Optional[str]) -> Steps[Optional[str]]:
        return self._change(_requests.put_state(key, value, _requests.condition(if_absent, if_match)))

    def delete(self, key: Key, if_match: Optional[str]) -> Steps[Optional[str]]:
        return self._change(_requests.delete_state(key, _requests.condition(False, if_match)))

    def _change(self, call: Call) -> Steps[Optional[str]]:
        answer = yield from exchange(call, self._route, self._limits)
        self._after.heard(answer.response.headers.get(AFTER_HEADER.lower()))
        return answer.response.headers.get("etag")


def _entries(found: Any) -> Tuple[List[Tuple[bytes, Optional[bytes]]], Optional[bytes]]:
    def value_of(entry: Any) -> Optional[bytes]:
        return base64.b64decode(entry["value"], validate=True) if "value" in entry else None

    entries = [(unquote_to_bytes(entry["key"]), value_of(entry)) for entry in found["keys"]]
    return entries, unquote_to_bytes(found["next"]) if "next" in found else None


class State:
    """The keys that transactions write, one at a time.

    A write whose response is lost is sent again. It may then be applied twice, with another
    client's write of the key in between. Where that matters, use a transaction, which takes effect
    once. A write under a condition is not sent again: it raises `OutcomeUnknown`, so read the key.
    """

    def __init__(self, calls: StateCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    def get(self, key: Key) -> Optional[bytes]:
        """The value of `key`, or None if there is none."""
        return self._connections.drive(self._calls.get(key))

    def get_with_etag(self, key: Key) -> Optional[Versioned]:
        """The value of `key` and its ETag, or None if there is no value."""
        return self._connections.drive(self._calls.get_with_etag(key))

    def scan(self, prefix: Key = b"", *, after: Optional[Key] = None, limit: int = 100) -> Page:
        """Examines up to `limit` keys (1,000 at the most) that begin with `prefix`, after the key
        `after`. Returns those that have a value, in order.

        A page is no snapshot: each value is the key's value at some moment during the call.
        Recently deleted keys make a page shorter, so go on with `after=page.next` until that is
        None. Inside a step of a workflow, the page contains the writes of the step's attempt.
        """
        return self._connections.drive(self._calls.scan(prefix, after, limit))

    def put(
        self, key: Key, value: Value, *, if_absent: bool = False, if_match: Optional[str] = None
    ) -> Optional[str]:
        """Sets `key`; it is durable when this returns. Returns the ETag of the value, or None in
        the code of a workflow's step.

        With `if_absent`, only if the key has no value; with `if_match`, only if its value has this
        ETag (`"*"`: any). Otherwise it raises `ConditionNotMet`. The first condition makes the
        keyspace sequenced permanently.
        """
        return self._connections.drive(self._calls.put(key, value, if_absent, if_match))

    def delete(self, key: Key, *, if_match: Optional[str] = None) -> None:
        """Removes `key`, whether or not it exists. With `if_match` as `put`."""
        self._connections.drive(self._calls.delete(key, if_match))
