"""`landfast serve` as a process. LANDFAST_BIN names the program (default: target/debug/landfast)."""

import os
import re
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import IO, Optional

from cluster import GUARD_S

REPOSITORY = Path(__file__).resolve().parents[3]
POLL_SECONDS = 0.01


class Program:
    """A server with a data directory of its own; it keeps its port over restarts."""

    path = os.environ.get("LANDFAST_BIN", str(REPOSITORY / "target/debug/landfast"))

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: Optional[subprocess.Popen[bytes]] = None
        self._output: Optional[IO[bytes]] = None
        self._port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._output = tempfile.TemporaryFile()
        command = [self.path, "serve", "--data-dir", str(self._directory / "data")]
        command += ["--zookeeper", "127.0.0.1:0", "--http", f"127.0.0.1:{self._port}", "--routes", "127.0.0.1:0"]
        command += ["--s3", "127.0.0.1:0"]
        with open(self._directory / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self._output, stderr=log)
        found = re.search(r" http=127\.0\.0\.1:(\d+)", self._ready_line())
        assert found is not None, "the ready line names no HTTP listener"
        self._port = int(found.group(1))

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Sends a signal to the process and waits until it is gone."""
        if self._process is None or self._output is None:
            return
        self._process.send_signal(number)
        self._process.wait(GUARD_S)
        self._process = None
        self._output.close()

    def kill(self) -> None:
        """Ends it as a power cut of the process would: no clean-up of any kind."""
        self.stop(signal.SIGKILL)

    def _ready_line(self) -> str:
        assert self._process is not None and self._output is not None
        deadline = time.monotonic() + GUARD_S
        pause = threading.Event()
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                log = (self._directory / "server.log").read_text(errors="replace")
                raise AssertionError(f"the server ended with {self._process.returncode}:\n{log[-4000:]}")
            self._output.seek(0)
            line = self._output.readline().decode()
            if line.startswith("ready ") and line.endswith("\n"):
                return line
            pause.wait(POLL_SECONDS)
        raise AssertionError(f"the server was not ready within {GUARD_S:.0f} s")
