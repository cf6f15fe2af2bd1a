"""Servers under test: ours, or a real ZooKeeper to hold the tests themselves to the truth.

LANDFAST_BIN names the program (default: target/debug/landfast). LANDFAST_TEST_ZOOKEEPER set to `start` runs
every test against a ZooKeeper from target/peers/zookeeper instead; set to HOST:PORT, against one that runs
already (tests that restart the server are then skipped). LANDFAST_TEST_PROVIDER set to `redis` runs every test on
Landfast over a redis-server of its own.
"""

import os
import pathlib
import re
import signal
import socket
import subprocess
import tempfile

import pytest

import ports
import redis_server
import waiting

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]


def new(directory):
    """The server that the environment selects, not yet started."""
    chosen = os.environ.get("LANDFAST_TEST_ZOOKEEPER", "")
    if chosen == "start":
        return ZooKeeper(directory)
    if chosen:
        return Existing(chosen)
    if os.environ.get("LANDFAST_TEST_PROVIDER") == "redis":
        return LandfastOnRedis(directory)
    return Landfast(directory)


def needs_landfast():
    """Skips a test of what only Landfast has, where another server is selected."""
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER"):
        pytest.skip("it needs Landfast, and another server is selected")


# The account `super:secret`, which every ACL permits.
SUPER_DIGEST = "super:lK75jTNcA+U9vtVEw5vB51mj/w4="


