"""The blocking client: the one place where its parts are put together."""

from __future__ import annotations

import functools
import os
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any, Callable, Dict, Mapping, Optional, Protocol, Sequence, Type, TypeVar, Union, overload

from . import _ids
from ._after import After
from ._attempts import Attempts
from ._connection import Connections
from ._nodes import Route, nodes_from
from ._repeat import Limits
from ._requests import Value
from ._state import State, StateCalls
from ._workflow import OneByOne, Workflow, WorkflowCalls, run_call, run_step
from ._transact import RUNS_MAX, Runs, id_of_call, refuse_unfinished
from ._transaction import Transaction
from ._volumes import FileCalls, Files, VolumeCalls, Volumes

if TYPE_CHECKING:
    from typing_extensions import Concatenate, Literal, ParamSpec

    P = ParamSpec("P")
    Isolation = Literal["read-atomic", "serializable"]

T = TypeVar("T")
Urls = Union[str, Sequence[str], None]


class Transactional(Protocol):
    """The decorator that `transactional(...)` returns: it keeps the function's parameters,
    independently of those of `id`.
    """

    def __call__(self, function: Callable[Concatenate[Transaction, P], T], /) -> Callable[P, Optional[T]]: ...


@dataclass(frozen=True)
class Settings:
    """The settings of a client, for both kinds of client."""

    route: Route
    limits: Limits
    after: After
    headers: Mapping[str, str]
    ca: Optional[str] = None
    one_by_one: OneByOne = field(default_factory=OneByOne)

    @classmethod
    def of(cls, urls: Urls, token: Optional[str], timeout: float, ca: Optional[str] = None) -> Settings:
        if not timeout > 0:
            raise ValueError(f"a timeout of {timeout} s leaves no time for any call")
        headers: Dict[str, str] = {"User-Agent": "landfast-python/0.1.0"}
        token = os.environ.get("LANDFAST_TOKEN") if token is None else token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        ca = os.environ.get("LANDFAST_TLS_CA") if ca is None else ca
        return cls(Route(nodes_from(urls)), Limits(call_s=timeout), After(), headers, ca)

    def attempts(
        self, id: Optional[str], isolation: Optional[str], after: Optional[str], volume: Optional[str] = None
    ) -> Attempts:
        return Attempts(_ids.name_for(id), isolation, self.route, self.limits, self.after, after, volume)

    def state_calls(self) -> StateCalls:
        return StateCalls(self.route, self.limits, self.after)

    def volume_calls(self) -> VolumeCalls:
        return VolumeCalls(self.route, self.limits)

    def workflow_calls(self) -> WorkflowCalls:
        return WorkflowCalls(self.route, self.limits, self.one_by_one)


