"""Functions as real processes, called the way people call Lambda."""

import base64
import contextlib
import http.client
import json
import os
import shutil
import socket
import sys

import botocore.exceptions
import pytest

import application
import server as servers
import waiting

GIGABYTE_SECONDS = 900

ECHO = """
    import os
    def handler(event, context):
        print("printed", event)
        return {"event": event, "id": context.aws_request_id, "left": context.get_remaining_time_in_millis(),
                "name": context.function_name, "memory": context.memory_limit_in_mb}
"""


def boto3_invokes_a_python_function_and_reads_its_log(apps):
    """A2, U1, U5."""
    apps.function("echo", ECHO, memory_mb=256)
    assert "echo" in apps.deploy()
    answer = apps.client().invoke(FunctionName="echo", Payload=b'{"a": [1, "\\u00e4"]}', LogType="Tail")
    result = json.loads(answer["Payload"].read())
    assert (answer["StatusCode"], answer["ExecutedVersion"]) == (200, "$LATEST")
    assert result["event"] == {"a": [1, "ä"]} and result["name"] == "echo" and result["memory"] == "256"
    assert 0 < result["left"] <= 30_000
    assert answer["ResponseMetadata"]["RequestId"] == result["id"]
    log = base64.b64decode(answer["LogResult"]).decode()
    assert f"START RequestId: {result['id']}" in log and "printed {'a': [1, 'ä']}" in log
    assert "REPORT RequestId:" in log and "Init Duration" in log
    again = apps.call("arn:aws:lambda:us-east-1:000000000000:function:echo:$LATEST", {"b": 1})
    assert again["event"] == {"b": 1}
    assert len([line for line in apps.lines("echo") if line.startswith("printed")]) == 2


def figures_of_functions_are_in_the_status_the_metrics_and_the_table(apps):
    apps.function("echo", ECHO, concurrency=1)
    apps.function("fails", "def handler(event, context):\n    raise KeyError('x')\n", retries=0)
    apps.deploy()
    apps.call("echo")
    apps.call("echo")
    apps.call("fails")
    apps.client().invoke(FunctionName="fails", InvocationType="Event", Payload=b"{}")

    def figures():
        return apps.ask("GET", "/v1/status").document["functions"]

    waiting.until(lambda: figures()["dead_letters"] == 1, "the event that failed for good")
    seen = figures()
    assert (seen["deployed"], seen["invocations"], seen["cold_starts"], seen["events_waiting"]) == (2, 4, 2, 0)
    assert seen["failures"] == {"function": 2, "timed-out": 0, "out-of-memory": 0, "exited": 0, "not-started": 0, "not-answered": 0, "too-long": 0, "not-committed": 0}
    waiting.until(lambda: figures()["instances_frozen"] == 2, "both to be frozen")
    metrics = apps.ask("GET", "/metrics").body.decode()
    for line in ("landfast_functions_deployed 2", 'landfast_functions_failures_total{kind="function"} 2',
                 'landfast_functions_instances{state="frozen"} 2', "landfast_functions_dead_letters 1"):
        assert line in metrics.splitlines(), line
    table = apps.command("status").stdout
    assert "2 deployed, instances: 0 busy, 0 warm, 2 frozen" in table and "failures      2 function" in table, table


def what_cannot_be_invoked_is_refused_in_lambdas_words(apps):
    apps.function("echo", ECHO)
    apps.deploy()
    client = apps.client()
    with pytest.raises(botocore.exceptions.ClientError) as failure:
        client.invoke(FunctionName="nobody")
    assert application.code_of(failure) == (404, "ResourceNotFoundException")
    with pytest.raises(botocore.exceptions.ClientError) as failure:
        client.invoke(FunctionName="echo", Qualifier="7")
    assert application.code_of(failure) == (404, "ResourceNotFoundException")
    with pytest.raises(botocore.exceptions.ClientError) as failure:
        client.invoke(FunctionName="echo", Payload=b"{no json")
    assert application.code_of(failure) == (400, "InvalidRequestContentException")
    with pytest.raises(botocore.exceptions.ClientError) as failure:
        client.invoke(FunctionName="echo", Payload=b'"%s"' % (b"x" * 6_300_000))
    assert application.code_of(failure) == (413, "RequestTooLargeException")
    assert client.invoke(FunctionName="echo", InvocationType="DryRun")["StatusCode"] == 204
    with pytest.raises(botocore.exceptions.ClientError) as failure:
        client.invoke(FunctionName="nobody", InvocationType="DryRun")
    assert application.code_of(failure) == (404, "ResourceNotFoundException")


