"""Running a body until its transaction has committed.

The body runs again only where its attempt is known to have ended without effect, always under the
same id. So even a commit whose response was lost cannot be applied twice: the next begin under that
id reports the commit.

The decision depends on the error of this very transaction that left the body, or that is part of
the error which left it. It is part of that error as its cause, as its context (the error being
handled when it was raised), or as a member of a group. `asyncio.TaskGroup`, for example, groups the
errors of its tasks. An error that the body has handled is none of these.
"""

from __future__ import annotations

import inspect
import json
import sys
from typing import Callable, Iterator, List, Optional, TypeVar

from ._attempt import Phase
from ._attempts import Attempts
from ._problems import AlreadyCommitted, Error
from ._repeat import full_jitter
from ._requests import valid_id

T = TypeVar("T")

RESULT_BYTES_MAX = 64 * 1024
"""The longest result, in JSON, that is kept with a commit."""
RUNS_MAX = 16
"""How often a body runs before the last error is raised; all runs take up to about 10 s."""


class Runs:
    """How often the body of a transaction has run, and whether it may again."""

    def __init__(self, attempts: Attempts, runs_max: int) -> None:
        if runs_max < 1:
            raise ValueError(f"runs_max is {runs_max}; a body runs at least once")
        self._attempts = attempts
        self._runs_max = runs_max
        self._runs = 0
        # Python makes it the context of all exceptions raised meanwhile. It may be an error of an
        # earlier transaction of this id.
        self._handled_before = sys.exc_info()[1]

    def pause_before_next(self, error: Exception) -> Optional[float]:
        """Seconds to wait before the body runs again after `error`; None if it must not."""
        self._runs += 1
        failures = list(self._failures(error))
        may_run_again = bool(failures) and all(failure.body_may_run_again for failure in failures)
        # It may have committed, or it may belong to the parent of a process that was forked in the
        # body.
        if not may_run_again or self._attempts.latest.phase is not Phase.ABORTED or self._runs >= self._runs_max:
            return None
        asked_for = max(failure.retry_after or 0 for failure in failures)
        # A server may ask for any pause, but within a call the client waits no longer than the call
        # may take.
        return None if asked_for > self._attempts.call_s else max(full_jitter(self._runs), asked_for)

    def skipped(self, error: Exception) -> Optional[AlreadyCommitted]:
        """The part of `error` that says that this very transaction has committed before, if any does."""
        before = (failure for failure in self._failures(error) if isinstance(failure, AlreadyCommitted))
        return next(before, None)

    def _failures(self, error: Exception) -> Iterator[Error]:
        """The errors of this transaction in `error`: itself, or its parts."""
        seen = {id(self._handled_before)}
        left: List[object] = [error]
        while left:
            found = left.pop()
            if not isinstance(found, BaseException) or id(found) in seen:
                continue
            seen.add(id(found))
            # The error of another transaction, for example one inside the body, says nothing about
            # this one.
            if isinstance(found, Error) and found.transaction == self._attempts.id:
                yield found
                continue
            members = getattr(found, "exceptions", ())
            left += [found.__cause__, found.__context__, *(members if isinstance(members, tuple) else ())]


def kept_result(result: object) -> Optional[bytes]:
    """A body's result as it is kept with the commit; None if it is not kept: it is no JSON, or too
    long, or None itself.
    """
    if result is None:
        return None
    try:
        text = json.dumps(result, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return text.encode() if len(text) <= RESULT_BYTES_MAX else None


def refuse_unfinished(result: T, what: str) -> T:
    """A coroutine function or a generator returns an object that has not even begun: a commit now
    would commit nothing.
    """
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"{what} is a plain function here; landfast.aio takes coroutine functions")
    return result


def id_of_call(
    name: Optional[Callable[..., str]], args: tuple[object, ...], kwargs: dict[str, object]
) -> Optional[str]:
    """The id for a call of a decorated function."""
    return None if name is None else valid_id(name(*args, **kwargs))
