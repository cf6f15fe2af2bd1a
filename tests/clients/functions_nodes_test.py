"""Functions of several processes on one Redis: a deployment at one runs at all of them."""

import application
import http_api
import pytest
import waiting
from several_processes import house, process, redis  # noqa: F401


@pytest.fixture
def both(tmp_path, house):
    return [application.Application(tmp_path / f"app-{place}", house[place]) for place in (0, 1)]


def _says(text):
    return f"def handler(event, context):\n    return {text!r}\n"


def _waits_for(app, answer):
    """None if there is no such function."""

    def is_answered_so():
        lambdas = app.client()
        try:
            return lambdas.invoke(FunctionName="says")["Payload"].read() == b'"%s"' % (answer or "").encode()
        except lambdas.exceptions.ResourceNotFoundException:
            return answer is None

    waiting.until(is_answered_so, f"the function to answer {answer}")


def what_is_deployed_at_one_process_runs_at_all(house, both):
    """A1, U4, T13: a transaction at another process invokes it, too."""
    there, elsewhere = both
    there.function("says", _says("first"))
    there.deploy()
    _waits_for(elsewhere, "first")
    api = http_api.Api(house[1])
    transaction = api.begin()
    assert api.ask("POST", f"/v1/transactions/{transaction.id}/invocations/says", b"{}").status == 204
    api.close()
    elsewhere.function("says", _says("second"))
    elsewhere.deploy()
    _waits_for(there, "second")
    removed = there.command("functions", "remove", "shop")
    assert removed.returncode == 0, removed.stderr
    _waits_for(elsewhere, None)


def a_deployment_leaves_what_others_have_deployed(both, process):
    """A1: the next process that starts puts it in place."""
    for app, name in zip(both, ("one", "other")):
        app.name = name
        app.function(name, _says(name))
    for app in both:
        app.deploy()
    late = process(3)
    late.start()
    listed = application.Application(both[0].folder, late).command("functions", "list").stdout
    assert "one" in listed and "other" in listed, listed


def an_event_is_run_by_another_process_once_its_sender_is_gone(tmp_path, process):
    """A3. Only the sender's process knew that there is a queue of events; a process that was asked
    to send them again did not.
    """
    house = [process(number) for number in (0, 1)]
    for running in house:
        running.start()
    there, elsewhere = [application.Application(tmp_path / f"app-{place}", house[place]) for place in (0, 1)]
    there.function("settles", """
        def handler(event, context):
            print("attempt", event["n"], flush=True)
            raise ValueError("never")
    """, retries=0)
    there.deploy()
    waiting.until(lambda: "settles" in elsewhere.command("functions", "list").stdout, "it to be there")
    there.client().invoke(FunctionName="settles", InvocationType="Event", Payload=b'{"n": 1}')
    letters = lambda *arguments: elsewhere.command("functions", "dead-letters", "settles", *arguments).stdout
    waiting.until(lambda: letters("--json"), "the event to be given up")
    before = elsewhere.lines("settles").count("attempt 1")
    house[0].kill()
    assert letters("--redrive") == "sent again: 1\n"
    waiting.until(lambda: elsewhere.lines("settles").count("attempt 1") > before, "it to be run")
