"""Plain state, for asyncio."""

from __future__ import annotations

from typing import Optional

from .._requests import Key, Value
from .._state import Page, StateCalls
from ._connection import Connections


class State:
    """As `landfast.State`: the keys that transactions write, one at a time."""

    def __init__(self, calls: StateCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    async def get(self, key: Key) -> Optional[bytes]:
        """The value of `key`, or None if there is none."""
        return await self._connections.drive(self._calls.get(key))

    async def scan(self, prefix: Key = b"", *, after: Optional[Key] = None, limit: int = 100) -> Page:
        """A page of keys in order, with their values; see `landfast.State.scan`."""
        return await self._connections.drive(self._calls.scan(prefix, after, limit))

    async def put(self, key: Key, value: Value) -> None:
        """Sets `key`; it is durable when this returns."""
        await self._connections.drive(self._calls.put(key, value))

    async def delete(self, key: Key) -> None:
        """Removes `key`, whether or not it exists."""
        await self._connections.drive(self._calls.delete(key))
