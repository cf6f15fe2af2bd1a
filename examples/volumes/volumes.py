"""Functions and programs that share a volume, as transactions.

    volumes.py [--url http://127.0.0.1:7600] [--landfast landfast]

Two functions change one account in a volume at the same time: one of them meets a conflict and runs again, so no change
is lost. Then a program changes the volume under `landfast files exec`. It fails, and nothing of it stays; it succeeds, and
all of it appears at once. It needs /dev/fuse and mount namespaces. Without them it says so, and does nothing.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import uuid

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
sys.path.insert(0, str(REPOSITORY / "clients/python"))

import landfast  # noqa: E402

FUSE = "/dev/fuse"
WAIT_SECONDS = 20

MANIFEST = """
name = "{name}"

[functions.{name}-deposit]
runtime = "python3"
code = "functions"
handler = "app.deposit"
volumes = {{ "/mnt/data" = "{name}" }}

[functions.{name}-withdraw]
runtime = "python3"
code = "functions"
handler = "app.withdraw"
volumes = {{ "/mnt/data" = "{name}" }}
"""

# A month's end: the journal goes to an archive, and a new one begins.
CLOSE = """
mkdir account/archive
mv account/journal account/archive/november
echo "carried over: $(cat account/balance)" > account/journal
find account -type f | sort
"""
BROKEN = "echo 'the disk of the archive is broken' >&2; exit 3\n"


def main():
    options = arguments()
    lacking = machine_lacks() or server_lacks(options.url)
    if lacking:
        print(f"\nSKIPPED: functions and programs that share a volume: {lacking}\n", file=sys.stderr, flush=True)
        return
    tour = Tour(options.url, options.landfast)
    tour.landfast("files", "create", tour.name)
    try:
        with tempfile.TemporaryDirectory() as folder:
            tour.deploy(pathlib.Path(folder))
        tour.share()
        tour.conflict()
        tour.abort()
        tour.commit()
    finally:
        tour.remove()


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("LANDFAST_URL", "http://127.0.0.1:7600")
    parser.add_argument("--url", default=default, help="where the server is (default LANDFAST_URL, or %(default)s)")
    program = shutil.which("landfast") or str(REPOSITORY / "target/quick/landfast")
    parser.add_argument("--landfast", default=program, help="the program (default %(default)s)")
    return parser.parse_args()


def machine_lacks():
    """What this machine lacks for mounts; None if it can make them."""
    if not os.access(FUSE, os.R_OK | os.W_OK):
        return f"{FUSE} is missing, or this user may not read and write it"
    if not shutil.which("unshare") or subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        return "`unshare --mount true` fails, so this user cannot make mount namespaces; root can, outside of most containers"
    return None


def server_lacks(url):
    """Why the server has no volumes for this machine's programs; None if it has."""
    return None if socket_of(url) else "the server has no socket for volumes (--volumes-socket)"


def socket_of(url):
    """The path of the server's socket for volumes."""
    with urllib.request.urlopen(f"{url}/v1/status") as answer:
        return json.load(answer)["listeners"].get("volumes")


