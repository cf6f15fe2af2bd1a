"""Landfast: state for serverless functions.

    import landfast

    with landfast.transaction() as t:
        t.put("greeting", b"hello")

    @landfast.transactional(id=lambda order, amount: f"pay/{order}")
    def pay(t, order, amount): ...

Without a call of `connect`, the server is the one that LANDFAST_URL names (default http://127.0.0.1:7600).
The same for asyncio is in `landfast.aio`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, overload

from ._client import Client, connect, default, transactional_with
from ._ids import request
from ._problems import (
    AlreadyCommitted,
    ClockAhead,
    Conflict,
    Corrupt,
    Error,
    Expired,
    InvalidRequest,
    NoRoom,
    NoSuchFunction,
    NoSuchQueue,
    NoSuchTransaction,
    NoValidVersion,
    OutcomeUnknown,
    Refused,
    SeveralSequencers,
    SnapshotTooOld,
    TooLarge,
    TooManyTransactions,
    TooMuchBuffered,
    TransactionFinished,
    Unavailable,
    UnexpectedAnswer,
)
from ._state import State
from ._transact import RUNS_MAX
from ._transaction import Transaction

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    from ._client import Isolation

    P = ParamSpec("P")

T = TypeVar("T")

__all__ = [
    "AlreadyCommitted",
    "Client",
    "ClockAhead",
    "Conflict",
    "Corrupt",
    "Error",
    "Expired",
    "InvalidRequest",
    "NoRoom",
    "NoSuchFunction",
    "NoSuchQueue",
    "NoSuchTransaction",
    "NoValidVersion",
    "OutcomeUnknown",
    "Refused",
    "SeveralSequencers",
    "SnapshotTooOld",
    "State",
    "TooLarge",
    "TooManyTransactions",
    "TooMuchBuffered",
    "Transaction",
    "TransactionFinished",
    "Unavailable",
    "UnexpectedAnswer",
    "connect",
    "request",
    "state",
    "transact",
    "transaction",
    "transactional",
]


def transaction(
    *, id: Optional[str] = None, isolation: Optional[Isolation] = None, after: Optional[str] = None
) -> Transaction:
    """One attempt at a transaction; see `Client.transaction`."""
    return default().transaction(id=id, isolation=isolation, after=after)


def transact(
    body: Callable[[Transaction], T],
    *,
    id: Optional[str] = None,
    isolation: Optional[Isolation] = None,
    after: Optional[str] = None,
    runs_max: int = RUNS_MAX,
) -> Optional[T]:
    """Runs `body` in a transaction, again if it has to be; see `Client.transact`."""
    return default().transact(body, id=id, isolation=isolation, after=after, runs_max=runs_max)


@overload
def transactional(function: Callable[Concatenate[Transaction, P], T]) -> Callable[P, Optional[T]]: ...


@overload
def transactional(
    *, id: Optional[Callable[P, str]] = None, isolation: Optional[Isolation] = None, runs_max: int = RUNS_MAX
) -> Callable[[Callable[Concatenate[Transaction, P], T]], Callable[P, Optional[T]]]: ...


def transactional(function: Optional[Callable[..., Any]] = None, **options: Any) -> Any:
    """Makes a function's every call a transaction; see `Client.transactional`."""
    return transactional_with(default, function, **options)


def state() -> State:
    """Plain state: one key at a time, outside any transaction."""
    return default().state()


# Tracebacks name an exception as programs import it.
for _name in __all__:
    _found = globals()[_name]
    if isinstance(_found, type) and issubclass(_found, Error):
        _found.__module__ = __name__
