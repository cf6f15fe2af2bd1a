"""Landfast over a Redis that is stopped, killed, frozen or lost, and clients that check all
acknowledged writes.
"""

import pathlib
import re
import signal
import subprocess
import tempfile
import threading

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import ConnectionLoss, OperationTimeoutError, SessionExpiredError

import application
import http_api
import redis_server
import server as servers
import waiting

ENDS = [signal.SIGTERM, signal.SIGKILL]


@pytest.fixture
def house(tmp_path):
    """Landfast on a Redis of its own."""
    running = servers.LandfastOnRedis(tmp_path)
    yield running.start()
    running.shut_down()


@pytest.fixture
def api(house):
    """A client of its HTTP listener."""
    opened = http_api.Api(house)
    yield opened
    opened.close()


def _refused(tmp_path, store, *options):
    """The last line of a failed start."""
    return _refusal(tmp_path, store, *options)[-1]


def _refusal(tmp_path, store, *options):
    """The lines of a failed start."""
    servers.needs_landfast()
    command = [servers.Landfast.program, "serve", "--provider", "redis", "--store", store, *options]
    command += ["--zookeeper", "127.0.0.1:0", "--http", "127.0.0.1:0", "--routes", "127.0.0.1:0"]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
    assert ended.returncode == 1 and ended.stdout == "", ended
    return ended.stderr.splitlines()


def a_store_that_wants_a_password_or_tls_ends_the_start_at_once(tmp_path):
    redis = redis_server.Redis(tmp_path / "redis")
    redis.start()
    try:
        assert redis.ask("CONFIG SET requirepass hunter2").startswith(b"+OK")
        address = redis.url.removeprefix("redis://")
        for store, reason in (
            (redis.url, "asks for a password: give it as redis://:PASSWORD@HOST:PORT"),
            (f"redis://:wrong@{address}", "refuses the user or the password"),
            (f"redis://me:hunter2@{address}", "refuses the user or the password"),
            (f"rediss://:hunter2@{address}", "TLS to Redis is not in this build"),
        ):
            lines = _refusal(tmp_path, store)
            assert reason in lines[-1], lines
            assert not [line for line in lines if "hunter2" in line or "cannot be reached yet" in line], lines
        with_password = servers.Landfast(tmp_path)
        with_password.options = lambda: ["--provider", "redis", "--store", f"redis://:hunter2@{address}"]
        with_password.start()
        assert with_password.stop() == 0
    finally:
        redis.stop()


def coordination_and_transactions_work_over_it(clients, house, api):
    client = clients(house)
    client.create("/a/b", b"one", makepath=True)
    seen = []
    client.DataWatch("/a/b", lambda data, stat: seen.append(data))
    client.set("/a/b", b"two")
    waiting.until(lambda: seen[-1:] == [b"two"], "the watch")
    with client.Lock("/lock", "me"):
        assert client.create("/a/s-", sequence=True) == "/a/s-0000000001"
    # Larger than a queue message, so it travels as an object.
    client.set("/a/b", bytes(900_000))
    assert client.get("/a/b")[0] == bytes(900_000)
    transaction = api.begin()
    transaction.put("left", b"1")
    transaction.put("right", b"1")
    transaction.commit()
    assert (api.state("left"), api.state("right")) == (b"1", b"1")
    kept = [file.name for file in house.directory.glob("data*/*")]
    assert kept == ["s3-credentials"], "nothing but the keys of S3 clients is kept beside Redis"


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def what_was_acknowledged_survives_the_end_of_landfast(clients, house, end):
    """T4, T5."""
    client = clients(house)
    states = []
    client.add_listener(states.append)
    client.create("/mine", b"data", ephemeral=True)
    acknowledged, enough = [], threading.Event()
    api = http_api.Api(house)
    open_one = http_api.Api(house).begin(id="left open")
    open_one.put("never", b"committed")

    def write():
        try:
            while True:
                number = len(acknowledged)
                transaction = api.begin(id=f"write {number}")
                for name in ["left", "right"]:
                    transaction.put(f"{name} {number}", str(number).encode())
                transaction.commit()
                acknowledged.append(number)
                if number == 50:
                    enough.set()
        except (OSError, http_api.http.client.HTTPException, AssertionError):
            pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert enough.wait(waiting.GUARD_SECONDS)
    house.stop(end)
    writer.join(waiting.GUARD_SECONDS)
    house.start()
    after = http_api.Api(house)
    for number in acknowledged:
        assert after.state(f"left {number}") == after.state(f"right {number}") == str(number).encode()
        answer = after.ask("POST", "/v1/transactions", f'{{"id":"write {number}"}}')
        assert (answer.status, answer.document["status"]) == (200, "committed"), answer
    left, right = (after.state(f"{name} {len(acknowledged)}") for name in ["left", "right"])
    assert left == right, "one whose answer was lost is there whole or not at all"
    assert after.state("never") is None
    waiting.until(lambda: states[-1] == KazooState.CONNECTED, "the client to reconnect")
    assert KazooState.LOST not in states
    assert client.get("/mine")[1].ephemeralOwner == client.client_id[0]
    client.create("/after", b"goes on")


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def a_redis_that_is_started_again_is_used_again(clients, house, api, end):
    """T5."""
    client = clients(house)
    client.create("/kept", b"kept")
    api.put_state("kept", b"kept")
    house.redis.stop(end)
    answer = api.ask("PUT", "/v1/state/while", b"down")
    assert answer.problem in [(503, "unavailable"), (503, "outcome-unknown")]
    assert api.ask("GET", "/health/live").status == 200
    waiting.until(lambda: api.ask("GET", "/health/ready").status == 503, "the server to say so")
    assert not api.ask("GET", "/v1/status").document["store"]["serving"]
    house.redis.start()
    waiting.until(lambda: api.ask("GET", "/health/ready").status == 200, "the server to be ready again")
    put = lambda: api.ask("PUT", "/v1/state/after", b"up").status == 204  # noqa: E731
    waiting.until(put, "writes to go on")
    assert api.state("kept") == b"kept"
    assert not house.log_lines("ERROR"), "it has gone on by itself"

    def goes_on():
        try:
            client.set("/kept", b"new")
            return True
        except (ConnectionLoss, SessionExpiredError, OperationTimeoutError):
            return False

    waiting.until(goes_on, "coordination to go on")
    assert clients(house).get("/kept")[0] == b"new"


