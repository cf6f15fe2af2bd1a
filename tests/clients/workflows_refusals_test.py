"""The refusals of workflows, and their reports to callers and steps: over HTTP, in Python, by the
command.
"""

import pytest

import application
import waiting


@pytest.fixture
def apps(tmp_path, own_server):
    """An application on a server of its own."""
    if type(own_server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    app = application.Application(tmp_path / "app", own_server)
    app.function("first", """
        def handler(event, context):
            return event
    """, retries=0)
    return app


def a_result_that_is_no_json_fails_its_step(apps):
    """It was null in a list, a string as a run's output, and nothing at all to a choice."""
    apps.file("answers.py", """
        def nan(event, context): return float("nan")
        def listed(event, context): return {"mean": [float("inf")]}
    """)
    for name in ("nan", "listed"):
        apps.function(name, handler=f"answers.{name}", retries=0)
    apps.function("calls", """
        import landfast
        @landfast.step
        def mean(values): return float("nan")
        def told(step, *arguments):
            try:
                step(*arguments)
            except landfast.Error as error:
                return error.error["errorType"]
            except ValueError:
                return "refused"
        def handler(event, context):
            return [told(mean, []), told(landfast.call, "nan"), told(landfast.call, "listed", float("nan"))]
    """, retries=0)
    choice = '{ choice = [{ when = { exists = true }, steps = [] }] }'
    shapes = {"alone": '["nan"]', "among": '[{ parallel = [["nan"]] }]', "each": '[{ map = ["listed"] }]', "chosen": f'["nan", {choice}]'}
    for name, steps in shapes.items():
        apps.workflow(name, f"steps = {steps}")
    apps.workflow("code", 'function = "calls"')
    apps.deploy()
    for name in shapes:
        failed = apps.run(name, [1])[1]
        assert (failed["status"], failed["error"]["errorType"]) == ("failed", "Workflow.ResultNoJson"), (name, failed)
        assert "no NaN" in failed["error"]["errorMessage"], failed
    assert apps.run("code")[1]["output"] == ["ValueError", "Workflow.ResultNoJson", "refused"]


def who_invokes_is_told_what_was_refused(apps):
    """A permanent refusal of an atomic run: it was reported as an outage, which passes."""
    apps.function("asks", """
        import landfast
        def handler(event, context):
            try:
                return landfast.invoke(event["invokes"])
            except landfast.Error as error:
                return [type(error).__name__, str(error)]
    """, retries=0)
    apps.workflow("whole", 'steps = ["asks"]\natomic = true')
    apps.deploy()
    name, said = apps.run("whole", {"invokes": "first"})[1]["output"]
    assert name == "InvalidRequest" and "an atomic run lets nothing out before its end" in said, said
    name, said = apps.call("asks", {"invokes": "nobody"})
    assert name == "NoSuchFunction" and "Function not found" in said, said


def what_is_for_steps_is_refused_by_name_outside_of_a_run(apps):
    """But a step remains an ordinary function, and there is nothing to externalize."""
    apps.function("asks", """
        import landfast
        @landfast.step
        def double(number):
            landfast.externalize()
            return 2 * number
        def told(asked, *arguments):
            try:
                return asked(*arguments)
            except landfast.OutsideOfRun:
                return "outside"
        def handler(event, context):
            return [double(double(1)), told(landfast.send, "q", b""), told(landfast.call, "asks")]
    """, retries=0)
    apps.workflow("chain", 'steps = ["first"]')
    apps.deploy()
    assert apps.call("asks") == [4, "outside", "outside"]


def what_a_step_sends_beyond_the_bound_is_refused_where_it_is_sent(apps):
    """It was accepted, and the step failed in the end. The same held for the total that an atomic
    run sends.
    """
    apps.function("takes", "def handler(event, context):\n    pass\n", triggers=[{"queue": "takes"}])
    apps.function("sends", """
        import landfast
        def handler(event, context):
            sent = 0
            try:
                for _ in range(event + 1):
                    landfast.send("takes", b"x")
                    sent += 1
            except landfast.TooLarge as error:
                return [sent, str(error)]
            return 101 - sent
    """, retries=0)
    apps.workflow("apart", 'steps = ["sends"]')
    apps.workflow("whole", 'steps = ["sends", "sends"]\natomic = true')
    apps.deploy()
    sent, said = apps.run("apart", 100)[1]["output"]
    assert sent == 100 and "sends 100 messages and invocations at most" in said, said
    sent, said = apps.run("whole", 59)[1]["output"]
    assert sent == 40 and "an atomic run in all" in said, said


def what_a_step_cannot_send_is_refused_where_it_is_sent(apps):
    """As in a transaction: the response was 204, and a payload that is not JSON failed the
    function, or a query or a condition was dropped.
    """
    apps.function("sees", """
        import landfast
        def handler(event, context):
            landfast.state().put("seen", repr(event).encode())
    """)
    apps.function("takes", "def handler(event, context):\n    pass\n", triggers=[{"queue": "takes"}])
    apps.function("sends", """
        import json, os, urllib.error, urllib.request
        def post(path, body, headers):
            url = os.environ["LANDFAST_URL"] + "/v1/run/" + path
            request = urllib.request.Request(url, body.encode(), headers, method="POST")
            try:
                with urllib.request.urlopen(request) as answer:
                    return [answer.status, None]
            except urllib.error.HTTPError as refused:
                return [refused.code, json.load(refused)["type"]]
        def handler(event, context):
            return [post(*request) for request in event]
    """, retries=0)
    apps.workflow("chain", 'steps = ["sends"]')
    apps.deploy()
    conditional = {"If-None-Match": "*"}
    refused = [
        ["invocations/sees", "not json", {}],
        ["invocations/sees", "{}", conditional],
        ["invocations/sees?group=a", "{}", {}],
        ["messages/takes", "x", conditional],
        ["steps/within?group=a", "", {}],
    ]
    answers = apps.run("chain", refused)[1]["output"]
    assert answers == [[400, "invalid-request"]] * len(refused), answers
    taken = [["invocations/sees", "", {}], ["messages/takes?group=a", "not json", {}]]
    assert apps.run("chain", taken)[1]["output"] == [[204, None]] * len(taken)
    seen = waiting.until(lambda: apps.value("seen"), "the function to be run")
    assert seen == "{}", "what is given where there is no payload"


def a_step_of_code_that_fails_with_many_words_says_how_many(apps):
    """It had the first 2,000 characters of them, as if those were all."""
    apps.function("code", """
        import landfast
        @landfast.step
        def fails(): raise KeyError("s" * 40_000)
        def handler(event, context):
            try:
                fails()
            except landfast.StepFailed as error:
                return error.error["errorMessage"]
    """, retries=0)
    apps.workflow("code", 'function = "code"')
    apps.deploy()
    said = apps.run("code")[1]["output"]
    assert said.endswith("s... (the beginning of 40002 bytes)") and said.count("s") > 4_000, said


def a_list_says_of_what_runs_failed_and_not_in_which_words(apps):
    apps.function("fails", 'def handler(event, context):\n    raise KeyError("s" * 40_000)\n', retries=0)
    apps.workflow("chain", 'steps = ["fails"]')
    apps.deploy()
    error = apps.run("chain", 1, "?id=r&wait=100")[1]["error"]
    assert error["errorType"] == "KeyError" and "the beginning of" in error["errorMessage"], error
    listed, = apps.ask("GET", "/v1/workflows/chain/runs").document["runs"]
    assert listed["error"] == {"step": "fails", "errorType": "KeyError"}, listed


def what_makes_no_sense_is_refused_by_name(apps):
    apps.workflow("chain", 'steps = ["first"]')
    apps.deploy()
    
    def refused(method, path, body=b""):
        return apps.ask(method, path, body).document["type"]

    assert refused("POST", "/v1/workflows/nobody/runs") == "no-such-workflow"
    assert refused("GET", "/v1/workflows/chain/runs/nobody") == "no-such-run"
    assert refused("DELETE", "/v1/workflows/chain/runs/nobody") == "no-such-run"
    assert refused("POST", "/v1/workflows/chain/runs", b"{") == "invalid-request"
    assert refused("POST", "/v1/workflows/chain/runs?id=" + "x" * 129) == "invalid-request"
    assert refused("POST", "/v1/workflows/chain/runs?retries=2") == "invalid-request"
    assert refused("POST", "/v1/workflows/chain/runs?wait=NaN") == "invalid-request"
    assert refused("GET", "/v1/workflows/chain/runs/nobody?wait=nan") == "invalid-request"
    assert refused("GET", "/v1/workflows/chain/runs?status=done") == "invalid-request"
    apps.workflow("wrong", 'steps = ["nobody"]')
    answer = apps.command("functions", "deploy", str(apps.write()))
    assert answer.returncode != 0 and "is no function of the application" in answer.stderr
    for far, said in (
        ("http://127.0.0.1:1", ""),
        ("redis://", ""),
        ("redis://127.0.0.1:1/abc", ""),
        ("redis://127.0.0.1:1?namespace=Foo", "a far store's address has no options"),
        ("redis://127.0.0.1:06379", "the port of a far store"),
        ("redis://127.0.0.1:1/00", "the database of a far store"),
        ("redis+cluster://127.0.0.1:1", "a far store is one Redis or Valkey server"),
    ):
        apps.workflow("wrong", f'steps = ["first"]\nfar = "{far}"')
        answer = apps.command("functions", "deploy", str(apps.write()))
        assert answer.returncode != 0 and f"workflows.wrong: far: {said}" in answer.stderr, (far, answer.stderr)
    apps.workflow("wrong", 'steps = [{ map = [] }]')
    answer = apps.command("functions", "deploy", str(apps.write()))
    assert answer.returncode != 0 and "workflows.wrong: map has no steps" in answer.stderr, answer.stderr


def who_is_tried_again_after_a_commit_of_its_own_hears_so_or_skips_it(apps):
    """W2: the id is the same, so the transaction takes effect once."""
    apps.function("adds", """
        import landfast
        runs = []
        def add(t):
            t.put("added", str(int(t.get("added") or b"0") + 1).encode())
            return "added"
        def handler(event, context):
            runs.append(1)
            if event == "transact":
                came_to = landfast.transact(add)
            else:
                with landfast.transaction() as t:
                    came_to = add(t)
            if len(runs) % 2:
                raise ValueError("after the commit")
            return came_to
    """, retries=1)
    apps.workflow("adds", 'steps = [{ function = "adds", backoff_ms = 1 }]')
    apps.deploy()
    assert apps.run("adds", "transact")[1]["output"] == "added", "the result is kept with the commit"
    assert apps.value("added") == "1"
    failed = apps.run("adds", "transaction")[1]
    assert (failed["status"], failed["error"]["errorType"]) == ("failed", "AlreadyCommitted"), failed
    assert apps.value("added") == "2"


def the_command_says_what_a_run_came_to_and_what_was_refused(apps):
    apps.function("waits", """
        import time
        def handler(event, context):
            time.sleep(event)
            return event
    """)
    apps.workflow("waits", 'steps = ["waits"]')
    apps.deploy()

    def run(*arguments):
        answer = apps.command("workflows", "run", *arguments)
        return answer.returncode, answer.stdout, answer.stderr

    assert run("waits", "--input", "0") == (0, "0\n", "")
    code, out, said = run("waits", "--input", "60", "--wait", "1", "--id", "long")
    assert (code, out) == (3, "") and "landfast workflows show waits long" in said
    assert run("waits", "--input", "60", "--wait", "0", "--id", "long") == (0, "long running\n", "")
    apps.ask("DELETE", "/v1/workflows/waits/runs/long")
    assert run("waits", "--input", "60", "--id", "long") == (1, "long cancelled\n", "")
    code, out, said = run("nobody")
    assert (code, out) == (1, "") and "(no-such-workflow)" in said and "{" not in said, said
