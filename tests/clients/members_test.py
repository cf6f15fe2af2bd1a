"""Several processes on one Redis: one tree for the clients of all of them, and the state left when
one is gone.
"""

import threading

import pytest
from kazoo.client import KazooState
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE

import several_processes
import waiting
import wire
from several_processes import house, process, redis  # noqa: F401


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

    waiting.together(*(lambda c=clients(process): work(c) for process in house))
    assert len(order) == 15


def a_session_is_resumed_at_another_process(sessions, house):
    """C6: with its id and password, and all its state."""
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
    watcher = clients(house[1])
    several_processes.are_members(watcher, house)
    doomed = house[0]
    # kazoo tries the hosts in the order given, and the next ones when the first is gone.
    moving = clients(type("Hosts", (), {"hosts": hosts}), randomize_hosts=False)
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
    doomed.kill()
    rest = {process.http for process in house[1:]}
    waiting.until(lambda: several_processes.addresses(watcher) == rest, "two members")
    other = clients(house[2])
    waiting.until(lambda: several_processes.addresses(other) == rest, "two members at the other process too")
    before = len(acknowledged)
    waiting.until(lambda: len(acknowledged) > before + 20, "writes to go on elsewhere")
    stop.set()
    writer.join(waiting.GUARD_SECONDS)
    assert KazooState.LOST not in states, "it is the same session"
    assert watcher.get("/moving")[1].ephemeralOwner == moving.client_id[0]
    there = {f"/{name}" for name in watcher.get_children("/")}
    assert set(acknowledged) <= there, "nothing acknowledged is lost"
    waiting.until(lambda: watcher.exists("/left") is None, "the session of a client that went with it to expire")
    # A new process takes the place of the old one.
    doomed.start()
    several_processes.are_members(watcher, house)


def no_client_changes_what_members_say_of_themselves(clients, house):
    client = clients(house[0])
    several_processes.are_members(client, house)
    members = several_processes.MEMBERS
    one = f"{members}/{client.get_children(members)[0]}"
    for attempt in [
        lambda: client.set(one, b"127.0.0.1:1"),
        lambda: client.delete(one),
        lambda: client.set_acls(one, OPEN_ACL_UNSAFE),
        lambda: client.create(f"{members}/77", b"127.0.0.1:1"),
        lambda: client.create("/landfast/transactions/collector/n-", b"", sequence=True),
        lambda: client.create("/landfast/x"),
    ]:
        with pytest.raises(NoAuthError):
            attempt()
    several_processes.are_members(client, house)


def a_process_that_stops_leaves_at_once(clients, house):
    watcher = clients(house[1])
    several_processes.are_members(watcher, house)
    rest = {process.http for process in house[:2]}
    house[2].stop()
    waiting.until(lambda: several_processes.addresses(watcher) == rest, "two members")
    assert house[2].log_lines("has_left=true"), "the others did not have to miss it"