def a_function_that_is_at_work_is_throttled_and_others_are_not(apps):
    apps.function("waits", """
        import landfast, time
        def handler(event, context):
            print("at work", flush=True)
            while landfast.state().get("others are answered") is None:
                time.sleep(0.05)
    """, concurrency=1, timeout_s=600)
    apps.function("echo", ECHO)
    apps.deploy()

    def throttled():
        waiting.until(lambda: "at work" in apps.lines("waits"), "the first call to be at work")
        with pytest.raises(botocore.exceptions.ClientError) as failure:
            apps.client().invoke(FunctionName="waits")
        assert application.code_of(failure) == (429, "TooManyRequestsException")
        echoed = apps.call("echo")
        assert apps.ask("PUT", "/v1/state/others%20are%20answered", b"yes").status == 204
        return echoed

    first, second = waiting.together(lambda: apps.call("waits"), throttled)
    assert first is None and second["name"] == "echo"


def an_exception_is_the_callers_to_read_and_the_instance_goes_on(apps):
    apps.function("fails", """
        import os
        def handler(event, context):
            if event.get("exit"):
                os._exit(event["exit"])
            if event.get("raise"):
                raise KeyError(event["raise"])
            if event.get("half"):
                raise ValueError("half a pair: " + chr(0xD800))
            return os.getpid()
    """)
    apps.deploy()
    process = apps.call("fails")
    failed = apps.call("fails", {"raise": "x"})
    assert (failed.type, failed.message) == ("KeyError", "'x'")
    assert apps.call("fails") == process
    failed = apps.call("fails", {"half": True})
    assert (failed.type, failed.message) == ("ValueError", r"half a pair: \ud800"), "no UTF-8 has it"
    assert apps.call("fails") == process
    failed = apps.call("fails", {"exit": 3})
    assert failed.type == "Runtime.ExitError" and "exit status 3" in failed.message
    assert isinstance(apps.call("fails"), int)


def a_function_that_cannot_be_imported_says_why(apps):
    apps.function("broken", "import no_such_module\n")
    apps.deploy()
    failed = apps.call("broken")
    assert failed.type == "Runtime.ImportModuleError" and "no_such_module" in failed.message


def the_clouds_own_python_client_runs_the_same_function(apps):
    apps.function("echo", ECHO, python=sys.executable)
    apps.function("whose", """
        import sys
        def handler(event, context):
            return ["awslambdaric" in sys.modules, type(context).__module__]
    """, python=sys.executable)
    apps.deploy()
    assert apps.call("echo", {"a": 1})["event"] == {"a": 1}
    assert apps.call("whose")[0] is True


def a_node_function_runs(apps):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    apps.file("app.mjs", """
        export const handler = async (event, context) => {
          console.log("printed", event);
          if (event.fail) throw new TypeError("on purpose");
          return { event, id: context.awsRequestId, left: context.getRemainingTimeInMillis() };
        };
    """)
    apps.file("old.js", "exports.handler = (event, context, callback) => callback(null, { doubled: event.n * 2 });\n")
    apps.function("modern", runtime="node", handler="app.handler", memory_mb=256)
    apps.function("old", runtime="node", handler="old.handler", memory_mb=256)
    apps.deploy()
    assert apps.call("modern", {"a": 1})["event"] == {"a": 1}
    failed = apps.call("modern", {"fail": True})
    assert (failed.type, failed.message) == ("TypeError", "on purpose")
    assert apps.call("old", {"n": 21}) == {"doubled": 42}


def any_executable_that_speaks_the_runtime_api_is_a_function(apps):
    apps.file("bootstrap", """\
        #!/usr/bin/perl
        use strict; use IO::Socket::INET;
        sub ask {
            my $socket = IO::Socket::INET->new($ENV{AWS_LAMBDA_RUNTIME_API}) or exit 1;
            print $socket $_[0]; my $answer = join("", <$socket>); return $answer;
        }
        for (;;) {
            my $next = ask("GET /2018-06-01/runtime/invocation/next HTTP/1.0\\r\\n\\r\\n");
            my ($id) = $next =~ /request-id: (\\S+)/i or exit 0;
            my ($event) = $next =~ /\\r\\n\\r\\n(.*)/s;
            my $body = "{\\"perl\\":$event}";
            ask("POST /2018-06-01/runtime/invocation/$id/response HTTP/1.0\\r\\nContent-Length: " . length($body) . "\\r\\n\\r\\n$body");
        }
    """, 0o755)
    apps.function("custom", runtime="executable", handler="bootstrap")
    apps.deploy()
    assert apps.call("custom", {"a": 1}) == {"perl": {"a": 1}}
    assert apps.call("custom", {"b": 2}) == {"perl": {"b": 2}}


