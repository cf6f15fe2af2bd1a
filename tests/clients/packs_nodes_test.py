"""Values in packs of several processes on one Redis and one directory: each process reads the
values of all, even those of a killed one.
"""

import signal

import http_api
import pytest
import waiting
from redis_test import _refused
from several_processes import process, redis  # noqa: F401

# No item holds a value of this length.
VALUE_BYTES = 5_000
KEYS = 30


def _value(key, stamp):
    return (f"{key} {stamp} ".encode() * VALUE_BYTES)[:VALUE_BYTES]


@pytest.fixture
def objects(tmp_path):
    return tmp_path / "objects"


@pytest.fixture
def packing(process, objects, monkeypatch):
    """A process that is started with the objects of all: `packing(0)`."""

    def start(number):
        monkeypatch.setenv("LANDFAST_OBJECTS", f"file://{objects}")
        try:
            return process(number).start()
        finally:
            monkeypatch.delenv("LANDFAST_OBJECTS")

    return start


def _packs(objects):
    """The number of objects that each node has put and not deleted."""
    found = {}
    for pack in objects.glob("packs/*/*/*"):
        found[pack.parent.name] = found.get(pack.parent.name, 0) + 1
    return found


def _ask(api, *asked):
    """The response of a node that may have lost its lease because the machine is busy."""
    serves = lambda: (answer := api.ask(*asked)).status != 503 and answer  # noqa: E731
    return waiting.until(serves, "the node to serve")


def _write(api, keys, stamp):
    for key in keys:
        answer = _ask(api, "PUT", f"/v1/state/{key}", _value(key, stamp))
        assert answer.status == 204, answer


def _shows(api, key, stamp):
    waiting.until(lambda: _ask(api, "GET", f"/v1/state/{key}").body == _value(key, stamp), f"{key} {stamp}")


def test_packed_values_are_read_everywhere_when_who_put_them_is_killed(packing, objects):
    """T5, T10, T17."""
    processes = [packing(number) for number in range(3)]
    apis = [http_api.Api(one) for one in processes]
    for number, api in enumerate(apis):
        _write(api, [f"of{number}-{key}" for key in range(KEYS)], "first")
    # Each round overwrites the values of the one before.
    for number, api in enumerate(apis):
        _write(api, [f"of{(number + 2) % 3}-{key}" for key in range(0, KEYS, 3)], "second")
    assert len(_packs(objects)) == 3, "each has put some"
    processes[0].stop(signal.SIGKILL)
    for api in apis[1:]:
        for number in range(3):
            for key in range(KEYS):
                _shows(api, f"of{number}-{key}", "first" if key % 3 else "second")
    _write(apis[1], [f"of0-{key}" for key in range(KEYS)], "third")
    # A process that joins now finds all of it.
    beside = http_api.Api(packing(3))
    for key in range(KEYS):
        _shows(apis[2], f"of0-{key}", "third")
        _shows(beside, f"of0-{key}", "third")
        _shows(beside, f"of2-{key}", "first" if key % 3 else "second")


def test_a_process_without_the_objects_of_its_store_does_not_serve(packing, process, redis, objects, tmp_path, monkeypatch):  # noqa: F811
    """T5, T6."""
    without = process(0).start()
    api = http_api.Api(without)
    assert api.put_state("small", b"1")
    packing(1)
    beside = http_api.Api(packing(2))
    _write(beside, ["large"], "first")
    # A process does not report a value as missing when it cannot show it.
    waiting.until(lambda: api.ask("GET", "/v1/state/large").status == 503, "it to notice")
    waiting.until(lambda: api.ask("GET", "/v1/state/small").status == 503, "it to serve no more")
    assert "none was given" in _refused(tmp_path, redis.url)
    elsewhere = f"file://{tmp_path}/elsewhere"
    assert "not this store's" in _refused(tmp_path, redis.url, "--objects", elsewhere)
    _shows(beside, "large", "first")
    # The others do not wait for a process that is no member.
    _write(beside, ["large"], "second")
    _shows(beside, "large", "second")
