"""Functions with a volume: each invocation is one transaction on it."""

import json
import sys

import pytest

import application
import files_exec

CALLS = """
    import os
    import time

    ROOT = "/mnt/data"
    KEPT = {}
    ATTEMPTS = {}

    def handler(event, context):
        return getattr(Calls, event["call"])(*event.get("with", []))

    def path(name):
        return os.path.join(ROOT, name)

    class Calls:
        def add(name, amount):
            before = int(open(path(name)).read()) if os.path.exists(path(name)) else 0
            with open(path(name), "w") as file:
                file.write(str(before + amount))
            return before + amount
        def write_and_fail(name):
            open(path(name), "w").close()
            raise RuntimeError("no")
        def write_and_die(name):
            open(path(name), "w").close()
            os._exit(3)
        def read(name):
            return open(path(name)).read()
        def replace(name, text):
            with open(path(name), "r+") as file:
                file.write(text)
            return open(path(name)).read()
        def replace_and_fail(name, text):
            Calls.replace(name, text)
            raise RuntimeError("no")
        def keep_open(name):
            kept = KEPT.setdefault(name, os.open(path(name), os.O_RDONLY))
            return os.pread(kept, 100, 0).decode()
        def rename(name, to):
            os.rename(path(name), path(to))
            return [os.path.exists(path(name)), open(path(to)).read()]
        def exists(name):
            return os.path.exists(path(name))
        def create(name):
            os.makedirs(path("d"), exist_ok=True)
            ATTEMPTS[name] = ATTEMPTS.get(name, 0) + 1
            open(path("d/" + name), "x").close()
            time.sleep(0.2)
            return ATTEMPTS[name]
        def list():
            return sorted(os.listdir(ROOT))
        def mapped(name, text):
            import mmap
            with open(path(name), "w+b") as file:
                file.truncate(4096)
                with mmap.mmap(file.fileno(), 4096) as memory:
                    memory[:len(text)] = text.encode()
        def facts(name):
            open(path(name), "w").close()
            found = os.stat(path(name))
            return [found.st_uid == os.getuid(), os.access(path(name), os.W_OK)]
        def parallel(name):
            import threading
            def append(number):
                with open(path(name), "a") as file:
                    file.write(f"{number}\\n")
            threads = [threading.Thread(target=append, args=[number]) for number in range(8)]
            [thread.start() for thread in threads]
            [thread.join() for thread in threads]
"""


@pytest.fixture
def volume(server, tmp_path):
    return files_exec.mountable(server, tmp_path)


@pytest.fixture
def app(volume, tmp_path):
    app = application.Application(tmp_path / "app", volume.server, name=volume.name)
    app.function(volume.name, CALLS, volumes={"/mnt/data": volume.name}, python=sys.executable, concurrency=8)
    app.deploy()
    yield app
    app.command("functions", "remove", app.name)


def _called(app, call, *arguments):
    """The result of a call, or the error of the function."""
    payload = json.dumps({"call": call, "with": arguments}).encode()
    answer = app.client().invoke(FunctionName=app.name, Payload=payload)
    document = json.loads(answer["Payload"].read())
    return (answer.get("FunctionError"), document)


def _done(app, call, *arguments):
    failed, document = _called(app, call, *arguments)
    assert failed is None, document
    return document


def an_invocation_commits_when_it_succeeds(app, volume):
    assert [_done(app, "add", "n", 1) for _ in range(3)] == [1, 2, 3]
    assert volume.run("cat n") == "3"
    volume.run("printf 10 > n")
    assert _done(app, "add", "n", 1) == 11, "a warm instance sees what others wrote"


# VM2.
def a_failed_invocation_leaves_no_trace(app, volume):
    failed, document = _called(app, "write_and_fail", "a")
    assert failed and document["errorType"] == "RuntimeError"
    failed, document = _called(app, "write_and_die", "b")
    assert failed and document["errorType"] == "Runtime.ExitError"
    assert _done(app, "list") == [] and volume.run("ls") == ""


def conflicting_invocations_run_again(app, volume):
    calls = 8
    results = application.at_once(*[lambda: _done(app, "add", "n", 1)] * calls)
    assert sorted(results) == list(range(1, calls + 1))
    assert volume.run("cat n") == str(calls)


def mapped_memory_is_committed_too(app, volume):
    _done(app, "mapped", "m", "mapped text")
    assert volume.run("head -c 11 m") == "mapped text"


def files_appear_as_the_functions_own(app, volume):
    assert _done(app, "facts", "f") == [True, True]


def threads_of_one_invocation_share_its_transaction(app, volume):
    _done(app, "parallel", "lines")
    assert sorted(volume.run("cat lines").split()) == [str(number) for number in range(8)]


def pages_that_the_kernel_keeps_are_of_the_snapshot(app, volume):
    volume.run("printf 12345 > kept")
    assert [_done(app, "read", "kept") for _ in range(2)] == ["12345"] * 2
    volume.run("printf 2 | dd of=kept conv=notrunc status=none; touch -d 2020-01-01 kept")
    assert _done(app, "read", "kept") == "22345", "of the same length"
    assert _done(app, "replace", "kept", "3") == "32345"
    failed, _ = _called(app, "replace_and_fail", "kept", "4")
    assert failed and _done(app, "read", "kept") == "32345", "what was dropped is not seen"
    assert [_done(app, "keep_open", "kept") for _ in range(2)] == ["32345"] * 2
    volume.run("printf 5 | dd of=kept conv=notrunc status=none")
    assert _done(app, "keep_open", "kept") == "52345", "of a file that stays open"
    assert _done(app, "read", "kept") == "52345"


def names_that_the_kernel_keeps_are_of_the_snapshot(app, volume):
    volume.run("printf one > a")
    assert _done(app, "exists", "a") and not _done(app, "exists", "b")
    volume.run("mv a b")
    assert not _done(app, "exists", "a") and _done(app, "exists", "b")
    assert _done(app, "rename", "b", "c") == [False, "one"]
    volume.run("printf two > b; mv b c")
    assert _done(app, "read", "c") == "two" and not _done(app, "exists", "b")


def other_files_in_one_directory_are_no_conflict(app, volume):
    _done(app, "create", "first")
    calls = 6
    attempts = application.at_once(*[lambda n=n: _done(app, "create", str(n)) for n in range(calls)])
    assert attempts == [1] * calls
    assert len(volume.run("ls d").split()) == calls + 1


def a_function_that_only_reads_cannot_write(volume, tmp_path):
    app = application.Application(tmp_path / "reader", volume.server, name=f"{volume.name}-r")
    volumes = {"/mnt/data": {"volume": volume.name, "read_only": True}}
    app.function(app.name, CALLS, volumes=volumes, python=sys.executable, handler=f"{app.name}.handler")
    volume.run("printf here > f")
    app.deploy()
    assert _done(app, "read", "f") == "here"
    failed, document = _called(app, "add", "f", 1)
    assert failed and document["errorType"] in ("OSError", "ValueError"), document
    app.command("functions", "remove", app.name)


def a_volume_that_does_not_exist_is_named(volume, tmp_path):
    app = application.Application(tmp_path / "lost", volume.server, name=f"{volume.name}-l")
    app.function(app.name, CALLS, volumes={"/mnt/data": "nowhere"}, python=sys.executable)
    app.deploy()
    with pytest.raises(Exception) as raised:
        _called(app, "list")
    assert "nowhere" in str(raised.value) and "no such volume" in str(raised.value)
    app.command("functions", "remove", app.name)
