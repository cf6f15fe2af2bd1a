"""Two servers between which `landfast zookeeper copy` copies, with clients, and runs of the command."""

import json
import os
import pathlib
import re
import socket
import subprocess

from kazoo.client import KazooClient
from kazoo.retry import KazooRetry

import ports
import server as servers
import waiting

FEW_ZNODES = 2000
ZNODES = int(os.environ.get("LANDFAST_TEST_COPY_ZNODES", FEW_ZNODES))
FAN_OUT = 200
COPY_SECONDS = 60 + ZNODES // 50


TLS = pathlib.Path(__file__).parent / "testdata/tls"


class ZooKeeper(servers.ZooKeeper):
    """It has TTL znodes, looks for what is to be removed ten times a second, and has a port for clients with
    certificates."""

    variables = {"JAVA_TOOL_OPTIONS": "-Dznode.container.checkIntervalMs=100"}

    def start(self):
        store = self.directory / "store.pem"
        store.write_text((TLS / "server-key.pem").read_text() + (TLS / "server.pem").read_text())
        if not self.settings:
            self.secure_port = ports.free()
        self.settings = (
            f"secureClientPort={self.secure_port}\nserverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n"
            f"ssl.keyStore.location={store}\nssl.trustStore.location={TLS}/ca.pem\n"
        )
        return super().start()

    def serves(self):
        """It opens the secure port last, and ends if it cannot."""
        with socket.socket() as connection:
            return super().serves() and connection.connect_ex(("127.0.0.1", self.secure_port)) == 0


class Landfast(servers.Landfast):
    """The same."""

    def options(self):
        more = ["--zookeeper-container-check-ms", "100", "--tls-cert", TLS / "server.pem", "--tls-key", TLS / "server-key.pem"]
        more += ["--zookeeper-secure-listen", "127.0.0.1:0", "--tls-client-ca", TLS / "ca.pem"]
        return [*super().options(), *more]

    @property
    def secure_port(self):
        return int(re.search(r"zookeeper-secure=127\.0\.0\.1:(\d+)", self.ready_line()).group(1))


KINDS = {"landfast": Landfast, "zookeeper": ZooKeeper}
PAIRS = [("landfast", "landfast")]
if os.environ.get("LANDFAST_TEST_COPY") == "zookeeper":
    PAIRS = [("zookeeper", "zookeeper"), ("zookeeper", "landfast"), ("landfast", "zookeeper")]


class Side:
    """A server with a client."""

    def __init__(self, kind, directory):
        directory.mkdir()
        self.server = KINDS[kind](directory).start()
        self.client = self.connected()

    def connected(self):
        client = KazooClient(hosts=self.server.hosts, timeout=40)
        client.start(timeout=waiting.GUARD_SECONDS)
        return client

    def create_all(self, paths):
        """Creates znodes, a few hundred at a time."""
        for start in range(0, len(paths), 500):
            made = [self.client.create_async(path, path.encode()) for path in paths[start : start + 500]]
            for one in made:
                one.get(timeout=waiting.GUARD_SECONDS)

    def fill(self, path, znodes=FEW_ZNODES):
        """Creates a tree of so many znodes. Returns their paths."""
        parents = [f"{path}/p{number}" for number in range(-(-znodes // FAN_OUT))]
        rest = [f"{parents[number % len(parents)]}/n{number}" for number in range(znodes - 1 - len(parents))]
        self.create_all([path, *parents, *rest])
        return [path, *parents, *rest]

    def filled(self, path):
        """How many znodes of such a tree are there."""
        parents = self.client.get_children(path)
        return 1 + len(parents) + sum(len(self.client.get_children(f"{path}/{parent}")) for parent in parents)

    def tree(self, top):
        """Data and ACL of every znode that is not ephemeral."""
        found, paths = {}, [top]
        while paths:
            batch, paths = paths[:500], paths[500:]
            # On a busy machine a client may lose its connection.
            for path, (value, stat), (acl, _), children in KazooRetry(max_tries=10)(self.read, batch):
                if stat.ephemeralOwner == 0:
                    found[path] = value, sorted(acl)
                paths += [f"{path.rstrip('/')}/{name}" for name in children]
        return found

    def read(self, paths):
        """Each path with its data, its ACL and its children."""
        calls = self.client.get_async, self.client.get_acls_async, self.client.get_children_async
        sent = [[call(path) for call in calls] for path in paths]
        return [(path, *(one.get(timeout=waiting.GUARD_SECONDS) for one in three)) for path, three in zip(paths, sent)]

    def close(self):
        self.client.stop()
        self.client.close()
        self.server.shut_down()


class Sides:
    """The source and the target of copies."""

    def __init__(self, kinds, directory):
        self.source, self.target = (Side(kind, directory / name) for kind, name in zip(kinds, ["from", "to"]))

    def __iter__(self):
        return iter([self.source, self.target])

    def start(self, *arguments, has_tls=False):
        hosts = [f"tls://localhost:{side.server.secure_port}" if has_tls else side.server.hosts for side in self]
        hosts = ["--from", hosts[0], "--to", hosts[1]]
        command = [servers.Landfast.program, "zookeeper", "copy", "--json", *hosts, *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def copy(self, *arguments, status=0, has_tls=False):
        """The report of a copy, or its error."""
        return self.ended(self.start(*arguments, has_tls=has_tls), status)

    @staticmethod
    def ended(process, status=0):
        out, err = process.communicate(timeout=COPY_SECONDS)
        assert process.returncode == status, (out, err)
        return json.loads(out) if out else err
