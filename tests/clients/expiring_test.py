"""Containers and znodes with a time to live go by themselves, also over restarts."""

import os
import signal
import time

import pytest

import server as servers
import waiting
from wire import CONTAINER, CREATE_TTL, EPHEMERAL, NO_NODE, NODE_DELETED, OK, WITH_TTL, create_body, long

ENDS = [signal.SIGTERM, signal.SIGKILL]
CHECK_MS = 300
TTL_MS = 1_500


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


def create_ttl(session, path, ttl_ms):
    assert session.ask(CREATE_TTL, create_body(path, b"", WITH_TTL) + long(ttl_ms)).error == OK


def is_gone(session, path):
    return lambda: session.exists(path).error == NO_NODE


def a_container_goes_after_its_last_child_and_a_watch_tells(checking, sessions):
    session, other = sessions(checking), sessions(checking)
    for path in ["/never-used", "/used", "/locks"]:
        session.created(path, flags=CONTAINER)
    session.created("/used/child")
    other.created("/locks/lock", flags=EPHEMERAL)
    time.sleep(3 * CHECK_MS / 1000)
    assert session.exists("/used", watch=True).error == OK
    session.delete("/used/child")
    waiting.until(is_gone(session, "/used"), "the container to go")
    event = session.event()
    assert (event.kind, event.path) == (NODE_DELETED, "/used")
    assert session.exists("/locks").error == OK
    other.close()
    waiting.until(is_gone(session, "/locks"), "the container of an ephemeral to go")
    assert session.exists("/never-used").error == OK


def a_znode_with_a_time_to_live_goes_unless_it_is_set_or_has_children(checking, sessions):
    session = sessions(checking)
    for path in ["/set", "/parent", "/left"]:
        create_ttl(session, path, TTL_MS)
    session.created("/parent/child")
    begun = time.monotonic()
    while time.monotonic() < begun + 2 * TTL_MS / 1000:
        session.set("/set", b"again")
        time.sleep(CHECK_MS / 1000)
    assert session.exists("/left").error == NO_NODE
    assert session.exists("/set").error == session.exists("/parent").error == OK
    session.delete("/parent/child")
    for path in ["/set", "/parent"]:
        waiting.until(is_gone(session, path), f"{path} to go")


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def they_go_after_a_restart(checking, sessions, end):
    session = sessions(checking)
    create_ttl(session, "/t", 3 * TTL_MS)
    create_ttl(session, "/kept", 3_600_000)
    session.created("/c", flags=CONTAINER)
    session.created("/c/child")
    session.delete("/c/child")
    checking.stop(end)
    checking.start()
    again = sessions(checking)
    for path in ["/c", "/t"]:
        waiting.until(is_gone(again, path), f"{path} to go")
    assert again.exists("/kept").error == OK
