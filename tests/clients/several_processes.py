"""Three processes on one Redis, and the members that they report."""

import os

import pytest
from kazoo.exceptions import NoNodeError

import redis_server
import server as servers
import waiting

MEMBERS = "/landfast/transactions/members"


@pytest.fixture
def redis(tmp_path):
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER"):
        pytest.skip("a provider is Landfast's alone")
    running = redis_server.Redis(tmp_path / "redis").start()
    yield running
    running.stop()


@pytest.fixture
def process(tmp_path, redis):
    """A process, not yet started: `process(0).start()`."""
    made = []

    def make(number):
        made.append(servers.LandfastBeside(tmp_path / f"process-{number}", redis))
        return made[-1]

    yield make
    for one in made:
        one.shut_down()


@pytest.fixture
def house(process):
    """Three processes."""
    processes = [process(number) for number in range(3)]
    waiting.together(*(one.start for one in processes))
    return processes


def addresses(client):
    """The addresses that the members report."""
    found = set()
    for name in client.get_children(MEMBERS):
        try:
            found.add(client.get(f"{MEMBERS}/{name}")[0].decode())
        except NoNodeError:
            pass
    return found


def are_members(client, processes):
    """Waits until exactly these are members."""
    wanted = {process.http for process in processes}
    waiting.until(lambda: addresses(client) == wanted, f"{len(wanted)} members")
