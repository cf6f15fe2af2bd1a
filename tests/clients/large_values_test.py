"""Values of up to 64 MiB over HTTP, against the real program: whole or not at all, within the
memory limits.
"""

import http.client
import itertools
import os
import pathlib
import random
import signal
import threading

import pytest

import http_api
import server as servers
import waiting

VALUE_BYTES_MAX = 64 * 1024 * 1024
# The bodies, the unwritten values and the values being read that its limits allow, plus the memory
# that the allocator retains from earlier ones: from 1.2 to 1.6 GiB.
MEMORY_BYTES_MAX = 1792 * 1024 * 1024
# Gigabytes at once, over ten connections.
MANY_SECONDS = 900
numbers = itertools.count()


@pytest.fixture
def apis():
    """Connects clients: `apis(server)`."""
    opened = []

    def connect(server):
        if not type(server).__name__.startswith("Landfast"):
            pytest.skip("transactions are Landfast's alone")
        api = http_api.Api(server)
        opened.append(api)
        return api

    yield connect
    for api in opened:
        api.close()


@pytest.fixture(params=["embedded", "redis"])
def any_server(request, tmp_path):
    """A server on each provider that the test may kill and start again."""
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER"):
        pytest.skip("transactions are Landfast's alone")
    kinds = {"embedded": servers.Landfast, "redis": servers.LandfastOnRedis}
    running = kinds[request.param](tmp_path)
    yield running.start()
    running.shut_down()


