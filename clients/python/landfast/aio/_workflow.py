"""Workflows, for asyncio."""

from __future__ import annotations

import asyncio
import functools
from typing import Any, Awaitable, Callable, Coroutine, List, Optional, Tuple, TypeVar, cast

from .._problems import RunInterrupted, TooLarge, interruption_in
from .._repeat import Steps
from .._workflow import Opened, Run, WorkflowCalls, encode, name_of_step
from ._connection import Connections

R = TypeVar("R")
T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])


class Workflow:
    """As `landfast.Workflow`: a deployed workflow."""

    def __init__(self, name: str, calls: WorkflowCalls, connections: Connections) -> None:
        self.name = name
        self._calls = calls
        self._connections = connections

    async def run(self, input: Any = None, *, id: Optional[str] = None, wait: float = 0) -> Run:
        """Begins a run, or finds the one that was begun under `id`, and waits for its end up to
        `wait` seconds, 900 at the most.

        In a function, a run without an `id` gets one from its position, so that a retry of the
        function finds it. Elsewhere a repeat after a lost response begins another run; give an `id`
        where that matters.
        """
        return await self._connections.drive(self._calls.begin(self.name, input, id, wait))

    async def get(self, run: str, *, wait: float = 0) -> Run:
        """The run, once it has ended or `wait` seconds are over, 900 at the most."""
        return await self._connections.drive(self._calls.get(self.name, run, wait))

    async def list(self, *, status: Optional[str] = None, after: Optional[str] = None) -> Tuple[List[Run], Optional[str]]:
        """Some runs after the run `after`, in the order of their ids, and where to go on; None:
        those were all.
        """
        return await self._connections.drive(self._calls.list(self.name, status, after))

    async def cancel(self, run: str) -> Run:
        """Ends a run; the writes of its steps stay."""
        return await self._connections.drive(self._calls.cancel(self.name, run))


async def drive_whole(connections: Connections, steps: Steps[T]) -> T:
    """If a request for a step is broken off, the outcome is unknown, so the code does not go on."""
    try:
        return await connections.drive(steps)
    except asyncio.CancelledError as cancelled:
        raise RunInterrupted("it was cancelled while a step was asked for") from cancelled


async def run_step(
    name: str, connections: Connections, calls: WorkflowCalls, body: Callable[[], Awaitable[Any]]
) -> Any:
    """Awaits `body` as the next step of the current workflow run, or returns the step's recorded
    result. Outside of a run the body is an ordinary function.
    """
    with calls.one_by_one.place(name) as place:
        while (other := place.take()) is not None:
            if await asyncio.wrap_future(other.is_of_run):
                place.refuse()
        opened = await drive_whole(connections, calls.open_step(name))
        place.answered(is_of_run=opened is not None)
        if opened is not None:
            return await _run_opened(name, opened, connections, calls, body)
    return await body()


async def run_call(name: str, connections: Connections, calls: WorkflowCalls, input: Any) -> Any:
    """Runs a deployed function as the next step."""
    call = calls.call(name, input)
    with calls.one_by_one.step(name):
        return await drive_whole(connections, call)


async def _run_opened(
    name: str, opened: Opened, connections: Connections, calls: WorkflowCalls, body: Callable[[], Awaitable[Any]]
) -> Any:
    if opened.token is None:
        return opened.result()
    with opened.as_current():
        try:
            output = encode(await body())
        except BaseException as error:
            if (interruption := interruption_in(error)) is not None:
                raise interruption
            # This includes exceptions that are no `Exception`, such as an exit or a cancellation:
            # when the code runs again it gets this, too.
            raise await drive_whole(connections, calls.fail_step(name, error)) from error
        try:
            return await drive_whole(connections, calls.finish_step(name, output))
        except TooLarge as error:
            raise await drive_whole(connections, calls.fail_step(name, error)) from error


def step_with(client: Callable[[], Any], function: Optional[F], name: Optional[str]) -> Any:
    """`step` over a client that is looked up at each call."""

    def decorate(function: F) -> F:
        called = name_of_step(function, name)

        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            return await client().run_step(called, lambda: function(*args, **kwargs))

        return cast(F, call)

    return decorate if function is None else decorate(function)


def workflow_with(
    close: Callable[[], Awaitable[None]], function: Callable[[Any, Any], Coroutine[Any, Any, R]]
) -> Callable[[Any, Any], R]:
    """A handler, as runtimes call it, that runs `function` in an event loop of its own."""

    async def whole(event: Any, context: Any) -> R:
        try:
            return await function(event, context)
        finally:
            await close()

    @functools.wraps(function)
    def handler(event: Any, context: Any) -> R:
        return asyncio.run(whole(event, context))

    return handler
