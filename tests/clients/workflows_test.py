"""Workflows of functions as real processes: chains and graphs, code that is a workflow, deaths, a far store."""

import json
import shutil

import pytest

import application
import redis_server
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


def a_chain_passes_what_each_step_answers_and_writes(apps):
    """W1, W2."""
    apps.workflow("chain", 'steps = ["first", "second"]')
    apps.deploy()
    status, answer = apps.run("chain", {"n": 4}, "?wait=30&id=mine")
    assert (status, answer["status"]) == (200, "succeeded"), answer
    assert answer["output"] == {"n": 50, "seen": "4"} and answer["run"] == "mine"
    assert (apps.value("first"), apps.value("second")) == ("4", "4")
    again = apps.run("chain", {"n": 9}, "?wait=30&id=mine")[1]
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
    """W2: what an attempt wrote is read by that attempt alone."""
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
    failed = apps.run("hopeless", query="?wait=30&id=h")[1]
    assert failed["status"] == "failed", failed
    assert failed["error"]["step"] == "hopeless" and failed["error"]["errorType"] == "KeyError"
    assert apps.value("never") is None and apps.value("count") == "2"


def code_that_is_a_workflow_calls_each_step_once(apps):
    """W2: the code runs again, and finds what counts."""
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
    answer = apps.run("order", {"amount": 5}, "?wait=30&id=o")[1]
    assert answer["output"] == {"runs": 3, "totals": [5, 10], "shipped": 8}, answer
    assert apps.value("charged") == "10"
    steps = apps.ask("GET", "/v1/workflows/order/runs/o/steps").document["steps"]
    assert [step["path"] for step in steps] == ["0/0", "0/1", "0/2", "0"]


def code_that_handles_a_failure_is_told_of_it_whenever_it_is_run_again(apps):
    """W2: the steps would succeed the next time, and what stands behind them be taken for something else."""
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
    answer = apps.run("order", None, "?wait=30&id=o")[1]
    went = ["ValueError: no card", "this time"]
    assert answer["output"] == {"went": went, "noted": went, "runs": 3}, answer
    assert apps.value("went") == "; ".join(went)
    steps = apps.ask("GET", "/v1/workflows/order/runs/o/steps").document["steps"]
    failed = [step["error"]["errorType"] for step in steps if "error" in step]
    assert ([step["path"] for step in steps], failed) == (["0/0", "0/1", "0/2", "0"], ["ValueError", "OSError"])