def _value(size, seed):
    """Bytes unique to this seed; cheap, and different at every position."""
    return random.Random(seed).randbytes(1024 * 1024 + 1) * (size // (1024 * 1024) + 1)


def _of(size, seed):
    return _value(size, seed)[:size]


TRY_AGAIN = [(429, "too-much-buffered"), (503, "outcome-unknown"), (503, "unavailable")]


def _served(api, method, path, body=None, refused=None, **headers):
    """The response once the server has room and its disk keeps up; the request may be repeated."""
    def served():
        answer = api.ask(method, path, body, **headers)
        if answer.status not in (429, 503):
            return answer
        assert answer.problem in TRY_AGAIN, answer
        if refused is not None:
            refused.append(path)

    return waiting.until(served, f"{method} {path} to be served", MANY_SECONDS)


def values_of_every_length_come_back_as_they_were_sent(apis, any_server):
    """T2, T3, T5: in a transaction and outside, before and after a restart."""
    api = apis(any_server)
    sizes = [64 * 1024, 64 * 1024 + 1, 3_000_000, VALUE_BYTES_MAX]
    transaction = api.begin()
    for size in sizes:
        transaction.put(f"k{size}", _of(size, size))
        assert transaction.get(f"k{size}") == _of(size, size)
        assert api.state(f"k{size}") is None
    committed = _served(api, "POST", f"{transaction.path}/commit", landfast_attempt=transaction.attempt)
    assert committed.status == 200, committed
    assert _served(api, "PUT", "/v1/state/plain", _of(VALUE_BYTES_MAX, 1)).status == 204
    any_server.kill()
    any_server.start()
    api = apis(any_server)
    for size in sizes:
        assert api.state(f"k{size}") == _of(size, size)
    assert api.state("plain") == _of(VALUE_BYTES_MAX, 1)


def a_longer_value_is_refused_before_it_is_sent(apis, own_server):
    """T15."""
    api = apis(own_server)
    path = f"{api.begin().path}/keys/k"
    for target in [path, "/v1/state/k"]:
        connection = http.client.HTTPConnection(api.connection.host, api.connection.port, timeout=waiting.GUARD_SECONDS)
        connection.putrequest("PUT", target)
        connection.putheader("Content-Length", str(VALUE_BYTES_MAX + 1))
        connection.endheaders()
        answer = http_api.Answer(connection.getresponse())
        assert answer.problem == (413, "too-large"), answer
        connection.close()


def who_sends_everything_first_hears_why_it_was_refused(apis, own_server):
    """Reads first, as `http.client` does: if it closed with unread bytes, its connection would be
    reset before it reads.
    """
    api = apis(own_server)
    for size in (VALUE_BYTES_MAX + 1, VALUE_BYTES_MAX + 8 * 1024 * 1024):
        assert api.ask("PUT", "/v1/state/k", bytes(size)).problem == (413, "too-large")
    assert api.state("k") is None


def a_key_has_any_1024_bytes(apis, any_server):
    api = apis(any_server)
    names = [b"k" * 1023 + b"a", b"k" * 1023 + b"b", b"\0" * 1024, b"\xff" * 1024]
    for number, name in enumerate(names):
        api.put_state(name, b"%d" % number)
    assert [api.state(name) for name in names] == [b"0", b"1", b"2", b"3"]
    refused = api.ask("PUT", f"/v1/state/{'k' * 1025}", b"v")
    assert refused.problem == (400, "invalid-request")


def a_kill_while_large_values_are_written_leaves_whole_ones(apis, any_server):
    """T4, T5. Killed at any moment: each key has the last acknowledged value, or the one in flight,
    and all of it.
    """
    api = apis(any_server)
    size = 8 * 1024 * 1024
    for round_ in range(3):
        acknowledged = {}
        sent = {}

        def write(name, api):
            try:
                for turn in itertools.count():
                    sent[name] = round_ * 1000 + turn
                    if turn % 2:
                        api.put_state(name, _of(size, sent[name]))
                    else:
                        transaction = api.begin()
                        transaction.put(name, _of(size, 999_999))
                        transaction.put(name, _of(size, sent[name]))
                        transaction.commit()
                    acknowledged[name] = sent[name]
            except (OSError, http.client.HTTPException):
                pass

        writers = [threading.Thread(target=write, args=(name, apis(any_server))) for name in ["a", "b"]]
        for writer in writers:
            writer.start()
        waiting.until(lambda: len(acknowledged) == 2 and max(acknowledged.values()) % 1000 > round_, "some writes")
        any_server.kill()
        for writer in writers:
            writer.join(waiting.GUARD_SECONDS)
        any_server.start()
        api = apis(any_server)
        for name in ["a", "b"]:
            allowed = [_of(size, acknowledged[name]), _of(size, sent[name])]
            assert api.state(name) in allowed, f"{name} is neither {acknowledged[name]} nor {sent[name]}"


def what_a_transaction_buffers_leaves_memory(apis, own_server):
    """T15. More than 8 MiB of small values, and all of them are there once it commits."""
    api = apis(own_server)
    transaction = api.begin()
    small = 60 * 1024
    for number in range(300):
        transaction.put(f"k-{number}", _of(small, number))
    numbers = api.ask("GET", "/v1/status").document["transactions"]
    assert numbers["spilled_bytes"] > 8 * 1024 * 1024
    assert numbers["buffered_bytes"] < 9 * 1024 * 1024
    assert transaction.get("k-7") == _of(small, 7)
    transaction.commit()
    for number in [0, 150, 299]:
        assert api.state(f"k-{number}") == _of(small, number)


def many_large_values_at_once_stay_within_memory(apis, own_server):
    """T15. A request that cannot be served now is told so and comes again; no request gets a wrong
    response.
    """
    api = apis(own_server)
    expected = _of(VALUE_BYTES_MAX, 7)
    assert _served(api, "PUT", "/v1/state/k", expected).status == 204
    refused = []

    def read(api):
        for _ in range(3):
            answer = _served(api, "GET", "/v1/state/k", refused=refused)
            assert answer.status == 200 and answer.body == expected

    def write(api, number):
        for _ in range(2):
            answer = _served(api, "PUT", f"/v1/state/w-{number}", expected, refused)
            assert answer.status == 204, answer

    clients = [apis(own_server) for _ in range(10)]
    for client in clients:
        client.connection.timeout = MANY_SECONDS
    work = [lambda api=api: read(api) for api in clients[:6]]
    work += [lambda api=api, number=number: write(api, number) for number, api in enumerate(clients[6:])]
    waiting.together(*work, seconds=MANY_SECONDS)
    status = pathlib.Path(f"/proc/{own_server.process.pid}/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    print(f"peak {peak >> 20} MiB, {len(refused)} refused")
    assert peak < MEMORY_BYTES_MAX, f"{peak >> 20} MiB"


def a_stop_ends_what_is_open_and_says_that_nothing_is_left(apis, any_server):
    """T7. With spilled values that are not committed; a kill reports nothing."""
    log = any_server.directory / "server.log"
    for end, has_left in [(signal.SIGTERM, 1), (signal.SIGKILL, 1)]:
        api = apis(any_server)
        api.begin().put("k", _of(3_000_000, 1))
        any_server.stop(end)
        assert log.read_text().count("has_left=true") == has_left, end
        any_server.start()
    assert apis(any_server).state("k") is None
