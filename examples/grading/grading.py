"""Runs the workflow `grading` on the sample submissions, over a far store that is 100 ms away.

Usage: grading.py [--url URL] [--landfast PROGRAM] [--submissions FOLDER]
"""

import argparse
import contextlib
import http.server
import json
import os
import pathlib
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
ROUND_TRIP_SECONDS = 0.1
START_SECONDS = 30

MANIFEST = """
name = "grading"
{functions}
[workflows.grading]
steps = [{{ map = ["grader"], concurrency = 2 }}, "grades", "generate_report", "post_process"]
far = "{far}"
synchrony = "{synchrony}"

[workflows.prepare]
steps = ["prepare"]
far = "{far}"
synchrony = "{synchrony}"
"""

FUNCTION = """
[functions.{name}]
runtime = "python3"
code = "functions"
handler = "app.{name}"
timeout_s = 60
network = {network}
"""

NAMES = ["grader", "grades", "generate_report", "post_process", "prepare"]


class CodeHost(http.server.BaseHTTPRequestHandler):
    """Accepts every request."""

    received = []

    def do_POST(self):
        self.received.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_):
        pass


def distant(server):
    """A listener in front of `server` that delays every byte for half a round trip, each way."""
    listener = socket.create_server(("127.0.0.1", 0))

    def carry(source, target):
        held, more = [], threading.Condition()

        def deliver():
            while True:
                with more:
                    while not held:
                        more.wait()
                    due, data = held.pop(0)
                time.sleep(max(0.0, due - time.monotonic()))
                with contextlib.suppress(OSError):
                    if not data:
                        target.shutdown(socket.SHUT_WR)
                        return
                    target.sendall(data)

        threading.Thread(target=deliver, daemon=True).start()
        while True:
            try:
                data = source.recv(65536)
            except OSError:
                data = b""
            with more:
                held.append((time.monotonic() + ROUND_TRIP_SECONDS / 2, data))
                more.notify()
            if not data:
                return

    def accept():
        while True:
            near, _ = listener.accept()
            far = socket.create_connection(("127.0.0.1", server))
            for end in (near, far):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=carry, args=(near, far), daemon=True).start()
            threading.Thread(target=carry, args=(far, near), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    return listener.getsockname()[1]


@contextlib.contextmanager
def far_store(folder):
    """A redis-server that syncs each write, and its port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = ["--appendonly", "yes", "--appendfsync", "always", "--save", "", "--logfile", "log"]
    command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--dir", folder, *settings]
    server = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16).startswith(b"+PONG"):
                    break
            if server.poll() is not None or time.monotonic() > deadline:
                sys.exit("redis-server does not start; is its port taken?")
            time.sleep(0.02)
        yield port
    finally:
        server.terminate()
        server.wait()


def submissions(handed_in):
    """The submissions, a folder for each student, with the tests of the assignment."""
    tests = {path.name: path.read_text() for path in sorted((HERE / "tests").glob("*.py"))}
    for folder in sorted(handed_in.iterdir()):
        files = {path.name: path.read_text() for path in sorted(folder.glob("*.py"))}
        yield {"student": folder.name, "files": {**files, **tests}}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default=os.environ.get("LANDFAST_URL", "http://127.0.0.1:7600"))
    parser.add_argument("--landfast", default=shutil.which("landfast") or str(REPOSITORY / "target/quick/landfast"))
    parser.add_argument("--submissions", type=pathlib.Path, default=HERE / "submissions")
    parser.add_argument("--synchrony", default="external", choices=["external", "serial", "sync"])
    parser.add_argument("--svg", default=str(REPOSITORY / "target/grading.svg"))
    arguments = parser.parse_args()
    pathlib.Path(arguments.svg).parent.mkdir(parents=True, exist_ok=True)

    def landfast(*words, stdin=None):
        environment = {**os.environ, "LANDFAST_URL": arguments.url}
        ran = subprocess.run([arguments.landfast, *words], env=environment, input=stdin, text=True, stdout=subprocess.PIPE)
        if ran.returncode != 0:
            sys.exit(f"landfast {' '.join(words[:3])} failed (status {ran.returncode}): {ran.stdout.strip() or 'it says why above'}")
        return ran

    host = http.server.ThreadingHTTPServer(("127.0.0.1", 0), CodeHost)
    threading.Thread(target=host.serve_forever, daemon=True).start()
    with tempfile.TemporaryDirectory() as folder, far_store(folder) as redis:
        far = f"redis://127.0.0.1:{distant(redis)}"
        application = pathlib.Path(folder, "application")
        shutil.copytree(HERE / "functions", application / "functions")
        functions = "".join(
            FUNCTION.format(name=name, network=str(name == "post_process").lower()) for name in NAMES
        )
        manifest = application / "grading.toml"
        manifest.write_text(MANIFEST.format(functions=functions, far=far, synchrony=arguments.synchrony))
        landfast("functions", "deploy", str(manifest))
        try:
            settings = {"code_host": f"http://127.0.0.1:{host.server_port}/"}
            landfast("workflows", "run", "prepare", "--input", json.dumps(settings))
            given = json.dumps(list(submissions(arguments.submissions)))
            landfast("workflows", "run", "grading", "--input", "-", stdin=given)  # Instances are warm from here on.
            CodeHost.received.clear()
            ran = landfast("workflows", "run", "grading", "--input", "-", "--timeline", "--svg", arguments.svg, stdin=given)
        finally:
            landfast("functions", "remove", "grading")
    (report,) = CodeHost.received
    print(f"\nThe workflow came to {ran.stdout.strip()}; the code host was sent:\n\n{report}")
    print(f"The timeline is drawn in {os.path.relpath(arguments.svg)}.")


if __name__ == "__main__":
    main()
