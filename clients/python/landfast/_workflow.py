"""Workflows: beginning, awaiting, listing and cancelling runs; and the calls of a step's code
within its run.

Inside a function that runs as a step, `landfast.state()` is the state of the run. Only the step's
attempt sees its writes. They take effect once, together with the step's result, when the function
returns. `externalize` makes them take effect at once.

A function that *is* a workflow calls steps as ordinary functions:

    @landfast.step
    def charge(order): ...

    @landfast.workflow
    def order(event, context):
        receipt = charge(event["order"])
        return landfast.call("ship", receipt)

Each call of a step takes effect once, together with its writes, however often the workflow's own
code runs again: later runs return the recorded result. So that code must call the same steps in the
same order, whenever it runs. A step that failed raises `StepFailed`. If the code goes on after
that, the step raises it again whenever the code runs.
"""

from __future__ import annotations

import contextlib
import functools
import json
import threading
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Optional, Tuple, TypeVar, cast

from . import _ids, _requests
from ._connection import Connections
from ._nodes import Route
from ._problems import AttemptEnded, Error, FunctionFailed, OutsideOfRun, RunInterrupted, StepFailed, TooLarge, interruption_in
from ._repeat import Limits, Steps, exchange
from ._requests import Call, Value
from ._transact import refuse_unfinished

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_S = 900.0
"""Upper bound on the duration of a function."""
_WAIT_MAX_S = 900.0
"""The longest that a server waits for the end of a run before it reports the run's state."""
_REPLY_SLACK_S = 10.0
_MESSAGE_CHARACTERS_MAX = 1_000_000
"""The most characters of a message that the client sends. The server keeps the beginning of those,
and records their length there: a still longer message is recorded with this length.
"""


@dataclass(frozen=True)
class Run:
    """A run, as reported by the server; the report is durable."""

    run: str
    status: str
    """`running`, `succeeded`, `failed` or `cancelled`."""
    output: Any = None
    error: Optional[Dict[str, Any]] = None
    """Why it failed: `step`, `errorType`, `errorMessage`."""
    began_ms: int = 0
    ended_ms: Optional[int] = None

    @classmethod
    def of(cls, found: Dict[str, Any]) -> Run:
        known = {name: found[name] for name in cls.__dataclass_fields__ if name in found}
        return cls(**known)


@dataclass(frozen=True)
class Opened:
    """A step that the code has begun: to be run, or already done."""

    token: Optional[str]
    """The step's credential in its requests while it runs; None if it has already taken effect."""
    output: Any = None
    """Its result, if it has already taken effect."""
    failure: Optional[StepFailed] = None
    """Its failure, if that has already been recorded."""
    id: str = ""
    """The id that every attempt of it shares: transactions that it begins derive their ids from it."""

    def result(self) -> Any:
        """The recorded result."""
        if self.failure is not None:
            raise self.failure
        return self.output

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """Requests inside this context belong to this step."""
        assert self.token is not None, "it is to be done"
        token = _requests.CURRENT_STEP.set(self.token)
        under_way = (threading.get_ident(), self.token)
        _requests.OPEN_STEPS.append(under_way)
        try:
            with _ids.request(self.id):
                yield
        finally:
            # Not always the last one: steps of several threads do not end in the order in which
            # they began.
            _requests.OPEN_STEPS.remove(under_way)
            _requests.CURRENT_STEP.reset(token)


@contextlib.contextmanager
def or_interrupted() -> Iterator[None]:
    """The request for a step gets a response, or the code does not go on: on the next run it would
    find another result in its place.
    """
    try:
        yield
    except (AttemptEnded, FunctionFailed, OutsideOfRun, StepFailed, TooLarge):
        raise
    except Error as error:
        raise RunInterrupted(str(error)) from error


