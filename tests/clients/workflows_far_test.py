"""Workflows with a far store as real processes: outages, deaths, and takeovers."""

import json
import re
import shutil
import signal

import pytest

import application
import redis_server
import server as servers
import waiting
from workflows_test import SCANS, SEEN, STEPS


@pytest.fixture
def apps(apps):
    """The same with two steps."""
    apps.file("steps.py", STEPS)
    for name in ("first", "second"):
        apps.function(name, handler=f"steps.{name}", retries=0)
    return apps


@pytest.fixture
def far(tmp_path):
    """A far store."""
    redis = redis_server.Redis(tmp_path / "far").start()
    yield redis
    redis.stop()


def what_a_run_came_to_is_shown_once_it_is_far(apps, far):
    """W3: near goes on while the far store is away, and no caller notices."""
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
    shown = apps.ask("GET", "/v1/workflows/chain/runs/unseen?wait=100").document
    assert shown["status"] == "succeeded" and apps.stored("chain", "first") == "2"


@pytest.fixture
def on_redis(tmp_path):
    """An application on a server whose own store is a Redis."""
    directory = tmp_path / "on-redis"
    directory.mkdir()
    server = servers.LandfastOnRedis(directory).start()
    apps = application.Application(tmp_path / "on-redis-app", server)
    apps.file("steps.py", STEPS)
    for name in ("first", "second"):
        apps.function(name, handler=f"steps.{name}", retries=0)
    yield apps
    server.shut_down()


def a_far_store_that_is_the_servers_own_store_is_refused(on_redis, far):
    """W-3: under another name, so that only the store can tell. The workflow's work elsewhere is
    not spoilt, nor by a start.
    """
    own = f"redis://localhost:{on_redis.server.redis.port}"
    on_redis.workflow("chain", 'steps = ["first", "second"]')
    on_redis.deploy()
    assert on_redis.run("chain", {"n": 1}, "?wait=100&id=near")[1]["status"] == "succeeded"
    on_redis.workflow("chain", f'steps = ["first", "second"]\nfar = "{own}"')
    on_redis.deploy()

    def is_refused():
        refused = on_redis.ask("POST", "/v1/workflows/chain/runs?wait=100&id=refused", b'{"n": 2}')
        assert (refused.status, refused.document["type"]) == (503, "unavailable"), refused
        assert "is the server's own `--store`" in refused.document["detail"] and own in refused.document["detail"]
        listed = on_redis.ask("GET", "/v1/workflows/chain/runs").document["runs"]
        assert [run["run"] for run in listed] == ["near"], listed
        assert on_redis.ask("GET", "/v1/workflows/chain/runs/refused").status == 404
        assert "leave `far` out" in on_redis.command("status").stdout

    is_refused()
    on_redis.server.stop()
    on_redis.server.start()
    is_refused()
    on_redis.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    on_redis.deploy()
    assert on_redis.run("chain", {"n": 3}, "?wait=100&id=far")[1]["status"] == "succeeded"
    listed = on_redis.ask("GET", "/v1/workflows/chain/runs").document["runs"]
    assert [run["run"] for run in listed] == ["far", "near"], listed


def nobody_waits_for_a_far_store_that_is_away_until_the_connection_is_cut(apps, far):
    """W3: a response that cannot be shown is refused by name."""
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1}, "?wait=100&id=r")[1]["status"] == "succeeded"
    far.stop()
    assert apps.run("chain", {"n": 2}, "?id=unseen")[0] in (202, 503)
    paths = ("runs", "runs/unseen", "runs/unseen/steps", "state", "state/first")
    answers = application.at_once(*[lambda path=path: apps.ask("GET", f"/v1/workflows/chain/{path}") for path in paths])
    assert [(path, answer.status, answer.document["type"]) for path, answer in zip(paths, answers)] == [
        (path, 503, "unavailable") for path in paths
    ]
    listed = apps.command("workflows", "list", "chain")
    assert listed.returncode != 0 and "is not durable yet" in listed.stderr, listed


