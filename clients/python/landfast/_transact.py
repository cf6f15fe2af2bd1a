"""Running a body until its transaction has committed.

The body runs again only where its attempt is known to have ended without effect, always under the same id. So
even a commit whose answer never came cannot be applied twice: the next begin under that id says so.
"""

from __future__ import annotations

import inspect
from typing import Callable, Optional, TypeVar

from ._problems import AlreadyCommitted, Error
from ._repeat import full_jitter
from ._requests import valid_id

T = TypeVar("T")

RUNS_MAX = 16
"""How often a body runs before the last error is raised; it takes up to about 10 s."""


class Runs:
    """How often the body of the transaction `id` has run, and whether it may again."""

    def __init__(self, id: str, runs_max: int) -> None:
        if runs_max < 1:
            raise ValueError(f"runs_max is {runs_max}; a body runs at least once")
        self._id = id
        self._runs_max = runs_max
        self._runs = 0

    def pause_before_next(self, error: Exception) -> Optional[float]:
        """Seconds to wait before the body runs again after `error`; None if it must not."""
        self._runs += 1
        # The error of another transaction, say one inside the body, tells nothing about this one.
        if not isinstance(error, Error):
            return None
        is_ours = error.transaction == self._id
        if not (is_ours and error.body_may_run_again) or self._runs >= self._runs_max:
            return None
        return max(full_jitter(self._runs), error.retry_after or 0)

    def is_skipped(self, error: Exception) -> bool:
        """Whether `error` says that this very transaction has committed before."""
        return isinstance(error, AlreadyCommitted) and error.transaction == self._id


def refuse_unfinished(result: T, what: str) -> T:
    """What a coroutine function or a generator returns has not even begun: finishing now would finish nothing."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result):
            result.close()
        raise TypeError(f"{what} is a plain function here; landfast.aio takes coroutine functions")
    return result


def id_of_call(
    name: Optional[Callable[..., str]], args: tuple[object, ...], kwargs: dict[str, object]
) -> Optional[str]:
    """The id that a decorated function's call asks for."""
    return None if name is None else valid_id(name(*args, **kwargs))