def a_step_whose_failure_nobody_handles_is_tried_again_with_the_code(apps):
    """W2: nothing stands behind the failure."""
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
    """W2: what counts at a place was another step."""
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
            time.sleep(60)
    """, retries=0, timeout_s=100)
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
    """W4: each step counts once, whenever the server dies."""
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
        found = apps.ask("GET", f"/v1/workflows/sums/runs/{name}?wait=30").document
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


@pytest.fixture
def far(tmp_path):
    """A far store."""
    redis = redis_server.Redis(tmp_path / "far").start()
    yield redis
    redis.stop()


def what_a_run_came_to_is_shown_once_it_is_far(apps, far):
    """W3: near goes on while the far store is away, and nobody hears of it."""
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["output"] == {"n": 20, "seen": "1"}
    assert apps.stored("chain", "first") == "1" and apps.value("first") is None
    far.stop()
    status, answer = apps.run("chain", {"n": 2}, "?id=unseen")
    assert status in (202, 503), answer
    hidden = apps.ask("GET", "/v1/workflows/chain/runs/unseen?wait=1")
    assert hidden.status == 503 or hidden.document["status"] == "running", hidden
    far.start()
    shown = apps.ask("GET", "/v1/workflows/chain/runs/unseen?wait=30").document
    assert shown["status"] == "succeeded" and apps.stored("chain", "first") == "2"


def figures_of_runs_and_far_stores_are_in_the_status_and_the_metrics(apps, far):
    apps.function("first", "def handler(event, context):\n    if event == 'fail':\n        raise KeyError('x')\n    return event\n", retries=0)
    address = far.url.removeprefix("redis://")
    apps.workflow("near", 'steps = ["first"]')
    apps.workflow("far", f'steps = ["first"]\nfar = "redis://default:secret@{address}"')
    apps.deploy()

    def figures():
        return apps.ask("GET", "/v1/status").document["workflows"]

    assert apps.run("near", 1)[1]["status"] == "succeeded"
    assert apps.run("near", "fail")[1]["status"] == "failed"
    seen = figures()
    assert (seen["begun"], seen["succeeded"], seen["failed"], seen["active"], seen["far_stores"]) == (2, 1, 1, 0, [])
    far.stop()
    refused, _ = apps.run("far", 1, "?wait=0")
    assert refused == 503
    waiting.until(lambda: figures()["far_stores"], "the far store that was wanted")
    store, = figures()["far_stores"]
    assert (store["address"], store["reachable"]) == (f"redis://{address}", False) and store["trouble"]
    metrics = apps.ask("GET", "/metrics").body.decode()
    assert f'landfast_far_store_reachable{{store="redis://{address}"}} 0.0' in metrics.splitlines()
    assert "UNREACHABLE" in apps.command("status").stdout
    assert "secret" not in metrics + apps.command("status").stdout + json.dumps(figures())


def a_kill_of_the_server_leaves_nothing_unsent(apps, far):
    """W4, W5."""
    apps.function("adds", """
        import landfast
        def handler(event, context):
            state = landfast.state()
            total = int(state.get(event) or b"0") + 1
            state.put(event, str(total).encode())
            return event
    """, retries=0)
    apps.workflow("sums", f'steps = ["adds", "adds", "adds"]\nfar = "{far.url}"')
    apps.deploy()
    names = [f"r{number}" for number in range(12)]
    for round in range(3):
        for name in names[4 * round:4 * round + 4]:
            assert apps.run("sums", name, f"?id={name}")[0] in (200, 202)
        apps.server.kill()
        apps.server.start()
    for name in names:
        found = apps.ask("GET", f"/v1/workflows/sums/runs/{name}?wait=30").document
        assert found["status"] == "succeeded" and apps.stored("sums", name) == "3", found


def another_near_store_takes_over_what_is_far(apps, far):
    """W-3: with its disk a server loses what was not externalized, and nothing else."""
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 3}, "?wait=30&id=a")[1]["status"] == "succeeded"
    apps.server.kill()
    shutil.rmtree(apps.server.directory / "data")
    apps.server.start()
    apps.deploy()
    # The lease of the lost one has to run out.
    found = waiting.until(lambda: apps.stored("chain", "second"), "what it wrote", 40)
    assert found == "3"
    assert apps.ask("GET", "/v1/workflows/chain/runs/a").document["status"] == "succeeded"
    assert apps.run("chain", {"n": 4})[1]["output"]["seen"] == "4"


def what_a_step_with_a_far_store_sends_leaves_once_it_is_far(apps, far):
    """W2, W3: in order, each under an id of its own that stays, through a kill of the server in between."""
    apps.function("tells", """
        import landfast
        def handler(event, context):
            for n in range(3):
                landfast.send("orders", str(event["n"] + n).encode(), group="g")
            print("told", event["n"], flush=True)
            return {"n": event["n"] + 3}
    """, retries=0)
    apps.function("takes", """
        def handler(event, context):
            for record in event["Records"]:
                print("took", record["body"], record["attributes"]["MessageDeduplicationId"], flush=True)
    """, triggers=[{"queue": "orders"}])
    apps.workflow("chain", f'steps = ["tells", "tells"]\nfar = "{far.url}"')
    apps.deploy()

    def taken():
        """Bodies in the order in which they first came, and the ids of each."""
        ids = {}
        for line in apps.lines("takes"):
            if line.startswith("took"):
                _, body, id = line.split(" ")
                ids.setdefault(int(body), set()).add(id)
        return ids

    assert apps.run("chain", {"n": 0})[1]["output"] == {"n": 6}
    first = waiting.until(lambda: len(found := taken()) >= 6 and found, "every message of the first run")
    far.stop()
    apps.run("chain", {"n": 10}, "?id=unseen")
    waiting.until(lambda: {"told 10", "told 13"} <= set(apps.lines("tells")), "both steps to have run")
    assert list(taken()) == list(first), "they count near, and nothing has left"
    apps.server.kill()
    apps.server.start()
    assert list(taken()) == list(first)
    far.start()
    assert apps.ask("GET", "/v1/workflows/chain/runs/unseen?wait=30").document["output"] == {"n": 16}
    all_of_them = waiting.until(lambda: len(found := taken()) >= 12 and found, "every message of the second run")
    assert list(all_of_them) == [*range(6), *range(10, 16)]
    assert all(len(ids) == 1 for ids in all_of_them.values()), all_of_them
    assert len(set.union(*all_of_them.values())) == 12, all_of_them


def a_transaction_in_a_step_counts_once_what_the_run_rests_on_is_far(apps, far):
    """W3: it writes to another store, which is an edge (P5). W9: that it waits there for longer than it may take uses up no retry."""
    apps.function("copies", """
        import landfast
        def handler(event, context):
            seen = landfast.state().get("first")
            print("copies", seen.decode(), flush=True)
            with landfast.transaction() as transaction:
                transaction.put("copied", seen)
            return event
    """, retries=0)
    copies = '{ function = "copies", retries = 0, timeout_s = 2 }'
    apps.workflow("chain", f'steps = ["first", {copies}]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["status"] == "succeeded"
    assert apps.value("copied") == "1"
    far.stop()
    apps.run("chain", {"n": 2}, "?id=unseen")
    timed_out = lambda: apps.ask("GET", "/v1/status").document["functions"]["failures"]["timed-out"]
    waiting.until(lambda: timed_out() == 1, "its only attempt to end", 30)
    assert apps.value("copied") == "1", "it rests on what is not far"
    far.start()
    assert apps.ask("GET", "/v1/workflows/chain/runs/unseen?wait=30").document["status"] == "succeeded"
    assert apps.value("copied") == "2"
    assert apps.lines("copies").count("copies 2") == 2


def a_step_scans_what_is_far(apps, far):
    """W2, T18."""
    apps.function("scans", SCANS, retries=0)
    apps.function("fills", """
        import landfast
        def handler(event, context):
            for number in (1, 2, 3, 4):
                landfast.state().put(f"k/{number}", b"counts")
            landfast.state().put("another", b"")
    """, retries=0)
    apps.workflow("fill", f'steps = ["fills"]\nfar = "{far.url}"')
    apps.workflow("scan", f'steps = ["scans"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("fill")[1]["status"] == "succeeded"
    assert apps.run("scan")[1]["output"] == SEEN
    found, after = [], ""
    while after is not None:
        page = apps.ask("GET", f"/v1/workflows/scan/state?limit=2&after={after}").document
        found, after = found + [entry["key"] for entry in page["keys"]], page.get("next")
    assert found == ["another"] + [f"k%2F{number}" for number in (1, 2, 4, 5)]
    assert apps.ask("GET", "/v1/state").document == {"keys": []}


def code_of_coroutines_calls_each_step_once(apps):
    """W2, W3: the code runs again in an event loop of its own, and finds what counts; and each step has what a blocking one has."""
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
    answer = apps.run("order", {"amount": 5}, "?wait=30&id=o")[1]
    charged = {"total": 5, "keys": ["charged"]}
    assert answer["output"] == {
        "runs": 3, "first": charged, "shipped": 8, "paid": [42, {**charged, "total": 6}], "refused": "<class 'RuntimeError'>",
    }, answer
    assert (apps.value("charged"), apps.value("paid")) == ("6", "yes")
    steps = apps.ask("GET", "/v1/workflows/order/runs/o/steps").document["steps"]
    assert [step["path"] for step in steps] == ["0/0", "0/1", "0/2/0", "0/2", "0"], steps
    assert [step["function"] for step in steps][:4] == ["charge", "double", "charge", "pay out"]
