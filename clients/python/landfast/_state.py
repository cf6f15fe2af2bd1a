"""Plain state: one key at a time, outside any transaction."""

from __future__ import annotations

from typing import Optional

from . import _requests
from ._after import After
from ._attempt import value_in
from ._connection import Connections
from ._nodes import Route
from ._repeat import Limits, Steps, exchange
from ._requests import AFTER_HEADER, Call, Key, Value


class StateCalls:
    """Reads and writes as steps, for both kinds of client."""

    def __init__(self, route: Route, limits: Limits, after: After) -> None:
        self._route = route
        self._limits = limits
        self._after = after

    def get(self, key: Key) -> Steps[Optional[bytes]]:
        answer = yield from exchange(_requests.get_state(key), self._route, self._limits)
        return value_in(answer.response)

    def put(self, key: Key, value: Value) -> Steps[None]:
        yield from self._change(_requests.put_state(key, value))

    def delete(self, key: Key) -> Steps[None]:
        yield from self._change(_requests.delete_state(key))

    def _change(self, call: Call) -> Steps[None]:
        answer = yield from exchange(call, self._route, self._limits)
        self._after.heard(answer.response.headers.get(AFTER_HEADER.lower()))


class State:
    """The keys that transactions write, one at a time.

    A write whose answer is lost is sent again. It may then be applied twice, with somebody else's write of the
    key in between; where that matters, use a transaction, which takes effect once.
    """

    def __init__(self, calls: StateCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    def get(self, key: Key) -> Optional[bytes]:
        """The value of `key`, or None if there is none."""
        return self._connections.drive(self._calls.get(key))

    def put(self, key: Key, value: Value) -> None:
        """Sets `key`; it is durable when this returns."""
        self._connections.drive(self._calls.put(key, value))

    def delete(self, key: Key) -> None:
        """Removes `key`, whether or not it exists."""
        self._connections.drive(self._calls.delete(key))
