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

import ports
import redis_server
import server as servers

HERE = pathlib.Path(__file__).parent
# kazoo skips what its version of ZooKeeper lacks.
os.environ["ZOOKEEPER_VERSION"] = "3.9.5"
os.environ["CI"] = "true"
os.environ["ZOOKEEPER_CLUSTER_SIZE"] = "1"
CERTIFICATES = HERE.parent / "testdata/tls"
# kazoo's harness authenticates as super:test.
SUPER_DIGEST = "super:D/InIHSb7yEEbrWz8b9l71RjZJU="


def _secured(server):
    """Gives a server of Landfast a port with TLS, which asks for certificates, and the super account."""
    server.secure_port = ports.free()
    server.variables = {
        "LANDFAST_ZOOKEEPER_SECURE_LISTEN": f"127.0.0.1:{server.secure_port}",
        "LANDFAST_TLS_CERT": f"{CERTIFICATES}/server.pem",
        "LANDFAST_TLS_KEY": f"{CERTIFICATES}/server-key.pem",
        "LANDFAST_TLS_CLIENT_CA": f"{CERTIFICATES}/ca.pem",
        "LANDFAST_ZOOKEEPER_SUPER_DIGEST": SUPER_DIGEST,
    }


class Node:
    """One server, with the methods of `kazoo.testing.common.ManagedZooKeeper`."""

    def __init__(self, new):
        self.directory = pathlib.Path(tempfile.mkdtemp())
        self.server = new(self.directory / "server")
        if isinstance(self.server, servers.Landfast):
            _secured(self.server)
        self.running = False

    @property
    def address(self):
        return self.server.hosts

    @property
    def secure_address(self):
        return f"127.0.0.1:{self.server.secure_port}"

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
        shutil.rmtree(self.server.directory / "data", ignore_errors=True)

    def destroy(self):
        self.reset()


def _new_alone(directory):
    directory.mkdir()
    return servers.new(directory)


class Cluster:
    """The methods of `kazoo.testing.common.ZookeeperCluster`: one server, or three of Landfast on one Redis server."""

    def __init__(self, **_options):
        self.redis = None
        if os.environ.get("LANDFAST_TEST_PROVIDER") == "redis":
            self.redis = redis_server.Redis(pathlib.Path(tempfile.mkdtemp()) / "redis")
            self.nodes = [Node(lambda directory: servers.LandfastBeside(directory, self.redis)) for _ in range(3)]
        else:
            self.nodes = [Node(_new_alone)]

    def __getitem__(self, index):
        return self.nodes[index]

    def __iter__(self):
        return iter(self.nodes)

    def start(self):
        if self.redis and not self.redis.is_running():
            self.redis.start()
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
        if self.redis:
            self.redis.stop()

    def get_ssl_client_configuration(self):
        if not isinstance(self.nodes[0].server, servers.Landfast):
            pytest.skip("ZooKeeper is started without its secure port")
        files = {"client_key": "client-key.pem", "client_cert": "client.pem", "ca_cert": "ca.pem"}
        return {name: (CERTIFICATES / file).read_bytes() for name, file in files.items()}

    def get_logs(self):
        return (self.nodes[0].server.directory / "server.log").read_text(errors="replace").splitlines(True)[-40:]


common = types.ModuleType("kazoo.testing.common")
common.ZookeeperCluster = Cluster
sys.modules["kazoo.testing.common"] = common


# They wait 5 s for a connection to a server that starts. kazoo gives up one without an answer after 10 s.
OF_STARTING_ZOOKEEPERS = [
    f"{place}::test_request_queuing_session_{end}"
    for place in ["test_client.py::TestClient", "test_gevent_handler.py::TestGeventClient", "test_eventlet_handler.py::TestEventletClient"]
    for end in ["recovered", "expired"]
]


def excluded():
    """The tests to leave out, each with its reason."""
    pairs = [line.split(": ", 1) for line in (HERE / "kazoo_excluded.txt").read_text().splitlines() if line[:1] not in ("", "#")]
    reasons = dict(pairs)
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER"):
        reasons.update(dict.fromkeys(OF_STARTING_ZOOKEEPERS, "ZooKeeper 3.9.5 may leave a connection unanswered while it starts"))
    return reasons


def pytest_collection_modifyitems(items):
    reasons = excluded()
    for item in items:
        name = item.nodeid.rpartition("/")[2]
        for excluded_name, reason in reasons.items():
            if name == excluded_name or name.startswith(excluded_name + "::"):
                item.add_marker(pytest.mark.skip(reason=reason))
