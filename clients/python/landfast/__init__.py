"""Landfast: state for serverless functions.

    import landfast

    with landfast.transaction() as t:
        t.put("greeting", b"hello")

    @landfast.transactional(id=lambda order, amount: f"pay/{order}")
    def pay(t, order, amount): ...

Without a call of `connect`, the server is the one that LANDFAST_URL names (default
http://127.0.0.1:7600). `landfast.aio` is the same for asyncio.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, overload

from ._client import Client, connect, default, transactional_with
from ._workflow import Run, Workflow, step_with, workflow
from ._ids import request
from ._problems import (
    AlreadyCommitted,
    AttemptEnded,
    ClockAhead,
    ConditionNotMet,
    Conflict,
    Corrupt,
    Error,
    Expired,
    FileConflict,
    FunctionFailed,
    InvalidRequest,
    NoRoom,
    NoSuchFile,
    NoSuchFunction,
    NoSuchQueue,
    NoSuchRun,
    NoSuchSnapshot,
    NoSuchTransaction,
    NoSuchVolume,
    NoSuchWorkflow,
    NoValidVersion,
    OutcomeUnknown,
    OutsideOfRun,
    QuotaExceeded,
    Refused,
    RunInterrupted,
    SeveralSequencers,
    SnapshotTooOld,
    StepFailed,
    TooLarge,
    TooManyRuns,
    TooManyTransactions,
    TooMuchBuffered,
    TransactionFinished,
    Unavailable,
    UnexpectedAnswer,
    VolumeExists,
    VolumeInUse,
)
from ._requests import Value
from ._state import Page, State, Versioned
from ._transact import RUNS_MAX
from ._transaction import Transaction
from ._volumes import Entry, EntryPage, Files, Part, Volume, Volumes

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    from ._client import Isolation, Transactional

    P = ParamSpec("P")

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

__all__ = [
    "AlreadyCommitted",
    "AttemptEnded",
    "Client",
    "ClockAhead",
    "ConditionNotMet",
    "Conflict",
    "Corrupt",
    "Entry",
    "EntryPage",
    "Error",
    "Expired",
    "FileConflict",
    "Files",
    "FunctionFailed",
    "InvalidRequest",
    "NoRoom",
    "NoSuchFile",
    "NoSuchFunction",
    "NoSuchQueue",
    "NoSuchRun",
    "NoSuchSnapshot",
    "NoSuchTransaction",
    "NoSuchVolume",
    "NoSuchWorkflow",
    "NoValidVersion",
    "OutcomeUnknown",
    "OutsideOfRun",
    "Page",
    "Part",
    "QuotaExceeded",
    "Refused",
    "Run",
    "RunInterrupted",
    "SeveralSequencers",
    "SnapshotTooOld",
    "State",
    "StepFailed",
    "TooLarge",
    "TooManyRuns",
    "TooManyTransactions",
    "TooMuchBuffered",
    "Transaction",
    "TransactionFinished",
    "Unavailable",
    "UnexpectedAnswer",
    "Versioned",
    "Volume",
    "VolumeExists",
    "VolumeInUse",
    "Volumes",
    "Workflow",
    "call",
    "connect",
    "externalize",
    "files",
    "invoke",
    "request",
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
    """One attempt at a transaction; see `Client.transaction`."""
    return default().transaction(id=id, isolation=isolation, after=after, volume=volume)


def transact(
    body: Callable[[Transaction], T],
    *,
    id: Optional[str] = None,
    isolation: Optional[Isolation] = None,
    after: Optional[str] = None,
    volume: Optional[str] = None,
    runs_max: int = RUNS_MAX,
) -> Optional[T]:
    """Runs `body` in a transaction, repeatedly if necessary; see `Client.transact`."""
    return default().transact(body, id=id, isolation=isolation, after=after, volume=volume, runs_max=runs_max)


@overload
def transactional(function: Callable[Concatenate[Transaction, P], T]) -> Callable[P, Optional[T]]: ...


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
    """Makes every call of a function a transaction; see `Client.transactional`."""
    return transactional_with(default, function, id=id, isolation=isolation, volume=volume, runs_max=runs_max)


def state() -> State:
    """Plain state: one key at a time, or a page of them, outside any transaction."""
    return default().state()


def volumes() -> Volumes:
    """The volumes of files: their list, quotas, snapshots and clones."""
    return default().volumes()


def files(volume: str) -> Files:
    """The files of a volume."""
    return default().files(volume)


def runs(workflow: str) -> Workflow:
    """The runs of a deployed workflow; see `Client.runs`."""
    return default().runs(workflow)


def externalize() -> None:
    """Makes a step's writes so far take effect, and waits until all effects of its run are durable;
    see `Client.externalize`.
    """
    default().externalize()


def invoke(function: str, payload: Any = None) -> Any:
    """Runs a deployed function and returns its result; see `Client.invoke`."""
    return default().invoke(function, payload)


def call(function: str, input: Any = None) -> Any:
    """Runs a deployed function as a step of the workflow that calls this; see `Client.call`."""
    return default().call(function, input)


def send(queue: str, body: Value, *, group: Optional[str] = None) -> None:
    """Sends a message once the calling step takes effect; see `Client.send`."""
    default().send(queue, body, group=group)


@overload
def step(function: F) -> F: ...


@overload
def step(*, name: Optional[str] = None) -> Callable[[F], F]: ...


def step(function: Optional[Callable[..., Any]] = None, *, name: Optional[str] = None) -> Any:
    """Makes a function a step of the workflow that calls it: each call takes effect once, together
    with its writes.

    Arguments and result must be JSON as far as they are kept. Outside of a run, such as in a test,
    it remains an ordinary function.
    """
    return step_with(default, function, name)


# Tracebacks and help name a class as programs import it.
for _name in __all__:
    _found = globals()[_name]
    if isinstance(_found, type):
        _found.__module__ = __name__
