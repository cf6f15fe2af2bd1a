"""Workflows of functions as real processes: chains and graphs, code that is a workflow, deaths, a far store."""


import pytest

import application
import waiting

STEPS = """
    import json
    import landfast
    def first(event, context):
        landfast.state().put("first", str(event["n"]).encode())
        return {"n": event["n"] + 1}
    def second(event, context):
        seen = landfast.state().get("first").decode()
        landfast.state().put("second", seen.encode())
        return {"n": event["n"] * 10, "seen": seen}
"""


@pytest.fixture
def apps(tmp_path, own_server):
    """An application on a server of its own."""
    if type(own_server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    app = application.Application(tmp_path / "app", own_server)
    app.file("steps.py", STEPS)
    for name in ("first", "second"):
        app.function(name, handler=f"steps.{name}", retries=0)
    return app


def the_command_names_the_step_that_a_run_failed_of(apps):
    apps.function("ships", "def handler(event, context):\n    raise KeyError('item')\n", retries=0)
    apps.workflow("order", 'steps = ["first", "ships"]')
    apps.deploy()
    ran = apps.command("workflows", "run", "order", "--id", "o", "--input", '{"n": 1}', "--timeline")
    shown = apps.command("workflows", "show", "order", "o")
    assert ran.returncode == 1 and shown.returncode == 0
    for text in (ran.stderr, shown.stdout):
        assert "ships failed: KeyError: 'item'" in text.splitlines(), text
    # It ended long before, and the time when that became durable is unknown. Its result is shown
    # though it cannot be drawn.
    again = apps.command("workflows", "run", "order", "--id", "o", "--timeline", "--svg", "/nowhere/timeline.svg")
    assert again.returncode == 1 and again.stdout == "" and "landfast: ships failed: KeyError: 'item'" in again.stderr, again
    assert "until durable" in ran.stderr and "until durable" not in again.stderr, again.stderr


def a_chain_passes_what_each_step_answers_and_writes(apps):
    """W1, W2."""
    apps.workflow("chain", 'steps = ["first", "second"]')
    apps.deploy()
    status, answer = apps.run("chain", {"n": 4}, "?wait=100&id=mine")
    assert (status, answer["status"]) == (200, "succeeded"), answer
    assert answer["output"] == {"n": 50, "seen": "4"} and answer["run"] == "mine"
    assert (apps.value("first"), apps.value("second")) == ("4", "4")
    again = apps.run("chain", {"n": 9}, "?wait=100&id=mine")[1]
    assert again["output"] == answer["output"], "the same id is the same run"
    steps = apps.ask("GET", "/v1/workflows/chain/runs/mine/steps").document["steps"]
    assert [(step["path"], step["function"], step["tries"]) for step in steps] == [("0", "first", 1), ("1", "second", 1)]
    listed = apps.ask("GET", "/v1/workflows/chain/runs?status=succeeded").document
    assert [found["run"] for found in listed["runs"]] == ["mine"]


def graphs_have_branches_lists_and_choices(apps):
    apps.file("graph.py", """
        def double(event, context): return event * 2
        def total(event, context): return {"kind": "big" if sum(event) > 10 else "small", "sum": sum(event)}
        def shout(event, context): return {"said": "BIG", **event}
    """)
    for name in ("double", "total", "shout"):
        apps.function(name, handler=f"graph.{name}", retries=0)
    choice = '{ choice = [{ when = { path = "kind", equals = "big" }, steps = ["shout"] }] }'
    apps.workflow("graph", f'steps = [{{ map = ["double"], concurrency = 2 }}, "total", {choice}]')
    apps.workflow("branches", 'steps = [{ parallel = [["double", "double"], []] }]')
    apps.deploy()
    assert apps.run("graph", [1, 2, 3])[1]["output"] == {"said": "BIG", "kind": "big", "sum": 12}
    assert apps.run("graph", [1, 1])[1]["output"] == {"kind": "small", "sum": 4}
    assert apps.run("branches", 3)[1]["output"] == [12, 3]
    failed = apps.run("graph", {"no": "list"})[1]
    assert failed["status"] == "failed" and failed["error"]["errorType"] == "Workflow.InvalidInput"


def a_step_that_fails_leaves_nothing_and_is_tried_again(apps):
    """W2: only the attempt that wrote a value reads it."""
    apps.function("flaky", """
        import os
        import landfast
        def handler(event, context):
            state = landfast.state()
            count = int(state.get("count") or b"0") + 1
            state.put("count", str(count).encode())
            state.put("draft", b"written")
            assert int(state.get("count")) == count
            with open("/tmp/tries", "a+") as tries:
                tries.write("x")
                tries.seek(0)
                if len(tries.read()) < 3:
                    raise ValueError("not yet")
            return count
    """, retries=5)
    apps.function("hopeless", """
        import landfast
        def handler(event, context):
            landfast.state().put("never", b"1")
            raise KeyError("gone")
    """, retries=1)
    apps.workflow("flaky", 'steps = [{ function = "flaky", backoff_ms = 1 }]')
    apps.workflow("hopeless", 'steps = ["flaky", { function = "hopeless", backoff_ms = 1 }, "first"]')
    apps.deploy()
    answer = apps.run("flaky")[1]
    assert (answer["status"], answer["output"], apps.value("count")) == ("succeeded", 1, "1")
    failed = apps.run("hopeless", query="?wait=100&id=h")[1]
    assert failed["status"] == "failed", failed
    assert failed["error"]["step"] == "hopeless" and failed["error"]["errorType"] == "KeyError"
    assert apps.value("never") is None and apps.value("count") == "2"


def code_that_is_a_workflow_calls_each_step_once(apps):
    """W2: the code runs again, and finds the recorded steps."""
    apps.function("order", """
        import landfast
        runs = []
        @landfast.step
        def charge(amount):
            state = landfast.state()
            total = int(state.get("charged") or b"0") + amount
            state.put("charged", str(total).encode())
            return {"total": total}
        @landfast.workflow
        def handler(event, context):
            runs.append(1)
            first = charge(event["amount"])
            shipped = landfast.call("first", {"n": 7})
            second = charge(event["amount"])
            if len(runs) < 3:
                raise RuntimeError("the code dies here")
            return {"runs": len(runs), "totals": [first["total"], second["total"]], "shipped": shipped["n"]}
    """, retries=4)
    apps.workflow("order", 'function = "order"')
    apps.deploy()
    answer = apps.run("order", {"amount": 5}, "?wait=100&id=o")[1]
    assert answer["output"] == {"runs": 3, "totals": [5, 10], "shipped": 8}, answer
    assert apps.value("charged") == "10"
    steps = apps.ask("GET", "/v1/workflows/order/runs/o/steps").document["steps"]
    assert [step["path"] for step in steps] == ["0/0", "0/1", "0/2", "0"]


def code_that_handles_a_failure_is_told_of_it_whenever_it_is_run_again(apps):
    """W2: the steps would succeed the next time, and the steps after them would be taken for
    something else.
    """
    apps.function("fickle", """
        runs = []
        def handler(event, context):
            runs.append(1)
            if len(runs) == 1:
                raise OSError("this time")
            return "called"
    """, retries=0)
    apps.function("order", """
        import landfast
        runs = []
        @landfast.step
        def charge():
            if len(runs) == 1:
                raise ValueError("no card")
            return "charged"
        @landfast.step
        def note(went):
            landfast.state().put("went", "; ".join(went).encode())
            return went
        @landfast.workflow
        def handler(event, context):
            runs.append(1)
            went = []
            try:
                went.append(charge())
            except landfast.StepFailed as failure:
                went.append(f"{failure.error['errorType']}: {failure.error['errorMessage']}")
            try:
                went.append(landfast.call("fickle"))
            except landfast.FunctionFailed as failure:
                went.append(failure.error["errorMessage"])
            noted = note(went)
            if len(runs) < 3:
                raise RuntimeError("the code dies here")
            return {"went": went, "noted": noted, "runs": len(runs)}
    """, retries=4)
    apps.workflow("order", 'function = "order"')
    apps.deploy()
    answer = apps.run("order", None, "?wait=100&id=o")[1]
    went = ["ValueError: no card", "this time"]
    assert answer["output"] == {"went": went, "noted": went, "runs": 3}, answer
    assert apps.value("went") == "; ".join(went)
    steps = apps.ask("GET", "/v1/workflows/order/runs/o/steps").document["steps"]
    failed = [step["error"]["errorType"] for step in steps if "error" in step]
    assert ([step["path"] for step in steps], failed) == (["0/0", "0/1", "0/2", "0"], ["ValueError", "OSError"])


@pytest.mark.parametrize("goes_on", ("commits", "begins", "cancels"))
def a_step_that_handles_a_failure_is_told_of_it_again_once_it_went_on(apps, goes_on):
    """W2: the step within it would succeed the next time, while effects elsewhere depend on its
    failure.
    """
    apps.function("order", """
        import landfast
        runs = []

        def commits(said):
            try:
                with landfast.transaction() as transaction:
                    transaction.put("went", said.encode())
            except landfast.AlreadyCommitted:
                pass

        GOES_ON = {
            "commits": commits,
            "begins": lambda said: landfast.runs("other").run(said, id=said),
            "cancels": lambda said: landfast.runs("other").cancel("begun"),
        }

        @landfast.step
        def charge():
            if len(runs) == 1:
                raise ValueError("no card")
            return "charged"

        @landfast.step
        def around(goes_on):
            try:
                said = charge()
            except landfast.StepFailed as failure:
                said = failure.error["errorType"]
            GOES_ON[goes_on](said)
            if len(runs) == 1:
                raise RuntimeError("the step dies here")
            return said

        def handler(event, context):
            runs.append(1)
            return around(event)
    """, retries=4, concurrency=1)
    apps.function("echo", "def handler(event, context):\n    return event\n")
    apps.workflow("order", 'function = "order"')
    apps.workflow("other", 'steps = ["echo"]')
    apps.deploy()
    assert apps.run("other", 1, "?id=begun&wait=100")[1]["status"] == "succeeded"
    answer = apps.run("order", goes_on)[1]
    assert (answer["status"], answer.get("output")) == ("succeeded", "ValueError"), answer


def a_step_whose_failure_nobody_handles_is_tried_again_with_the_code(apps):
    """W2: nothing follows the failure."""
    apps.function("order", """
        import landfast
        runs = []
        @landfast.step
        def charge():
            if len(runs) < 3:
                raise ValueError("no card")
            return len(runs)
        @landfast.workflow
        def handler(event, context):
            runs.append(1)
            return charge()
    """, retries=4)
    apps.workflow("order", 'function = "order"')
    apps.deploy()
    assert apps.run("order")[1]["output"] == 3


def code_that_calls_other_steps_than_before_is_told_so(apps):
    """W2: the recorded step at a position was another one."""
    apps.function("order", """
        import landfast
        runs = []
        @landfast.step
        def first(): return 1
        @landfast.step
        def other(): return 2
        @landfast.workflow
        def handler(event, context):
            runs.append(1)
            if len(runs) == 1:
                first()
                raise RuntimeError("the code dies here, and is another when it is run again")
            return other()
    """, retries=1)
    apps.workflow("order", 'function = "order"')
    apps.deploy()
    failed = apps.run("order")[1]
    assert failed["status"] == "failed" and "a run needs the code it began with" in failed["error"]["errorMessage"], failed


def an_atomic_run_counts_at_its_end_or_not_at_all(apps):
    """W5."""
    apps.function("seen", """
        import landfast
        def handler(event, context):
            return {"first": landfast.state().get("first").decode()}
    """, retries=0)
    apps.function("fails", """
        def handler(event, context):
            raise ValueError("no")
    """, retries=0)
    apps.workflow("whole", 'steps = ["first", "seen"]\natomic = true')
    apps.workflow("nothing", 'steps = ["first", "fails"]\natomic = true')
    apps.deploy()
    assert apps.run("nothing", {"n": 1})[1]["status"] == "failed"
    assert apps.value("first") is None
    assert apps.run("whole", {"n": 2})[1]["output"] == {"first": "2"}
    assert apps.value("first") == "2"


def a_cancelled_run_does_nothing_more(apps):
    """W6, W7."""
    apps.function("sleeps", """
        import time
        import landfast
        def handler(event, context):
            landfast.state().put("began", b"1")
            landfast.externalize()
            time.sleep(600)
    """, retries=0, timeout_s=900)
    apps.workflow("slow", 'steps = ["sleeps", "first"]')
    apps.deploy()
    status, answer = apps.run("slow", {"n": 1}, "?id=s")
    assert (status, answer["status"]) == (202, "running")
    waiting.until(lambda: apps.value("began") == "1", "the step to begin")
    ended = apps.ask("DELETE", "/v1/workflows/slow/runs/s").document
    assert ended["status"] == "cancelled"
    assert apps.ask("GET", "/v1/workflows/slow/runs/s").document["status"] == "cancelled"
    assert apps.value("first") is None


def runs_go_on_after_a_kill_of_the_server(apps):
    """W4: each step takes effect once, whenever the server dies."""
    apps.function("adds", """
        import landfast
        def handler(event, context):
            state = landfast.state()
            total = int(state.get("total/" + event["run"]) or b"0") + 1
            state.put("total/" + event["run"], str(total).encode())
            return event
    """, retries=0)
    apps.workflow("sums", 'steps = ["adds", "adds", "adds", "adds"]')
    apps.deploy()
    names = [f"r{number}" for number in range(24)]
    for round in range(4):
        for name in names[6 * round:6 * round + 6]:
            assert apps.run("sums", {"run": name}, f"?id={name}")[0] in (200, 202)
        apps.server.kill()
        apps.server.start()
    for name in names:
        found = apps.ask("GET", f"/v1/workflows/sums/runs/{name}?wait=100").document
        assert found["status"] == "succeeded", found
        assert apps.value(f"total%2F{name}") == "4", name


SCANS = """
    import landfast
    def handler(event, context):
        state = landfast.state()
        state.put("k/2", b"written")
        state.delete("k/3")
        state.put("k/5", b"written")
        seen, page = [], state.scan("k/", limit=2)
        while True:
            seen += [[key.decode(), value.decode()] for key, value in page.items]
            if page.next is None:
                return seen
            page = state.scan("k/", after=page.next, limit=2)
"""
SEEN = [["k/1", "counts"], ["k/2", "written"], ["k/4", "counts"], ["k/5", "written"]]


def a_step_scans_what_counts_and_what_it_has_written(apps):
    """W2, T18: in pages, one over the other; so does an atomic run, and a step within a step."""
    apps.function("scans", SCANS, retries=0)
    apps.function("within", """
        import landfast
        import scans
        @landfast.step
        def inner():
            landfast.state().put("k/6", b"inner")
            return scans.handler(None, None)
        def handler(event, context):
            seen = inner()
            return seen, [key.decode() for key, _ in landfast.state().scan("k/").items]
    """, retries=0)
    apps.workflow("near", 'steps = ["scans"]')
    apps.workflow("whole", 'steps = ["scans"]\natomic = true')
    apps.workflow("coded", 'function = "within"')
    apps.deploy()
    for name in ("near", "whole", "coded"):
        for key in ("1", "2", "3", "4"):
            assert apps.ask("PUT", f"/v1/state/k%2F{key}", b"counts").status == 204
        for key in ("5", "6"):
            assert apps.ask("DELETE", f"/v1/state/k%2F{key}").status == 204
        answer = apps.run(name)[1]
        assert answer["status"] == "succeeded", answer
        if name == "coded":
            assert answer["output"] == [SEEN + [["k/6", "inner"]], ["k/1", "k/2", "k/4", "k/5", "k/6"]]
        else:
            assert answer["output"] == SEEN
        listed = apps.ask("GET", f"/v1/workflows/{name}/state?prefix=k%2F").document
        assert listed == apps.ask("GET", "/v1/state?prefix=k%2F").document
        assert [found["key"] for found in listed["keys"]][:4] == [f"k%2F{number}" for number in (1, 2, 4, 5)]


def code_of_coroutines_calls_each_step_once(apps):
    """W2, W3: the code runs again in an event loop of its own, and finds the recorded steps; and
    each step has the abilities of a blocking one.
    """
    apps.function("double", """
        def handler(event, context):
            return 2 * event
    """)
    apps.function("order", """
        import asyncio
        from landfast import aio
        runs = []
        @aio.step
        async def charge(amount):
            state = aio.state()
            total = int(await state.get("charged") or b"0") + amount
            await state.put("charged", str(total).encode())
            return {"total": total, "keys": [key.decode() for key, _ in (await state.scan("charg")).items]}
        @aio.step(name="pay out")
        async def pay():
            await aio.state().put("paid", b"yes")
            await aio.externalize()
            doubled = await aio.invoke("double", 21)
            return [doubled, await charge(1)]
        @aio.workflow
        async def handler(event, context):
            runs.append(1)
            first = await charge(event["amount"])
            shipped = await aio.call("double", 4)
            refused = await asyncio.gather(pay(), charge(100), return_exceptions=True)
            if len(runs) < 3:
                raise RuntimeError("the code dies here")
            return {"runs": len(runs), "first": first, "shipped": shipped, "paid": refused[0], "refused": str(type(refused[1]))}
    """, retries=4)
    apps.workflow("order", 'function = "order"')
    apps.deploy()
    answer = apps.run("order", {"amount": 5}, "?wait=100&id=o")[1]
    charged = {"total": 5, "keys": ["charged"]}
    assert answer["output"] == {
        "runs": 3, "first": charged, "shipped": 8, "paid": [42, {**charged, "total": 6}], "refused": "<class 'RuntimeError'>",
    }, answer
    assert (apps.value("charged"), apps.value("paid")) == ("6", "yes")
    steps = apps.ask("GET", "/v1/workflows/order/runs/o/steps").document["steps"]
    assert [step["path"] for step in steps] == ["0/0", "0/1", "0/2/0", "0/2", "0"], steps
    assert [step["function"] for step in steps][:4] == ["charge", "double", "charge", "pay out"]


def a_status_to_list_by_is_one_of_a_workflow(apps):
    refused = apps.command("workflows", "list", "--status", "failed")
    assert refused.returncode == 2 and "required" in refused.stderr, refused
