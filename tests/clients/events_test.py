"""Events, messages and timers of functions, and the functions that receive their failures."""

import datetime
import json

import application
import http_api
import waiting


def an_event_that_is_tried_again_on_a_warm_instance_finds_what_it_has_committed(apps):
    """A3, T4: a transaction's id derives from its position in its attempt."""
    apps.function("pay", """
        import os
        import landfast
        tries = []
        def handler(event, context):
            tries.append(os.getpid())
            def add(t):
                t.put("paid", str(int(t.get("paid") or b"0") + 1).encode())
            landfast.transact(add)
            landfast.transact(lambda t: t.put("tries", str(len(tries)).encode()), id=f"tries-{len(tries)}")
            if len(tries) < 3:
                raise RuntimeError("it fails after its commit")
    """, retries=2)
    apps.deploy()
    apps.client().invoke(FunctionName="pay", InvocationType="Event", Payload=b"{}")
    waiting.until(lambda: apps.value("tries") == "3", "the third attempt, on the same instance")
    assert apps.value("paid") == "1"


def a_function_that_repeats_a_transaction_gets_the_first_result(apps):
    """T19: with either client, and the body runs once."""
    apps.function("pay", """
        import asyncio
        import landfast
        from landfast import aio
        def body(t):
            paid = int(t.get("paid") or b"0") + 30
            t.put("paid", str(paid).encode())
            return {"paid": paid, "of": ("a", None)}
        async def by_task():
            async def pay(t):
                raise AssertionError("it has committed")
            async with aio.connect() as client:
                return await client.transact(pay, id="pay/1")
        def handler(event, context):
            if event["is_async"]:
                return asyncio.run(by_task())
            return landfast.transact(body, id="pay/1")
    """)
    apps.deploy()
    first = {"paid": 30, "of": ["a", None]}
    for is_async in (False, False, True):
        assert apps.call("pay", {"is_async": is_async}) == first
    assert apps.value("paid") == "30"


def an_event_is_tried_again_and_then_told_to_who_handles_failures(apps):
    """A3, R2."""
    apps.function("fails", """
        def handler(event, context):
            print("attempt", context.aws_request_id, flush=True)
            raise ValueError("never")
    """, retries=2, on_failure="told")
    apps.function("told", """
        import json
        def handler(event, context):
            print("told", json.dumps(event), flush=True)
    """)
    apps.deploy()
    answer = apps.client().invoke(FunctionName="fails", InvocationType="Event", Payload=b'{"order": 7}')
    assert answer["StatusCode"] == 202
    (line,) = waiting.until(lambda: [line for line in apps.lines("told") if line.startswith("told ")],
                            "the failure to be told")
    told = json.loads(line.removeprefix("told "))
    assert told["requestPayload"] == {"order": 7}
    assert told["responsePayload"]["errorType"] == "ValueError"
    attempts = [line for line in apps.lines("fails") if line.startswith("attempt ")]
    assert len(attempts) == 3 and len(set(attempts)) == 1, "one request id"
    assert told["requestContext"]["requestId"] in attempts[0]


def what_is_told_of_a_failure_undoes_what_the_function_has_committed(apps):
    """A3: neither names its transactions, and no two of them share an id."""
    apps.function("reserve", """
        import landfast
        def handler(event, context):
            landfast.transact(lambda t: t.put("room", b"reserved"))
            raise RuntimeError("it cannot be paid")
    """, retries=1, on_failure="release")
    apps.function("release", """
        import landfast
        def handler(event, context):
            def release(t):
                t.put("releases", str(int(t.get("releases") or b"0") + 1).encode())
                t.put("room", b"free")
            landfast.transact(release)
            if landfast.state().get("tried") is None:
                landfast.state().put("tried", b"once")
                raise RuntimeError("it fails after its commit")
            print("released", context.aws_request_id != event["requestContext"]["requestId"], flush=True)
    """, retries=1)
    apps.deploy()
    apps.client().invoke(FunctionName="reserve", InvocationType="Event", Payload=b"{}")
    waiting.until(lambda: "released True" in apps.lines("release"), "the second attempt of who is told")
    assert (apps.value("room"), apps.value("releases")) == ("free", "1")


