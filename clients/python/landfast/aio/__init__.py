"""Landfast for asyncio: the names of `landfast`, to be awaited.

    from landfast import aio

    async with aio.transaction() as t:
        await t.put("greeting", b"hello")

Errors and `request` are those of `landfast`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Awaitable, Callable, Optional, TypeVar, overload

from .._transact import RUNS_MAX
from ._client import Client, connect, default, transactional_with
from ._state import State
from ._transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    from .._client import Isolation

    P = ParamSpec("P")

T = TypeVar("T")

__all__ = ["Client", "State", "Transaction", "close", "connect", "state", "transact", "transaction", "transactional"]


def transaction(
    *, id: Optional[str] = None, isolation: Optional[Isolation] = None, after: Optional[str] = None
) -> Transaction:
    """One attempt at a transaction; called inside a coroutine. See `landfast.transaction`."""
    return default().transaction(id=id, isolation=isolation, after=after)


async def transact(
    body: Callable[[Transaction], Awaitable[T]],
    *,
    id: Optional[str] = None,
    isolation: Optional[Isolation] = None,
    after: Optional[str] = None,
    runs_max: int = RUNS_MAX,
) -> Optional[T]:
    """Awaits `body` in a transaction, again if it has to be; see `landfast.transact`."""
    return await default().transact(body, id=id, isolation=isolation, after=after, runs_max=runs_max)


@overload
def transactional(
    function: Callable[Concatenate[Transaction, P], Awaitable[T]],
) -> Callable[P, Awaitable[Optional[T]]]: ...


@overload
def transactional(
    *, id: Optional[Callable[P, str]] = None, isolation: Optional[Isolation] = None, runs_max: int = RUNS_MAX
) -> Callable[[Callable[Concatenate[Transaction, P], Awaitable[T]]], Callable[P, Awaitable[Optional[T]]]]: ...


def transactional(function: Optional[Callable[..., Any]] = None, **options: Any) -> Any:
    """Makes a coroutine function's every call a transaction; see `landfast.transactional`."""
    return transactional_with(default, function, **options)


def state() -> State:
    """Plain state: one key at a time; called inside a coroutine."""
    return default().state()


async def close() -> None:
    """Closes the connections of the running event loop's default client, before its loop ends."""
    await default().close()
