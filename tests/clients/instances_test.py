"""The allocation of instances: which request gets one, which waits, and which instances end when
memory is short.
"""

import contextlib
import json
import pathlib
import re
import socket

import pytest

import application
import waiting

LARGE_MB = 65_536


def an_event_that_waits_for_a_free_instance_has_not_been_tried(apps):
    """A8: it waits in its queue, not with instances of a deployment that is replaced; its one
    attempt is still to come.
    """
    apps.function("one_by_one", """
        import landfast, time
        def handler(event, context):
            print("began", event["n"], flush=True)
            while event["n"] == 0 and landfast.state().get("others are sent") is None:
                time.sleep(0.05)
            return event["n"]
    """, concurrency=1, retries=0, on_failure="told", timeout_s=600)
    apps.function("told", """
        def handler(event, context):
            print("told of", event["requestPayload"]["n"], flush=True)
    """)
    apps.function("other", "def handler(event, context):\n    print('ran', flush=True)\n")
    apps.deploy()

    def send(name, **event):
        apps.client().invoke(FunctionName=name, InvocationType="Event", Payload=json.dumps(event))

    send("one_by_one", n=0)
    waiting.until(lambda: "began 0" in apps.lines("one_by_one"), "the first event to be at work")
    for n in (1, 2):
        send("one_by_one", n=n)
    send("other")
    waiting.until(lambda: "ran" in apps.lines("other"), "an event that was sent later to have been run")
    apps.deploy()

    def answer():
        # On a slow machine an event keeps the one place for longer than a call waits.
        with contextlib.suppress(apps.client().exceptions.TooManyRequestsException):
            return apps.call("one_by_one", {"n": 3})

    assert waiting.until(answer, "a place") == 3, "the new deployment has an instance of its own"
    assert apps.ask("PUT", "/v1/state/others%20are%20sent", b"yes").status == 204
    began = lambda: [line for line in apps.lines("one_by_one") if line.startswith("began")]
    waiting.until(lambda: {"began 1", "began 2"} <= set(began()), "those that waited to be run")
    assert sorted(began()) == ["began 0", "began 1", "began 2", "began 3"], "each once"
    assert not [line for line in apps.lines("told") if line.startswith("told")]


def calls_find_an_instance_beside_events_that_come_and_go(apps):
    """A permit reserved for an absent event refuses no call."""
    apps.function("works", "def handler(event, context):\n    return event['n']\n", concurrency=2)
    apps.deploy()
    client = apps.client()

    def have_run(invocations):
        figures = apps.ask("GET", "/v1/status").document["functions"]
        return figures["invocations"] >= invocations and not figures["instances_busy"]

    before = apps.ask("GET", "/v1/status").document["functions"]["invocations"]
    for n in range(50):
        client.invoke(FunctionName="works", InvocationType="Event", Payload=json.dumps({"n": n}))
        assert json.loads(client.invoke(FunctionName="works", Payload=json.dumps({"n": n}))["Payload"].read()) == n
        # Two running events would rightly refuse the next call.
        waiting.until(lambda: have_run(before + 2 * (n + 1)), "the event to have run beside the call")