def an_event_survives_a_kill_of_the_server(apps):
    """A1, A3."""
    apps.function("counts", """
        def handler(event, context):
            print("event", event["n"], flush=True)
    """, concurrency=1)
    apps.deploy()
    for n in range(5):
        apps.client().invoke(FunctionName="counts", InvocationType="Event", Payload=json.dumps({"n": n}))
    apps.server.kill()
    waiting.until(lambda: not application.processes("counts.handler"), "its functions to die with the server")
    apps.server.start()
    waiting.until(lambda: {f"event {n}" for n in range(5)} <= set(apps.lines("counts")), "every event to be run")


def what_has_failed_for_good_is_shown_and_sent_again_under_its_request_id(apps):
    """A3: over a kill of the server, before and after."""
    code = """
        def handler(event, context):
            print("attempt", context.aws_request_id, flush=True)
            {does}
    """
    apps.function("settles", code.format(does='raise ValueError("never \\x9b")'), retries=0)
    apps.deploy()
    sent = [
        apps.client().invoke(FunctionName="settles", InvocationType="Event", Payload=json.dumps({"n": n}))["ResponseMetadata"]["RequestId"]
        for n in range(3)
    ]

    command = lambda *arguments: apps.command("functions", "dead-letters", "settles", *arguments)

    def letters(*arguments):
        shown = command(*arguments)
        assert shown.returncode == 0, shown
        return shown.stdout

    kept = lambda: [json.loads(line) for line in letters("--json").splitlines()]
    waiting.until(lambda: len(kept()) == 3, "every event to be given up")
    apps.server.kill()
    apps.server.start()
    waiting.until(lambda: len(kept()) == 3, "them to be there after a kill")
    by_request = {letter["request_id"]: letter for letter in kept()}
    assert set(by_request) == set(sent) and all("never" in letter["reason"] for letter in kept())
    assert [json.loads(by_request[id]["payload"])["n"] for id in sent] == [0, 1, 2]
    first = by_request[sent[0]]["id"]
    # An event whose last attempt ended with the kill has one more.
    runs = lambda id: apps.lines("settles").count(f"attempt {id}")
    before = runs(sent[0])
    assert f"event {sent[0]}, given 1 times" in letters("--id", first)
    assert letters("--purge", "--id", first) == "removed: 1\n" and len(kept()) == 2
    for deed in [], ["--purge"], ["--redrive"]:
        gone = command("--id", first, *deed)
        assert gone.returncode == 1 and "no dead letter" in gone.stderr and not gone.stdout, gone
    # It is still at work when the server is killed, which may lose the lines of a run that has ended.
    apps.function("settles", code.format(does="__import__('time').sleep(2)"), retries=0)
    apps.deploy()
    assert letters("--redrive") == "sent again: 2\n"
    apps.server.kill()
    apps.server.start()
    waiting.until(lambda: runs(sent[1]) >= 2 and runs(sent[2]) >= 2, "both to be run again")
    assert runs(sent[0]) == before and kept() == [] and letters("--redrive") == "sent again: 0\n"


def messages_that_a_transaction_sends_start_a_function_in_order(apps):
    """A4, T13: records reported as failed, and those after them, come again. No order is promised
    between two transactions.
    """
    apps.function("takes", """
        import json, pathlib
        def handler(event, context):
            failed = []
            for record in event["Records"]:
                n = json.loads(record["body"])["n"]
                first = record["attributes"]["ApproximateReceiveCount"] == "1"
                if failed or n % 3 == 1 and first:
                    failed.append({"itemIdentifier": record["messageId"]})
                else:
                    print("took", n, flush=True)
            return {"batchItemFailures": failed}
    """, triggers=[{"queue": "orders", "batch": 5}])
    apps.deploy()
    api = http_api.Api(apps.server)
    transaction = api.begin()
    for n in range(7):
        answer = transaction.ask("POST", "/messages/orders?group=g", json.dumps({"n": n}))
        assert answer.status == 204, answer
    transaction.commit()
    taken = waiting.until(
        lambda: (lines := [line for line in apps.lines("takes") if line.startswith("took")]) and len(lines) >= 7 and lines,
        "every message to be taken",
    )
    assert taken == [f"took {n}" for n in range(7)]
    api.close()


