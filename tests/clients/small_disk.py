"""A server whose disk a test can fill."""

import os
import pathlib
import shutil
import subprocess
import urllib.request

from kazoo.exceptions import SystemZookeeperError

import server as servers
import waiting

# Two of the journal's segments, which are allocated ahead, and some more.
DISK = "160m"
FILLER = b"f" * 100_000
FILLERS_MAX = 2000
PIECE = bytes(1 << 20)

USER = [] if os.geteuid() == 0 else ["--map-root-user"]
ENTER_USER = ["--user", "--preserve-credentials"] if USER else []
MOUNT = f'mount -t tmpfs -o size={DISK} tmpfs "$0"'


def can_be_mounted(directory):
    """Whether this machine lets a test have a file system of its own."""
    trial = ["unshare", *USER, "--mount", "sh", "-c", MOUNT, str(directory)]
    has_tools = shutil.which("unshare") is not None and shutil.which("nsenter") is not None
    return has_tools and subprocess.run(trial, capture_output=True).returncode == 0


class OnSmallDisk(servers.Landfast):
    """`landfast serve` with its data on a file system in memory, which it alone sees and which outlives it."""

    def __init__(self, directory):
        super().__init__(directory)
        data = self.directory / "data"
        data.mkdir()
        keep = ["unshare", *USER, "--mount", "sh", "-c", f'{MOUNT} && echo mounted && exec cat', str(data)]
        self.keeper = subprocess.Popen(keep, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert self.keeper.stdout.readline() == b"mounted\n"

    def run(self, command):
        super().run(["nsenter", f"--target={self.keeper.pid}", "--mount", *ENTER_USER, *command])

    def says(self, line):
        """Whether the line is one of its figures."""
        with urllib.request.urlopen(f"http://{self.http}/metrics") as answer:
            return f"landfast_{line}" in answer.read().decode().splitlines()

    def says_full(self):
        return self.says("journal_full 1")

    def unmount(self):
        self.keeper.communicate()

    def ready_line(self):
        line = super().ready_line()
        if line:
            self.http = line.split("http=")[1].split()[0]
        return line

    @property
    def disk(self):
        """The path to its file system from here."""
        return pathlib.Path(f"/proc/{self.keeper.pid}/root{self.directory}/data")

    def fill(self):
        """Leaves no byte of the disk to files. Returns the file to remove so that space returns."""
        of_others = self.disk / "of-others"
        with open(of_others, "wb", buffering=0) as file:
            try:
                while True:
                    file.write(PIECE)
            except OSError:
                return of_others


class ObjectsOnSmallDisk(OnSmallDisk):
    """The same with the long values of transactions there, and all else elsewhere."""

    def options(self):
        objects = self.directory / "data" / "packs"
        return ["--data-dir", str(self.directory / "own"), "--objects", f"file://{objects}"]


def is_refused(call, *arguments):
    """Whether a write is refused, by a response."""
    try:
        call(*arguments).get(timeout=waiting.GUARD_SECONDS)
    except SystemZookeeperError:
        return True
    return False


def fill_the_journal(client, meanwhile, parent="/filler"):
    """Creates znodes below `parent` until one is refused; returns their number."""
    for number in range(FILLERS_MAX):
        if is_refused(client.create_async, f"{parent}/{number}", FILLER):
            return number
        meanwhile()
    raise AssertionError("the disk was never full")
