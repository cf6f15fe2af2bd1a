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

if TYPE_CHECKING:
    from typing_extensions import Concatenate, Literal, ParamSpec

    P = ParamSpec("P")
    Isolation = Literal["read-atomic", "serializable"]

T = TypeVar("T")
Urls = Union[str, Sequence[str], None]


class Transactional(Protocol):
    """What `transactional(...)` decorates with: the parameters stay those of the function, whatever those of `id` are."""

    def __call__(self, function: Callable[Concatenate[Transaction, P], T], /) -> Callable[P, Optional[T]]: ...


@dataclass(frozen=True)
class Settings:
    """What a client was told, for both kinds of client."""

    route: Route
    limits: Limits
    after: After
    headers: Mapping[str, str]
    one_by_one: OneByOne = field(default_factory=OneByOne)

    @classmethod
    def of(cls, urls: Urls, token: Optional[str], timeout: float) -> Settings:
        if not timeout > 0:
            raise ValueError(f"a timeout of {timeout} s leaves no time for any call")
        headers: Dict[str, str] = {"User-Agent": "landfast-python/0.1.0"}
        token = os.environ.get("LANDFAST_TOKEN") if token is None else token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        return cls(Route(nodes_from(urls)), Limits(call_s=timeout), After(), headers)

    def attempts(self, id: Optional[str], isolation: Optional[str], after: Optional[str]) -> Attempts:
        return Attempts(_ids.name_for(id), isolation, self.route, self.limits, self.after, after)

    def state_calls(self) -> StateCalls:
        return StateCalls(self.route, self.limits, self.after)

    def workflow_calls(self) -> WorkflowCalls:
        return WorkflowCalls(self.route, self.limits, self.one_by_one)


class Client:
    """A connection to one server or to a cluster of them; threads may share it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._connections = Connections(settings.headers)

    def transaction(
        self, *, id: Optional[str] = None, isolation: Optional[Isolation] = None, after: Optional[str] = None
    ) -> Transaction:
        """One attempt at a transaction, for use in `with`: commits at the end, aborts on an exception.

        Raises `AlreadyCommitted` instead of entering the block if `id` has committed before. Without `id`, one is
        derived from the request that is being handled (`landfast.request`), or drawn at random.
        """
        return Transaction(self._settings.attempts(id, isolation, after), self._connections)

    def transact(
        self,
        body: Callable[[Transaction], T],
        *,
        id: Optional[str] = None,
        isolation: Optional[Isolation] = None,
        after: Optional[str] = None,
        runs_max: int = RUNS_MAX,
    ) -> Optional[T]:
        """Runs `body` in a transaction, again if it has to be, and returns what it returned.

        The body is skipped, and None returned, if the id has committed before. It runs again only after an attempt
        that had no effect: what it does outside the transaction may then happen twice, so let it do little. Whether
        it may, the error of this transaction says that left it, or that was being handled where another one was
        raised; one that it has dealt with before says nothing. What it raises after a commit of its own is raised.
        """
        attempts = self._settings.attempts(id, isolation, after)
        transaction = Transaction(attempts, self._connections)
        runs = Runs(attempts, runs_max)
        while True:
            try:
                with transaction:
                    result = refuse_unfinished(body(transaction), "the body of a transaction")
                return result
            except Exception as error:
                if runs.is_skipped(error):
                    return None
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
        runs_max: int = RUNS_MAX,
    ) -> Transactional: ...

    def transactional(
        self,
        function: Optional[Callable[..., Any]] = None,
        *,
        id: Optional[Callable[..., str]] = None,
        isolation: Optional[Isolation] = None,
        runs_max: int = RUNS_MAX,
    ) -> Any:
        """Makes a function whose first parameter is the transaction one that is called without it.

        `id` is a function of the same arguments that names the transaction of a call.
        """
        return transactional_with(lambda: self, function, id=id, isolation=isolation, runs_max=runs_max)

    def state(self) -> State:
        """Plain state: one key at a time, or a page of them, outside any transaction."""
        return State(self._settings.state_calls(), self._connections)

    def runs(self, workflow: str) -> Workflow:
        """A deployed workflow: its runs are begun, awaited, listed and cancelled there."""
        return Workflow(workflow, self._settings.workflow_calls(), self._connections)

    def externalize(self) -> None:
        """Inside a step: lets what it has written so far count, and returns once all that its run has done is durable.

        From then on this step may count more than once, if it is tried again. Elsewhere there is nothing to wait for.
        """
        self._connections.drive(self._settings.workflow_calls().externalize())

    def invoke(self, function: str, payload: Any = None) -> Any:
        """Runs a deployed function and returns what it answers, never twice; raises `FunctionFailed` if it fails.

        Inside a step the function is outside of the run, so this externalizes first.
        """
        return self._connections.drive(self._settings.workflow_calls().invoke(function, payload))

    def call(self, function: str, input: Any = None) -> Any:
        """Inside a workflow's code: has a deployed function run as a step of the run, tried as often as it says.

        Raises `OutsideOfRun` elsewhere; `invoke` runs a function from anywhere.
        """
        return run_call(function, self._connections, self._settings.workflow_calls(), input)

    def send(self, queue: str, body: Value, *, group: Optional[str] = None) -> None:
        """Inside a step: sends a message once the step counts. Raises `OutsideOfRun` elsewhere; a transaction sends there."""
        self._connections.drive(self._settings.workflow_calls().send(queue, body, group))

    def run_step(self, name: str, body: Callable[[], T]) -> T:
        """Inside a workflow's code: runs `body` as a step; what `@landfast.step` does. Elsewhere it just runs."""
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
    runs_max: int = RUNS_MAX,
) -> Any:
    """`transactional` over a client that is looked up at each call."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            def body(transaction: Transaction) -> Any:
                return function(transaction, *args, **kwargs)

            name = id_of_call(id, args, kwargs)
            return client().transact(body, id=name, isolation=isolation, runs_max=runs_max)

        return call

    return decorate if function is None else decorate(function)


def connect(urls: Urls = None, *, token: Optional[str] = None, timeout: float = Limits.call_s) -> Client:
    """A client of its own: of `urls`, else of LANDFAST_URL; several are separated by commas.

    `timeout` bounds one call in seconds, repeats included; an answer that has begun by then is waited for as long as it
    goes on coming, 64 KiB in 10 s at least; a server may cut off who reads less than 32 KiB/s. Nothing is sent before the
    first call.
    """
    return Client(Settings.of(urls, token, timeout))


_default: Optional[Client] = None
_default_lock = threading.Lock()


def default() -> Client:
    """The client that `landfast.transaction` and the like use, made at first use."""
    global _default
    with _default_lock:
        if _default is None:
            _default = connect()
        return _default
