"""Workflows: runs begun, awaited, listed and cancelled; and what the code of a step does within its run.

Inside a function that runs as a step, `landfast.state()` is that of the run: what it writes is seen by that attempt alone and counts
once, together with the step's result, when the function returns. `externalize` lets it count at once.

A function that *is* a workflow calls steps as ordinary functions:

    @landfast.step
    def charge(order): ...

    @landfast.workflow
    def order(event, context):
        receipt = charge(event["order"])
        return landfast.call("ship", receipt)

Each call of a step counts once, with what it wrote, however often the workflow's own code is run again: then what counts is
returned in its place. So that code must call the same steps in the same order, whenever it runs. A step that failed raises
`StepFailed`; where the code goes on after that, it is raised again whenever the code runs.
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
from ._problems import AttemptEnded, Error, FunctionFailed, OutsideOfRun, RunInterrupted, StepFailed, TooLarge
from ._repeat import Limits, Steps, exchange
from ._requests import Call, Value
from ._transact import refuse_unfinished

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_S = 900.0
"""How long a function may take, at the most."""
_WAIT_MAX_S = 900.0
"""The longest that a server waits for the end of a run before it says how far that is."""
_REPLY_SLACK_S = 10.0
_MESSAGE_CHARACTERS_MAX = 1_000_000
"""The most that is sent of a message. The server keeps the beginning of that, and says there how long it was: what is longer still
is said to be as long as this."""


@dataclass(frozen=True)
class Run:
    """A run, as the server says that it is; what is said of it is durable."""

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
    """A step that code has begun: to be done, or done before."""

    token: Optional[str]
    """What it shows of itself while it is done; None: it counts already."""
    output: Any = None
    """What it came to, if it counts already."""
    failure: Optional[StepFailed] = None
    """What it failed with, if that counts already."""
    id: str = ""
    """What every attempt of it is known by: transactions that it begins derive their ids from it."""

    def result(self) -> Any:
        """What counts already."""
        if self.failure is not None:
            raise self.failure
        return self.output

    @contextlib.contextmanager
    def as_current(self) -> Iterator[None]:
        """What is asked for within is asked for by this step."""
        assert self.token is not None, "it is to be done"
        token = _requests.CURRENT_STEP.set(self.token)
        under_way = (threading.get_ident(), self.token)
        _requests.OPEN_STEPS.append(under_way)
        try:
            with _ids.request(self.id):
                yield
        finally:
            # Not the last one: steps of several threads do not end in the order in which they began.
            _requests.OPEN_STEPS.remove(under_way)
            _requests.CURRENT_STEP.reset(token)


@contextlib.contextmanager
def or_interrupted() -> Iterator[None]:
    """What asks for a step is answered, or the code does not go on: it would find something else in its place when it is run again."""
    try:
        yield
    except (AttemptEnded, FunctionFailed, OutsideOfRun, StepFailed, TooLarge):
        raise
    except Error as error:
        raise RunInterrupted(str(error)) from error


class OneByOne:
    """Which code has a step under way. The next one has to wait for its end: a step is known by how many the code had begun before
    it, so of two at the same time chance would decide which one takes the result of the other when the code is run again."""

    def __init__(self) -> None:
        self._under_way: Dict[Optional[str], Place] = {}
        self._lock = threading.Lock()

    def place(self, name: str) -> Place:
        """Of whatever step's code this is called in, that of the next one; it is to be taken."""
        return Place(name, self._under_way, self._lock)

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """The same for what is of a run in any case: taken, or refused."""
        with self.place(name) as place:
            if place.take() is not None:
                place.refuse()
            place.answered(is_of_run=True)
            yield


class Place:
    """That of the one step of its code that may be under way.

    Outside of runs steps may be side by side, but only the server knows whether they are. So who has taken the place asks, and others
    wait for the answer.
    """

    def __init__(self, name: str, under_way: Dict[Optional[str], Place], lock: threading.Lock) -> None:
        self._name = name
        self._code = _requests.current_step()
        self._under_way = under_way
        self._lock = lock
        self.thread = threading.get_ident()
        self.is_of_run: Future[bool] = Future()
        """Whether its code is. True also where nobody has learnt that."""
        # Who waits for it and is cancelled does not cancel it.
        self.is_of_run.set_running_or_notify_cancel()

    def take(self) -> Optional[Place]:
        """Who has it; None: it is taken now."""
        with self._lock:
            other = self._under_way.setdefault(self._code, self)
        return None if other is self else other

    def answered(self, is_of_run: bool) -> None:
        """The server has answered; outside of a run the place is left."""
        if not is_of_run:
            self._leave()
        self.is_of_run.set_result(is_of_run)

    def refuse(self) -> None:
        """Another one has it, in a run."""
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
    """What is interrupted while a step is asked for is not known to have come to anything: the code does not go on.

    A signal's handler may raise anything, also what the code handles as a failure of the step.
    """
    try:
        yield
    except (Error, RunInterrupted):
        raise
    except BaseException as interruption:
        raise RunInterrupted(f"it was interrupted while a step was asked for: {interruption!r}") from interruption


