"""The asyncio client: the one place where its parts are put together."""

from __future__ import annotations

import asyncio
import functools
import weakref
from types import TracebackType
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Coroutine, Optional, Protocol, Type, TypeVar, overload

from .._client import Settings, Urls
from .._repeat import Limits
from .._requests import Value
from .._transact import RUNS_MAX, Runs, id_of_call
from .._volumes import FileCalls
from ._connection import Connections
from ._state import State
from ._transaction import Transaction
from ._volumes import Files, Volumes
from ._workflow import Workflow, run_call, run_step

if TYPE_CHECKING:
    from typing_extensions import Concatenate, ParamSpec

    from .._client import Isolation

    P = ParamSpec("P")

T = TypeVar("T")


class Transactional(Protocol):
    """As in the blocking client: keeps the function's parameters, independently of those of `id`."""

    def __call__(
        self, function: Callable[Concatenate[Transaction, P], Awaitable[T]], /
    ) -> Callable[P, Coroutine[Any, Any, Optional[T]]]: ...


class Client:
    """As `landfast.Client`; tasks of one event loop may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connections = Connections(settings.headers, settings.ca)

    def transaction(
        self,
        *,
        id: Optional[str] = None,
        isolation: Optional[Isolation] = None,
        after: Optional[str] = None,
        volume: Optional[str] = None,
    ) -> Transaction:
        """One attempt at a transaction, for use in `async with`; see `landfast.Client.transaction`."""
        return Transaction(self._settings.attempts(id, isolation, after, volume), self._connections)

    async def transact(
        self,
        body: Callable[[Transaction], Awaitable[T]],
        *,
        id: Optional[str] = None,
        isolation: Optional[Isolation] = None,
        after: Optional[str] = None,
        volume: Optional[str] = None,
        runs_max: int = RUNS_MAX,
    ) -> Optional[T]:
        """Awaits `body` in a transaction, repeatedly if necessary; see `landfast.Client.transact`."""
        attempts = self._settings.attempts(id, isolation, after, volume)
        transaction = Transaction(attempts, self._connections)
        runs = Runs(attempts, runs_max)
        while True:
            try:
                async with transaction:
                    result = await body(transaction)
                    transaction.keep(result)
                return result
            except Exception as error:
                skipped = runs.skipped(error)
                if skipped is not None:
                    first: Optional[T] = await self._connections.drive(attempts.first_result(skipped))
                    return first
                pause = runs.pause_before_next(error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)

    @overload
    def transactional(
        self, function: Callable[Concatenate[Transaction, P], Awaitable[T]]
    ) -> Callable[P, Coroutine[Any, Any, Optional[T]]]: ...

    @overload
    def transactional(
        self,
        *,
        id: Optional[Callable[..., str]] = None,
        isolation: Optional[Isolation] = None,
        volume: Optional[str] = None,
        runs_max: int = RUNS_MAX,
    ) -> Transactional: ...

    def transactional(
        self,
        function: Optional[Callable[..., Any]] = None,
        *,
        id: Optional[Callable[..., str]] = None,
        isolation: Optional[Isolation] = None,
        volume: Optional[str] = None,
        runs_max: int = RUNS_MAX,
    ) -> Any:
        """Makes every call of a coroutine function a transaction; see
        `landfast.Client.transactional`.
        """
        return transactional_with(lambda: self, function, id=id, isolation=isolation, volume=volume, runs_max=runs_max)

    def state(self) -> State:
        """Plain state: one key at a time, or a page of them, outside any transaction."""
        return State(self._settings.state_calls(), self._connections)

    def volumes(self) -> Volumes:
        """The volumes of files: their list, quotas, snapshots and clones."""
        return Volumes(self._settings.volume_calls(), self._connections)

    def files(self, volume: str) -> Files:
        """The files of a volume."""
        return Files(FileCalls(self._settings.volume_calls(), volume), self._connections)

    def runs(self, workflow: str) -> Workflow:
        """A deployed workflow, with methods to begin, await, list and cancel its runs."""
        return Workflow(workflow, self._settings.workflow_calls(), self._connections)

    async def externalize(self) -> None:
        """Inside a step: makes its writes so far take effect, and returns once that is durable; see
        `landfast.Client.externalize`.
        """
        await self._connections.drive(self._settings.workflow_calls().externalize())

    async def invoke(self, function: str, payload: Any = None) -> Any:
        """Runs a deployed function and returns its result, never twice; see
        `landfast.Client.invoke`.
        """
        return await self._connections.drive(self._settings.workflow_calls().invoke(function, payload))

    async def call(self, function: str, input: Any = None) -> Any:
        """Inside a workflow's code: runs a deployed function as a step of the run; see
        `landfast.Client.call`.
        """
        return await run_call(function, self._connections, self._settings.workflow_calls(), input)

    async def send(self, queue: str, body: Value, *, group: Optional[str] = None) -> None:
        """Inside a step: sends a message once the step takes effect; see `landfast.Client.send`."""
        await self._connections.drive(self._settings.workflow_calls().send(queue, body, group))

    async def run_step(self, name: str, body: Callable[[], Awaitable[T]]) -> T:
        """Inside a workflow's code: awaits `body` as a step, as `@aio.step` does. Elsewhere it is
        just awaited.
        """
        result: T = await run_step(name, self._connections, self._settings.workflow_calls(), body)
        return result

    async def close(self) -> None:
        """Closes the connections; using the client again opens new ones."""
        await self._connections.close()

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        await self.close()


def transactional_with(
    client: Callable[[], Client],
    function: Optional[Callable[..., Any]],
    *,
    id: Optional[Callable[..., str]] = None,
    isolation: Optional[Isolation] = None,
    volume: Optional[str] = None,
    runs_max: int = RUNS_MAX,
) -> Any:
    """`transactional` over a client that is looked up at each call."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        async def call(*args: Any, **kwargs: Any) -> Any:
            async def body(transaction: Transaction) -> Any:
                return await function(transaction, *args, **kwargs)

            name = id_of_call(id, args, kwargs)
            return await client().transact(body, id=name, isolation=isolation, volume=volume, runs_max=runs_max)

        return call

    return decorate if function is None else decorate(function)


def connect(
    urls: Urls = None, *, token: Optional[str] = None, timeout: float = Limits.call_s, ca: Optional[str] = None
) -> Client:
    """A client of its own; see `landfast.connect`. Close it, or use it in `async with`."""
    return Client(Settings.of(urls, token, timeout, ca))


_defaults: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Client] = weakref.WeakKeyDictionary()


def default() -> Client:
    """The client of the running event loop, made at first use."""
    loop = asyncio.get_running_loop()
    if loop not in _defaults:
        _defaults[loop] = connect()
    return _defaults[loop]