def a_transaction_that_commits_has_a_function_run_and_one_that_does_not_has_not(apps):
    """The outbox: invocations are sent with the commit."""
    apps.function("takes", """
        def handler(event, context):
            print("took", event["n"], context.aws_request_id, flush=True)
    """)
    apps.deploy()
    api = http_api.Api(apps.server)
    for n, end in ((1, "abort"), (2, "commit")):
        transaction = api.begin()
        assert transaction.ask("POST", "/invocations/takes", json.dumps({"n": n})).status == 204
        getattr(transaction, end)()
    refused = api.begin().ask("POST", "/invocations/nobody", "{}")
    assert refused.problem == (404, "no-such-function")
    (line,) = waiting.until(lambda: [line for line in apps.lines("takes") if line.startswith("took")], "it to run")
    assert line.startswith("took 2 ")
    api.close()


def a_function_keeps_state_with_nothing_installed_and_its_retries_count_once(apps):
    """A3: the ids of its transactions come from its request id, which is the same for every attempt."""
    apps.function("counts", """
        import os, landfast
        def handler(event, context):
            def add(t):
                t.put("count", str(int(t.get("count") or b"0") + 1).encode())
            landfast.transact(add, isolation="serializable")
            if event.get("die") and landfast.state().get("died") is None:
                landfast.state().put("died", b"once")
                os._exit(1)
            print("counted", landfast.state().get("count").decode(), flush=True)
            return int(landfast.state().get("count"))
    """)
    apps.deploy()
    assert apps.call("counts") == 1 and apps.call("counts") == 2
    apps.client().invoke(FunctionName="counts", InvocationType="Event", Payload=b'{"die": true}')
    waiting.until(lambda: apps.lines("counts").count("counted 3"), "its second attempt")
    assert apps.call("counts") == 4, "the attempt that died counts once with its retry"


def a_timer_is_armed_and_disarmed_at_run_time(apps):
    """A5: ticks from before the removal may still run."""
    for name in ("ticks", "other"):
        apps.function(name, """
            def handler(event, context):
                print("tick", event["time"], flush=True)
        """, triggers=[{"every_s": 1}])
    apps.deploy()

    def ticks(name, since):
        times = [line.removeprefix("tick ") for line in apps.lines(name) if line.startswith("tick ")]
        return sum(datetime.datetime.fromisoformat(time) > since for time in times)

    now = lambda: datetime.datetime.now(datetime.timezone.utc)
    waiting.until(lambda: ticks("ticks", now() - datetime.timedelta(minutes=1)) >= 2, "it to tick")
    api = http_api.Api(apps.server)
    assert api.ask("DELETE", "/v1/functions/ticks/timer").status == 204
    disarmed = now()
    apps.server.kill()
    apps.server.start()
    waiting.until(lambda: ticks("other", disarmed) >= 2, "a timer that is armed to tick")
    assert ticks("ticks", disarmed) == 0, "it stays disarmed over a restart"
    api = http_api.Api(apps.server)
    assert api.ask("PUT", "/v1/functions/ticks/timer", json.dumps({"every_s": 1})).status == 204
    waiting.until(lambda: ticks("ticks", disarmed) > 0, "it to tick again")
    api.close()


def what_a_timer_gives_is_tried_again_and_then_told_to_who_handles_failures(apps):
    """A3, A5."""
    apps.function("ticks", """
        def handler(event, context):
            print("attempt", context.aws_request_id, flush=True)
            raise ValueError("never")
    """, retries=1, on_failure="told", triggers=[{"every_s": 1}])
    apps.function("told", """
        def handler(event, context):
            print("told", event["requestPayload"]["source"], event["requestContext"]["requestId"], flush=True)
    """)
    apps.deploy()
    told = waiting.until(lambda: [line for line in apps.lines("told") if line.startswith("told ")], "a failure to be told")
    _, source, id = told[0].split()
    assert source == "aws.events"
    assert apps.lines("ticks").count(f"attempt {id}") == 2, "its attempts have one request id"