class WorkflowCalls:
    """What is asked, as steps, for both kinds of client."""

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
        # While the far store is away that takes as long as it is, or as the function may.
        yield from exchange(_requests.externalize(), self._route, self._patient(_PATIENCE_S))

    def invoke(self, name: str, payload: Any) -> Steps[Any]:
        answer = yield from exchange(_requests.invoke_now(name, encode(payload)), self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body) if answer.response.body else None
        if "x-amz-function-error" in answer.response.headers:
            raise FunctionFailed.of(name, found)
        return found

    def call(self, name: str, input: Any) -> Steps[Any]:
        """What forbids it is raised at once: nothing was asked for then. It is a step, and the caller's to take the place of one."""
        return self._call(name, within_function(_requests.call_step(name, encode(input))))

    def _call(self, name: str, call: Call) -> Steps[Any]:
        with or_interrupted():
            answer = yield from exchange(call, self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body)
        if "error" in found:
            raise FunctionFailed.of(name, found["error"])
        return found["output"]

    def open_step(self, name: str) -> Steps[Optional[Opened]]:
        """The next step of the code; None: that is of no run."""
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
        """Has the current step count; what counts is returned, or raised."""
        with or_interrupted():
            answer = yield from exchange(_requests.finish_step(name, output), self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body)
        if "error" in found:
            raise StepFailed.of(name, found["error"])
        return found["output"]

    def fail_step(self, name: str, error: BaseException) -> Steps[StepFailed]:
        """The current step has failed: what its code is told of it, now and whenever it is run again."""
        said = {"errorType": type(error).__name__, "errorMessage": _message(error)}
        with or_interrupted():
            answer = yield from exchange(_requests.fail_step(name, encode(said)), self._route, self._patient(_PATIENCE_S))
        return StepFailed.of(name, json.loads(answer.response.body)["error"])

    def send(self, queue: str, body: Value, group: Optional[str]) -> Steps[None]:
        call = within_function(_requests.send_from_step(queue, body, group))
        yield from exchange(call, self._route, self._limits)

    def _patient(self, wait: float) -> Limits:
        # Beside the wait a call takes no longer than any.
        reply = max(min(self._limits.reply_s, self._limits.call_s), wait + min(_REPLY_SLACK_S, self._limits.call_s))
        return Limits(call_s=max(self._limits.call_s, reply), connect_s=self._limits.connect_s, reply_s=reply)


class Workflow:
    """A deployed workflow."""

    def __init__(self, name: str, calls: WorkflowCalls, connections: Connections) -> None:
        self.name = name
        self._calls = calls
        self._connections = connections

    def run(self, input: Any = None, *, id: Optional[str] = None, wait: float = 0) -> Run:
        """Begins a run, or finds the one that was begun under `id`, and waits for its end up to `wait` seconds, 900 at the most.

        In a function a run without an `id` gets one by its place, so that a retry of the function finds it. Elsewhere a repeat after a
        lost answer begins another run; give an `id` where that matters.
        """
        return self._connections.drive(self._calls.begin(self.name, input, id, wait))

    def get(self, run: str, *, wait: float = 0) -> Run:
        """The run, once it has ended or `wait` seconds are over, 900 at the most."""
        return self._connections.drive(self._calls.get(self.name, run, wait))

    def list(self, *, status: Optional[str] = None, after: Optional[str] = None) -> Tuple[List[Run], Optional[str]]:
        """Some runs behind `after`, in the order of their ids, and where to go on; None: those were all."""
        return self._connections.drive(self._calls.list(self.name, status, after))

    def cancel(self, run: str) -> Run:
        """Ends a run; what its steps had written stays."""
        return self._connections.drive(self._calls.cancel(self.name, run))


def run_step(name: str, connections: Connections, calls: WorkflowCalls, body: Callable[[], Any]) -> Any:
    """Runs `body` as the next step of the workflow that is being run, or returns what it has come to before. Outside of a run it is
    a function like others."""
    with calls.one_by_one.place(name) as place:
        while (other := place.take()) is not None:
            # What a signal's handler waits for in the thread that it interrupts does not come.
            if other.thread == threading.get_ident() or other.is_of_run.result():
                place.refuse()
        with or_whole():
            # What the body raises leaves this as the failure of its step.
            opened = connections.drive(calls.open_step(name))
            place.answered(is_of_run=opened is not None)
            if opened is not None:
                return _run_opened(name, opened, connections, calls, body)
    return refuse_unfinished(body(), f"the step {name!r}")


def run_call(name: str, connections: Connections, calls: WorkflowCalls, input: Any) -> Any:
    """Has a deployed function run as the next step."""
    call = calls.call(name, input)
    with calls.one_by_one.step(name), or_whole():
        return connections.drive(call)


def _run_opened(name: str, opened: Opened, connections: Connections, calls: WorkflowCalls, body: Callable[[], Any]) -> Any:
    if opened.token is None:
        return opened.result()
    with opened.as_current():
        try:
            output = encode(refuse_unfinished(body(), f"the step {name!r}"))
        except RunInterrupted:
            raise
        except BaseException as error:
            # Also of what is no Exception, such as a step that exits or is cancelled: when the code is run again it is told this, too.
            raise connections.drive(calls.fail_step(name, error)) from error
        try:
            return connections.drive(calls.finish_step(name, output))
        except TooLarge as error:
            raise connections.drive(calls.fail_step(name, error)) from error


def step_with(client: Callable[[], Any], function: Optional[F], name: Optional[str]) -> Any:
    """`step` over a client that is looked up at each call."""

    def decorate(function: F) -> F:
        called = name or function.__name__

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return client().run_step(called, lambda: function(*args, **kwargs))

        return cast(F, call)

    return decorate if function is None else decorate(function)


def workflow(function: F) -> F:
    """Marks a handler whose code is a workflow: `function = "NAME"` of a workflow in the manifest says which."""
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
    """What it says, as far as that can be sent."""
    try:
        said = str(error)
    except Exception:
        said = "it does not say"
    return said[:_MESSAGE_CHARACTERS_MAX].encode("utf-8", "replace").decode()


def encode(value: Any) -> bytes:
    """JSON, which is what inputs and results are. Raises `ValueError` for NaN and infinity, for which that has no word."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