CONTAINED = """
    import os, signal, sys, time, threading
    def handler(event, context):
        what = event["what"]
        if what == "ignore":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            for _ in range(3):
                if os.fork() == 0:
                    os.setsid()
                    signal.signal(signal.SIGTERM, signal.SIG_IGN)
                    while True:
                        time.sleep(60)
            time.sleep(60)
        if what == "fork":
            forked = 0
            try:
                while True:
                    if os.fork() == 0:
                        time.sleep(60)
                    forked += 1
            except OSError:
                return forked
        if what == "fill":
            filled = []
            while True:
                filled.append(bytearray(b"x" * (1 << 20)))
        if what == "print":
            line = "x" * 1023
            for _ in range(1 << 20):
                print(line)
            return "printed"
        if what == "long":
            return "x" * 7_000_000
        return what
"""


def what_a_function_does_to_itself_is_contained_and_reported(apps):
    """U2, U3."""
    apps.function("contained", CONTAINED, timeout_s=20, processes=32)
    apps.function("hasty", CONTAINED, handler="contained.handler", timeout_s=1)
    apps.function("echo", ECHO)
    apps.deploy()
    assert apps.call("contained", {"what": "works"}) == "works"

    failed = apps.call("hasty", {"what": "ignore"})
    assert failed.type == "Sandbox.Timedout" and "after 1.00 seconds" in failed.message
    assert any(line.startswith("REPORT ") and line.endswith("\tStatus: timeout") for line in apps.lines("hasty"))
    waiting.until(lambda: not application.processes("contained.handler") or len(application.processes("contained.handler")) <= 2,
                  "all that it has forked to be gone")

    forked = apps.call("contained", {"what": "fork"})
    assert 1 <= forked <= 32
    failed = apps.call("contained", {"what": "fill"})
    assert failed.type in ("Runtime.OutOfMemory", "MemoryError"), failed
    failed = apps.call("contained", {"what": "long"})
    assert failed.type == "Function.ResponseSizeTooLarge"
    assert apps.call("contained", {"what": "works"}) == "works"
    assert apps.call("echo", {"a": 1})["event"] == {"a": 1}


def a_gigabyte_of_output_is_bounded_and_hurts_nobody(apps):
    """U5."""
    apps.function("contained", CONTAINED, timeout_s=GIGABYTE_SECONDS)
    apps.function("echo", ECHO)
    apps.deploy()
    loud, quiet = waiting.together(
        lambda: apps.call("contained", {"what": "print"}, read_seconds=GIGABYTE_SECONDS),
        lambda: [apps.call("echo", {"n": n})["event"]["n"] for n in range(20)],
        seconds=GIGABYTE_SECONDS,
    )
    assert loud == "printed" and quiet == list(range(20))
    kept = sum(file.stat().st_size for file in (apps.server.directory / "data/functions/logs").iterdir())
    assert kept < 64 << 20, "most of it is let go"


