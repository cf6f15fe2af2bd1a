"""Several processes on one Redis: one tree for the clients of all of them, and what is left when one is gone."""

import os
import threading
import time

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import NoNodeError

import http_api
import redis_server
import server as servers
import waiting
import wire

PATIENCE_SECONDS = 60
MEMBERS = "/landfast/transactions/members"
# What the design promises of a process that is gone.
GONE_WITHIN_SECONDS = 5


@pytest.fixture
def redis(tmp_path):
    running = redis_server.Redis(tmp_path / "redis").start()
    yield running
    running.stop()


@pytest.fixture
def house(tmp_path, redis):
    """Three processes."""
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER"):
        pytest.skip("a provider is Landfast's alone")
    processes = [servers.LandfastBeside(tmp_path / f"process-{number}", redis) for number in range(3)]
    waiting.together(*(process.start for process in processes), seconds=PATIENCE_SECONDS)
    yield processes
    for process in processes:
        process.shut_down()


def _addresses(client):
    """Where the members say that they are reached."""
    addresses = set()
    for name in client.get_children(MEMBERS):
        try:
            addresses.add(client.get(f"{MEMBERS}/{name}")[0].decode())
        except NoNodeError:
            pass
    return addresses


def _serving(processes):
    """The processes that serve transactions."""
    return [process for process in processes if http_api.Api(process).ask("GET", "/v1/state/any").status != 503]


def a_client_sees_what_one_at_another_process_wrote(clients, house):
    """C3, C4."""
    one, other, third = (clients(process) for process in house)
    one.create("/shared", b"0")
    other.sync("/shared")
    assert other.get("/shared")[0] == b"0"
    seen = []
    third.DataWatch("/shared", lambda data, stat: seen.append(data))
    for number in range(1, 20):
        writer = [one, other][number % 2]
        writer.set("/shared", str(number).encode())
        waiting.until(lambda: seen and seen[-1] == str(number).encode(), f"the watch of change {number}")
    children = []
    one.ChildrenWatch("/shared", lambda names: children.append(sorted(names)))
    made = [client.create("/shared/s-", sequence=True, ephemeral=True) for client in [one, other, third] * 3]
    assert made == [f"/shared/s-{number:010}" for number in range(9)], "one order for all"
    names = sorted(path.rsplit("/", 1)[1] for path in made)
    waiting.until(lambda: children[-1] == names, "the watch of the children")
    other.stop()
    waiting.until(lambda: len(children[-1]) == 6, "the ephemerals of a closed session to go")


def locks_exclude_over_processes(clients, house):
    held, order = [], []

    def work(client):
        for _ in range(5):
            with client.Lock("/lock", "me"):
                held.append(client)
                assert len(held) == 1, "two hold it"
                order.append(client)
                held.remove(client)

    waiting.together(*(lambda c=clients(process): work(c) for process in house), seconds=PATIENCE_SECONDS)
    assert len(order) == 15


def a_session_is_resumed_at_another_process(sessions, house):
    """C6: with its id and password, and everything that is its own."""
    first = sessions(house[0])
    first.created("/mine", flags=wire.EPHEMERAL)
    second = sessions(house[1], session=first.id, password=first.password)
    assert (second.id, second.password) == (first.id, first.password)
    assert second.stat("/mine").ephemeral_owner == first.id
    assert sessions(house[2], session=first.id, password=bytes(16)).id == 0, "not without the password"
    assert first.receive() is None, "the connection before is closed"


def a_process_that_is_killed_is_missed_soon_and_its_clients_go_on_elsewhere(clients, house):
    """T10, C6."""
    hosts = ",".join(process.hosts for process in house)
    watcher = clients(house[1], timeout=20)
    waiting.until(lambda: _addresses(watcher) == {process.http for process in house}, "three members", PATIENCE_SECONDS)
    doomed = house[0]
    # kazoo tries the hosts in the order given, and the next ones when the first is gone.
    moving = clients(type("Hosts", (), {"hosts": hosts}), timeout=20, randomize_hosts=False)
    left = clients(doomed, timeout=4)
    states = []
    moving.add_listener(states.append)
    moving.create("/moving", b"mine", ephemeral=True)
    left.create("/left", b"", ephemeral=True)
    acknowledged = []
    stop = threading.Event()

    def write():
        while not stop.is_set():
            try:
                acknowledged.append(moving.create("/moved-", sequence=True))
            except Exception:  # noqa: BLE001, as clients do while their server is away
                pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    waiting.until(lambda: len(acknowledged) > 20, "some writes")
    killed_at = time.monotonic()
    doomed.kill()
    rest = {process.http for process in house[1:]}
    waiting.until(lambda: _addresses(watcher) == rest, "two members", GONE_WITHIN_SECONDS)
    gone_after = time.monotonic() - killed_at
    assert gone_after < GONE_WITHIN_SECONDS, gone_after
    other = clients(house[2])
    waiting.until(lambda: _addresses(other) == rest, "two members at the other process too", GONE_WITHIN_SECONDS)
    before = len(acknowledged)
    waiting.until(lambda: len(acknowledged) > before + 20, "writes to go on elsewhere", PATIENCE_SECONDS)
    stop.set()
    writer.join(PATIENCE_SECONDS)
    assert KazooState.LOST not in states, "it is the same session"
    assert watcher.get("/moving")[1].ephemeralOwner == moving.client_id[0]
    there = {f"/{name}" for name in watcher.get_children("/")}
    assert set(acknowledged) <= there, "nothing acknowledged is lost"
    waiting.until(lambda: watcher.exists("/left") is None, "the session of a client that went with it to expire", 20)
    # A new process takes the place of the old one.
    doomed.start()
    waiting.until(lambda: _addresses(watcher) == {process.http for process in house}, "three members again", PATIENCE_SECONDS)


def a_process_that_stops_leaves_at_once(clients, house):
    watcher = clients(house[1], timeout=20)
    waiting.until(lambda: _addresses(watcher) == {process.http for process in house}, "three members", PATIENCE_SECONDS)
    rest = {process.http for process in house[:2]}
    house[2].stop()
    waiting.until(lambda: _addresses(watcher) == rest, "two members", 1)


def one_process_serves_transactions_and_another_after_it(house):
    """As yet: the others stand by."""
    [serving] = waiting.until(lambda: _serving(house), "one that serves", PATIENCE_SECONDS)
    api = http_api.Api(serving)
    transaction = api.begin()
    transaction.put("left", b"1")
    transaction.put("right", b"1")
    transaction.commit()
    serving.kill()
    rest = [process for process in house if process is not serving]
    [next_one] = waiting.until(lambda: _serving(rest), "another to serve", 2 * GONE_WITHIN_SECONDS)
    after = http_api.Api(next_one)
    assert (after.state("left"), after.state("right")) == (b"1", b"1")
