"""Commands that stay beside a server: deploying every change, following the log; and the answers of
Lambda's API about functions.
"""

import contextlib
import os
import socket
import subprocess
import threading
import tty

import botocore.exceptions
import pytest

import application
import waiting


def a_watched_application_is_deployed_again_when_something_of_it_changes(apps, stays):
    """U4: the next invocation runs the new code."""
    says = "def handler(event, context):\n    return {}\n".format
    apps.function("says", says(1))
    said = stays("functions", "deploy", str(apps.write()), "--watch")
    waiting.until(lambda: said and said[0].startswith("deployed shop "), "the first deployment")
    assert apps.call("says") == 1
    apps.file("says.py", says(2))
    waiting.until(lambda: apps.call("says") == 2, "a changed file to be deployed")
    apps.file("number.txt", "3\n")
    apps.file("says.py", "def handler(event, context):\n    return int(open('number.txt').read())\n")
    waiting.until(lambda: apps.call("says") == 3, "a new file to be deployed")

    apps.function("more", "def handler(event, context):\n    return 4\n", on_failure="nobody")
    apps.write()
    waiting.until(lambda: 'on_failure = "nobody" is no function' in said[-1], "what is wrong to be said")
    assert said[-1].startswith("not deployed: ") and apps.call("says") == 3, "what is deployed stays"
    def refusals():
        return sum(line.startswith("not deployed: ") for line in said)

    before = refusals()
    whole = apps.write().read_text()
    for number, broken in enumerate(["[functions.more\n", "[functions.more\n\n"], 1):
        apps.write().write_text(broken)
        waiting.until(lambda: refusals() == before + number, "a manifest that cannot be read to be told")
    assert apps.call("says") == 3, "what is deployed stays"
    apps.write().write_text(whole)
    waiting.until(lambda: "on_failure" in said[-1], "the next change to be tried")
    assert refusals() == before + 3, said

    del apps.tables["more"]["on_failure"]
    apps.write()
    waiting.until(lambda: said[-1].endswith(": more, says"), "the manifest to be deployed again")
    assert apps.call("more") == 4 and apps.call("says") == 3

    told = len(said)
    apps.server.kill()
    apps.file("says.py", says(5))
    waiting.until(lambda: "does not answer" in said[-1], "that the server is away to be said")
    with _connections_that_end(apps.server.http_port) as tried:
        waiting.until(lambda: len(tried) >= 2, "it to be tried again")
    apps.server.start()
    waiting.until(lambda: apps.call("says") == 5, "what was changed meanwhile to be deployed")
    waiting.until(lambda: said[-1].startswith("deployed shop "), "that it is deployed")
    assert all(line.startswith("not deployed: ") and "tried again" in line for line in said[told:-1]), said
    assert sum("closed the connection" in line for line in said) == 1, "a line for each way of being away, not for each try"


@contextlib.contextmanager
def _connections_that_end(port):
    """A listener that accepts connections and never answers; its connections so far."""
    came = []
    with socket.create_server(("127.0.0.1", port)) as listener:
        def turn_away():
            with contextlib.suppress(OSError):
                while True:
                    connection, address = listener.accept()
                    connection.close()
                    came.append(address)

        thread = threading.Thread(target=turn_away, daemon=True)
        thread.start()
        yield came
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(waiting.GUARD_SECONDS)


def what_a_function_prints_is_followed(apps, stays):
    """U5: each line once, in order, including those of a new instance and of a restarted server,
    even with a log that begins anew.
    """
    apps.function("counts", """
        def handler(event, context):
            print("printed", event["n"])
            return event["n"]
    """)
    apps.deploy()
    apps.call("counts", {"n": 0})
    seen = stays("functions", "logs", "counts", "--follow")
    printed = lambda: [line.split("printed ")[1] for line in seen if "printed " in line]
    waiting.until(lambda: printed() == ["0"], "what was printed before")
    for n in range(1, 4):
        apps.call("counts", {"n": n})
        waiting.until(lambda: printed() == [str(m) for m in range(n + 1)], "what is printed now")
    apps.deploy()
    apps.call("counts", {"n": 4})
    waiting.until(lambda: printed() == ["0", "1", "2", "3", "4"], "what the next deployment prints")

    for restart in range(3):
        apps.server.kill()
        if restart == 2:
            (log,) = apps.server.directory.rglob("counts.log")
            log.unlink()
        waiting.until(lambda: sum("goes on once it does" in line for line in seen) == restart + 1, "the outage to be said")
        apps.server.start()
        apps.call("counts", {"n": 5 + restart})
        waiting.until(lambda: printed() == [str(m) for m in range(6 + restart)], "what is printed after a restart")
    ended = [line.split()[-1] for line in seen if " END RequestId: " in line]
    assert len(ended) == len(set(ended)) == 8, seen
    assert sum(line.startswith("landfast: ") for line in seen) == 3, "each outage is said once"


def _all_of(terminal):
    """The output to a terminal whose other side is closed: one read may give a part of it."""
    read = b""
    while True:
        try:
            read += os.read(terminal, 65536)
        except OSError:
            return read


