"""A Kafka broker in ZooKeeper mode. `make test-zookeeper-programs` runs it."""

import signal
import socket
import subprocess

import pytest

import ports
import server as servers
import waiting

PEER = servers.REPOSITORY / "target/peers/kafka"
SESSION_MS = 6000


class Broker:
    """A broker whose znodes are below /kafka, on ports and in directories that stay over restarts."""

    def __init__(self, directory, zookeeper):
        self.zookeeper = zookeeper
        self.log = open(directory / "broker.log", "ab")
        self.port = ports.free()
        self.settings = directory / "server.properties"
        self.settings.write_text(
            f"broker.id=0\nlisteners=PLAINTEXT://127.0.0.1:{self.port}\nlog.dirs={directory}/messages\n"
            f"zookeeper.connect={zookeeper.hosts}/kafka\nzookeeper.session.timeout.ms={SESSION_MS}\n"
            "offsets.topic.replication.factor=1\noffsets.topic.num.partitions=3\ngroup.initial.rebalance.delay.ms=0\n"
            "transaction.state.log.replication.factor=1\ntransaction.state.log.min.isr=1\nnum.network.threads=1\n"
        )
        self.process = None

    def start(self):
        options = ["-Xmx512m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=info", "-cp", f"{PEER}/lib/*"]
        self.process = subprocess.Popen(
            ["java", *options, "kafka.Kafka", str(self.settings)],
            stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
        )
        waiting.until(self.is_listening, "the broker to listen")

    def is_listening(self):
        assert self.process.poll() is None, f"the broker ended; see {self.log.name}"
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self, number=signal.SIGKILL):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(waiting.GUARD_SECONDS)
            self.process = None

    def uses(self, verb, topic="shop", first=0, end=0):
        command = ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error", "-cp", f"{PEER}/classes:{PEER}/lib/*"]
        command += ["Messages", f"127.0.0.1:{self.port}", verb, topic, str(first), str(end)]
        ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=180)
        assert ended.returncode == 0, f"{verb}: {ended.stdout.decode()[-3000:]}"


@pytest.fixture
def broker(tmp_path, own_server):
    broker = Broker(tmp_path, own_server)
    broker.start()
    yield broker
    broker.stop()


def a_broker_serves_messages_over_kills_of_its_own_and_of_the_server(broker, own_server, clients):
    broker.uses("create")
    broker.uses("produce", first=0, end=1000)
    broker.uses("consume", first=0, end=1000)
    broker.uses("administer")

    broker.stop(signal.SIGKILL)
    client = clients(own_server)
    waiting.until(lambda: not client.exists("/kafka/brokers/ids/0"), "the session of the killed broker to end")
    broker.start()
    broker.uses("consume", first=0, end=1000)
    broker.uses("produce", first=1000, end=2000)
    broker.uses("consume", first=0, end=2000)

    own_server.kill()
    broker.uses("produce", first=2000, end=2100)
    own_server.start()
    waiting.until(lambda: client.exists("/kafka/brokers/ids/0"), "the broker's znode")
    broker.uses("create", topic="later")
    broker.uses("produce", topic="later", first=0, end=100)
    broker.uses("consume", topic="later", first=0, end=100)

    broker.stop(signal.SIGTERM)
    assert not client.exists("/kafka/brokers/ids/0"), "a broker that stops closes its session"