def a_function_sees_its_code_and_nothing_of_the_machine(apps):
    """P5: without `network` it has no outside connection."""
    apps.file("data.txt", "beside the code\n")
    apps.function("looks", """
        import os, pathlib, socket
        def attempt(what):
            try:
                return what()
            except OSError as error:
                return type(error).__name__
        def handler(event, context):
            return {
                "beside": pathlib.Path("data.txt").read_text(),
                "code": attempt(lambda: open("/var/task/new", "w")),
                "root": attempt(lambda: open("/new", "w")),
                "scratch": attempt(lambda: pathlib.Path("/tmp/x").write_text("x")),
                "host": [path for path in event["paths"] if os.path.exists(path)],
                "connect": attempt(lambda: socket.create_connection(("127.0.0.1", event["port"]), 2) and "connected"),
                "leaked": [name for name in os.environ if name in ("LANDFAST_DATA_DIR", "PYTEST_CURRENT_TEST", "SECRET")],
                "own": os.environ["OWN"],
                "processes": sum(name.isdigit() for name in os.listdir("/proc")),
                "user": os.getuid(),
                "descriptors": len(os.listdir("/proc/self/fd")),
                "leads": os.getpgrp() == os.getsid(0) == os.getpid(),
                "families": [attempt(lambda: socket.socket(family) and "made") for family in (40, 17)],
            }
    """, environment={"OWN": "given"})
    apps.deploy()
    port = int(apps.address.rsplit(":", 1)[1])
    paths = [str(apps.server.directory), str(servers.REPOSITORY / "src"), "/home", "/etc/shadow"]
    seen = apps.call("looks", {"paths": paths, "port": port})
    assert seen["beside"] == "beside the code\n" and seen["own"] == "given"
    assert seen["code"] == "OSError" and seen["root"] == "OSError" and seen["scratch"] == 1
    assert seen["host"] == [] and seen["leaked"] == []
    assert seen["connect"] == "ConnectionRefusedError"
    assert seen["processes"] == 2 and seen["user"] != 0 and seen["descriptors"] <= 6
    # In the server's group it could signal the group's other processes. AF_VSOCK and AF_PACKET know
    # no network namespace, or too much.
    assert seen["leads"] and seen["families"] == ["PermissionError"] * 2


def with_the_network_of_the_machine_nobody_else_reaches_an_instance(apps):
    apps.function("open", """
        import http.client, os, socket
        def handler(event, context):
            socket.create_connection(("127.0.0.1", event["port"]), 2).close()
            inside = os.environ["LANDFAST_URL"].removeprefix("http://")
            answered = []
            for headers in event["headers"]:
                connection = http.client.HTTPConnection(inside)
                connection.request("GET", "/v1/state/key", headers=headers)
                answered.append(connection.getresponse().status)
            return inside, answered
    """, network=True)
    apps.deploy()
    headers = [{}, {"Host": "page.example"}, {"Origin": "http://page.example"}]
    inside, answered = apps.call("open", {"port": int(apps.address.rsplit(":", 1)[1]), "headers": headers})
    assert answered == [404, 403, 403]
    if os.getuid() != 0:
        return  # Its instances are this user's own.
    with socket.create_connection(inside.split(":")) as stranger, contextlib.suppress(ConnectionError):
        stranger.sendall(b"GET /v1/state/key HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert stranger.recv(1) == b"", "it is closed unanswered"


def a_request_over_http_reaches_a_function_as_behind_api_gateway(apps):
    """A6, A7."""
    apps.function("orders", """
        import json, landfast
        def handler(event, context):
            id = event["pathParameters"]["id"]
            if event["requestContext"]["http"]["method"] == "PUT":
                landfast.state().put(f"order-{id}", event["body"].encode())
                return {"statusCode": 201, "headers": {"location": event["rawPath"]}, "cookies": ["seen=1"]}
            kept = landfast.state().get(f"order-{id}")
            if kept is None:
                raise KeyError(id)
            return {"order": kept.decode(), "query": event.get("queryStringParameters"), "key": event["routeKey"],
                    "same": event["requestContext"]["requestId"] == context.aws_request_id}
    """, triggers=[{"http": "/orders/{id}", "methods": ["GET", "PUT"]}])
    apps.function("files", """
        import base64
        def handler(event, context):
            body = base64.b64decode(event["body"]) if event["isBase64Encoded"] else event["body"].encode()
            return {"statusCode": 200, "headers": {"content-type": "image/png"}, "isBase64Encoded": True,
                    "body": base64.b64encode(body[::-1]).decode()}
    """, triggers=[{"http": "/files/{path+}"}])
    apps.function("slow", "import time\ndef handler(event, context):\n    time.sleep(30)\n",
                  triggers=[{"http": "/slow"}], timeout_s=1)
    apps.deploy()
    made = apps.ask("PUT", "/http/orders/17", b"paid")
    assert (made.status, made.headers["location"], made.headers["set-cookie"]) == (201, "/http/orders/17", "seen=1")
    got = apps.ask("GET", "/http/orders/17?full=1&full=2")
    assert (got.status, got.headers["content-type"]) == (200, "application/json")
    assert got.document == {"order": "paid", "query": {"full": "1,2"}, "key": "GET /orders/{id}", "same": True}
    picture = bytes(range(256))
    answer = apps.ask("POST", "/http/files/a/b.png", picture)
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, "image/png", picture[::-1])
    assert apps.ask("GET", "/http/orders/18").problem == (500, "function-failed")
    assert apps.ask("GET", "/http/slow").problem == (504, "function-timed-out")
    assert apps.ask("DELETE", "/http/orders/17").problem == (405, "method-not-allowed")
    assert apps.ask("GET", "/http/nowhere").problem == (404, "no-such-path")

    other = application.Application(apps.folder.parent / "other", apps.server, name="other")
    other.function("takes", "def handler(event, context):\n    return 1\n", triggers=[{"http": "/orders/{order}"}])
    refused = other.command("functions", "deploy", str(other.write()))
    assert refused.returncode == 1
    assert "functions.takes: the route ANY /orders/{order} is GET /orders/{id} of the function" in refused.stderr
    apps.server.kill()
    apps.server.start()
    assert apps.ask("GET", "/http/orders/17").document["order"] == "paid"
    apps.tables["orders"]["triggers"] = []
    apps.deploy()
    assert apps.ask("GET", "/http/orders/17").problem == (404, "no-such-path")
    other.deploy()
    assert apps.ask("GET", "/http/orders/17").document == 1


