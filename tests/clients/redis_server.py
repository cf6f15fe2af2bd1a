"""A redis-server on loopback, with a free port that it keeps over restarts, and a directory of its own."""

import pathlib
import signal
import socket
import subprocess

import ports
import waiting


class Redis:
    """A server that syncs each write to its append-only file before it answers, unless `settings` say otherwise."""

    def __init__(self, directory, **settings):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir()
        self.settings = {"appendonly": "yes", "appendfsync": "always", "save": "", **settings}
        self.port = ports.free()
        self.process = None

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}"

    def start(self):
        settings = [word for name, value in self.settings.items() for word in (f"--{name}", value)]
        where = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.directory), "--logfile", "log"]
        self.process = subprocess.Popen(["redis-server", *where, *settings], stdin=subprocess.DEVNULL)
        waiting.until(self.answers, "redis-server to answer")
        return self

    def is_running(self):
        return self.process is not None

    def answers(self):
        assert self.process.poll() is None, (self.directory / "log").read_text(errors="replace")[-2000:]
        try:
            return self.ask("PING").startswith(b"+PONG")
        except OSError:
            return False

    def ask(self, command):
        """The first packet of the response to a command in one line."""
        with socket.create_connection(("127.0.0.1", self.port), waiting.GUARD_SECONDS) as connection:
            connection.sendall(command.encode() + b"\r\n")
            return connection.recv(65536)

    def stop(self, number=signal.SIGTERM):
        """Ends it; SIGKILL as a crash would."""
        if self.process is None:
            return
        self.process.send_signal(number)
        self.process.wait(waiting.GUARD_SECONDS)
        self.process = None
