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
returned in its place. So that code must call the same steps in the same order, whenever it runs.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Optional, Tuple, TypeVar, cast

from . import _requests
from ._connection import Connections
from ._nodes import Route
from ._problems import Error, FunctionFailed
from ._repeat import Limits, Steps, exchange
from ._requests import Value

F = TypeVar("F", bound=Callable[..., Any])

_PATIENCE_S = 900.0
"""How long a function may take, at the most."""
_REPLY_SLACK_S = 10.0


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


class WorkflowCalls:
    """What is asked, as steps, for both kinds of client."""

    def __init__(self, route: Route, limits: Limits) -> None:
        self._route = route
        self._limits = limits

    def begin(self, name: str, input: Any, id: Optional[str], wait: float) -> Steps[Run]:
        answer = yield from exchange(_requests.begin_run(name, _encode(input), id, wait), self._route, self._patient(wait))
        return Run.of(json.loads(answer.response.body))

    def get(self, name: str, run: str, wait: float) -> Steps[Run]:
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
        yield from exchange(_requests.externalize(), self._route, self._limits)

    def invoke(self, name: str, payload: Any) -> Steps[Any]:
        answer = yield from exchange(_requests.invoke_now(name, _encode(payload)), self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body) if answer.response.body else None
        if "x-amz-function-error" in answer.response.headers:
            raise FunctionFailed.of(name, found)
        return found

    def call(self, name: str, input: Any) -> Steps[Any]:
        answer = yield from exchange(_requests.call_step(name, _encode(input)), self._route, self._patient(_PATIENCE_S))
        found = json.loads(answer.response.body)
        if "error" in found:
            raise FunctionFailed.of(name, found["error"])
        return found["output"]

    def open_step(self, name: str) -> Steps[Dict[str, Any]]:
        answer = yield from exchange(_requests.open_step(name), self._route, self._limits)
        return cast(Dict[str, Any], json.loads(answer.response.body))

    def finish_step(self, name: str, output: bytes) -> Steps[Any]:
        answer = yield from exchange(_requests.finish_step(name, output), self._route, self._limits)
        return json.loads(answer.response.body)["output"]

    def fail_step(self, name: str) -> Steps[None]:
        yield from exchange(_requests.fail_step(name), self._route, self._limits)

    def send(self, queue: str, body: Value, group: Optional[str]) -> Steps[None]:
        yield from exchange(_requests.send_from_step(queue, body, group), self._route, self._limits)

    def _patient(self, wait: float) -> Limits:
        reply = max(self._limits.reply_s, wait + _REPLY_SLACK_S)
        return Limits(call_s=max(self._limits.call_s, reply), connect_s=self._limits.connect_s, reply_s=reply)


class Workflow:
    """A deployed workflow."""

    def __init__(self, name: str, calls: WorkflowCalls, connections: Connections) -> None:
        self.name = name
        self._calls = calls
        self._connections = connections

    def run(self, input: Any = None, *, id: Optional[str] = None, wait: float = 0) -> Run:
        """Begins a run, or finds the one that was begun under `id`, and waits for its end up to `wait` seconds.

        Without an `id` a repeat after a lost answer begins another run; give one where that matters.
        """
        return self._connections.drive(self._calls.begin(self.name, input, id, wait))

    def get(self, run: str, *, wait: float = 0) -> Run:
        """The run, once it has ended or `wait` seconds are over."""
        return self._connections.drive(self._calls.get(self.name, run, wait))

    def list(self, *, status: Optional[str] = None, after: Optional[str] = None) -> Tuple[List[Run], Optional[str]]:
        """Some runs behind `after`, in the order of their ids, and where to go on; None: those were all."""
        return self._connections.drive(self._calls.list(self.name, status, after))

    def cancel(self, run: str) -> Run:
        """Ends a run; what its steps had written stays."""
        return self._connections.drive(self._calls.cancel(self.name, run))


def run_step(
    name: str, connections: Connections, calls: WorkflowCalls, body: Callable[[], Any]
) -> Any:
    """Runs `body` as the next step of the workflow that is being run, or returns what it has come to before."""
    opened = connections.drive(calls.open_step(name))
    if "step" not in opened:
        return opened["output"]
    token = _requests.CURRENT_STEP.set(opened["step"])
    try:
        try:
            output = _encode(body())
        except BaseException:
            try:
                connections.drive(calls.fail_step(name))
            except Error:
                pass  # It ends with the attempt of the workflow's own code.
            raise
        return connections.drive(calls.finish_step(name, output))
    finally:
        _requests.CURRENT_STEP.reset(token)


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


def _encode(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
