"""Commands under `landfast files exec` for the tests."""

import itertools
import os
import shlex
import subprocess
import textwrap

import pytest

import http_api
import waiting

numbers = itertools.count()


class Volume:
    """A volume of its own, and a folder outside of it for what programs tell each other."""

    def __init__(self, server, folder, *options):
        self.server = server
        self.options = options
        self.folder = folder
        self.name = f"exec{next(numbers)}"
        self.root = f"/mnt/{self.name}"
        created = http_api.Api(server).ask("PUT", f"/v1/volumes/{self.name}")
        assert created.status < 300, created

    def words(self, *options):
        data = str(self.server.directory / "data")
        return [self.server.program, "files", "exec", self.name, "--data-dir", data, *self.options, *options, "--"]

    def start(self, script, *options, **more):
        """Starts a shell script in the root of the volume."""
        command = [*self.words("--chdir", "/", *options), "sh", "-ec", textwrap.dedent(script)]
        more = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
        return subprocess.Popen(command, text=True, **more)

    def run(self, script, *options, input=None, code=0):
        """Runs a script to its end. Returns its stdout, or its stderr if another exit code is expected."""
        stdin = subprocess.DEVNULL if input is None else subprocess.PIPE
        return ended(self.start(script, *options, stdin=stdin), input, code)

    def mark(self, name):
        """The path of a file outside of the volume."""
        return shlex.quote(str(self.folder / name))

    def overtaken(self, script, by, *options):
        """Starts a script of two parts, and runs the script `by` to its end between the parts of its first attempt."""
        read, write = script
        process = self.start(
            f"""
            {read}
            echo attempt >> {self.mark("attempts")}
            while ! test -e {self.mark("go")}; do sleep 0.02; done
            {write}
            """,
            *options,
        )
        waiting.until(lambda: (self.folder / "attempts").exists(), "the first part")
        self.run(by)
        (self.folder / "go").touch()
        return process

    def attempts(self):
        """How often the script of `overtaken` has run."""
        return len((self.folder / "attempts").read_text().splitlines())


def ended(process, input=None, code=0):
    """What a process printed: on stdout, or on stderr if another exit code is expected."""
    stdout, stderr = process.communicate(input, timeout=waiting.GUARD_SECONDS)
    assert process.returncode == code, (process.returncode, stdout, stderr)
    return stdout if code == 0 else stderr


def needs_mounts():
    """Skips the test if this user may not mount volumes."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("this user may not use /dev/fuse")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("this user may not make a mount namespace")


def mountable(server, folder):
    """A new volume, if this user may mount it."""
    needs_mounts()
    return Volume(server, folder)
