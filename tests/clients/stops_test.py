"""Stops of a server with functions at work, and starts after a server that was killed."""

import pathlib
import re
import signal

import botocore.exceptions
import pytest

import application
import server as servers
import stopping
import waiting

WAITS = """
    import time
    import landfast
    def handler(event, context):
        print("begun", flush=True)
        while landfast.state().get("go") is None:
            time.sleep(0.01)
        print("went", flush=True)
        return "went"
"""


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Starts an application with functions that wait for a key, on a server that waits so many seconds for them."""
    running = servers.new(tmp_path)
    if type(running).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")

    def start(stop_wait_s):
        monkeypatch.setenv("LANDFAST_STOP_WAIT_S", str(stop_wait_s))
        apps = application.Application(tmp_path / "app", running.start())
        apps.function("waits", WAITS, retries=0, timeout_s=600, triggers=[{"http": "/waits"}])
        apps.function("works", WAITS, retries=0, timeout_s=600)
        apps.workflow("order", 'steps = ["works", "works"]')
        apps.workflow("single", 'steps = ["works"]')
        apps.deploy()
        return apps

    yield start
    running.shut_down()


def a_stop_waits_for_the_function_at_work_and_refuses_new_calls(start):
    apps = start(600)
    called = stopping.Asked(lambda: apps.call("waits"))
    run = stopping.Asked(lambda: apps.ask("POST", "/v1/workflows/order/runs?wait=100&id=mine"))
    stopping.begun(apps, "waits")
    stopping.begun(apps, "works")
    stopping.begin_to_stop(apps)
    with pytest.raises(botocore.exceptions.ClientError) as failure:
        apps.call("waits")
    assert stopping.refusal(failure.value) == (503, "ServiceUnavailableException", False)
    assert apps.ask("GET", "/http/waits").problem == (503, "unavailable")
    assert apps.ask("POST", "/v1/workflows/order/runs").problem == (503, "unavailable")
    assert apps.ask("PUT", "/v1/state/go", b"now").status == 204, "other services go on"
    assert called.answer() == "went"
    stopped = run.answer()
    # Its first step has committed, and the second one never began.
    assert stopped.problem == (503, "server-stopped") and stopped.document["id"] == "mine", stopped
    assert apps.server.stop(0) == 0
    apps.server.start()
    again = apps.ask("GET", "/v1/workflows/order/runs/mine?wait=100").document
    assert (again["status"], again["output"]) == ("succeeded", "went")
    assert apps.lines("works").count("begun") == 2, "one for each step"


def a_run_whose_last_step_ends_during_the_stop_ends_before_it(start):
    apps = start(600)
    run = stopping.Asked(lambda: apps.ask("POST", "/v1/workflows/single/runs?wait=100&id=mine"))
    stopping.begun(apps, "works")
    stopping.begin_to_stop(apps)
    assert apps.ask("PUT", "/v1/state/go", b"now").status == 204
    ended = run.answer().document
    assert (ended["status"], ended["output"]) == ("succeeded", "went")
    assert apps.server.stop(0) == 0


def a_stop_that_does_not_wait_tells_callers_so_and_tries_events_and_steps_again(start):
    apps = start(0)
    called = stopping.Asked(lambda: apps.call("waits"))
    stopping.begun(apps, "waits")
    routed = stopping.Asked(lambda: apps.ask("GET", "/http/waits"))
    stopping.begun(apps, "waits", 2)
    apps.client().invoke(FunctionName="waits", InvocationType="Event", Payload=b"{}")
    stopping.begun(apps, "waits", 3)
    run = stopping.Asked(lambda: apps.ask("POST", "/v1/workflows/order/runs?wait=100&id=mine"))
    stopping.begun(apps, "works")
    assert apps.server.stop() == 0
    assert stopping.refusal(called.answer()) == (500, "ServiceException", False)
    assert "the server stopped" in str(called.answer())
    assert routed.answer().problem == (503, "server-stopped")
    stopped = run.answer()
    assert stopped.problem == (503, "server-stopped") and stopped.document["id"] == "mine", stopped
    apps.server.start()
    # The event and the step run again, though neither may be retried.
    stopping.begun(apps, "waits", 4)
    assert apps.ask("PUT", "/v1/state/go", b"now").status == 204
    run = apps.ask("GET", "/v1/workflows/order/runs/mine?wait=100").document
    assert (run["status"], run["output"]) == ("succeeded", "went")
    waiting.until(lambda: "went" in apps.lines("waits"), "the event to end")
    letters = apps.command("functions", "dead-letters", "waits", "--json")
    assert (letters.returncode, letters.stdout) == (0, "")


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT], ids=lambda second: second.name)
def a_second_signal_stops_the_server_at_once(start, second):
    apps = start(600)
    stopping.Asked(lambda: apps.call("waits"))
    stopping.begun(apps, "waits")
    stopping.begin_to_stop(apps)
    assert apps.server.stop(second) == 0
    assert apps.server.log_lines("asked twice")


def an_idle_server_waits_for_nothing(start):
    apps = start(600)
    assert apps.ask("PUT", "/v1/state/go", b"now").status == 204
    assert apps.call("waits") == "went"
    assert apps.server.stop() == 0


def no_program_that_the_server_starts_inherits_a_listener(start):
    """A child of a killed server would keep its address in use."""
    apps = start(0)
    ports = {apps.server.port, apps.server.http_port}
    listens = lambda fields: fields[3] == "0A" and int(fields[1].rpartition(":")[2], 16) in ports
    sockets = [line.split() for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    inodes = {fields[9] for fields in sockets if listens(fields)}
    assert len(inodes) == 2
    process = pathlib.Path(f"/proc/{apps.server.process.pid}")
    flags = []
    for descriptor in (process / "fd").iterdir():
        found = re.fullmatch(r"socket:\[(\d+)\]", str(descriptor.readlink()))
        if found and found[1] in inodes:
            flags.append(re.search(r"flags:\s+(\d+)", (process / "fdinfo" / descriptor.name).read_text())[1])
    close_on_exec = 0o2000000
    assert len(flags) == 2 and all(int(each, 8) & close_on_exec for each in flags), flags