class OneByOne:
    """The code that has a step in progress. The next step must wait for its end. The number of
    steps that the code has begun before identifies a step. So of two concurrent steps, chance would
    decide which one takes the other's result when the code runs again.
    """

    def __init__(self) -> None:
        self._under_way: Dict[Optional[str], Place] = {}
        self._lock = threading.Lock()

    def place(self, name: str) -> Place:
        """The place for the next step of the calling code, in a step or not. The caller must take
        it.
        """
        return Place(name, self._under_way, self._lock)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The same for a step that always belongs to a run: takes the place, or refuses."""
        with self.place(name) as place:
            if place.take() is not None:
                place.refuse()
            place.answered(is_of_run=True)
            yield


class Place:
    """The place of the one step that may be in progress in its code.

    Outside of runs, steps may be concurrent, but only the server knows whether they are outside. So
    the holder of the place asks the server, and others wait for the response.
    """

    def __init__(self, name: str, under_way: Dict[Optional[str], Place], lock: threading.Lock) -> None:
        self._name = name
        self._code = _requests.current_step()
        self._under_way = under_way
        self._lock = lock
        self.thread = threading.get_ident()
        self.is_of_run: Future[bool] = Future()
        """Whether its code belongs to a run. True also where the client never learned that."""
        # A waiter that is cancelled does not cancel it.
        self.is_of_run.set_running_or_notify_cancel()

    def take(self) -> Optional[Place]:
        """The current holder; None if this call has taken the place."""
        with self._lock:
            other = self._under_way.setdefault(self._code, self)
        return None if other is self else other

    def answered(self, is_of_run: bool) -> None:
        """The server has answered; outside of a run the place is released."""
        if not is_of_run:
            self._leave()
        self.is_of_run.set_result(is_of_run)

    def refuse(self) -> None:
        """Another step holds the place, in a run."""
        raise RuntimeError(
            f"the step {self._name!r} is called while another one of the same code is under way: await them one after the other, "
            "or have them run side by side by `parallel` or `map` in the manifest"
        )

    def _leave(self) -> None:
        with self._lock:
            if self._under_way.get(self._code) is self:
                del self._under_way[self._code]

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *error: object) -> None:
        self._leave()
        if not self.is_of_run.done():
            self.is_of_run.set_result(True)


@contextlib.contextmanager
def or_whole() -> Iterator[None]:
    """If a request for a step is interrupted, the outcome is unknown, so the code does not go on.

    A signal handler may raise any exception, including one that the code handles as a failure of
    the step.
    """
    try:
        yield
    except (Error, RunInterrupted):
        raise
    except BaseException as interruption:
        raise RunInterrupted(f"it was interrupted while a step was asked for: {interruption!r}") from interruption


class WorkflowCalls:
    """The requests, as steps, for both kinds of client."""

    def __init__(self, route: Route, limits: Limits, one_by_one: OneByOne) -> None:
        self._route = route
        self._limits = limits
        self.one_by_one = one_by_one

    def begin(self, name: str, input: Any, id: Optional[str], wait: float) -> Steps[Run]:
        wait, id = within_bounds(wait), _ids.run_id_for(id)
        answer = yield from exchange(_requests.begin_run(name, encode(input), id, wait), self._route, self._patient(wait))
        return Run.of(json.loads(answer.response.body))

    def get(self, name: str, run: str, wait: float) -> Steps[Run]:
        wait = within_bounds(wait)
        answer = yield from exchange(_requests.get_run(name, run, wait), self._route, self._patient(wait))
        return Run.of(json.loads(answer.response.body))

    def cancel(self, name: str, run: str) -> Steps[Run]:
        answer = yield from exchange(_requests.cancel_run(name, run), self._route, self._limits)
        return Run.of(json.loads(answer.response.body))

    def list(self, name: str, status: Optional[str], after: Optional[str]) -> Steps[Tuple[List[Run], Optional[str]]]:
        answer = yield from exchange(_requests.list_runs(name, status, after), self._route, self._limits)
        found = json.loads(answer.response.body)
        return [Run.of(run) for run in found["runs"]], found.get("next")

    def externalize(self) -> Steps[None]:
        if not _requests.is_in_function():
            return
        # While the far store is away, this lasts until it returns, or until the function's time is
        # over.
        yield from exchange(_requests.externalize(), self._route, self._patient(_PATIENCE_S))

    def invoke(self, name: str, payload: Any) -> Steps[Any]:
        answer = yield from exchange(_requests.invoke_now(name, encode(payload)), self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body) if answer.response.body else None
        if "x-amz-function-error" in answer.response.headers:
            raise FunctionFailed.of(name, found)
        return found

    def call(self, name: str, input: Any) -> Steps[Any]:
        """If the call is not allowed, the error is raised at once: no request was made then. The
        call is a step, and the caller must take the place of one.
        """
        return self._call(name, within_function(_requests.call_step(name, encode(input))))

    def _call(self, name: str, call: Call) -> Steps[Any]:
        with or_interrupted():
            answer = yield from exchange(call, self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body)
        if "error" in found:
            raise FunctionFailed.of(name, found["error"])
        return found["output"]

    def open_step(self, name: str) -> Steps[Optional[Opened]]:
        """The next step of the code; None if the code belongs to no run."""
        if not _requests.is_in_function():
            return None
        try:
            with or_interrupted():
                answer = yield from exchange(_requests.open_step(name), self._route, self._patient(_PATIENCE_S))
        except OutsideOfRun:
            return None
        found = json.loads(answer.response.body)
        if "step" in found:
            return Opened(found["step"], id=found["id"])
        if "error" in found:
            return Opened(None, failure=StepFailed.of(name, found["error"]))
        return Opened(None, found["output"])

    def finish_step(self, name: str, output: bytes) -> Steps[Any]:
        """Makes the current step take effect; returns or raises the recorded result."""
        with or_interrupted():
            answer = yield from exchange(_requests.finish_step(name, output), self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body)
        if "error" in found:
            raise StepFailed.of(name, found["error"])
        return found["output"]

    def fail_step(self, name: str, error: BaseException) -> Steps[StepFailed]:
        """Records that the current step has failed. Returns the error that its code gets, now and
        whenever it runs again.
        """
        said = {"errorType": type(error).__name__, "errorMessage": _message(error)}
        with or_interrupted():
            answer = yield from exchange(_requests.fail_step(name, encode(said)), self._route, self._patient(_PATIENCE_S))
        return StepFailed.of(name, json.loads(answer.response.body)["error"])

    def send(self, queue: str, body: Value, group: Optional[str]) -> Steps[None]:
        call = within_function(_requests.send_from_step(queue, body, group))
        yield from exchange(call, self._route, self._limits)

    def _patient(self, wait: float) -> Limits:
        # Apart from the wait, a call takes no longer than any other.
        reply = max(min(self._limits.reply_s, self._limits.call_s), wait + min(_REPLY_SLACK_S, self._limits.call_s))
        return Limits(call_s=max(self._limits.call_s, reply), connect_s=self._limits.connect_s, reply_s=reply)


class Workflow:
    """A deployed workflow."""

    def __init__(self, name: str, calls: WorkflowCalls, connections: Connections) -> None:
        self.name = name
        self._calls = calls
        self._connections = connections

    def run(self, input: Any = None, *, id: Optional[str] = None, wait: float = 0) -> Run:
        """Begins a run, or finds the one that was begun under `id`, and waits for its end up to
        `wait` seconds, 900 at the most.

        In a function, a run without an `id` gets one from its position, so that a retry of the
        function finds it. Elsewhere a repeat after a lost response begins another run; give an `id`
        where that matters.
        """
        return self._connections.drive(self._calls.begin(self.name, input, id, wait))

    def get(self, run: str, *, wait: float = 0) -> Run:
        """The run, once it has ended or `wait` seconds are over, 900 at the most."""
        return self._connections.drive(self._calls.get(self.name, run, wait))

    def list(self, *, status: Optional[str] = None, after: Optional[str] = None) -> Tuple[List[Run], Optional[str]]:
        """Some runs after the run `after`, in the order of their ids, and where to go on; None:
        those were all.
        """
        return self._connections.drive(self._calls.list(self.name, status, after))

    def cancel(self, run: str) -> Run:
        """Ends a run; the writes of its steps stay."""
        return self._connections.drive(self._calls.cancel(self.name, run))


def run_step(name: str, connections: Connections, calls: WorkflowCalls, body: Callable[[], Any]) -> Any:
    """Runs `body` as the next step of the current workflow run, or returns the step's recorded
    result. Outside of a run the body is an ordinary function.
    """
    with calls.one_by_one.place(name) as place:
        while (other := place.take()) is not None:
            # A signal handler would wait in vain for the thread that it interrupts.
            if other.thread == threading.get_ident() or other.is_of_run.result():
                place.refuse()
        with or_whole():
            # An exception of the body leaves this as the failure of its step.
            opened = connections.drive(calls.open_step(name))
            place.answered(is_of_run=opened is not None)
            if opened is not None:
                return _run_opened(name, opened, connections, calls, body)
    return refuse_unfinished(body(), f"the step {name!r}")


def run_call(name: str, connections: Connections, calls: WorkflowCalls, input: Any) -> Any:
    """Runs a deployed function as the next step."""
    call = calls.call(name, input)
    with calls.one_by_one.step(name), or_whole():
        return connections.drive(call)


def _run_opened(name: str, opened: Opened, connections: Connections, calls: WorkflowCalls, body: Callable[[], Any]) -> Any:
    if opened.token is None:
        return opened.result()
    with opened.as_current():
        try:
            output = encode(refuse_unfinished(body(), f"the step {name!r}"))
        except BaseException as error:
            if (interruption := interruption_in(error)) is not None:
                raise interruption
            # This includes exceptions that are no `Exception`, such as an exit or a cancellation:
            # when the code runs again it gets this, too.
            raise connections.drive(calls.fail_step(name, error)) from error
        try:
            return connections.drive(calls.finish_step(name, output))
        except TooLarge as error:
            raise connections.drive(calls.fail_step(name, error)) from error


def step_with(client: Callable[[], Any], function: Optional[F], name: Optional[str]) -> Any:
    """`step` over a client that is looked up at each call."""

    def decorate(function: F) -> F:
        called = name_of_step(function, name)

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return client().run_step(called, lambda: function(*args, **kwargs))

        return cast(F, call)

    return decorate if function is None else decorate(function)


def name_of_step(function: object, name: Optional[str]) -> str:
    """The name of a step that has this code: the given one, the function's own, that of the
    function in a `functools.partial`, or that of the class of a callable object.

    Raises `TypeError` for something that cannot be called, and for a lambda: all lambdas have one
    name, and a step needs one that says which it is.
    """
    if isinstance(function, (staticmethod, classmethod)):
        raise TypeError(f"put @step below @{type(function).__name__}: it takes the function itself")
    if not callable(function):
        raise TypeError(f"a step is a function, and {function!r} cannot be called: write @step, or @step(name=...)")
    if name:
        return name
    inner: Any = function
    while isinstance(inner, functools.partial):
        inner = inner.func
    own = str(getattr(inner, "__name__", type(inner).__name__))
    if own == "<lambda>":
        raise TypeError("a lambda has no name to find its step by: write step(name=...)(lambda ...), or def")
    return own


def workflow(function: F) -> F:
    """Marks a handler whose code is a workflow; `function = "NAME"` of a workflow in the manifest
    selects it.
    """
    return function


def within_function(call: Call) -> Call:
    """`call`, which is for the code of steps. Raises `OutsideOfRun` where no function runs."""
    if not _requests.is_in_function():
        raise OutsideOfRun(call.what, "this is no function that a workflow runs")
    return call


def within_bounds(wait: float) -> float:
    """How long a server is asked to wait, in seconds."""
    return max(0.0, min(wait, _WAIT_MAX_S))


def _message(error: BaseException) -> str:
    """Its message, up to the length that can be sent."""
    try:
        said = str(error)
    except Exception:
        said = "it does not say"
    return said[:_MESSAGE_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def encode(value: Any) -> bytes:
    """JSON, the format of inputs and results. Raises `ValueError` for NaN and infinity, which JSON
    cannot express.
    """
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
