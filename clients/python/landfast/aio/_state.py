"""Plain state, for asyncio."""

from __future__ import annotations

from typing import Optional

from .._requests import Key, Value
from .._state import Page, StateCalls, Versioned
from ._connection import Connections


class State:
    """As `landfast.State`: the keys that transactions write, one at a time."""

    def __init__(self, calls: StateCalls, connections: Connections) -> None:
        self._calls = calls
        self._connections = connections

    async def get(self, key: Key) -> Optional[bytes]:
        """The value of `key`, or None if there is none."""
        return await self._connections.drive(self._calls.get(key))

    async def get_with_etag(self, key: Key) -> Optional[Versioned]:
        """The value of `key` and its ETag, or None if there is no value."""
        return await self._connections.drive(self._calls.get_with_etag(key))

    async def scan(self, prefix: Key = b"", *, after: Optional[Key] = None, limit: int = 100) -> Page:
        """A page of keys in order, with their values; see `landfast.State.scan`."""
        return await self._connections.drive(self._calls.scan(prefix, after, limit))

    async def put(
        self, key: Key, value: Value, *, if_absent: bool = False, if_match: Optional[str] = None
    ) -> Optional[str]:
        """Sets `key`, under a condition or without one; see `landfast.State.put`."""
        return await self._connections.drive(self._calls.put(key, value, if_absent, if_match))

    async def delete(self, key: Key, *, if_match: Optional[str] = None) -> None:
        """Removes `key`, whether or not it exists. With `if_match` as `put`."""
        await self._connections.drive(self._calls.delete(key, if_match))
