"""Containers and znodes with a time to live go by themselves, also over restarts."""

import itertools
import os
import signal

import pytest

import server as servers
import waiting
import wire
from wire import CONTAINER, CREATE, CREATE2, EPHEMERAL, NO_NODE, NODE_DELETED, OK

ENDS = [signal.SIGTERM, signal.SIGKILL]
CHECK_MS = 300
TTL_MS = 1_500
# Many times the pause between two sets, also on a busy machine.
SET_TTL_MS = 5_000


class WithShortChecks(servers.Landfast):
    def options(self):
        return [*super().options(), "--zookeeper-container-check-ms", str(CHECK_MS)]


class ZooKeeperWithShortChecks(servers.ZooKeeper):
    variables = {"JAVA_TOOL_OPTIONS": f"-Dznode.container.checkIntervalMs={CHECK_MS}"}


@pytest.fixture
def checking(tmp_path):
    """A server that checks often."""
    is_zookeeper = os.environ.get("LANDFAST_TEST_ZOOKEEPER") == "start"
    running = (ZooKeeperWithShortChecks if is_zookeeper else WithShortChecks)(tmp_path)
    yield running.start()
    running.shut_down()


@pytest.fixture
def goes():
    """Waits until a znode is gone."""
    return lambda session, path: waiting.until(lambda: session.exists(path).error == NO_NODE, f"{path} to go")


@pytest.fixture
def a_later_check():
    """Waits until a check has removed a container that was emptied only now."""
    numbers = itertools.count()

    def wait(session):
        path = f"/emptied-{next(numbers)}"
        session.created(path, flags=CONTAINER)
        session.created(f"{path}/child")
        session.delete(f"{path}/child")
        waiting.until(lambda: session.exists(path).error == NO_NODE, f"{path} to go")

    return wait


def a_container_goes_after_its_last_child_and_a_watch_tells(checking, sessions, goes, a_later_check):
    session, other = sessions(checking), sessions(checking)
    for path in ["/never-used", "/used", "/locks"]:
        session.created(path, flags=CONTAINER)
    session.created("/used/child")
    other.created("/locks/lock", flags=EPHEMERAL)
    a_later_check(session)
    assert session.exists("/used", watch=True).error == OK
    session.delete("/used/child")
    goes(session, "/used")
    event = session.event()
    assert (event.kind, event.path) == (NODE_DELETED, "/used")
    assert session.exists("/locks").error == OK
    other.close()
    goes(session, "/locks")
    a_later_check(session)
    assert session.exists("/never-used").error == OK


def a_znode_with_a_time_to_live_goes_unless_it_is_set_or_has_children(checking, sessions, goes, a_later_check):
    session = sessions(checking)
    for path in ["/set", "/parent", "/left"]:
        session.created_with_ttl(path, SET_TTL_MS)
    session.created("/parent/child")

    def left_has_gone():
        assert session.set("/set", b"again").error == OK
        return session.exists("/left").error == NO_NODE

    waiting.until(left_has_gone, "/left to go")
    a_later_check(session)
    assert session.set("/set", b"again").error == session.exists("/parent").error == OK
    session.delete("/parent/child")
    for path in ["/set", "/parent"]:
        goes(session, path)


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def they_go_after_a_restart(checking, sessions, goes, end):
    if isinstance(checking, servers.ZooKeeper):
        pytest.skip("ZooKeeper 3.9.5 was seen to keep a container that was due before its restart")
    session = sessions(checking)
    session.created_with_ttl("/t", 3 * TTL_MS)
    session.created_with_ttl("/kept", 3_600_000)
    session.created("/c", flags=CONTAINER)
    session.created("/c/child")
    session.delete("/c/child")
    checking.stop(end)
    checking.start()
    again = sessions(checking)
    for path in ["/c", "/t"]:
        goes(again, path)
    assert again.exists("/kept").error == OK


@pytest.mark.parametrize("operation", [CREATE, CREATE2])
def the_flags_of_a_container_alone_make_a_persistent_node(session, path, operation):
    assert session.ask(operation, wire.create_body(path, flags=CONTAINER)).error == OK
    assert session.stat(path).ephemeral_owner == 0
    assert session.delete(path).error == OK
