"""Landfast for asyncio: the names of `landfast`, to be awaited.

    from landfast import aio

    async with aio.transaction() as t:
        await t.put("greeting", b"hello")

Errors and `request` are those of `landfast`. `aio.workflow` makes a handler of a coroutine
function, whether or not it calls steps:

    @aio.step
    async def charge(order): ...

    @aio.workflow
    async def order(event, context):
        receipt = await charge(event["order"])
        return await aio.call("ship", receipt)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Awaitable, Callable, Coroutine, Optional, TypeVar, overload

from .._requests import Value
from .._transact import RUNS_MAX
from ._client import Client, connect, default, transactional_with
from ._state import State
from ._transaction import Transaction
from ._volumes import Files, Volumes
from ._workflow import Workflow, step_with, workflow_with

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    from .._client import Isolation
    from ._client import Transactional

    P = ParamSpec("P")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Coroutine[Any, Any, Any]])

__all__ = [
    "Client",
    "Files",
    "State",
    "Transaction",
    "Volumes",
    "Workflow",
    "call",
    "close",
    "connect",
    "externalize",
    "files",
    "invoke",
    "runs",
    "send",
    "state",
    "step",
    "transact",
    "transaction",
    "transactional",
    "volumes",
    "workflow",
]


def transaction(
    *,
    id: Optional[str] = None,
    isolation: Optional[Isolation] = None,
    after: Optional[str] = None,
    volume: Optional[str] = None,
) -> Transaction:
    """One attempt at a transaction; called inside a coroutine. See `landfast.transaction`."""
    return default().transaction(id=id, isolation=isolation, after=after, volume=volume)


async def transact(
    body: Callable[[Transaction], Awaitable[T]],
    *,
    id: Optional[str] = None,
    isolation: Optional[Isolation] = None,
    after: Optional[str] = None,
    volume: Optional[str] = None,
    runs_max: int = RUNS_MAX,
) -> Optional[T]:
    """Awaits `body` in a transaction, repeatedly if necessary; see `landfast.transact`."""
    return await default().transact(body, id=id, isolation=isolation, after=after, volume=volume, runs_max=runs_max)


@overload
def transactional(
    function: Callable[Concatenate[Transaction, P], Awaitable[T]],
) -> Callable[P, Coroutine[Any, Any, Optional[T]]]: ...


@overload
def transactional(
    *,
    id: Optional[Callable[..., str]] = None,
    isolation: Optional[Isolation] = None,
    volume: Optional[str] = None,
    runs_max: int = RUNS_MAX,
) -> Transactional: ...


def transactional(
    function: Optional[Callable[..., Any]] = None,
    *,
    id: Optional[Callable[..., str]] = None,
    isolation: Optional[Isolation] = None,
    volume: Optional[str] = None,
    runs_max: int = RUNS_MAX,
) -> Any:
    """Makes every call of a coroutine function a transaction; see `landfast.transactional`."""
    return transactional_with(default, function, id=id, isolation=isolation, volume=volume, runs_max=runs_max)


def state() -> State:
    """Plain state: one key at a time, or a page of them; called inside a coroutine."""
    return default().state()


def volumes() -> Volumes:
    """The volumes of files: their list, quotas, snapshots and clones."""
    return default().volumes()


def files(volume: str) -> Files:
    """The files of a volume."""
    return default().files(volume)


def runs(workflow: str) -> Workflow:
    """The runs of a deployed workflow; called inside a coroutine. See `landfast.Client.runs`."""
    return default().runs(workflow)


async def externalize() -> None:
    """Makes a step's writes so far take effect, and waits until all effects of its run are durable;
    see `landfast.Client.externalize`.
    """
    await default().externalize()


async def invoke(function: str, payload: Any = None) -> Any:
    """Runs a deployed function and returns its result; see `landfast.Client.invoke`."""
    return await default().invoke(function, payload)


async def call(function: str, input: Any = None) -> Any:
    """Runs a deployed function as a step of the workflow that calls this; see
    `landfast.Client.call`.
    """
    return await default().call(function, input)


async def send(queue: str, body: Value, *, group: Optional[str] = None) -> None:
    """Sends a message once the calling step takes effect; see `landfast.Client.send`."""
    await default().send(queue, body, group=group)


@overload
def step(function: F) -> F: ...


@overload
def step(*, name: Optional[str] = None) -> Callable[[F], F]: ...


def step(function: Optional[Callable[..., Any]] = None, *, name: Optional[str] = None) -> Any:
    """Makes a coroutine function a step of the workflow that awaits it: each call takes effect
    once, together with its writes.

    The code must await its steps one after the other. Arguments and result must be JSON as far as
    they are kept.
    """
    return step_with(default, function, name)


def workflow(function: Callable[[Any, Any], Coroutine[Any, Any, T]]) -> Callable[[Any, Any], T]:
    """Makes a coroutine function a handler, as runtimes call it: each invocation runs in its own
    event loop.
    """
    return workflow_with(close, function)


async def close() -> None:
    """Closes the connections of the running event loop's default client, before its loop ends."""
    await default().close()


# Tracebacks and help name a class as programs import it.
for _name in __all__:
    _found = globals()[_name]
    if isinstance(_found, type):
        _found.__module__ = __name__
