"""U2: limits on the effects that a function, or its deployer, may have on the server and on others."""

import subprocess
import sys

import pytest

import application
import waiting

# Sends most of the bodies that it announces, and exits.
HOG = """
    import os, socket
    kept = []
    def handler(event, context):
        if event == "look":
            return [ended(connection) for connection in kept]
        address = os.environ["AWS_LAMBDA_RUNTIME_API"]
        host, port = address.split(":")
        for size in [60_000_000] * 4 + [1_000_000] * 30:
            connection = socket.create_connection((host, int(port)))
            kept.append(connection)
            connection.settimeout(2)
            head = f"PUT /v1/state/x HTTP/1.1\\r\\nHost: {address}\\r\\nContent-Length: 67000000\\r\\n\\r\\n"
            try:
                connection.sendall(head.encode())
                for _ in range(size // 65536):
                    connection.sendall(b"x" * 65536)
            except OSError:
                pass
    def ended(connection):
        connection.settimeout(0.01)
        try:
            return connection.recv(16).decode()
        except TimeoutError:
            return None
        except OSError:
            return "reset"
"""
GOOD = """
    import os, urllib.request
    def handler(event, context):
        url = os.environ["LANDFAST_URL"] + "/v1/state/good"
        with urllib.request.urlopen(urllib.request.Request(url, b"x" * 2_000_000, method="PUT")) as answer:
            return answer.status
"""


@pytest.fixture
def apps(tmp_path, own_server):
    """An application on a server of its own."""
    if type(own_server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    return application.Application(tmp_path / "app", own_server)


def bodies_that_a_function_never_finishes_are_its_own_trouble(apps):
    """U2."""
    apps.function("hog", HOG, retries=0, timeout_s=600, concurrency=1)
    apps.function("good", GOOD, retries=0)
    apps.deploy()
    assert apps.call("good") == 204
    assert apps.call("hog") is None
    assert apps.call("good") == 204, "another function finds room, without a repeat"
    seen = {}

    def all_ended():
        for place, end in enumerate(apps.call("hog", "look")):
            seen[place] = seen.get(place) or end
        return len(seen) == 34 and all(seen.values())

    waiting.until(all_ended, "all of its bodies to have broken off")
    assert any(end.startswith("HTTP/1.1 429") for end in seen.values()), seen
    assert apps.call("good") == 204


def an_answer_that_breaks_off_is_none(apps):
    """U3."""
    apps.function("half", """
        import os, socket
        def handler(event, context):
            address = os.environ["AWS_LAMBDA_RUNTIME_API"]
            host, port = address.split(":")
            path = f"/2018-06-01/runtime/invocation/{context.aws_request_id}/response"
            with socket.create_connection((host, int(port))) as connection:
                head = f"POST {path} HTTP/1.1\\r\\nHost: {address}\\r\\nContent-Length: 100\\r\\n\\r\\n"
                connection.sendall(head.encode() + b"12")
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(1000).decode()[:12]
    """, retries=0)
    apps.deploy()
    assert apps.call("half") in ("HTTP/1.1 400", "")


def an_interpreter_that_was_deployed_or_that_others_may_write_is_not_run(apps, tmp_path):
    """U2: permission to deploy is not permission for everything at the server."""
    ran = tmp_path / "ran"
    evil = f'#!/bin/sh\ntouch {ran}\nexec python3 "$@"\n'
    apps.function("ok", "def handler(event, context): return 1")
    apps.file("evil", evil, 0o755)
    apps.deploy()
    archives = apps.server.directory / "data" / "functions" / "archives"
    [deployed] = archives.rglob("evil")
    link, open_to_all = tmp_path / "link", tmp_path / "open"
    link.symlink_to(deployed)
    open_to_all.write_text(evil)
    open_to_all.chmod(0o777)
    for interpreter in [deployed, link, open_to_all]:
        said = _refusal(apps, tmp_path, interpreter)
        assert "was deployed" in said or "may be written by users" in said, said
        assert not ran.exists(), interpreter


def an_interpreter_is_asked_where_it_is_as_a_function_would_run(apps, tmp_path):
    """U2."""
    seen, own = tmp_path / "seen", tmp_path / "own" / "bin" / "python"
    own.parent.mkdir(parents=True)
    own.write_text(f'#!/bin/sh\nid -u > {seen}\nls / > {seen}\nexec /usr/bin/env python3 "$@"\n')
    own.chmod(0o755)
    apps.function("f", "import os\ndef handler(event, context): return os.listdir('/')", python=str(own))
    apps.deploy()
    inside = apps.call("f")
    assert isinstance(inside, application.Failed) or "var" in inside, inside
    assert not seen.exists(), "it has written where only the server may"


def a_virtual_environment_is_an_interpreter(apps, tmp_path):
    """The function sees the target of links, too."""
    place = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", place], check=True)
    library = next(place.glob("lib/python*/site-packages"))
    (library / "only_here.py").write_text("VALUE = 7\n")
    apps.function(
        "f", "import only_here\ndef handler(event, context): return only_here.VALUE", python=str(place / "bin/python")
    )
    apps.deploy()
    assert apps.call("f") == 7


def _refusal(apps, folder, interpreter):
    """The reason why a function with this interpreter cannot run."""
    other = application.Application(folder / f"with-{interpreter.name}", apps.server, f"with-{interpreter.name}")
    other.function(f"by-{interpreter.name}", "def handler(event, context): return 1", retries=0, python=str(interpreter))
    other.deploy()
    answer = other.ask("POST", f"/2015-03-31/functions/by-{interpreter.name}/invocations", b"{}")
    assert answer.status >= 400, answer.body
    return answer.body.decode()