def a_begin_that_cannot_be_seen_says_which_run_it_was(apps, far):
    """W1: a caller that receives this error asks for that run, and does not begin another; so does
    a caller that cancels one.
    """
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.function("waits", "import time\n\ndef handler(event, context):\n    time.sleep(600)\n", timeout_s=900)
    apps.workflow("waits", f'steps = ["waits"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["status"] == "succeeded"
    assert apps.run("waits", 1, "?id=w")[0] == 202
    far.stop()
    begun, named, ended, command = application.at_once(
        lambda: apps.ask("POST", "/v1/workflows/chain/runs", b'{"n": 2}'),
        lambda: apps.ask("POST", "/v1/workflows/chain/runs?id=named", b'{"n": 2}'),
        lambda: apps.ask("DELETE", "/v1/workflows/waits/runs/w"),
        lambda: apps.command("workflows", "run", "chain", "--input", '{"n": 2}', "--id", "said", "--wait", "1"),
    )
    for answer in (begun, named, ended):
        assert (answer.status, answer.document["type"]) == (503, "outcome-unknown"), answer
        assert f'the run "{answer.document["id"]}"' in answer.document["detail"], answer
    assert (named.document["id"], ended.document["id"]) == ("named", "w")
    assert command.returncode == 3 and '"said" has begun' in command.stderr and not command.stdout, command
    far.start()
    for run in (begun.document["id"], "named", "said"):
        assert apps.ask("GET", f"/v1/workflows/chain/runs/{run}?wait=100").document["status"] == "succeeded"
    assert apps.ask("GET", "/v1/workflows/waits/runs/w?wait=100").document["status"] == "cancelled"


def what_the_far_store_refuses_for_good_is_not_the_callers_fault(apps, far):
    """W3: no part of it is shown, and every caller learns which store refuses, and with which
    words.
    """
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["status"] == "succeeded"
    assert far.ask("ACL SETUSER default -set").startswith(b"+OK")
    begun = apps.ask("POST", "/v1/workflows/chain/runs?wait=100&id=refused", b'{"n": 2}')
    assert (begun.status, begun.document["type"], begun.document["id"]) == (503, "outcome-unknown", "refused"), begun
    again = apps.ask("POST", "/v1/workflows/chain/runs?wait=100&id=refused", b'{"n": 2}')
    assert (again.status, again.document["type"], again.document["id"]) == (503, "outcome-unknown", "refused"), again
    for path in ("runs", "runs/refused", "runs/refused?wait=3", "runs/refused/steps", "state", "state/first"):
        answer = apps.ask("GET", f"/v1/workflows/chain/{path}")
        if path.startswith("state") and answer.status == 200:
            # The far store was faster than the run, which has written no state then: the first
            # run's writes are far.
            assert answer.body == b"1" or {key["value"] for key in answer.document["keys"]} == {"MQ=="}, answer
            continue
        assert (answer.status, answer.document["type"]) == (503, "unavailable"), (path, answer)
        said = answer.document["detail"]
        assert "the far store refuses what was written to it" in said and "can't run this command" in said, said
    # A state longer than any that it has need not be asked for.
    for path, status in (("runs?after=" + "r" * 200, 400), ("state/" + "k" * 1024, 413)):
        assert apps.ask("GET", f"/v1/workflows/chain/{path}").status == status
    store, = apps.ask("GET", "/v1/status").document["workflows"]["far_stores"]
    assert store["stopped_runs"] >= 1, store
    assert apps.server.log_lines("a far store permanently refuses writes of runs")
    # The store takes writes again, and then those that it had refused: from then on the run is
    # reported alike. If the run had ended before the refusal, it has succeeded. Otherwise it
    # learned that none of its writes will take effect, and has failed.
    assert far.ask("ACL SETUSER default +@all").startswith(b"+OK")
    assert "start the server again" in apps.ask("GET", "/v1/workflows/chain/runs/refused").document["detail"]
    told = set()
    for _ in range(2):
        apps.server.kill()
        apps.server.start()
        shown = apps.ask("GET", "/v1/workflows/chain/runs/refused?wait=100").document
        listed = {run["run"]: run["status"] for run in apps.ask("GET", "/v1/workflows/chain/runs").document["runs"]}
        told |= {(shown["status"], listed["refused"], shown.get("error", {}).get("errorType"), apps.stored("chain", "second"))}
    succeeded, failed = ("succeeded", "succeeded", None, "2"), ("failed", "failed", "Workflow.NotWritten", "1")
    assert told in ({succeeded}, {failed}), told


def what_the_far_store_does_not_take_for_now_is_told_in_its_words(apps, far):
    """It was reported as not responding in time."""
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["status"] == "succeeded"
    assert far.ask("CONFIG SET min-replicas-to-write 1").startswith(b"+OK")
    begun = apps.ask("POST", "/v1/workflows/chain/runs?wait=1&id=r", b'{"n": 2}')
    assert (begun.status, begun.document["type"]) == (503, "outcome-unknown"), begun
    assert "does not take it: " in begun.document["detail"] and "replicas" in begun.document["detail"], begun
    assert far.ask("CONFIG SET min-replicas-to-write 0").startswith(b"+OK")
    assert apps.ask("GET", "/v1/workflows/chain/runs/r?wait=100").document["status"] == "succeeded"


def a_far_store_that_is_gone_for_good_is_complained_of_ever_more_seldom(apps, far):
    """W4: only the far store knows whether a run waits there, so no message says that one does; and
    no stop does either.
    """
    server = apps.server
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["status"] == "succeeded"
    assert apps.command("functions", "remove", apps.name).returncode == 0
    far.stop()
    assert server.stop() == 0
    assert server.log_lines("a far store was not released") and not server.log_lines("the next start sends them")
    server.start()
    words = "a far store is not open here"
    waiting.until(lambda: len(server.log_lines(words)) >= 2, "the second complaint")
    lasts = re.search(r"lasts=([\d.]+)s", server.log_lines(words)[1])
    assert lasts and float(lasts.group(1)) >= 2, server.log_lines(words)
    assert not server.log_lines("runs wait to be resumed")
    far.start()
    waiting.until(lambda: server.log_lines(f"over: {words}"), "the end of the complaints")


def what_the_far_store_would_refuse_is_refused_when_it_is_put(apps, far):
    """E8: the step learns of it, and its other writes take effect."""
    apps.function("puts", """
        import landfast
        def handler(event, context):
            state = landfast.state()
            state.put("most", bytes(event))
            state.put("k" * 1022, b"")
            said = []
            for key, value in (("more", bytes(event + 1)), ("k" * 1023, b"")):
                try:
                    state.put(key, value)
                except landfast.TooLarge as error:
                    said.append(str(error))
            return said
    """, retries=0)
    apps.workflow("puts", f'steps = ["puts"]\nfar = "{far.url}"')
    apps.deploy()
    most = (4 << 20) - (8 << 10) - 1
    answer = apps.run("puts", most)[1]
    assert answer["status"] == "succeeded", answer
    assert f"a value has {most} bytes at most" in answer["output"][0] and "a key has 1022 bytes at most" in answer["output"][1], answer
    assert len(apps.stored("puts", "most")) == most and apps.stored("puts", "more") is None


def a_begin_that_a_full_store_does_not_take_is_answered_in_time(apps, far):
    """W1: it is unknown whether the run was begun, until it is begun again."""
    apps.function("fills", """
        import landfast
        def handler(event, context):
            for key in range(4):
                landfast.state().put(f"{event}/{key}", bytes(3 << 20))
    """, retries=0, timeout_s=60, memory_mb=256)
    apps.workflow("fills", f'steps = ["fills"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("fills", "far")[1]["status"] == "succeeded"
    far.process.send_signal(signal.SIGSTOP)
    try:
        application.at_once(*[lambda run=run: apps.run("fills", run, f"?id={run}") for run in range(6)])
        refused = apps.ask("POST", "/v1/workflows/fills/runs?id=late", b'"late"')
        assert (refused.status, refused.document["type"]) == (503, "outcome-unknown"), refused.document
    finally:
        far.process.send_signal(signal.SIGCONT)
    assert apps.run("fills", "late", "?id=late&wait=60")[1]["status"] == "succeeded"


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


def how_a_far_store_was_seen_is_shown_with_its_age(apps, far):
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["status"] == "succeeded"
    far.stop()

    def answered():
        store, = apps.ask("GET", "/v1/status").document["workflows"]["far_stores"]
        return store["answered_ms_ago"]

    before = answered()
    waiting.until(lambda: answered() > before, "what was seen to grow older")
    line, = [line for line in apps.command("status").stdout.splitlines() if line.startswith("far store ")]
    assert re.search(r"it answered \d+ s ago", line), line


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
        found = apps.ask("GET", f"/v1/workflows/sums/runs/{name}?wait=100").document
        assert found["status"] == "succeeded" and apps.stored("sums", name) == "3", found


def another_near_store_takes_over_what_is_far(apps, far):
    """W-3: with its disk a server loses the state that was not externalized, and nothing else."""
    apps.workflow("chain", f'steps = ["first", "second"]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 3}, "?wait=100&id=a")[1]["status"] == "succeeded"
    apps.server.kill()
    shutil.rmtree(apps.server.directory / "data")
    apps.server.start()
    apps.deploy()
    # The lease of the lost one has to run out.
    found = waiting.until(lambda: apps.stored("chain", "second"), "what it wrote")
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
    assert apps.ask("GET", "/v1/workflows/chain/runs/unseen?wait=100").document["output"] == {"n": 16}
    all_of_them = waiting.until(lambda: len(found := taken()) >= 12 and found, "every message of the second run")
    assert list(all_of_them) == [*range(6), *range(10, 16)]
    assert all(len(ids) == 1 for ids in all_of_them.values()), all_of_them
    assert len(set.union(*all_of_them.values())) == 12, all_of_them


def a_transaction_in_a_step_counts_once_what_the_run_rests_on_is_far(apps, far):
    """W3: it writes to another store, which is an edge (P5). W9: a wait there beyond its time-out
    uses up no retry.
    """
    apps.function("copies", """
        import landfast
        def handler(event, context):
            seen = landfast.state().get("first")
            print("copies", seen.decode(), flush=True)
            with landfast.transaction() as transaction:
                transaction.put("copied", seen)
            return event
    """, retries=0)
    # The first and the last attempt start an instance within it.
    copies = '{ function = "copies", retries = 0, timeout_s = 10 }'
    apps.workflow("chain", f'steps = ["first", {copies}]\nfar = "{far.url}"')
    apps.deploy()
    assert apps.run("chain", {"n": 1})[1]["status"] == "succeeded"
    assert apps.value("copied") == "1"
    far.stop()
    apps.run("chain", {"n": 2}, "?id=unseen")
    timed_out = lambda: apps.ask("GET", "/v1/status").document["functions"]["failures"]["timed-out"]
    waiting.until(lambda: timed_out() == 1, "its only attempt to end")
    assert apps.value("copied") == "1", "it rests on what is not far"
    far.start()
    assert apps.ask("GET", "/v1/workflows/chain/runs/unseen?wait=100").document["status"] == "succeeded"
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