def idle_instances_give_way_where_memory_is_short(apps):
    """A function that needs more memory than the machine has free first ends idle instances, of any
    function, before it starts.
    """
    available_kib = int(re.search(r"MemAvailable:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text()).group(1))
    if available_kib >= LARGE_MB * 1024:
        pytest.skip("this machine has more memory than a function may ask for")
    code = "import os\ndef handler(event, context):\n    return 'large' if event.get('large') else event\n"
    for name in ("first", "second"):
        apps.function(name, code)
    apps.function("large", code, memory_mb=LARGE_MB)
    apps.deploy()
    instances = lambda: application.processes("first.handler") + application.processes("second.handler")
    assert apps.call("first", {"n": 1}) == {"n": 1} and apps.call("second", {"n": 2}) == {"n": 2}
    before = instances()
    assert before
    assert apps.call("first", {"n": 3}) == {"n": 3}
    assert instances() == before, "they are kept while there is room"
    assert apps.call("large", {"large": True}) == "large"
    waiting.until(lambda: not instances(), "what was idle to be gone")
    assert apps.call("first", {"n": 4}) == {"n": 4}, "it starts again"


def an_idle_instance_is_frozen_and_thawed_for_its_next_call(apps):
    apps.function("counts_on", """
        import threading, time
        count = 0
        def run():
            global count
            while True:
                count += 1
                time.sleep(0.001)
        threading.Thread(target=run, daemon=True).start()
        def handler(event, context):
            began = count
            while count <= began:
                time.sleep(0.001)
            return count
    """)
    apps.deploy()
    first = apps.call("counts_on")
    (instance,) = application.processes("counts_on.handler")
    waiting.until(lambda: application.has_stood_still(instance), "its instance to be frozen")
    assert apps.call("counts_on") > first


def a_cold_start_is_that_of_a_spare_where_one_is_ready(apps):
    looks = """
        import os, sys
        import landfast

        def handler(event, context):
            landfast.transact(lambda t: t.put("by-" + context.function_name, b"done"))
            modules = sorted(set(sys.modules) - {context.function_name})
            alike = [sorted(os.listdir("/var/task")), os.getcwd(), modules]
            return [context.function_name, alike, os.environ["OWN"], sys.argv[1:]]
    """
    apps.function("first", looks, environment={"OWN": "1"})
    apps.function("second", looks, environment={"OWN": "2"})
    apps.deploy()

    def figures():
        return apps.ask("GET", "/v1/status").document["functions"]

    assert figures()["spares"] == 0, "nothing has run"
    first = apps.call("first")
    # The message names the missing module after a colon.
    if "own processes, files and network: " in apps.command("doctor").stdout:
        pytest.skip("this machine gives no namespaces")
    waiting.until(lambda: figures()["spares"] == 1, "a spare")
    second = apps.call("second")
    seen = figures()
    assert (seen["cold_starts"], seen["adopted"]) == (2, 1), seen
    assert (first[0], first[2:]) == ("first", ["1", ["first.handler"]])
    assert (second[0], second[2:]) == ("second", ["2", ["second.handler"]])
    assert second[1] == first[1]
    assert apps.value("by-second") == "done"
    waiting.until(lambda: figures()["spares"] == 1, "the next spare")
    assert "landfast_functions_adopted_total 1" in apps.ask("GET", "/metrics").body.decode().splitlines()
    assert "2 started instances (1 of them spares)" in apps.command("status").stdout


def a_process_that_is_forked_before_the_client_is_imported_derives_no_ids_of_its_parent(apps):
    """T4: the runtime records the process of an invocation. Otherwise all but one of several would
    find their work done.
    """
    apps.function("forks", """
        import os, sys

        def handler(event, context):
            imported = "landfast" in sys.modules
            read, write = os.pipe()
            child = os.fork()
            import landfast
            if child == 0:
                os.write(write, landfast.connect().transaction().id.encode())
                os._exit(0)
            os.waitpid(child, 0)
            return [imported, os.read(read, 200).decode(), landfast.transaction().id, context.aws_request_id]
    """)
    apps.deploy()
    imported, forked, own, request = apps.call("forks")
    assert not imported and own == f"{request}/1"
    assert len(forked) == 39 and request not in forked


def a_caller_that_hangs_up_ends_nothing(apps):
    """A2, A6: work begun for it runs to its end, and its instance serves the next request."""
    apps.function("slow", """
        import landfast, os
        def handler(event, context):
            name = event.get("rawPath", "/invoked").rpartition("/")[2]
            print("began", name, os.getpid(), flush=True)
            while landfast.state().get("go-" + name) is None:
                pass
            landfast.state().put("done-" + name, b"yes")
            print("ended", name, flush=True)
    """, concurrency=1, timeout_s=600, triggers=[{"http": "/routed"}])
    apps.deploy()
    for path, name in [("/2015-03-31/functions/slow/invocations", "invoked"), ("/http/routed", "routed")]:
        host, port = apps.address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            own = connection.getsockname()[1]
            head = f"POST {path} HTTP/1.1\r\nHost: {apps.address}\r\nContent-Length: 2\r\n\r\n"
            connection.sendall(head.encode() + b"{}")
            waiting.until(lambda: [line for line in apps.lines("slow") if f"began {name}" in line], "it to be begun")
        waiting.until(lambda: not _is_connected(int(port), own), "the server to have noticed")
        assert apps.ask("PUT", f"/v1/state/go-{name}", b"yes").status < 300
        waiting.until(lambda: apps.value(f"done-{name}"), "it to come to its end")
        waiting.until(lambda: "END" in apps.lines("slow")[-2] and "REPORT" in apps.lines("slow")[-1], "its last lines")
    began = [line.split() for line in apps.lines("slow") if line.startswith("began")]
    assert [words[1] for words in began] == ["invoked", "routed"], began
    assert began[0][2] == began[1][2], "one instance has done both"
    functions = apps.ask("GET", "/v1/status").document["functions"]
    assert functions["invocations"] == 2 and functions["instances_busy"] == 0, functions


def _is_connected(port, peer):
    """Whether the socket at `port` of a connection from the port `peer` is there, both of loopback."""
    addresses = [line.split()[1:3] for line in pathlib.Path("/proc/net/tcp").read_text().splitlines()[1:]]
    return [f"0100007F:{port:04X}", f"0100007F:{peer:04X}"] in addresses
