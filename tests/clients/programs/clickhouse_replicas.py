"""Two ClickHouse servers with a replicated table, coordinated through ZooKeeper. `make test-zookeeper-programs` runs it."""

import signal
import subprocess

import pytest

import ports
import waiting

ROWS = 1000


class Replica:
    """A ClickHouse server on ports and in a directory of its own."""

    def __init__(self, directory, name, zookeeper):
        self.directory = directory / name
        self.directory.mkdir()
        self.tcp, self.http, self.interserver = ports.free(), ports.free(), ports.free()
        host, port = zookeeper.hosts.split(":")
        (self.directory / "users.xml").write_text(
            "<yandex><profiles><default><max_memory_usage>1000000000</max_memory_usage></default></profiles><users><default>"
            "<password></password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota>"
            "</default></users><quotas><default></default></quotas></yandex>"
        )
        (self.directory / "config.xml").write_text(
            f"<yandex><logger><level>information</level><log>{self.directory}/server.log</log></logger>"
            f"<http_port>{self.http}</http_port><tcp_port>{self.tcp}</tcp_port>"
            f"<interserver_http_port>{self.interserver}</interserver_http_port>"
            "<interserver_http_host>127.0.0.1</interserver_http_host><listen_host>127.0.0.1</listen_host>"
            f"<path>{self.directory}/data/</path><tmp_path>{self.directory}/tmp/</tmp_path>"
            "<users_config>users.xml</users_config><default_profile>default</default_profile>"
            "<default_database>default</default_database><mark_cache_size>5368709</mark_cache_size>"
            "<max_concurrent_queries>20</max_concurrent_queries>"
            f"<zookeeper><node><host>{host}</host><port>{port}</port></node>"
            "<session_timeout_ms>6000</session_timeout_ms><root>/clickhouse</root></zookeeper>"
            f"<macros><replica>{name}</replica></macros>"
            "<remote_servers><shop><shard><internal_replication>true</internal_replication>"
            f"<replica><host>127.0.0.1</host><port>{self.tcp}</port></replica></shard></shop></remote_servers>"
            "<distributed_ddl><path>/task_queue/ddl</path></distributed_ddl></yandex>"
        )
        self.process = None

    def start(self):
        with open(self.directory / "output.log", "ab") as log:
            command = ["clickhouse-server", f"--config-file={self.directory}/config.xml"]
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory)
        waiting.until(self.answers, "the replica to answer")

    def answers(self):
        assert self.process.poll() is None, f"ClickHouse ended; see {self.directory}"
        return self.attempt("SELECT 1").returncode == 0

    def stop(self, number=signal.SIGKILL):
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(waiting.GUARD_SECONDS)
            self.process = None

    def attempt(self, query):
        command = ["clickhouse-client", "--host", "127.0.0.1", "--port", str(self.tcp), "--query", query]
        return subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=120)

    def query(self, query):
        ended = self.attempt(query)
        assert ended.returncode == 0, f"{query}: {ended.stdout.decode()[-2000:]}"
        return ended.stdout.decode().strip()

    def insert(self, first, end):
        self.query(f"INSERT INTO shop SELECT toDate('2026-01-01'), number FROM numbers({end}) WHERE number >= {first}")

    def has(self, rows):
        return self.query("SELECT count(), sum(id) FROM shop").split() == [str(rows), str(rows * (rows - 1) // 2)]


@pytest.fixture
def replicas(tmp_path, own_server, clients):
    clients(own_server).ensure_path("/clickhouse")
    both = [Replica(tmp_path, name, own_server) for name in ("one", "two")]
    for replica in both:
        replica.start()
    yield both
    for replica in both:
        replica.stop()


def a_replicated_table_survives_kills_of_a_replica_and_of_the_server(replicas, own_server, clients):
    one, two = replicas
    engine = "ReplicatedMergeTree('/tables/shop', '{replica}', day, id, 8192)"
    for replica in replicas:
        replica.query(f"CREATE TABLE shop (day Date, id UInt64) ENGINE = {engine}")
    one.insert(0, ROWS)
    waiting.until(lambda: two.has(ROWS), "the rows at the other replica")
    one.insert(0, ROWS)
    assert one.has(ROWS), "the same block a second time is dropped"
    two.insert(ROWS, 2 * ROWS)
    waiting.until(lambda: one.has(2 * ROWS), "the rows of the other replica")
    one.query("OPTIMIZE TABLE shop FINAL")
    one.query("ALTER TABLE shop ADD COLUMN price UInt32 DEFAULT 7")
    waiting.until(lambda: two.query("DESCRIBE TABLE shop").count("price"), "the new column at the other replica")

    one.stop(signal.SIGKILL)
    client = clients(own_server)
    active = "/clickhouse/tables/shop/replicas/one/is_active"
    waiting.until(lambda: not client.exists(active), "the session of the killed replica to end")
    two.query("INSERT INTO shop (day, id) SELECT toDate('2026-01-01'), number FROM numbers(3000) WHERE number >= 2000")
    one.start()
    waiting.until(lambda: one.has(3 * ROWS), "the rows that were missed")
    assert client.exists(active)

    own_server.kill()
    own_server.start()
    inserted = "INSERT INTO shop (day, id) SELECT toDate('2026-01-01'), number FROM numbers(4000) WHERE number >= 3000"
    waiting.until(lambda: one.attempt(inserted).returncode == 0, "an insert after the server's restart")
    waiting.until(lambda: two.has(4 * ROWS), "its rows at the other replica")
    for replica in replicas:
        replica.query("DROP TABLE shop")
    waiting.until(lambda: not client.exists("/clickhouse/tables/shop"), "the table's znodes to be gone")
