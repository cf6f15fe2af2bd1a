"""Mounts of volumes for the tests."""

import contextlib
import itertools
import os
import subprocess
import time

import pytest

import http_api
import waiting

numbers = itertools.count()

GIT = """
export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@example.com GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@example.com
"""

INCREMENTS = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], timeout=100, isolation_level=None)
for _ in range(30):
    connection.execute('BEGIN IMMEDIATE')
    connection.execute('UPDATE numbers SET value = value + 1')
    connection.execute('COMMIT')
"""

LOOK = """
import contextlib, os, sys
while os.getppid() == int(sys.argv[2]):
    with contextlib.suppress(FileNotFoundError):
        for entry in os.scandir(sys.argv[1]):
            open(entry.path).read()
"""


def seen(at):
    """All that programs see of a directory of files."""
    found = {}
    for name in sorted(os.listdir(at)):
        about = os.stat(at / name)
        found[name] = (oct(about.st_mode), about.st_size, (at / name).read_bytes())
    return found


def change(at, random):
    """Makes a random change, the same for the same state and generator."""
    names, name = sorted(os.listdir(at)), f"f{random.randrange(6)}"
    kind = random.choice(["write", "append", "truncate", "mode", "rename", "unlink"])
    other = random.choice(names) if names else None
    if kind == "write" or other is None:
        (at / name).write_bytes(random.randbytes(random.randrange(40_000)))
    elif kind == "append":
        with open(at / other, "ab", buffering=0) as file:
            file.write(random.randbytes(100))
    elif kind == "truncate":
        os.truncate(at / other, random.randrange(30_000))
    elif kind == "mode":
        os.chmod(at / other, 0o600 + random.randrange(0o100))
    elif kind == "rename":
        os.rename(at / other, at / name)
    else:
        os.unlink(at / other)


def warmed(at, content):
    """Reads a file until a mount has it in memory."""
    for _ in range(20):
        assert (at / "f").read_text() == content
        time.sleep(0.08)


class Mounts:
    """Mounts of one volume, each in a process of its own."""

    def __init__(self, server, folder):
        self.server = server
        self.folder = folder
        self.volume = f"mount{next(numbers)}"
        self.processes = []
        self.api = http_api.Api(server)
        created = self.api.ask("PUT", f"/v1/volumes/{self.volume}")
        assert created.status < 300, created

    def command(self, at, *options):
        data = str(self.server.directory / "data")
        return [self.server.program, "files", "mount", self.volume, str(at), "--data-dir", data, *options]

    def start(self, name, *options):
        """Mounts on a directory of this name. Returns its path and the process."""
        at = self.folder / name
        with contextlib.suppress(FileExistsError):
            at.mkdir()
        log = open(self.folder / f"{name}.log", "a")
        process = subprocess.Popen(self.command(at, *options), text=True, stdout=subprocess.PIPE, stderr=log)
        log.close()
        self.processes.append((at, process))
        self.line = process.stdout.readline()
        assert self.line, (self.folder / f"{name}.log").read_text()
        return at, process

    def refused(self, at, *options):
        """The complaint of a mount that fails."""
        told = subprocess.run(self.command(at, *options), capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
        assert told.returncode == 1 and told.stdout == "", told
        return told.stderr

    def end(self):
        for at, process in self.processes:
            process.kill()
            process.wait(waiting.GUARD_SECONDS)
            process.stdout.close()
            subprocess.run(["umount", "--lazy", at], capture_output=True)


def mounts_of(server, folder):
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid():
        pytest.skip("this user may not mount")
    mounts = Mounts(server, folder)
    yield mounts
    mounts.end()


def ended(process, number):
    process.send_signal(number)
    return process.wait(waiting.GUARD_SECONDS)


def sh(at, script):
    told = subprocess.run(
        ["sh", "-ec", script], cwd=at, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS
    )
    assert told.returncode == 0, told
    return told.stdout


def locked(path):
    return subprocess.run(["flock", "--nonblock", path, "true"]).returncode != 0


NAMES = ["a", "b", "c", "d/a", "d/b", "e/a", "d", "e", "d/f", "d/f/x"]
CALLS = ["write", "write", "append", "create", "read", "read", "truncate", "unlink", "unlink", "mkdir", "rmdir"]
CALLS += ["rename", "rename", "link", "symlink", "list", "stat", "stat", "chmod"]


def drawn(random):
    """A call on names that collide often: its kind, two names, an offset, a mode and data."""
    data = random.randbytes(random.randrange(1, 30_000))
    return random.choice(CALLS), random.choice(NAMES), random.choice(NAMES), random.randrange(70_000), random.randrange(64), data


def called(root, call):
    """What a call on the tree below `root` returns, or the number of its error."""
    kind, name, other, offset, mode, data = call
    path, target = os.path.join(root, name), os.path.join(root, other)
    try:
        if kind in ("write", "append", "create"):
            flags = {"write": os.O_CREAT, "append": os.O_APPEND, "create": os.O_CREAT | os.O_EXCL}[kind]
            file = os.open(path, flags | os.O_WRONLY, 0o644)
            try:
                return os.pwrite(file, data, offset) if kind == "write" else os.write(file, data)
            finally:
                os.close(file)
        if kind == "read":
            with open(path, "rb") as file:
                return file.read()
        if kind == "list":
            return sorted(os.listdir(path))
        if kind == "stat":
            found = os.lstat(path)
            return (found.st_mode, 0, 0) if os.path.isdir(path) else (found.st_mode, found.st_size, found.st_nlink)
        if kind in ("rename", "link"):
            return getattr(os, kind)(path, target)
        if kind == "symlink":
            return os.symlink("a", path)
        arguments = {"truncate": (offset,), "chmod": (0o600 | mode,)}.get(kind, ())
        return getattr(os, kind)(path, *arguments)
    except OSError as error:
        return error.errno
