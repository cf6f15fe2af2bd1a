"""Functions with a volume: each invocation is one transaction on it."""

import json
import sys

import pytest

import application
import files_exec
import http_api

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


BANK = """
    import os
    import landfast

    VOLUME = "the volume"
    JOURNAL = "/mnt/data/journal.csv"

    def handler(event, context):
        return globals()[event["call"]](*event.get("with", []))

    def balance(t, name):
        return int(t.get(f"balance/{name}") or b"100")

    def pay(payer, payee, amount, then=None):
        with landfast.transaction(volume=VOLUME) as t:
            t.put(f"balance/{payer}", str(balance(t, payer) - amount).encode())
            t.put(f"balance/{payee}", str(balance(t, payee) + amount).encode())
            if then == "raise":
                raise ValueError("inside the block")
        with open(JOURNAL, "a") as journal:
            journal.write(f"{payer},{payee},{amount}\\n")
        if then == "fail":
            raise RuntimeError("no")
        if then == "die":
            os._exit(3)
        with landfast.transaction(volume=VOLUME) as t:
            return [balance(t, payer), balance(t, payee)]

    def pay_and_catch(payer, payee, amount):
        try:
            pay(payer, payee, amount, "raise")
        except ValueError:
            return "caught"

    def both_ways():
        with open(JOURNAL, "w") as journal:
            journal.write("by the mount,")
        with landfast.transaction(volume=VOLUME) as t:
            before = t.files().read("journal.csv")
            t.files().append("journal.csv", b"by the client")
            t.files().write("new", b"made")
        return [before.decode(), open(JOURNAL).read(), open("/mnt/data/new").read()]

    def read_journal():
        return open(JOURNAL).read()

    def append_to_read(looks_before, then=None):
        before = read_journal() if looks_before else None
        with landfast.transaction(volume=VOLUME) as t:
            t.files().append("journal.csv", b"+")
        after = read_journal()
        if then == "fail":
            raise RuntimeError("no")
        return [before, after]

    def late():
        global left
        left = landfast.transaction(volume=VOLUME)
        left.__enter__()
        return left.get("balance/ann") is None

    def use_late():
        left.put("balance/ann", b"0")

    def with_id():
        with landfast.transaction(volume=VOLUME, id="mine"):
            pass
"""


@pytest.fixture
def bank(volume, tmp_path):
    """Two functions on one volume; the second one only reads."""
    app = application.Application(tmp_path / "bank", volume.server, name=volume.name)
    text = BANK.replace("the volume", volume.name)
    volumes = {"/mnt/data": volume.name}
    app.function(volume.name, text, volumes=volumes, concurrency=4)
    app.function(f"{volume.name}-b", volumes=volumes, handler=f"{volume.name}.handler", concurrency=4)
    readers = {"/mnt/data": {"volume": volume.name, "read_only": True}}
    app.function(f"{volume.name}-r", volumes=readers, handler=f"{volume.name}.handler")
    app.deploy()
    yield app
    app.command("functions", "remove", app.name)


def _books(volume, *names):
    """The balances and the lines of the journal, of one moment."""
    api = http_api.Api(volume.server)
    begun = api.ask("POST", "/v1/transactions", json.dumps({"volume": volume.name}).encode()).document
    of = {"landfast_transaction": begun["id"], "landfast_attempt": begun["attempt"]}
    keys = [api.ask("GET", f"/v1/transactions/{begun['id']}/keys/balance%2F{name}") for name in names]
    journal = api.ask("GET", f"/v1/volumes/{volume.name}/files/journal.csv", **of)
    lines = journal.body.decode().split() if journal.status == 200 else []
    return [int(key.body) if key.status == 200 else 100 for key in keys], lines


def keys_and_files_of_an_invocation_take_effect_together(bank, volume):
    for then in ["fail", "die", "raise"]:
        assert _called(bank, "pay", "ann", "ben", 10, then)[0], then
    assert _books(volume, "ann", "ben") == ([100, 100], [])
    assert _done(bank, "pay", "ann", "ben", 10) == [90, 110]
    assert _books(volume, "ann", "ben") == ([90, 110], ["ann,ben,10"])


def functions_in_conflict_keep_balances_and_journal_together(bank, volume):
    def pay(number):
        name = volume.name if number % 2 else f"{volume.name}-b"
        return bank.call(name, {"call": "pay", "with": ["ann", f"to{number}", 1]})

    paid = application.at_once(*[lambda number=number: pay(number) for number in range(8)])
    assert sorted(ann for ann, _ in paid) == list(range(92, 100))
    (ann, *others), journal = _books(volume, "ann", *[f"to{number}" for number in range(8)])
    assert ann == 92 and others == [101] * 8
    assert sorted(journal) == [f"ann,to{number},1" for number in range(8)]


