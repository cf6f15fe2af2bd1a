"""Runs kazoo's own tests against the server that `server.py` selects: `pytest -p kazoo_cluster --pyargs kazoo.tests`.

kazoo's harness starts ZooKeeper through `kazoo.testing.common`. This plugin puts another module in its place, whose
cluster is one server of ours, and leaves out the tests that `kazoo_excluded.txt` names with a reason each.
"""

import os
import pathlib
import shutil
import sys
import tempfile
import types

import pytest

import server as servers

HERE = pathlib.Path(__file__).parent
# kazoo skips what its version of ZooKeeper lacks.
os.environ["ZOOKEEPER_VERSION"] = "3.9.5"
os.environ["CI"] = "true"
os.environ["ZOOKEEPER_CLUSTER_SIZE"] = "1"
# kazoo's harness authenticates as super:test.
SUPER_DIGEST = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="


class Node:
    """One server, with the methods of `kazoo.testing.common.ManagedZooKeeper`."""

    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.server = servers.new(self.directory)
        self.server.super_digest = SUPER_DIGEST
        self.running = False

    @property
    def address(self):
        return self.server.hosts

    @property
    def secure_address(self):
        return self.server.hosts

    @property
    def client_port(self):
        return self.server.port

    def run(self):
        if not self.running:
            self.server.start()
            self.running = True

    def stop(self):
        if self.running:
            self.server.stop()
            self.running = False

    def reset(self):
        self.stop()
        shutil.rmtree(self.directory / "data", ignore_errors=True)

    def destroy(self):
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()


class Cluster:
    """The methods of `kazoo.testing.common.ZookeeperCluster`, on one server."""

    def __init__(self, **_options):
        self.nodes = [Node()]

    def __getitem__(self, index):
        return self.nodes[index]

    def __iter__(self):
        return iter(self.nodes)

    def start(self):
        for node in self:
            node.run()

    def stop(self):
        for node in self:
            node.stop()

    def reset(self):
        for node in self:
            node.reset()

    def terminate(self):
        for node in self:
            node.destroy()

    def get_logs(self):
        return (self.nodes[0].directory / "server.log").read_text(errors="replace").splitlines(True)[-40:]


common = types.ModuleType("kazoo.testing.common")
common.ZookeeperCluster = Cluster
sys.modules["kazoo.testing.common"] = common


def excluded():
    """The tests to leave out, each with its reason."""
    pairs = [line.split(": ", 1) for line in (HERE / "kazoo_excluded.txt").read_text().splitlines() if line[:1] not in ("", "#")]
    return dict(pairs)


def pytest_collection_modifyitems(items):
    reasons = excluded()
    for item in items:
        name = item.nodeid.rpartition("/")[2]
        for excluded_name, reason in reasons.items():
            if name == excluded_name or name.startswith(excluded_name + "::"):
                item.add_marker(pytest.mark.skip(reason=reason))
