"""Workflows: the requests to the server, their repeats, and the calls that a workflow's code may
make.
"""

import asyncio
import contextvars
import functools
import json
import os
import signal
import threading
from typing import Any, Callable, List, Optional, Tuple, Type

import pytest

import cluster
import kinds
import landfast
from landfast import _ids, _nodes, _requests, _workflow, aio
from landfast._repeat import Limits
from landfast._workflow import OneByOne, Opened, WorkflowCalls


@pytest.fixture(autouse=True)
def in_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    """Elsewhere nothing is a step."""
    monkeypatch.setenv("AWS_LAMBDA_RUNTIME_API", "127.0.0.1:9001")


RUN = {"run": "r 1", "status": "succeeded", "output": [1], "began_ms": 5, "ended_ms": 9}


@kinds.over()
async def runs_are_begun_shown_listed_and_cancelled(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W1."""
    expected = landfast.Run("r 1", "succeeded", output=[1], began_ms=5, ended_ms=9)
    runs = client.runs("a flow")
    servers.fail("", cluster.document(RUN), cluster.document(RUN), cluster.document(RUN), cluster.document({"runs": [RUN], "next": "r 1"}), cluster.document({"runs": []}))
    assert await runs.run({"n": 1}, id="r 1", wait=2.5) == expected
    assert await runs.get("r 1", wait=3) == expected
    assert await runs.cancel("r 1") == expected
    assert await runs.list(status="failed", after="q&") == ([expected], "r 1")
    assert await runs.list() == ([], None)
    assert [str(seen) for seen in servers.seen] == [
        "POST /v1/workflows/a%20flow/runs?wait=2.5&id=r%201",
        "GET /v1/workflows/a%20flow/runs/r%201?wait=3",
        "DELETE /v1/workflows/a%20flow/runs/r%201",
        "GET /v1/workflows/a%20flow/runs?status=failed&after=q%26",
        "GET /v1/workflows/a%20flow/runs",
    ]
    assert servers.seen[0].body == b'{"n":1}'


@kinds.over()
async def a_run_is_begun_again_only_under_an_id(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W1: without one the copy would be another run."""
    servers.fail("POST", cluster.reset_unheard, cluster.document(RUN))
    assert (await client.runs("w").run(id="r 1")).run == "r 1"
    servers.fail("POST", cluster.reset_unheard)
    with pytest.raises(landfast.OutcomeUnknown):
        await client.runs("w").run()
    assert len(servers.seen) == 3


@kinds.over(timeout=1)
async def a_run_that_may_have_begun_is_named_where_its_id_is_derived(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W1: a caller that receives this error can ask for the run."""
    servers.fail("POST", *[cluster.reset_unheard] * 1000)
    with pytest.raises(landfast.OutcomeUnknown) as error, landfast.request("order"):
        await client.runs("w").run()
    assert error.value.run == "order/run-1"


@kinds.over()
async def ids_made_within_a_step_are_the_same_whenever_it_is_tried(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W2: they derive from the step's own id, so recorded steps that do not run again shift none."""
    made = []

    async def body() -> None:
        made.append(_ids.id_for(None))
        made.append(_ids.id_for(None))

    for step in ("one", "two"):
        servers.fail("", cluster.document({"step": "s", "id": step}), cluster.document({"output": None}))
        await client.run_step("s", body)
    assert made == ["one/1", "one/2", "two/1", "two/2"]


@kinds.over()
async def a_run_begun_within_a_step_is_found_when_the_step_is_tried_again(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W1, W2: its id derives from its position; transactions beside it shift none."""

    async def body() -> None:
        for id in (None, "chosen", None):
            await client.runs("w").run(id=id)
            _ids.id_for(None)

    begun = [cluster.document({**RUN, "run": id}) for id in ("one", "chosen", "two")]
    for _ in range(2):
        servers.fail("", cluster.document({"step": "s", "id": "step"}), *begun, cluster.document({"output": None}))
        await client.run_step("s", body)
    asked = [seen.path.partition("?id=")[2] for seen in servers.requests("/runs")]
    assert asked == ["step%2Frun-1", "chosen", "step%2Frun-2"] * 2


def what_a_thread_of_a_step_asks_for_is_asked_for_by_it() -> None:
    """W2: the thread has no context of the step, and would write for the code around it."""
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail("/steps/", cluster.document({"step": "s", "id": "s-id"}), cluster.document({"output": None}))
        servers.fail("/state/", cluster.reply(204, b""), cluster.reply(204, b""))

        def put(key: str) -> None:
            client.state().put(key, b"1")

        def body() -> None:
            thread = threading.Thread(target=put, args=("a",))
            thread.start()
            thread.join()

        client.run_step("s", body)
        put("b")
        puts = [(str(seen), seen.headers.get("landfast-step")) for seen in servers.requests("/state/")]
    assert puts == [("PUT /v1/state/a", "s"), ("PUT /v1/state/b", None)]


def steps_of_two_threads_may_end_in_the_order_in_which_they_began() -> None:
    """W2: otherwise a thread of the second would send requests for the first."""
    steps = []
    for number in ("first", "second"):
        step, own = Opened(number, id=number).as_current(), contextvars.copy_context()
        own.run(step.__enter__)
        steps.append((step, own))
    for left in (["second"], []):
        step, own = steps.pop(0)
        own.run(step.__exit__, None, None, None)
        assert [token for _, token in _requests.OPEN_STEPS] == left


@kinds.over()
async def what_is_asked_for_within_a_step_is_asked_for_by_it(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W2."""
    servers.fail("POST .*/steps/", cluster.document({"step": "outer", "id": "outer-id"}), cluster.document({"step": "inner", "id": "inner-id"}))
    servers.fail("PUT .*/steps/", cluster.document({"output": "what counts"}), cluster.document({"output": 1}))

    async def inner() -> str:
        await client.state().put("a", b"1")
        return "inner's"

    async def outer() -> int:
        assert await client.run_step("inner", inner) == "what counts"
        await client.externalize()
        await client.send("q", b"m", group="g h")
        return 1

    servers.fail("/externalize|/messages/", cluster.reply(200, b""), cluster.reply(200, b""))
    assert await client.run_step("outer", outer) == 1
    await client.state().get("a")
    assert [(str(seen), seen.headers.get("landfast-step")) for seen in servers.seen] == [
        ("POST /v1/run/steps/outer", None),
        ("POST /v1/run/steps/inner", "outer"),
        ("PUT /v1/state/a", "inner"),
        ("PUT /v1/run/steps/inner", "inner"),
        ("POST /v1/run/externalize", "outer"),
        ("POST /v1/run/messages/q?group=g%20h", "outer"),
        ("PUT /v1/run/steps/outer", "outer"),
        ("GET /v1/state/a", None),
    ]
    assert servers.requests("PUT .*/steps/inner")[0].body == b'"inner\'s"'


@kinds.over()
async def a_step_that_counts_is_not_done_again(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W2."""

    async def body() -> int:
        raise AssertionError("it counts already")

    servers.fail("", cluster.document({"output": 7}))
    assert await client.run_step("s", body) == 7
    assert len(servers.seen) == 1


class Doubles:
    """A callable object, and a partial of one."""

    def __init__(self, by: int = 2) -> None:
        self.by = by

    def __call__(self, n: int) -> int:
        return n * self.by


def _adds(n: int, more: int) -> int:
    return n + more


def a_step_is_named_by_its_function_or_by_the_class_of_its_object() -> None:
    """W2."""
    nested = functools.partial(functools.partial(_adds, more=3))
    cases: List[Tuple[Callable[..., Any], str]] = [(_adds, "_adds"), (nested, "_adds"), (Doubles(), "Doubles"), (functools.partial(Doubles()), "Doubles"), (len, "len")]
    for function, name in cases:
        assert _workflow.name_of_step(function, None) == name
        assert _workflow.name_of_step(function, "own") == "own"
        assert callable(landfast.step(function)) and callable(aio.step(function))


def what_is_no_step_is_refused_with_what_to_write() -> None:
    """W2."""
    refused = [
        (lambda n: n, "step(name=...)"),
        ("charge", "write @step, or @step(name=...)"),
        (None, "cannot be called"),
        (staticmethod(_adds), "below @staticmethod"),
        (classmethod(_adds), "below @classmethod"),  # type: ignore[arg-type]
    ]
    for function, why in refused:
        for step in (landfast.step(), aio.step()):
            with pytest.raises(TypeError) as failure:
                step(function)  # type: ignore[type-var]
            assert why in str(failure.value)
    assert landfast.step(name="twice")(lambda n: 2 * n).__name__ == "<lambda>"


@kinds.over()
async def a_step_that_fails_is_given_up(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W2: including one whose result is not JSON, such as NaN. The code gets the same error now and
    whenever it runs again.
    """

    async def fails() -> object:
        raise ZeroDivisionError

    async def returns_no_json() -> object:
        return object()

    async def returns_nan() -> float:
        return float("nan")

    said = {"step": "s", "errorType": "KeptError", "errorMessage": "as it is kept"}
    for body, error in ((fails, ZeroDivisionError), (returns_no_json, TypeError), (returns_nan, ValueError)):
        servers.fail("", cluster.document({"step": "s", "id": "s-id"}), cluster.document({"error": said}), cluster.document({"error": said}))
        with pytest.raises(landfast.StepFailed, match="'s' failed: KeptError: as it is kept") as first:
            await client.run_step("s", body)
        assert isinstance(first.value.__cause__, error)
        with pytest.raises(landfast.StepFailed) as again:
            await client.run_step("s", body)
        assert (str(again.value), again.value.error) == (str(first.value), first.value.error)
    once = ["POST /v1/run/steps/s", "PUT /v1/run/steps/s/failure", "POST /v1/run/steps/s"]
    assert [str(seen) for seen in servers.seen] == [*once, *once, *once]
    errors = [json.loads(seen.body)["errorType"] for seen in servers.requests("/failure")]
    assert errors == ["ZeroDivisionError", "TypeError", "ValueError"]


@kinds.over()
async def a_step_that_exits_has_failed(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W2: if the code got another error the first time and handled it, it would call other steps
    when it runs again.
    """

    async def exits() -> None:
        raise SystemExit(3)

    said = {"step": "s", "errorType": "SystemExit", "errorMessage": "3"}
    servers.fail("", cluster.document({"step": "s", "id": "s-id"}), cluster.document({"error": said}))
    with pytest.raises(landfast.StepFailed) as failed:
        await client.run_step("s", exits)
    assert isinstance(failed.value.__cause__, SystemExit)
    assert json.loads(servers.seen[-1].body) == {"errorType": "SystemExit", "errorMessage": "3"}


@kinds.over(kinds=["asyncio"])
async def a_step_that_is_given_up_has_failed(client: aio.Client, servers: cluster.Cluster) -> None:
    """W2, as above."""

    async def lasts() -> None:
        await asyncio.Event().wait()

    said = {"step": "s", "errorType": "CancelledError", "errorMessage": ""}
    servers.fail("", cluster.document({"step": "s", "id": "s-id"}), cluster.document({"error": said}))
    with pytest.raises(landfast.StepFailed, match="CancelledError"):
        await asyncio.wait_for(client.run_step("s", lasts), 0.1)


@kinds.over()
async def code_does_not_go_on_where_it_cannot_know_what_a_step_came_to(client: kinds.Client, servers: cluster.Cluster) -> None:
    """W2: it would handle that error, and find another result at the same position when it runs
    again.
    """

    async def one() -> int:
        return 1

    async def fails() -> int:
        raise ZeroDivisionError

    async def says_what_cannot_be_sent() -> int:
        raise ValueError("no item \ud83d")

    opened = cluster.document({"step": "s", "id": "s-id"})
    lost = cluster.reset_unheard
    servers.fail("", opened, cluster.document({"error": {}}))
    with pytest.raises(landfast.StepFailed):
        await client.run_step("s", says_what_cannot_be_sent)
    assert json.loads(servers.seen[-1].body)["errorMessage"] == "no item ?"
    servers.fail("", opened, cluster.refuse(413, "too-large"), cluster.document({"error": {}}))
    with pytest.raises(landfast.StepFailed):
        await client.run_step("s", one)
    assert json.loads(servers.seen[-1].body)["errorType"] == "TooLarge"
    for body, answers in ((one, [lost]), (one, [opened, lost]), (fails, [opened, lost]), (one, [cluster.refuse(500, "corrupt")]), (one, [cluster.refuse(400, "invalid-request")])):
        servers.fail("", *answers)
        with pytest.raises(landfast.RunInterrupted):
            await client.run_step("s", body)
    servers.fail("", lost)
    with pytest.raises(landfast.RunInterrupted):
        await client.call("f")
    assert not issubclass(landfast.RunInterrupted, Exception)


@kinds.over()
async def an_interruption_in_a_group_is_no_failure_of_its_step(client: kinds.Client, servers: cluster.Cluster) -> None:
    """A task group wraps the exceptions of its tasks."""
    interruption = landfast.RunInterrupted("of a task")

    async def wraps() -> None:
        inner = BaseExceptionGroup("inner", [KeyError("other"), interruption])
        raise BaseExceptionGroup("outer", [ZeroDivisionError(), inner])

    async def wraps_none() -> None:
        raise ExceptionGroup("outer", [ZeroDivisionError()])

    opened = cluster.document({"step": "s", "id": "s-id"})
    servers.fail("", opened, opened, cluster.document({"error": {}}))
    with pytest.raises(landfast.RunInterrupted) as raised:
        await client.run_step("s", wraps)
    assert raised.value is interruption
    with pytest.raises(landfast.StepFailed):
        await client.run_step("s", wraps_none)
    assert [str(seen).split("/")[-1] for seen in servers.seen] == ["s", "s", "failure"]


@kinds.over()
async def a_function_that_fails_says_what_it_said(client: kinds.Client, servers: cluster.Cluster) -> None:
    said = {"errorType": "ValueError", "errorMessage": "no"}
    servers.fail("/calls/", cluster.document({"error": said}), cluster.document({"output": 3}))
    with pytest.raises(landfast.FunctionFailed, match="ValueError: no") as failure:
        await client.call("f", {"n": 1})
    assert failure.value.error == said
    assert await client.call("f") == 3
    servers.fail("/invocations", cluster.document({"ok": True}))
    assert await client.invoke("f", [1]) == {"ok": True}
    assert [str(seen) for seen in servers.seen] == [
        "PUT /v1/run/calls/f",
        "PUT /v1/run/calls/f",
        "POST /2015-03-31/functions/f/invocations",
    ]


@kinds.over()
async def what_may_not_be_asked_twice_is_not(client: kinds.Client, servers: cluster.Cluster) -> None:
    """The number of steps that the code began before identifies a step: a copy would be the next
    one.
    """
    servers.fail("", cluster.reset_unheard, cluster.reset_unheard, cluster.reset_unheard)
    with pytest.raises(landfast.RunInterrupted):
        await client.call("f")
    with pytest.raises(landfast.OutcomeUnknown):
        await client.invoke("f")
    with pytest.raises(landfast.OutcomeUnknown):
        await client.send("q", b"")
    assert len(servers.seen) == 3


@pytest.mark.parametrize("is_function", [False, True])
def a_step_outside_of_a_run_is_the_function_that_it_was(monkeypatch: pytest.MonkeyPatch, is_function: bool) -> None:
    """A test calls it, without a server; so may a function that no workflow runs, which only the
    server knows.
    """
    if not is_function:
        monkeypatch.delenv("AWS_LAMBDA_RUNTIME_API")

    async def twice(client: kinds.Client, servers: cluster.Cluster) -> None:
        async def inner() -> int:
            await client.externalize()
            return 2

        async def outer() -> int:
            return 2 * await client.run_step("inner", inner)

        async def fails() -> int:
            raise ZeroDivisionError

        outside = cluster.refuse(400, "outside-of-run")
        if is_function:
            servers.fail("/steps/", *[outside] * 3)
            servers.fail("/externalize", cluster.reply(204, b""))
            servers.fail("/calls/|/messages/", outside, outside)
        assert await client.run_step("outer", outer) == 4
        with pytest.raises(ZeroDivisionError):
            await client.run_step("fails", fails)
        for asked in (client.call("f"), client.send("q", b"m")):
            with pytest.raises(landfast.OutsideOfRun, match="in a function that a workflow runs"):
                await asked
        assert len(servers.seen) == (6 if is_function else 0)

    for kind in ("blocking", "asyncio"):
        with cluster.Cluster() as servers:
            asyncio.run(kinds.with_client(kind, servers.url, lambda client: twice(client, servers)))


@kinds.over()
async def an_invocation_that_was_refused_is_told_so(client: kinds.Client, servers: cluster.Cluster) -> None:
    """Lambda's API has error codes of its own. No function ran, and a moment later it may."""
    for status, code, error in (
        (404, "ResourceNotFoundException", landfast.NoSuchFunction),
        (400, "InvalidParameterValueException", landfast.InvalidRequest),
        (400, "InvalidRequestContentException", landfast.InvalidRequest),
        (413, "RequestTooLargeException", landfast.TooLarge),
        (409, "ResourceConflictException", landfast.AttemptEnded),
        (502, "InvalidRuntimeException", landfast.Unavailable),
        (500, "ServiceException", landfast.OutcomeUnknown),
    ):
        servers.fail("", cluster.reply(status, b'{"Type":"User","Message":"why"}', {"X-Amzn-ErrorType": code}))
        with pytest.raises(landfast.Error, match=f"invoke the function 'f' at .*{code}: why. ") as caught:
            await client.invoke("f")
        assert caught.type is error
    for status, code in ((429, "TooManyRequestsException"), (503, "ServiceUnavailableException")):
        refusal = cluster.reply(status, b"{}", {"X-Amzn-ErrorType": code})
        servers.fail("", refusal, cluster.document({"ok": True}))
        assert await client.invoke("f") == {"ok": True}


@kinds.over()
async def no_wait_is_longer_than_a_server_waits(client: kinds.Client, servers: cluster.Cluster) -> None:
    """1e+06 was parsed as `1e 06`, and a socket does not accept infinity."""
    for wait in (1e6, float("inf"), -1.0, float("nan")):
        servers.fail("", cluster.document(RUN), cluster.document(RUN))
        assert await client.runs("w").get("r", wait=wait) == await client.runs("w").run(id="r", wait=wait)
    asked = [seen.path.rpartition("/")[2] for seen in servers.seen]
    assert asked == [*["r?wait=900", "runs?wait=900&id=r"] * 2, *["r", "runs?id=r"] * 2]


@kinds.over(kinds=["asyncio"])
async def code_does_not_go_on_where_it_gave_up_asking_for_a_step(client: aio.Client, servers: cluster.Cluster) -> None:
    """W2: the step may run all the same."""
    until = threading.Event()
    servers.fail("/calls/", cluster.silent(until))
    with pytest.raises(landfast.RunInterrupted):
        await asyncio.wait_for(client.call("f"), 0.1)
    until.set()


@pytest.mark.parametrize("kind", [TimeoutError, ValueError, KeyboardInterrupt])
@pytest.mark.parametrize("asked", ["POST .*/steps/", "PUT .*/steps/s$", "/failure", "/calls/"])
def code_does_not_go_on_where_it_was_interrupted_while_it_asked_for_a_step(asked: str, kind: Type[BaseException]) -> None:
    """W2: the server has accepted it, and code that handles the exception of a signal's handler
    would take it for the step's failure.
    """

    def handler(number: int, frame: object) -> None:
        raise kind("of the handler")

    def body() -> int:
        if asked == "/failure":
            raise ZeroDivisionError
        return 1

    before, until = signal.signal(signal.SIGUSR1, handler), threading.Event()
    try:
        with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
            servers.fail(asked, cluster.interrupting(lambda: os.kill(os.getpid(), signal.SIGUSR1), until))
            servers.fail("POST", cluster.document({"step": "s", "id": "s-id"}))
            with pytest.raises(landfast.RunInterrupted, match="of the handler"):
                if asked == "/calls/":
                    client.call("f")
                else:
                    client.run_step("s", body)
            until.set()
            assert servers.requests(asked)
    finally:
        signal.signal(signal.SIGUSR1, before)


@kinds.over()
async def a_call_that_cannot_be_asked_for_is_told_so(client: kinds.Client, servers: cluster.Cluster) -> None:
    """It interrupts nothing, and another run of the code would not help."""
    with pytest.raises(TypeError, match="not JSON serializable"):
        await client.call("f", object())
    assert servers.seen == []


@kinds.over(kinds=["asyncio"])
async def steps_of_one_code_are_refused_side_by_side(client: aio.Client, servers: cluster.Cluster) -> None:
    """W2: chance would decide which of them takes which result. Steps within a step are counted
    apart.
    """
    servers.fail("POST", cluster.document({"step": "a", "id": "a-id"}), cluster.document({"step": "b", "id": "b-id"}), cluster.document({"output": 1}))
    servers.fail("PUT", cluster.document({"output": 2}), cluster.document({"output": 3}))

    async def within() -> int:
        called: int = await client.call("f")
        return await client.run_step("within", never) + called

    async def never() -> int:
        return 0

    both = await asyncio.gather(
        client.run_step("one", within),
        client.run_step("another", never),
        client.call("f"),
        return_exceptions=True,
    )
    refused = [error for error in both if isinstance(error, RuntimeError)]
    assert len(refused) == 2 and all("one after the other" in str(error) for error in refused), both


def steps_outside_of_runs_may_be_side_by_side() -> None:
    """There they are ordinary functions, which only the server knows."""
    outside, refused = cluster.refuse(400, "outside-of-run"), []

    async def one() -> int:
        return 1

    async def scenario(url: str) -> None:
        async with aio.connect(url) as client:
            assert await asyncio.gather(*[client.run_step("s", one) for _ in range(3)]) == [1, 1, 1]

    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail("/steps/", *[outside] * 3)
        asyncio.run(scenario(servers.url))

        def step() -> None:
            try:
                assert client.run_step("s", lambda: 1) == 1
            except RuntimeError as error:
                refused.append(error)

        def meanwhile(handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
            beside.start()
            # It ends only where it is refused: otherwise it waits for this.
            beside.join(0.2)
            return outside(handler, answer)

        beside = threading.Thread(target=step)
        servers.fail("/steps/", meanwhile, outside)
        step()
        beside.join()
        assert refused == [] and len(servers.seen) == 5


@kinds.over(kinds=["blocking"])
async def a_blocking_step_takes_no_coroutine_function(client: kinds.BlockingClient, servers: cluster.Cluster) -> None:
    said = {"errorType": "TypeError", "errorMessage": ""}
    servers.fail("", cluster.document({"step": "s", "id": "s-id"}), cluster.document({"error": said}))

    async def body() -> int:
        return 1

    with pytest.raises(landfast.StepFailed):
        _ = client._client.run_step("s", lambda: body())
    assert b"landfast.aio takes coroutine functions" in servers.seen[-1].body


def a_workflow_of_coroutines_is_a_handler_like_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call has an event loop of its own, and leaves no connection behind."""

    @aio.step(name="adds")
    async def add(a: int, *, b: int) -> int:
        """Adds."""
        return a + b

    @aio.workflow
    async def handler(event: Any, context: Any) -> int:
        return await add(event, b=context)

    assert (add.__name__, add.__doc__, handler.__name__) == ("add", "Adds.", "handler")
    with cluster.Cluster() as servers:
        monkeypatch.setenv("LANDFAST_URL", servers.url)
        for number in (1, 2):
            servers.fail("", cluster.document({"step": "s", "id": "s-id"}), cluster.document({"output": number}))
            assert handler(number, 10) == number
        assert [(str(seen), seen.body) for seen in servers.seen] == [
            ("POST /v1/run/steps/adds", b""),
            ("PUT /v1/run/steps/adds", b"11"),
            ("POST /v1/run/steps/adds", b""),
            ("PUT /v1/run/steps/adds", b"12"),
        ]


@pytest.mark.parametrize(("timeout", "wait", "most"), [(8, 0, 8), (8, 1, 9), (30, 0, 30), (30, 60, 70)])
def a_call_about_a_run_takes_its_timeout_at_most_beside_its_wait(timeout: float, wait: float, most: float) -> None:
    calls = WorkflowCalls(_nodes.Route(_nodes.nodes_from("http://127.0.0.1:1")), Limits(call_s=timeout), OneByOne())
    assert calls._patient(wait).call_s == most