class Client:
    """A connection to one server or to a cluster of them; threads may share it."""

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
        """One attempt at a transaction, for use in `with`: commits at the end, aborts on an
        exception.

        Raises `AlreadyCommitted` instead of entering the block if `id` has committed before.
        Without `id`, one is derived from the current request (`landfast.request`), or drawn at
        random.

        With `volume`, its keys are the volume's own, and it is strictly serializable with all that
        happens on that volume. It sends no messages and no invocations. If `id` has committed
        before, the block runs, its writes are dropped, and the commit succeeds. Inside a function
        that has the volume mounted, it is a part of the invocation, and takes effect with it.
        """
        return Transaction(self._settings.attempts(id, isolation, after, volume), self._connections)

    def transact(
        self,
        body: Callable[[Transaction], T],
        *,
        id: Optional[str] = None,
        isolation: Optional[Isolation] = None,
        after: Optional[str] = None,
        volume: Optional[str] = None,
        runs_max: int = RUNS_MAX,
    ) -> Optional[T]:
        """Runs `body` in a transaction, repeatedly if necessary, and returns its result.

        If the id has committed before, skips the body and returns the first result, as JSON gives
        it back. A result that is no JSON, or over 64 KiB of it, is not kept, and neither is any
        result without an id: then returns None. The body runs again only after an attempt that had
        no effect. Its effects outside the transaction may then happen
        twice, so keep them few. The decision depends on the error of this transaction that left the
        body, or that was being handled when the body raised another one. An error that the body has
        handled before does not matter. An exception that the body raises after its own commit is
        raised to the caller.
        """
        attempts = self._settings.attempts(id, isolation, after, volume)
        transaction = Transaction(attempts, self._connections)
        runs = Runs(attempts, runs_max)
        while True:
            try:
                with transaction:
                    result = refuse_unfinished(body(transaction), "the body of a transaction")
                    transaction.keep(result)
                return result
            except Exception as error:
                skipped = runs.skipped(error)
                if skipped is not None:
                    first: Optional[T] = self._connections.drive(attempts.first_result(skipped))
                    return first
                pause = runs.pause_before_next(error)
                if pause is None:
                    raise
            time.sleep(pause)

    @overload
    def transactional(self, function: Callable[Concatenate[Transaction, P], T]) -> Callable[P, Optional[T]]: ...

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
        """Decorates a function whose first parameter is the transaction; callers leave that
        parameter out.

        `id` is a function of the same arguments that names the transaction of a call.
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

    def externalize(self) -> None:
        """Inside a step: makes its writes so far take effect, and returns once all effects of its
        run are durable.

        From then on this step may take effect more than once, if it is retried. Outside of a step
        there is nothing to wait for.
        """
        self._connections.drive(self._settings.workflow_calls().externalize())

    def invoke(self, function: str, payload: Any = None) -> Any:
        """Runs a deployed function and returns its result, never twice; raises `FunctionFailed` if
        it fails.

        Inside a step the function is outside of the run, so this externalizes first.
        """
        return self._connections.drive(self._settings.workflow_calls().invoke(function, payload))

    def call(self, function: str, input: Any = None) -> Any:
        """Inside a workflow's code: runs a deployed function as a step of the run, with the retries
        that the function configures.

        Raises `OutsideOfRun` elsewhere; `invoke` runs a function from anywhere.
        """
        return run_call(function, self._connections, self._settings.workflow_calls(), input)

    def send(self, queue: str, body: Value, *, group: Optional[str] = None) -> None:
        """Inside a step: sends a message once the step takes effect. Raises `OutsideOfRun`
        elsewhere; a transaction sends there.
        """
        self._connections.drive(self._settings.workflow_calls().send(queue, body, group))

    def run_step(self, name: str, body: Callable[[], T]) -> T:
        """Inside a workflow's code: runs `body` as a step, as `@landfast.step` does. Elsewhere it
        just runs.
        """
        result: T = run_step(name, self._connections, self._settings.workflow_calls(), body)
        return result

    def close(self) -> None:
        """Closes the connections; using the client again opens new ones."""
        self._connections.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self.close()


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
        def call(*args: Any, **kwargs: Any) -> Any:
            def body(transaction: Transaction) -> Any:
                return function(transaction, *args, **kwargs)

            name = id_of_call(id, args, kwargs)
            return client().transact(body, id=name, isolation=isolation, volume=volume, runs_max=runs_max)

        return call

    return decorate if function is None else decorate(function)


def connect(
    urls: Urls = None, *, token: Optional[str] = None, timeout: float = Limits.call_s, ca: Optional[str] = None
) -> Client:
    """A new client of `urls`, or else of LANDFAST_URL; several are separated by commas.

    `timeout` bounds one call in seconds, repeats included. If a response has begun by then, the
    client reads on while at least 64 KiB arrive in 10 s. A server may cut off a client that reads
    less than 32 KiB/s. Nothing is sent before the first call.

    `ca` is a PEM file with the authorities that sign the certificates of `https` servers, or else
    LANDFAST_TLS_CA, or else those of the system.
    """
    return Client(Settings.of(urls, token, timeout, ca))


_default: Optional[Client] = None
_default_lock = threading.Lock()


def default() -> Client:
    """The client that `landfast.transaction` and similar functions use, made at first use."""
    global _default
    with _default_lock:
        if _default is None:
            _default = connect()
        return _default
