"""Volumes of several servers on one Redis: each takes any call, and one of them serves."""

import contextlib
import fcntl
import os
import signal
import subprocess
import threading

import pytest

import files_mount
import http_api
import server as servers
import waiting
from several_processes import redis  # noqa: F401


@pytest.fixture
def nodes(tmp_path, redis):
    """Three servers. The first one leads."""
    made = []
    for number in range(3):
        made.append(servers.LandfastBeside(tmp_path / f"node-{number}", redis))
        made[-1].variables = {"LANDFAST_VOLUMES_SOCKET": str(tmp_path / f"node-{number}" / "volumes.sock")}
        made[-1].start()
    assert _serves(made[0]) and not any(_serves(node) for node in made[1:])
    yield made
    for node in made:
        node.shut_down()


def _serves(node):
    return node.log_lines("this server serves the volumes of its store")


@pytest.fixture
def mount(tmp_path):
    """Mounts the volume through a server; the path."""
    if not os.access("/dev/fuse", os.R_OK | os.W_OK) or os.geteuid():
        pytest.skip("this user may not mount")
    running = []

    def start(node, name="demo"):
        at = tmp_path / f"mount-{len(running)}"
        at.mkdir()
        with open(tmp_path / f"mount-{len(running)}.log", "w") as log:
            command = [node.program, "files", "mount", name, str(at)]
            environment = {**os.environ, **node.variables}
            process = subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=log, env=environment)
        running.append((at, process))
        assert process.stdout.readline(), (tmp_path / f"mount-{len(running) - 1}.log").read_text()
        return at

    start.processes = running
    yield start
    for at, process in running:
        process.kill()
        process.wait(waiting.GUARD_SECONDS)
        process.stdout.close()
        subprocess.run(["umount", "--lazy", at], capture_output=True)


def _ask(node, method, path, body=None):
    api = http_api.Api(node)
    try:
        return api.ask(method, path, body)
    finally:
        api.close()


def _done(node, method, path, body=None):
    answer = _ask(node, method, path, body)
    assert answer.status < 300, answer
    return answer


def _file(name):
    return f"/v1/volumes/demo/files/{name}"


def every_server_takes_every_call(nodes, mount):
    first, second, third = nodes
    _done(third, "PUT", "/v1/volumes/demo")
    _done(second, "PUT", _file("a"), b"of the second")
    at = mount(third)
    assert (at / "a").read_bytes() == b"of the second"
    (at / "b").write_bytes(b"of the third" * 100_000)
    for node in nodes:
        assert _done(node, "GET", _file("b")).body == b"of the third" * 100_000
        listed = _done(node, "GET", "/v1/volumes").document["volumes"]
        assert [info["name"] for info in listed] == ["demo"]
    _done(second, "POST", "/v1/volumes/demo/clones", b'{"to":"copy"}')
    assert _done(first, "GET", "/v1/volumes/copy/files/a").body == b"of the second"
    assert _ask(third, "DELETE", "/v1/volumes/demo").status == 409
    _done(third, "DELETE", "/v1/volumes/copy")
    assert _ask(first, "GET", "/v1/volumes/copy/files/a").status == 404


def mounts_of_two_servers_see_each_others_changes(nodes, mount):
    """V1: what was written before a read began is seen, also after another server leads."""
    _done(nodes[1], "PUT", "/v1/volumes/demo")
    sides = [mount(node) for node in nodes[1:]]

    def rounds(numbers):
        for number in numbers:
            here, there = sides if number % 2 else sides[::-1]
            (here / "n").write_text(str(number))
            (here / f"name-{number}").touch()
            assert (there / "n").read_text() == str(number)
            assert (there / f"name-{number}").exists()

    rounds(range(50))
    with open(sides[0] / "held", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert files_mount.locked(sides[1] / "held")
        nodes[0].kill()
        rounds(range(50, 100))
        assert files_mount.locked(sides[1] / "held"), "the lock went with the server that led"
    waiting.until(lambda: not files_mount.locked(sides[1] / "held"), "the lock to be free")


def mounts_keep_their_locks_when_their_own_server_restarts(nodes, mount):
    """The server that serves has those of the former one for a while."""
    _done(nodes[1], "PUT", "/v1/volumes/demo")
    here, there, gone = [mount(nodes[1]), mount(nodes[2]), mount(nodes[1])]
    _, last = mount.processes[-1]
    with open(here / "held", "w") as held:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lost = os.open(gone / "lost", os.O_CREAT | os.O_RDWR)
        fcntl.flock(lost, fcntl.LOCK_EX | fcntl.LOCK_NB)
        last.kill()
        last.wait(waiting.GUARD_SECONDS)
        nodes[1].kill()
        nodes[1].start()
        held.write("after")
        held.flush()
        assert (there / "held").read_text() == "after"
        waiting.until(lambda: not files_mount.locked(there / "lost"), "the former locks to end")
        assert files_mount.locked(there / "held"), "the lock went with the server of the mount"
    with contextlib.suppress(OSError):
        os.close(lost)


class Load:
    """Clients that write files through servers, each until it is acknowledged."""

    def __init__(self, nodes):
        self.acknowledged = {}
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(n, node)) for n, node in enumerate(nodes * 2)]
        for thread in self.threads:
            thread.start()

    def work(self, client, node):
        number = 0
        while not self.stop.is_set():
            name, number = f"{client}-{number % 20}", number + 1
            data = f"{client} {number}".encode()
            if _ask(node, "PUT", _file(name), data).status < 300:
                self.acknowledged[name] = data
            else:
                self.acknowledged.pop(name, None)

    def has(self, count):
        waiting.until(lambda: len(self.acknowledged) >= count, "files to be written")

    def check(self, node):
        self.stop.set()
        for thread in self.threads:
            thread.join(waiting.GUARD_SECONDS)
        assert self.acknowledged
        for name, data in self.acknowledged.items():
            assert _done(node, "GET", _file(name)).body == data, name


def acknowledged_writes_outlive_the_server_that_led(nodes):
    """V6: the others go on by themselves."""
    _done(nodes[1], "PUT", "/v1/volumes/demo")
    load = Load(nodes[1:])
    load.has(20)
    nodes[0].kill()
    waiting.until(lambda: any(_serves(node) for node in nodes[1:]), "another to serve")
    load.acknowledged.clear()
    load.has(20)
    load.check(nodes[1])
    assert _done(nodes[2], "POST", "/v1/volumes/demo/check").document["findings"] == []


def a_server_that_lost_its_lease_answers_nothing_old(nodes):
    """V1: it was stopped, and the others went on meanwhile."""
    _done(nodes[1], "PUT", "/v1/volumes/demo")
    for number in range(3):
        _done(nodes[0], "PUT", _file("a"), f"before {number}".encode())
    nodes[0].process.send_signal(signal.SIGSTOP)
    try:
        written = lambda: _ask(nodes[1], "PUT", _file("a"), b"after").status < 300  # noqa: E731
        waiting.until(written, "another to serve")
    finally:
        nodes[0].process.send_signal(signal.SIGCONT)
    found = waiting.until(lambda: (answer := _ask(nodes[0], "GET", _file("a"))).status == 200 and answer, "an answer")
    assert found.body == b"after"
