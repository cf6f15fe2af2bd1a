"""Hard limits of quotas are enforced where the settings say so."""

import os

import pytest

import server as servers
from wire import BAD_VERSION, NODE_EXISTS, OK, QUOTA_EXCEEDED

QUOTA = "/zookeeper/quota/q"


class Enforcing(servers.Landfast):
    def options(self):
        return [*super().options(), "--zookeeper-enforce-quota"]


class EnforcingZooKeeper(servers.ZooKeeper):
    variables = {"JAVA_TOOL_OPTIONS": "-Dzookeeper.enforceQuota=true"}


@pytest.fixture
def enforcing(tmp_path):
    is_zookeeper = os.environ.get("LANDFAST_TEST_ZOOKEEPER") == "start"
    running = (EnforcingZooKeeper if is_zookeeper else Enforcing)(tmp_path)
    yield running.start()
    running.shut_down()


@pytest.fixture
def limited(enforcing, sessions):
    """A session of a server, and a subtree with these limits."""

    def start(limits):
        session = sessions(enforcing)
        znodes = {"/q": b"12345", QUOTA: b"", f"{QUOTA}/zookeeper_limits": limits, f"{QUOTA}/zookeeper_stats": b""}
        for path, data in znodes.items():
            session.created(path, data)
        return session

    return start


@pytest.fixture
def statistics():
    """The statistics of the subtree."""

    def read(session):
        session.sync()
        return session.get(f"{QUOTA}/zookeeper_stats").body.buffer()

    return read


def a_hard_limit_of_the_count_refuses_creates(limited, statistics):
    session = limited(b"count=1,bytes=-1=;byteHardLimit=-1;countHardLimit=3")
    assert [session.create(f"/q/{name}").error for name in "abc"] == [OK, OK, QUOTA_EXCEEDED]
    assert session.create("/q/a").error == NODE_EXISTS
    assert session.create("/elsewhere").error == OK
    assert session.set("/q/a", b"1" * 100).error == OK
    assert statistics(session) == b"count=3,bytes=105"
    assert session.delete("/q/a").error == OK
    assert session.create("/q/c").error == OK


def a_hard_limit_of_the_bytes_refuses_creates_and_sets(limited, statistics):
    session = limited(b"count=-1,bytes=2=;byteHardLimit=10;countHardLimit=-1")
    assert session.create("/q/a", b"123456").error == QUOTA_EXCEEDED
    assert session.create("/q/a", b"12345").error == OK
    assert session.create("/q/empty").error == OK
    assert session.create("/q/empty/b", b"1").error == QUOTA_EXCEEDED
    assert session.set("/q/a", b"123456").error == QUOTA_EXCEEDED
    assert session.set("/q/a", b"123456", 7).error == QUOTA_EXCEEDED
    assert session.set("/q/a", b"1234", 7).error == BAD_VERSION
    assert session.set("/q/a", b"1234").error == OK
    assert statistics(session) == b"count=3,bytes=9"
    assert session.delete(f"{QUOTA}/zookeeper_limits").error == OK
    assert session.set("/q/a", b"1" * 100).error == OK


def the_deepest_quota_counts(limited):
    session = limited(b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1")
    for path in ["/zookeeper/quota/q/deep", "/zookeeper/quota/q/deep/zookeeper_limits"]:
        assert session.create(path, b"count=5,bytes=5").error == OK
    assert session.create("/q/deep").error == OK
    assert session.create("/q/deep/er").error == OK
    assert session.create("/q/other").error == QUOTA_EXCEEDED