def what_a_function_prints_or_answers_does_not_drive_the_terminal_that_shows_it(apps):
    """A pipe gets the output unchanged; JSON is the same JSON on a terminal."""
    apps.function("drives", """
        def handler(event, context):
            print("\\x1b[31mred\\rover\\tit \\x9b2J", flush=True)
            return "\\x9b2J"
    """)
    apps.deploy()
    apps.call("drives")
    printed = "\x1b[31mred\rover\tit \x9b2J"
    environment = {**os.environ, "LANDFAST_URL": f"http://{apps.address}"}
    escaped = r"\x1b[31mred\x0dover" + "\tit " + r"\u009b2J"
    for command, said in (
        (["logs", "drives"], escaped),
        (["logs", "drives", "--json"], r"\u001b[31mred\rover\tit \u009b2J"),
        (["invoke", "drives", "--log"], escaped),
        (["invoke", "drives"], r'"\u009b2J"'),
    ):
        ours, theirs = os.openpty()
        tty.setraw(theirs)
        arguments = [apps.server.program, "functions", *command]
        subprocess.run(arguments, env=environment, stdout=theirs, stderr=theirs, check=True, timeout=waiting.GUARD_SECONDS)
        os.close(theirs)
        shown = _all_of(ours).decode()
        os.close(ours)
        assert said in shown and not any(control in shown for control in "\x1b\r\x9b"), shown
    piped = subprocess.run(
        [apps.server.program, "functions", "logs", "drives"], env=environment, capture_output=True, timeout=waiting.GUARD_SECONDS
    )
    assert printed in piped.stdout.decode()
    assert printed in apps.lines("drives")


def what_a_function_has_printed_is_read_in_pages_whatever_it_is(apps, stays):
    """U5: many lines, and long ones, with characters that take six times as much in a response."""
    apps.function("prints", """
        import sys
        def handler(event, context):
            for n in range(event["lines"]):
                print(n, event["letter"] * event["letters"])
            sys.stdout.flush()
    """)
    apps.deploy()
    for event in ({"lines": 3000, "letter": "a", "letters": 10}, {"lines": 40, "letter": "\x01", "letters": 60_000}):
        apps.call("prints", event)
        numbers = [line.split()[0] for line in apps.lines("prints") if line.endswith(event["letter"] * 10)]
        assert numbers == [str(n) for n in range(event["lines"])]
    seen = stays("functions", "logs", "prints", "--follow", "--json")
    waiting.until(lambda: any('"39 ' in line for line in seen), "the last line to be shown")
    pages, at = 0, 0
    while True:
        answer = apps.ask("GET", f"/v1/functions/prints/logs?from={at}")
        assert answer.status == 200 and len(answer.body) < 8 << 20
        if not answer.document["lines"]:
            break
        pages, at = pages + 1, answer.document["next"]
    assert pages >= 6, "three for many lines, three for long ones"


def lambdas_api_lists_and_describes_functions_and_refuses_the_rest_by_name(apps):
    for number in range(3):
        apps.function(f"f{number}", "def handler(event, context):\n    return 1\n", memory_mb=256, timeout_s=7, concurrency=3)
    apps.file("bootstrap", "#!/bin/sh\n", 0o755)
    apps.function("own", runtime="executable", handler="bootstrap")
    apps.deploy()
    client = apps.client()
    listed = client.list_functions()
    assert [function["FunctionName"] for function in listed["Functions"]] == ["f0", "f1", "f2", "own"]
    assert "NextMarker" not in listed and listed["ResponseMetadata"]["RequestId"]
    pages = client.get_paginator("list_functions").paginate(PaginationConfig={"PageSize": 3})
    assert [[function["FunctionName"] for function in page["Functions"]] for page in pages] == [["f0", "f1", "f2"], ["own"]]

    one = client.get_function(FunctionName="f1")
    assert one["Concurrency"] == {"ReservedConcurrentExecutions": 3}
    said = one["Configuration"]
    assert said["FunctionArn"] == "arn:aws:lambda:us-east-1:000000000000:function:f1" and said["Runtime"] == "python3"
    assert (said["Handler"], said["MemorySize"], said["Timeout"]) == ("f1.handler", 256, 7)
    assert (said["State"], said["LastUpdateStatus"], said["Version"]) == ("Active", "Successful", "$LATEST")
    by_arn = client.get_function_configuration(FunctionName=said["FunctionArn"], Qualifier="$LATEST")
    assert by_arn["RevisionId"] == said["RevisionId"]
    assert client.get_function_configuration(FunctionName="own")["Runtime"] == "provided"
    client.get_waiter("function_active_v2").wait(FunctionName="f1")

    refused = [
        (lambda: client.get_function(FunctionName="nobody"), (404, "ResourceNotFoundException")),
        (lambda: client.get_function(FunctionName="f1", Qualifier="7"), (404, "ResourceNotFoundException")),
        (lambda: client.delete_function(FunctionName="f1"), (501, "NotImplementedException")),
        (lambda: client.update_function_code(FunctionName="f1", ZipFile=b"zip"), (501, "NotImplementedException")),
        (lambda: client.create_function(FunctionName="f9", Role="arn:aws:iam::000000000000:role/r", Code={"ZipFile": b"zip"}),
         (501, "NotImplementedException")),
        (lambda: client.list_aliases(FunctionName="f1"), (501, "NotImplementedException")),
        (lambda: client.list_layers(), (501, "NotImplementedException")),
        (lambda: client.get_function_url_config(FunctionName="f1"), (501, "NotImplementedException")),
    ]
    for call, expected in refused:
        with pytest.raises(botocore.exceptions.ClientError) as failure:
            call()
        assert application.code_of(failure) == expected
    assert apps.call("f1") == 1