def a_deployment_replaces_the_one_before_and_is_there_after_a_kill(apps):
    """A1, U4."""
    apps.function("says", "def handler(event, context):\n    return 1\n")
    apps.function("goes", "def handler(event, context):\n    return 1\n")
    apps.deploy()
    assert apps.call("says") == 1 and apps.call("goes") == 1
    apps.file("says.py", "def handler(event, context):\n    return 2\n")
    del apps.tables["goes"]
    apps.deploy()
    assert apps.call("says") == 2
    with pytest.raises(botocore.exceptions.ClientError) as failure:
        apps.call("goes")
    assert application.code_of(failure) == (404, "ResourceNotFoundException")
    apps.server.kill()
    apps.server.start()
    assert apps.call("says") == 2
    other = application.Application(apps.folder.parent / "other", apps.server, name="other")
    other.function("says", "def handler(event, context):\n    return 3\n")
    refused = other.command("functions", "deploy", str(other.write()))
    assert refused.returncode == 1 and "is of the application" in refused.stderr
    refused = apps.command("functions", "remove", "shop?x")
    assert refused.returncode == 1 and "no-such-application" in refused.stderr, refused.stderr
    removed = apps.command("functions", "remove", "shop")
    assert removed.returncode == 0, removed.stderr
    other.deploy()
    assert apps.call("says") == 3
    archives = list((apps.server.directory / "data/functions/archives").iterdir())
    assert len(archives) == 1, "what nobody names is gone"


def what_cannot_be_deployed_is_refused_and_changes_nothing(apps):
    apps.function("says", "def handler(event, context):\n    return 1\n")
    apps.deploy()
    apps.function("says", timeout_s=1000)
    refused = apps.command("functions", "deploy", str(apps.write()))
    assert refused.returncode == 1 and "timeout_s = 1000 must be 1 to 900" in refused.stderr
    connection = http.client.HTTPConnection(apps.address)
    for content in (b"", b"no archive", b"\x1f\x8b" + bytes(100)):
        connection.request("PUT", "/v1/applications/shop", content)
        answer = connection.getresponse()
        assert (answer.status, json.loads(answer.read())["type"]) == (400, "invalid-request")
    assert apps.call("says") == 1
    connection.close()
    del apps.tables["says"]["timeout_s"]
    apps.file("serve", "#!/bin/sh\n")
    for handler, why in (("serve", "is not executable: chmod +x it"), ("server", "there is no file")):
        apps.function("says", runtime="executable", handler=handler)
        refused = apps.command("functions", "deploy", str(apps.write()))
        assert refused.returncode == 1 and "functions.says" in refused.stderr and why in refused.stderr, refused.stderr
    assert apps.call("says") == 1


def requirements_are_installed_at_the_deployment(apps):
    apps.file("requirements.txt", "six==1.17.0\n")
    apps.function("uses", "import six\ndef handler(event, context):\n    return six.__version__\n")
    apps.deploy()
    assert apps.call("uses") == "1.17.0"


def a_call_may_take_longer_than_a_connection_may_be_quiet(apps):
    apps.function("slow", "import time\ndef handler(event, context):\n    time.sleep(12)\n    return 'slept'\n")
    apps.deploy()
    assert apps.call("slow") == "slept"
