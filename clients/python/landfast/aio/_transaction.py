"""A transaction as an asynchronous context manager."""

from __future__ import annotations

import asyncio
from contextvars import Token
from types import TracebackType
from typing import Optional, Type

from .. import _ids
from .._attempt import Attempt, Phase
from .._attempts import Attempts
from .._problems import Error
from .._repeat import Limits
from .._requests import Key, Value
from .._transact import kept_result
from ._connection import ASIDE_S, Connections
from ._volumes import Files


class Transaction:
    """As `landfast.Transaction`; each `async with` is one attempt at it, under one id."""

    def __init__(self, attempts: Attempts, connections: Connections) -> None:
        self._attempts = attempts
        self._connections = connections
        self._scope: Optional[Token[Optional[_ids.Scope]]] = None

    @property
    def id(self) -> str:
        """The name of the transaction: under it, it takes effect at most once."""
        return self._attempts.settle_id()

    @property
    def after(self) -> Optional[str]:
        """Once committed: the token for `transaction(after=...)` elsewhere, which makes that
        transaction see this commit.
        """
        return self._attempt.committed_token

    @property
    def _attempt(self) -> Attempt:
        """The attempt that calls belong to."""
        return self._attempts.latest

    async def get(self, key: Key) -> Optional[bytes]:
        """The value of `key` as this transaction sees it, or None if there is none."""
        return await self._connections.drive(self._attempt.get(key))

    async def put(self, key: Key, value: Value) -> None:
        """Sets `key`; other transactions see it once this one has committed."""
        await self._connections.drive(self._attempt.put(key, value))

    async def delete(self, key: Key) -> None:
        """Removes `key`, whether or not it exists."""
        await self._connections.drive(self._attempt.delete(key))

    def files(self) -> Files:
        """The files of its volume; see `landfast.Transaction.files`."""
        return Files(self._attempts.files(), self._connections)

    async def send(self, queue: str, body: Value, *, group: Optional[str] = None) -> None:
        """Sends a message once the transaction has committed, and never if it does not."""
        await self._connections.drive(self._attempt.send(queue, body, group))

    async def invoke(self, function: str, payload: Value = b"") -> None:
        """Invokes a function, without waiting for it, once the transaction has committed."""
        await self._connections.drive(self._attempt.invoke(function, payload))

    async def commit(self) -> None:
        """Commits now instead of at the end of the block. After `OutcomeUnknown`, commits again."""
        await self._connections.drive(self._attempt.commit())

    def keep(self, result: object) -> None:
        """Keeps a result with the commit, for callers that begin the id again. `transact` does so."""
        if self._attempt.keeps_results:
            self._attempt.keep(kept_result(result))

    async def abort(self) -> None:
        """Drops all writes so far; the end of the block then does nothing."""
        await self._connections.drive(self._attempt.abort())

    async def status(self) -> str:
        """The server's state of the id: open, committing, committed, aborted or expired."""
        return await self._connections.drive(self._attempt.status())

    async def __aenter__(self) -> Transaction:
        begin = self._attempts.begin()
        try:
            await self._connections.drive(begin)
            self._scope = _ids.enter_block(self.id)
        except Error:
            raise
        except BaseException:
            self._end_aside()
            raise
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        _ids.leave_block(self._scope)
        self._scope = None
        if self._attempt.is_of_parent:
            return
        # This also covers a broken-off commit of the block's own: only a repeated call returns its
        # outcome.
        if kind is None and self._attempt.phase in (Phase.OPEN, Phase.COMMITTING):
            try:
                await self.commit()
                return
            except Error:
                if self._attempt.phase is Phase.OPEN:
                    await self._give_up()
                raise
            except BaseException:
                self._end_aside()
                raise
        if not self._attempt.may_be_open:
            if kind is None:
                self._attempt.left()
        elif kind is not None and issubclass(kind, Exception):
            await self._give_up()
        else:
            self._end_aside()

    async def _give_up(self) -> None:
        # Under load it may take longer. A task that cancels this wait, or has waited for long
        # enough, leaves the abort to the background.
        ending = self._end_aside()
        if ending is not None:
            await asyncio.wait({ending}, timeout=Limits.abort_s)

    def _end_aside(self) -> Optional[asyncio.Task[None]]:
        """Most likely the task was cancelled, and a cancelled task does not wait."""
        return self._connections.drive_aside(self._attempt.end(ASIDE_S))