class Server:
    """A server process with a data directory of its own; it keeps its ports over restarts."""

    can_restart = True
    requires_authentication = False
    """Whether it refuses sessions that have proved no identity."""
    variables = {"LANDFAST_ZOOKEEPER_SUPER_DIGEST": SUPER_DIGEST}
    """Its environment, beside that of the tests."""
    working_directory = None

    def __init__(self, directory):
        self.directory = pathlib.Path(directory)
        self.process = None
        self.port = 0
        self.http_port = 0
        self.routes_port = 0
        self.s3_port = 0

    @property
    def hosts(self):
        return f"127.0.0.1:{self.port}"

    @property
    def program(self):
        """Landfast itself."""
        return needs_landfast()

    def ready_line(self):
        """What Landfast prints when it serves."""
        return needs_landfast()

    def run(self, command):
        self.output = tempfile.TemporaryFile()
        self.log = self.open_log()
        environment = {**os.environ, **self.variables}
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self.output,
            stderr=self.log,
            env=environment,
            cwd=self.working_directory,
        )

    def open_log(self):
        return open(self.directory / "server.log", "ab")

    def stop(self, number=signal.SIGTERM):
        """Sends a signal to the process and waits until it is gone."""
        if self.process is None:
            return None
        self.process.send_signal(number)
        status = self.process.wait(waiting.GUARD_SECONDS)
        self.process = None
        self.log.close()
        self.output.close()
        return status

    def shut_down(self):
        """The end of the test."""
        self.stop()

    def kill(self):
        """Ends it as a power cut of the process would: no clean-up of any kind."""
        self.stop(signal.SIGKILL)

    def log_lines(self, words):
        """The lines of its log that hold these words."""
        log = (self.directory / "server.log").read_text(errors="replace")
        return [line for line in log.splitlines() if words in line]

    def peak_resident_bytes(self):
        """The most memory that its process has had."""
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        (kib,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(kib) * 1024

    def still_starting(self):
        if self.process.poll() is not None:
            log = (self.directory / "server.log").read_text(errors="replace")
            printed = os.pread(self.output.fileno(), 1 << 20, 0).decode(errors="replace")
            raise AssertionError(f"the server ended with {self.process.returncode}:\n{printed[-4000:]}{log[-4000:]}")


class Landfast(Server):
    """`landfast serve` on the embedded default."""

    program = os.environ.get("LANDFAST_BIN", str(REPOSITORY / "target/debug/landfast"))

    serves_s3 = True

    def options(self):
        return ["--data-dir", str(self.directory / "data")]

    def start(self):
        needs_landfast()
        listeners = ["--zookeeper", f"127.0.0.1:{self.port}", "--http", f"127.0.0.1:{self.http_port}"]
        listeners += ["--routes", f"127.0.0.1:{self.routes_port}"]
        if self.requires_authentication:
            listeners.append("--zookeeper-require-auth")
        if self.serves_s3:
            listeners += ["--s3", f"127.0.0.1:{self.s3_port}"]
        options = self.options()
        if "--data-dir" not in options:
            # The file with the keys of S3 clients is there.
            options = [*options, "--data-dir", str(self.directory / "data")]
        self.run([self.program, "serve", *options, *listeners])
        line = waiting.until(self.ready_line, "the ready line")
        self.port = int(re.search(r"zookeeper=127\.0\.0\.1:(\d+)", line).group(1))
        self.http_port = int(re.search(r"http=127\.0\.0\.1:(\d+)", line).group(1))
        self.routes_port = int(re.search(r"routes=127\.0\.0\.1:(\d+)", line).group(1))
        if self.serves_s3:
            self.s3_port = int(re.search(r"s3=127\.0\.0\.1:(\d+)", line).group(1))
        return self

    def ready_line(self):
        self.still_starting()
        # Several threads may ask at the same time, and they share the read position of a file.
        line, end, _ = os.pread(self.output.fileno(), 4096, 0).partition(b"\n")
        return (line + end).decode() if line.startswith(b"ready ") and end else None


class LandfastOnRedis(Landfast):
    """`landfast serve` on a Redis server of its own, which goes with it."""

    def __init__(self, directory, **options):
        super().__init__(directory)
        self.redis = redis_server.Redis(self.directory / "redis", **options)

    def options(self):
        return ["--provider", "redis", "--store", self.redis.url]

    def start(self):
        needs_landfast()
        if not self.redis.is_running():
            self.redis.start()
        return super().start()

    def shut_down(self):
        super().shut_down()
        self.redis.stop()


class LandfastBeside(Landfast):
    """One of several `landfast serve` on a Redis server that another fixture owns."""

    def __init__(self, directory, redis):
        super().__init__(directory)
        self.directory.mkdir()
        self.redis = redis

    def options(self):
        return ["--provider", "redis", "--store", self.redis.url]

    @property
    def http(self):
        """The address of its HTTP listener."""
        return re.search(r"http=(\S+)", self.ready_line()).group(1)


class ZooKeeper(Server):
    """A standalone ZooKeeper with its defaults."""

    settings = ""

    def start(self):
        if not self.port:
            self.port = ports.free()
        config = self.directory / "zoo.cfg"
        config.write_text(
            f"tickTime=2000\ndataDir={self.directory}/data\nclientPort={self.port}\nclientPortAddress=127.0.0.1\n"
            "maxClientCnxns=0\nadmin.enableServer=false\n4lw.commands.whitelist=*\nextendedTypesEnabled=true\n"
            f"{self.settings}"
        )
        peer = REPOSITORY / "target/peers/zookeeper"
        main = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
        properties = [f"-Dzookeeper.DigestAuthenticationProvider.superDigest={SUPER_DIGEST}"]
        if self.requires_authentication:
            properties += ["-Dzookeeper.enforce.auth.enabled=true", "-Dzookeeper.enforce.auth.schemes=digest"]
        self.run(["java", "-Xmx256m", *properties, "-cp", f"{peer}/conf:{peer}/lib/*", main, str(config)])
        waiting.until(self.serves, "ZooKeeper to serve")
        return self

    def serves(self):
        self.still_starting()
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                connection.sendall(b"srvr")
                return b"Mode: " in connection.makefile("rb").read()
        except OSError:
            return False


class Existing(Server):
    """A server that was started outside of the tests."""

    can_restart = False

    def __init__(self, hosts):
        self.process = None
        self.port = int(hosts.rsplit(":", 1)[1])

    def start(self):
        return self