def a_block_that_wrote_and_was_aborted_fails_its_invocation(bank, volume):
    failed, document = _called(bank, "pay_and_catch", "ann", "ben", 10)
    assert failed and document["errorType"] == "Volume.Unavailable" and "aborted" in document["errorMessage"], document
    assert _books(volume, "ann", "ben") == ([100, 100], [])


def files_of_a_block_are_those_of_the_mount(bank, volume):
    both = "by the mount,by the client"
    assert _done(bank, "both_ways") == ["by the mount,", both, "made"]
    assert volume.run("cat journal.csv") == both
    # Of a file that no program has open, the kernel keeps pages for the next invocation.
    volume.run("printf 1 > journal.csv")
    for looks_before in [True, True, False, False]:
        before = _done(bank, "read_journal")
        assert _done(bank, "append_to_read", looks_before) == [before if looks_before else None, before + "+"]
        failed, _ = _called(bank, "append_to_read", looks_before, "fail")
        assert failed and _done(bank, "read_journal") == before + "+", "what was dropped is not seen"


def a_block_ends_with_its_invocation(bank):
    assert _done(bank, "late") is True
    failed, document = _called(bank, "use_late")
    assert failed and document["errorType"] == "TransactionFinished", document


def a_block_has_no_id_of_its_own(bank):
    failed, document = _called(bank, "with_id")
    assert failed and document["errorType"] == "InvalidRequest" and "leave `id` out" in document["errorMessage"], document


def a_block_of_a_function_that_reads_cannot_write(bank, volume):
    answer = bank.call(f"{volume.name}-r", {"call": "pay", "with": ["ann", "ben", 10]})
    assert isinstance(answer, application.Failed) and "read_only" in str(answer), answer


# The id of the transaction derives from the run, the step and its place there.
@pytest.mark.parametrize("mounts", [True, False])
def a_step_that_runs_again_commits_its_volume_transaction_once(volume, tmp_path, mounts):
    app = application.Application(tmp_path / "run", volume.server, name=f"{volume.name}-w")
    text = """
        import landfast

        def handler(event, context):
            for place in ["a", "b"]:
                with landfast.transaction(volume=event) as t:
                    t.put(f"balance/{place}", str(int(t.get(f"balance/{place}") or b"0") + 1).encode())
                    t.files().append("journal.csv", place.encode() + b"\\n")
            tried = len(landfast.files(event).list().entries)
            if tried < 3:
                landfast.files(event).write(f"tried{tried}", b"")
                raise RuntimeError("once more")
            return "done"
    """
    volumes = {"volumes": {"/mnt/data": volume.name}} if mounts else {}
    app.function(f"{app.name}-count", text, handler=f"{app.name}-count.handler", **volumes)
    app.workflow(app.name, f'steps = ["{app.name}-count"]')
    app.deploy()
    status, run = app.run(app.name, volume.name)
    assert status == 200 and run.get("output") == "done", run
    assert _books(volume, "a", "b") == ([1, 1], ["a", "b"])
    app.command("functions", "remove", app.name)


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
    volume.run("mkdir d")
    calls = 6
    attempts = application.at_once(*[lambda n=n: _done(app, "create", str(n)) for n in range(calls)])
    assert attempts == [1] * calls
    assert len(volume.run("ls d").split()) == calls


def writes_while_the_code_loads_are_dropped(volume, tmp_path):
    app = application.Application(tmp_path / "load", volume.server, name=f"{volume.name}-l")
    text = """
        import os
        open("/mnt/data/loaded", "w").close()

        def handler(event, context):
            open("/mnt/data/called", "w").close()
            return os.path.exists("/mnt/data/loaded")
    """
    app.function(app.name, text, handler=f"{app.name}.handler", volumes={"/mnt/data": volume.name})
    app.deploy()
    assert app.call(app.name, {}) is False
    assert volume.run("ls") == "called\n"
    app.command("functions", "remove", app.name)


# The kernel locks the directory while it looks up and while it expires a name.
def lookups_beside_changes_of_a_block_go_on(volume, tmp_path):
    app = application.Application(tmp_path / "busy", volume.server, name=f"{volume.name}-b")
    text = """
        import os, threading
        import landfast

        def look(stop):
            while not stop.is_set():
                for number in range(50):
                    os.path.exists(f"/mnt/data/missing{number}")

        def handler(event, context):
            stop = threading.Event()
            threads = [threading.Thread(target=look, args=[stop]) for _ in range(4)]
            [thread.start() for thread in threads]
            for number in range(100):
                with landfast.transaction(volume=event["volume"]) as t:
                    t.files().append("log", b"x")
            stop.set()
            [thread.join() for thread in threads]
            return os.path.getsize("/mnt/data/log")
    """
    app.function(app.name, text, handler=f"{app.name}.handler", volumes={"/mnt/data": volume.name})
    app.deploy()
    assert app.call(app.name, {"volume": volume.name}) == 100
    app.command("functions", "remove", app.name)


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
