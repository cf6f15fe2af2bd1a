"""One test, two clients: a scenario is a coroutine, and runs over the blocking and over the asyncio client."""

import asyncio
import contextlib
import unittest.mock
from dataclasses import replace
from types import TracebackType
from typing import Any, Awaitable, Callable, Coroutine, Iterator, List, Optional, Sequence, Tuple, Type, TypeVar, Union

import pytest

import landfast
from cluster import GUARD_S, Cluster
from landfast import aio
from landfast._repeat import Limits

T = TypeVar("T")
RUN_S_MAX = 5 * GUARD_S


class BlockingTransaction:
    """A blocking transaction that can be awaited; it never lets another coroutine run."""

    def __init__(self, transaction: landfast.Transaction) -> None:
        self._transaction = transaction

    @property
    def id(self) -> str:
        return self._transaction.id

    @property
    def after(self) -> Optional[str]:
        return self._transaction.after

    async def get(self, key: Union[str, bytes]) -> Optional[bytes]:
        return self._transaction.get(key)

    async def put(self, key: Union[str, bytes], value: bytes) -> None:
        self._transaction.put(key, value)

    async def delete(self, key: Union[str, bytes]) -> None:
        self._transaction.delete(key)

    def files(self) -> Any:
        return Blocking(self._transaction.files())

    async def send(self, queue: str, body: bytes) -> None:
        self._transaction.send(queue, body)

    async def invoke(self, function: str, payload: bytes) -> None:
        self._transaction.invoke(function, payload)

    async def commit(self) -> None:
        self._transaction.commit()

    async def abort(self) -> None:
        self._transaction.abort()

    async def status(self) -> str:
        return self._transaction.status()

    async def __aenter__(self) -> "BlockingTransaction":
        self._transaction.__enter__()
        return self

    async def __aexit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._transaction.__exit__(kind, error, trace)


class BlockingState:
    def __init__(self, state: landfast.State) -> None:
        self._state = state

    async def get(self, key: Union[str, bytes]) -> Optional[bytes]:
        return self._state.get(key)

    async def scan(
        self, prefix: Union[str, bytes] = b"", *, after: Union[str, bytes, None] = None, limit: int = 100
    ) -> landfast.Page:
        return self._state.scan(prefix, after=after, limit=limit)

    async def get_with_etag(self, key: Union[str, bytes]) -> Optional[landfast.Versioned]:
        return self._state.get_with_etag(key)

    async def put(self, key: Union[str, bytes], value: bytes, **condition: Any) -> Optional[str]:
        return self._state.put(key, value, **condition)

    async def delete(self, key: Union[str, bytes], **condition: Any) -> None:
        self._state.delete(key, **condition)


class BlockingWorkflow:
    def __init__(self, workflow: landfast.Workflow) -> None:
        self._workflow = workflow

    async def run(self, input: Any = None, *, id: Optional[str] = None, wait: float = 0) -> landfast.Run:
        return self._workflow.run(input, id=id, wait=wait)

    async def get(self, run: str, *, wait: float = 0) -> landfast.Run:
        return self._workflow.get(run, wait=wait)

    async def list(
        self, *, status: Optional[str] = None, after: Optional[str] = None
    ) -> Tuple[List[landfast.Run], Optional[str]]:
        return self._workflow.list(status=status, after=after)

    async def cancel(self, run: str) -> landfast.Run:
        return self._workflow.cancel(run)


class Blocking:
    """The methods of an object, to be awaited."""

    def __init__(self, of: Any) -> None:
        self._of = of

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        async def call(*arguments: Any, **options: Any) -> Any:
            return getattr(self._of, name)(*arguments, **options)

        return call


class BlockingClient:
    def __init__(self, client: landfast.Client) -> None:
        self._client = client

    def transaction(self, **options: Any) -> BlockingTransaction:
        return BlockingTransaction(self._client.transaction(**options))

    async def transact(self, body: Callable[["Transaction"], Coroutine[Any, Any, T]], **options: Any) -> Optional[T]:
        return self._client.transact(lambda t: at_once(body(BlockingTransaction(t))), **options)

    def state(self) -> BlockingState:
        return BlockingState(self._client.state())

    def volumes(self) -> Any:
        return Blocking(self._client.volumes())

    def files(self, volume: str) -> Any:
        return Blocking(self._client.files(volume))

    def runs(self, workflow: str) -> BlockingWorkflow:
        return BlockingWorkflow(self._client.runs(workflow))

    async def externalize(self) -> None:
        self._client.externalize()

    async def invoke(self, function: str, payload: Any = None) -> Any:
        return self._client.invoke(function, payload)

    async def call(self, function: str, input: Any = None) -> Any:
        return self._client.call(function, input)

    async def send(self, queue: str, body: bytes, *, group: Optional[str] = None) -> None:
        self._client.send(queue, body, group=group)

    async def run_step(self, name: str, body: Callable[[], Coroutine[Any, Any, T]]) -> T:
        return self._client.run_step(name, lambda: at_once(body()))


Transaction = Union[BlockingTransaction, aio.Transaction]
Client = Union[BlockingClient, aio.Client]


def at_once(coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    raise AssertionError("a blocking scenario waited for something")


async def with_client(kind: str, url: str, scenario: Callable[[Any], Awaitable[None]], timeout: float = GUARD_S) -> None:
    """Runs `scenario` with a client of that kind."""
    if kind == "blocking":
        with landfast.connect(url, timeout=timeout) as client:
            await scenario(BlockingClient(client))
    else:
        async with aio.connect(url, timeout=timeout) as client_of_loop:
            await asyncio.wait_for(scenario(client_of_loop), RUN_S_MAX)


@contextlib.contextmanager
def hurried(seconds: float) -> Iterator[None]:
    """Bounds each call meanwhile, so that only those that are to run out of time do."""
    with unittest.mock.patch.object(Limits, "for_body", lambda limits, body_bytes: replace(limits, call_s=seconds)):
        yield


def over(
    nodes: int = 1, timeout: float = GUARD_S, kinds: Sequence[str] = ("blocking", "asyncio")
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Makes a scenario of a client and its cluster a test over both kinds of client."""

    def decorate(scenario: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        @pytest.mark.parametrize("kind", kinds)
        def run(kind: str) -> None:
            with Cluster(nodes) as servers:
                asyncio.run(with_client(kind, servers.url, lambda client: scenario(client, servers), timeout))

        run.__name__ = scenario.__name__
        run.__doc__ = scenario.__doc__
        return run

    return decorate
