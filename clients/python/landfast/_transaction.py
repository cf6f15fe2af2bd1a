"""A transaction as a context manager: commits when its block ends, aborts when an exception leaves it."""

from __future__ import annotations

import contextlib
from contextvars import Token
from types import TracebackType
from typing import Optional, Type

from . import _ids
from ._attempt import UNHEARD_S, Attempt, Phase
from ._attempts import Attempts
from ._connection import Connections
from ._problems import Error
from ._requests import Key, Value
from ._transact import kept_result
from ._volumes import Files


class Transaction:
    """One transaction; each `with` is one attempt at it, under one id.

    The client repeats lost requests of the transaction, at the next node if necessary. It does not
    repeat the body: `transact` does that. Threads may share the transaction as long as they write
    different keys.
    """

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

    def get(self, key: Key) -> Optional[bytes]:
        """The value of `key` as this transaction sees it, or None if there is none."""
        return self._connections.drive(self._attempt.get(key))

    def put(self, key: Key, value: Value) -> None:
        """Sets `key`; other transactions see it once this one has committed."""
        self._connections.drive(self._attempt.put(key, value))

    def delete(self, key: Key) -> None:
        """Removes `key`, whether or not it exists."""
        self._connections.drive(self._attempt.delete(key))

    def files(self) -> Files:
        """The files of its volume, as this transaction sees them; what it changes takes effect with
        its keys.
        """
        return Files(self._attempts.files(), self._connections)

    def send(self, queue: str, body: Value, *, group: Optional[str] = None) -> None:
        """Sends a message once the transaction has committed, and never if it does not."""
        self._connections.drive(self._attempt.send(queue, body, group))

    def invoke(self, function: str, payload: Value = b"") -> None:
        """Invokes a function, without waiting for it, once the transaction has committed."""
        self._connections.drive(self._attempt.invoke(function, payload))

    def commit(self) -> None:
        """Commits now instead of at the end of the block. After `OutcomeUnknown`, commits again."""
        self._connections.drive(self._attempt.commit())

    def keep(self, result: object) -> None:
        """Keeps a result with the commit, for callers that begin the id again. `transact` does so."""
        if self._attempt.keeps_results:
            self._attempt.keep(kept_result(result))

    def abort(self) -> None:
        """Drops all writes so far; the end of the block then does nothing."""
        self._connections.drive(self._attempt.abort())

    def status(self) -> str:
        """The server's state of the id: open, committing, committed, aborted or expired."""
        return self._connections.drive(self._attempt.status())

    def __enter__(self) -> Transaction:
        begin = self._attempts.begin()
        try:
            self._connections.drive(begin)
            self._scope = _ids.enter_block(self.id)
        except Error:
            raise
        except BaseException:
            self._end_interrupted()
            raise
        return self

    def __exit__(
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
                self.commit()
                return
            except Error:
                if self._attempt.phase is Phase.OPEN:
                    self._give_up()
                raise
            except BaseException:
                self._end_interrupted()
                raise
        if self._attempt.phase is Phase.OPEN:
            self._give_up()
        elif self._attempt.may_be_open:
            self._end_interrupted()
        elif kind is None:
            self._attempt.left()

    def _give_up(self) -> None:
        # The exception that left the block says more than a failed abort, and the server ends idle
        # attempts by itself.
        with contextlib.suppress(Error):
            self.abort()

    def _end_interrupted(self) -> None:
        # For example a signal handler's exception, which says more than a failed abort.
        with contextlib.suppress(Error):
            self._connections.drive(self._attempt.end(UNHEARD_S))