def a_redis_that_is_frozen_for_a_while_delays_and_loses_nothing(house, api):
    """T5."""
    api.put_state("before", b"1")
    house.redis.process.send_signal(signal.SIGSTOP)
    answer = api.ask("PUT", "/v1/state/during", b"2")
    assert answer.problem in [(503, "unavailable"), (503, "outcome-unknown")]
    house.redis.process.send_signal(signal.SIGCONT)
    put = lambda: api.ask("PUT", "/v1/state/after", b"3").status == 204  # noqa: E731
    waiting.until(put, "writes to go on")
    assert api.state("before") == b"1"
    # A request whose outcome the client did not learn has one.
    assert api.state("during") in [None, b"2"]


def a_store_that_has_lost_everything_ends_the_server_and_the_next_start_goes_on(clients, house, api):
    api.put_state("gone", b"1")
    house.redis.ask("FLUSHALL")
    assert waiting.until(lambda: house.process.poll() is not None, "the server to end") is True
    assert house.process.returncode == 1
    assert "has lost everything" in (house.directory / "server.log").read_text()
    house.process = None
    house.start()
    assert http_api.Api(house).state("gone") is None
    clients(house).create("/new", b"")


def what_functions_have_on_this_machine_goes_with_their_server(tmp_path, house):
    apps = application.Application(tmp_path / "app", house)
    apps.function("echo", "def handler(event, context):\n    print('heard')\n    return event\n")
    apps.deploy()

    def folder():
        return pathlib.Path(tempfile.gettempdir(), f"landfast-functions-{house.process.pid}")

    assert apps.call("echo", {"n": 1}) == {"n": 1}
    waiting.until(lambda: "heard" in apps.lines("echo"), "what it has printed")
    killed = folder()
    assert killed.exists()
    house.kill()
    house.start()
    assert folder() == killed or not killed.exists(), "the next start removes what a killed one has left"
    assert apps.call("echo", {"n": 2}) == {"n": 2} and apps.lines("echo").count("heard") <= 1
    stopped = folder()
    assert house.stop() == 0 and not stopped.exists()


def a_namespace_is_a_store_of_its_own(tmp_path, house, api):
    open_one = api.begin()
    open_one.put("open", b"over it")
    other = house.redis.url + "?namespace=other"
    second = servers.LandfastOnRedis.__new__(servers.LandfastOnRedis)
    servers.Server.__init__(second, tmp_path / "second")
    second.directory.mkdir()
    second.options = lambda: ["--provider", "redis", "--store", other]
    servers.Landfast.start(second)
    try:
        open_one.commit()
        api.put_state("mine", b"1")
        assert http_api.Api(second).state("mine") is None
    finally:
        second.stop()


def a_start_that_cannot_go_well_says_what_to_change(tmp_path):
    unreachable = _refused(tmp_path, "redis://:hunter2@127.0.0.1:1")
    assert "--store" in unreachable and "127.0.0.1:1" in unreachable and "hunter2" not in unreachable
    forgetful = redis_server.Redis(tmp_path / "forgetful", appendonly="no").start()
    lazy = redis_server.Redis(tmp_path / "lazy", **{"appendfsync": "always", "no-appendfsync-on-rewrite": "yes"})
    lazy.start()
    try:
        assert "set `appendonly yes`" in _refused(tmp_path, forgetful.url)
        if b"redis_version:7.0." in lazy.ask("INFO server"):
            assert "no-appendfsync-on-rewrite no" in _refused(tmp_path, lazy.url)
        assert "replicas" in _refused(tmp_path, lazy.url + "?acknowledged=replicas-1")
        assert "--user-store" in _refused(tmp_path, lazy.url, "--user-store", "objects")
    finally:
        forgetful.stop()
        lazy.stop()


def less_is_kept_only_if_asked_for_and_said_so(tmp_path):
    running = servers.LandfastOnRedis(tmp_path, appendonly="no")
    running.options = lambda: ["--provider", "redis", "--store", running.redis.url + "?acknowledged=memory"]
    running.start()
    try:
        assert "memory alone" in (tmp_path / "server.log").read_text()
        api = http_api.Api(running)
        assert api.ask("GET", "/v1/status").document["store"]["acknowledged"] == "memory"
        url = re.search(r"http=(\S+)", running.ready_line()).group(1)
        doctor = [running.program, "doctor", *running.options(), "--zookeeper", "off", "--http", "127.0.0.1:0", "--routes", "off"]
        told = subprocess.run([*doctor, "--url", f"http://{url}"], cwd=tmp_path, capture_output=True, text=True)
        assert "memory alone" in told.stdout + told.stderr
    finally:
        running.shut_down()
