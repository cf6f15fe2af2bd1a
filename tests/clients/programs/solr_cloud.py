"""A node of SolrCloud, which keeps its collections in ZooKeeper. `make test-zookeeper-programs` runs it."""

import signal
import subprocess

import pytest

import ports
import server as servers
import waiting

PEER = servers.REPOSITORY / "target/peers/solr"
SOLR_XML = """<solr><solrcloud><str name="host">127.0.0.1</str><int name="hostPort">${hostPort}</int>
<str name="hostContext">solr</str><int name="zkClientTimeout">6000</int></solrcloud></solr>"""


class Node:
    """A node whose znodes are below /solr, on a port and in a directory that stay over restarts."""

    def __init__(self, directory, zookeeper):
        self.home = directory / "solr"
        self.home.mkdir()
        (self.home / "solr.xml").write_text(SOLR_XML)
        self.hosts = f"{zookeeper.hosts}/solr"
        self.port = ports.free()
        self.output = self.home / "output.log"
        self.process = None

    def command(self, memory, *arguments):
        options = [f"-Xmx{memory}", f"-Dsolr.log.dir={self.home}", "-cp", f"{PEER}/classes:{PEER}/lib/*"]
        return ["java", *options, "SolrNode", *map(str, arguments)]

    def start(self):
        with open(self.output, "wb") as log:
            command = self.command("512m", "serve", self.hosts, self.home, self.port)
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        waiting.until(self.is_ready, "the node to serve")

    def is_ready(self):
        assert self.process.poll() is None, f"the node ended; see {self.output}"
        return "\nready " in "\n" + self.output.read_text(errors="replace")

    def stop(self, number=signal.SIGKILL):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(waiting.GUARD_SECONDS)
            self.process = None

    def uses(self, verb, first=0, end=0):
        command = self.command("256m", verb, self.hosts, first, end)
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180)
        assert ended.returncode == 0, f"{verb}: {ended.stdout.decode()[-3000:]}"


@pytest.fixture
def node(tmp_path, own_server, clients):
    clients(own_server).ensure_path("/solr")
    node = Node(tmp_path, own_server)
    yield node
    node.stop()


def a_collection_survives_kills_of_its_node_and_of_the_server(node, own_server, clients):
    node.uses("upload")
    node.start()
    node.uses("create")
    node.uses("index", first=0, end=100)
    node.uses("count", end=100)

    node.stop(signal.SIGKILL)
    client = clients(own_server)
    waiting.until(lambda: not client.get_children("/solr/live_nodes"), "the session of the killed node to end")
    node.start()
    node.uses("count", end=100)

    own_server.kill()
    own_server.start()
    waiting.until(lambda: client.retry(client.get_children, "/solr/live_nodes"), "the node's znode")
    node.uses("index", first=100, end=150)
    node.uses("count", end=150)
    node.uses("drop")
    assert not client.exists("/solr/collections/shop")