class Tour:
    """The tour of one volume, with a name of its own on the server."""

    def __init__(self, url, program):
        self.url, self.program = url, program
        self.name = f"tour-{uuid.uuid4().hex[:8]}"
        self.client = landfast.connect(url)
        self.socket = socket_of(url)

    def deploy(self, folder):
        shutil.copytree(HERE / "functions", folder / "functions")
        manifest = folder / "app.toml"
        manifest.write_text(MANIFEST.format(name=self.name))
        self.landfast("functions", "deploy", str(manifest))

    def share(self):
        title("Two functions share a volume")
        say(f"deposit 100: the balance is {self.invoke('deposit', amount=100)}")
        say(f"withdraw 30, another function: the balance is {self.invoke('withdraw', amount=30)['balance']}")

    def conflict(self):
        title("A conflict: the invocation runs again, and no change is lost")
        state, meet = self.client.state(), f"{self.name}/meet"
        with concurrent.futures.ThreadPoolExecutor(1) as thread:
            asked = thread.submit(self.invoke, "withdraw", amount=20, meet=meet)
            deadline = time.monotonic() + WAIT_SECONDS
            while state.get(f"{meet}/read") is None and not asked.done():
                must(time.monotonic() < deadline, "withdraw read the balance")
                time.sleep(0.02)
            say("withdraw 20 has read the balance, and writes nothing yet")
            say(f"deposit 50 meanwhile: the balance is {self.invoke('deposit', amount=50)}")
            state.put(f"{meet}/deposited", b"yes")
            withdrawn = asked.result()
        first, *_, last = withdrawn["balances read"]
        must((first, last, withdrawn["balance"]) == (70, 120, 100), "both changes took effect")
        say(f"withdraw 20 from {first} conflicts; it runs again, reads {last}, and leaves {withdrawn['balance']}")

    def abort(self):
        title("A program under `landfast files exec` fails: nothing of it stays")
        before = self.content()
        ended = self.execute(CLOSE + BROKEN)
        must(ended.returncode == 3 and ended.stdout == "", "the program failed")
        say("this script runs:")
        quote((CLOSE + BROKEN).strip())
        say(f"its exit code is {ended.returncode}, and its stderr:")
        quote(ended.stderr)
        must(self.content() == before, "nothing was changed")
        say(f"the volume is what it was before: {', '.join(before)}, with the same content")

    def commit(self):
        title("The same script without its last line succeeds: all of it appears at once")
        ended = self.execute(CLOSE)
        must(ended.returncode == 0, f"the program succeeded: {ended.stderr}")
        after = self.content()
        must(after.get("account/journal") == "carried over: 100\n", "the new journal was committed")
        say("its exit code is 0; its output was held until the commit:")
        quote(ended.stdout)
        say(f"the journal of November: {' '.join(after['account/archive/november'].split())}")
        say(f"deposit 5, a function again: the balance is {self.invoke('deposit', amount=5)}")

    def invoke(self, function, **event):
        """The result of a function."""
        invoked = self.landfast("functions", "invoke", f"{self.name}-{function}", "--payload", json.dumps(event))
        return json.loads(invoked)

    def execute(self, script):
        """Runs a shell script in one transaction."""
        command = ["files", "exec", self.name, "--volumes-socket", self.socket, "--chdir", "/", "--", "sh", "-ec", script]
        return subprocess.run([self.program, *command], stdin=subprocess.DEVNULL, capture_output=True, text=True)

    def content(self):
        """The content of each file by its path."""
        files, found, folders = self.client.files(self.name), {}, [""]
        while folders:
            folder = folders.pop()
            for entry in files.list(folder).entries:
                path = f"{folder}/{entry.name.decode()}".lstrip("/")
                if entry.type == "directory":
                    folders.append(path)
                else:
                    found[path] = files.read(path).decode()
        return dict(sorted(found.items()))

    def remove(self):
        self.landfast("functions", "remove", self.name)
        self.landfast("files", "delete", self.name, "--yes")
        for key in ["read", "deposited"]:
            self.client.state().delete(f"{self.name}/meet/{key}")

    def landfast(self, *words):
        """The output of a command of the program."""
        environment = {**os.environ, "LANDFAST_URL": self.url}
        ran = subprocess.run([self.program, *words], env=environment, text=True, stdout=subprocess.PIPE)
        must(ran.returncode == 0, f"landfast {' '.join(words[:3])} succeeded")
        return ran.stdout


def title(text):
    print(f"\n{text}", flush=True)


def say(text):
    print(f"  {text}", flush=True)


def quote(text):
    for line in text.splitlines():
        say(f"  | {line}")


def must(held, what):
    if not held:
        sys.exit(f"the tour failed: it did not happen that {what}")


if __name__ == "__main__":
    main()
