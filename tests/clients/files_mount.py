"""Mounts of volumes for the tests."""

import contextlib
import itertools
import os
import subprocess

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
