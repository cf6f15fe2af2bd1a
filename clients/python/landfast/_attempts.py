"""The attempts of one transaction, one after the other under its id.

Invariants
- At most one of them has begun and not ended, as far as this process knows.
- A random id is not begun again once the server may have forgotten its commit: its work would be
  done twice.
- A begin that failed leaves the earlier state: the attempt that has ended, or none.
- An automatic id is settled in the process that begins: a transaction that has not begun before a
  fork is another one after it.
"""

from __future__ import annotations

from typing import Any, Optional

from ._after import After
from ._attempt import Attempt, Phase
from ._ids import Name
from ._nodes import Route
from ._problems import AlreadyCommitted, Error, Expired
from ._repeat import Limits, Steps
from ._volumes import FileCalls


class Attempts:
    """A transaction, without I/O: its id, how it begins, and its latest attempt."""

    def __init__(
        self,
        name: Name,
        isolation: Optional[str],
        route: Route,
        limits: Limits,
        after: After,
        after_token: Optional[str],
        volume: Optional[str] = None,
    ) -> None:
        self._name = name
        self._isolation = isolation
        self._route = route
        self._limits = limits
        self._after = after
        self._after_token = after_token
        self._volume = volume
        self.latest = Attempt(name, route, limits, after)
        """The latest attempt. Before the first begin it is one that has not begun."""

    @property
    def id(self) -> str:
        """Under it, it takes effect at most once."""
        return self._name.id

    @property
    def call_s(self) -> float:
        """Upper bound on one call, in seconds."""
        return self._limits.call_s

    def settle_id(self) -> str:
        """The id in this process. A transaction that has not begun before a fork is another one
        after it, unless its id was given.
        """
        if self.latest.phase is Phase.NEW and self.latest.is_of_parent:
            self._name = self._name.in_child()
            self.latest = Attempt(self._name, self._route, self._limits, self._after)
        return self._name.id

    def begin(self) -> Steps[None]:
        """Steps that begin the next one. If the begin is not allowed, the error is raised at once,
        and an open attempt stays as it is.
        """
        what = f"begin transaction {self.settle_id()!r}"
        self.latest.refuse_in_child(what)
        phase = self.latest.phase
        if phase in (Phase.BEGINNING, Phase.OPEN):
            raise RuntimeError(f"transaction {self.id!r} is {phase.value}; begin another one, or end it first")
        if phase is Phase.COMMITTED and self._name.is_random:
            raise AlreadyCommitted(what, "its id has committed before", transaction=self.id)
        if self.latest.may_be_forgotten:
            raise Expired(what, "its commit may have been asked for too long ago", transaction=self.id)
        return self._begin()

    def files(self) -> FileCalls:
        """The calls on files of the latest attempt."""
        if self._volume is None:
            raise ValueError(f"transaction {self.id!r} is on no volume: begin it with volume=NAME")
        return self.latest.files(self._volume)

    def first_result(self, skipped: AlreadyCommitted) -> Steps[Any]:
        """Steps that return the result that the commit of the id has kept; None if it has kept none.

        `skipped` says that the id has committed. If another call than a begin found out, the result
        is asked for.
        """
        if skipped.is_result_known or self._name.is_random:
            return skipped.result
        attempt = Attempt(self._name, self._route.branch(), self._limits, self._after)
        try:
            yield from attempt.begin(self._isolation, self._after_token, self._volume)
        except AlreadyCommitted as known:
            return known.result
        # The server has forgotten the commit meanwhile.
        yield from attempt.abort()
        return None

    def _begin(self) -> Steps[None]:
        before, attempt = self.latest, Attempt(self._name, self._route.branch(), self._limits, self._after)
        attempt.follows(before)
        self.latest, before.is_begun_anew = attempt, True
        try:
            yield from attempt.begin(self._isolation, self._after_token, self._volume)
        except Error:
            if attempt.phase is Phase.BEGINNING:
                self.latest = before
            raise
