"""Paths that are longer than any provider's key: they behave like short ones, on each provider."""

import os

import pytest

import server as servers
import waiting
import wire
from wire import EPHEMERAL, EPHEMERAL_SEQUENTIAL, NO_NODE, OK, SEQUENTIAL

# Short, at the bound of a direct key, beyond it, and the longest.
LENGTHS = [100, 1000, 1001, 5000, 64 * 1024]
LONGEST = 64 * 1024


@pytest.fixture(params=["zookeeper"] if os.environ.get("LANDFAST_TEST_ZOOKEEPER") else ["embedded", "redis"])
def any_server(request, tmp_path):
    """A server on each provider that the test may kill and start again."""
    kinds = {"embedded": servers.Landfast, "redis": servers.LandfastOnRedis, "zookeeper": servers.ZooKeeper}
    running = kinds[request.param](tmp_path)
    yield running.start()
    running.shut_down()


def _names(length):
    """Two names of this length that differ in the last character alone."""
    return ["n" * (length - 1) + last for last in "ab"]


def _in(parent, name):
    return f"{parent.rstrip('/')}/{name}"


@pytest.mark.parametrize("length", LENGTHS)
def a_long_name_has_all_that_a_short_one_has(sessions, any_server, length):
    session, watching = sessions(any_server), sessions(any_server)
    session.created("/t")
    one, two = (_in("/t", name) for name in _names(length - 3))
    assert watching.exists(one, watch=True).error == NO_NODE
    assert watching.children("/t", watch=True).error == OK
    assert session.created(one, b"one") == one
    assert [(event.kind, event.path) for event in (watching.event(), watching.event())] == [
        (wire.NODE_CREATED, one),
        (wire.NODE_CHILDREN_CHANGED, "/t"),
    ]
    assert session.create(one).error == wire.NODE_EXISTS
    session.created(two, b"two")
    for path, data in [(one, b"one"), (two, b"two")]:
        assert session.get(path).body.buffer() == data
    assert sorted(session.children("/t").body.strings()) == [one[3:], two[3:]]
    assert watching.sync().error == OK
    watching.get(two, watch=True)
    assert session.set(two, b"other").error == OK
    assert (watching.event().path, session.set(two, b"", version=0).error) == (two, wire.BAD_VERSION)
    assert session.delete(one).error == OK
    assert (session.exists(one).error, session.exists(two).error) == (NO_NODE, OK)
    assert session.children("/t").body.strings() == [two[3:]]


def long_parents_have_children_of_every_length(sessions, any_server):
    session = sessions(any_server)
    parent, made = "", {}
    for length in [500, 600, 1500, 5000]:
        parent = session.created(_in(parent, "p" * length))
        names = [name for length in (1, 900, 1001, 3000) for name in _names(length)]
        for name in names:
            session.created(_in(parent, name))
        made[parent] = names
    assert session.delete(parent).error == wire.NOT_EMPTY
    any_server.kill()
    session = sessions(any_server.start())
    for parent, names in made.items():
        found = [name for name in session.children(parent).body.strings() if not name.startswith("p")]
        assert sorted(found) == sorted(names)
        assert session.stat(parent).num_children == len(names) + (parent != list(made)[-1])


def long_ephemerals_and_sequences_live_and_die_as_short_ones(sessions, any_server):
    owner, other = sessions(any_server), sessions(any_server)
    parent = other.created(_in("/", "p" * 2000))
    for length in (1, 3000, LONGEST - len(parent) - 12):
        prefix = _in(parent, "e" * length)
        path = owner.created(prefix, flags=EPHEMERAL_SEQUENTIAL)
        assert path[:-10] == prefix
        assert other.stat(path).ephemeral_owner == owner.id
        assert owner.create(_in(path, "c") if length < 5000 else path).error != OK
        owner.created(_in(parent, "s" * length), flags=SEQUENTIAL)
    names = other.children(parent).body.strings()
    assert sorted(int(name[-10:]) for name in names) == list(range(6))
    last = _in(parent, max(names, key=lambda name: int(name[-10:])))
    any_server.kill()
    any_server.start()
    owner = sessions(any_server, session=owner.id, password=owner.password)
    other = sessions(any_server)
    assert len(other.children(parent, watch=True).body.strings()) == 6
    owner.close()
    assert other.event().path == parent
    left = other.children(parent).body.strings()
    assert sorted(int(name[-10:]) for name in left) == [1, 3, 5] and last[len(parent) + 1 :] in left


def many_of_the_longest_paths_at_once_are_all_made(sessions, any_server):
    session = sessions(any_server)
    session.created("/t")
    paths = [f"/t/{number:03}".ljust(LONGEST, "x") for number in range(40)]
    for path in paths:
        session.send(wire.CREATE, wire.create_body(path, b"d" * 100, EPHEMERAL))
    assert [session.receive().body.string() for _ in paths] == paths
    other = sessions(any_server)
    assert other.sync().error == OK
    session.close()
    waiting.until(lambda: other.exists(paths[0]).error == NO_NODE, "the end to be applied")
    assert other.children("/t").body.strings() == []


def a_path_that_is_longer_still_is_refused_and_nothing_else(sessions, any_server):
    if isinstance(any_server, servers.ZooKeeper):
        pytest.skip("ZooKeeper takes what its packets hold")
    session = sessions(any_server)
    path = "/" + "x" * LONGEST
    assert session.create(path).error == wire.BAD_ARGUMENTS
    assert session.create(path[:-10], flags=SEQUENTIAL).error == wire.BAD_ARGUMENTS
    assert session.exists(path, watch=True).error == NO_NODE
    assert session.get(path).error == NO_NODE
    assert session.ping().error == OK
