"""Objects in function memory: instances and servers are killed, and nothing acknowledged is lost (M7)."""

import hashlib
import os
import pathlib
import random
import signal

import pytest

import s3_server
import waiting
from s3_server import MIB

BUCKET = "memory"
GROUP = 12
"""The instances of a group: 10 for data and 2 for parity."""


@pytest.fixture
def running(tmp_path):
    server = s3_server.Landfast(tmp_path).start()
    yield server
    server.shut_down()


@pytest.fixture
def s3(running):
    client = s3_server.client(running.s3_url)
    client.create_bucket(Bucket=BUCKET)
    return client


def parents():
    """Each process with its parent and its command line."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parent = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        found[int(folder.name)] = (parent, command)
    return found


def instances(running):
    """The processes of function memory that this server has started."""
    processes = parents()

    def is_below(process):
        while process in processes:
            if process == running.process.pid:
                return True
            process = processes[process][0]
        return False

    programs = [number for number, (_, command) in processes.items() if b"\0memory-function" in command]
    return {number for number in programs if is_below(number)}


def in_memory(running):
    """The instances and fragments that the status shows."""
    _, body = s3_server.fetch(f"http://127.0.0.1:{running.http_port}/metrics")
    rows = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    return [float(rows[f"landfast_memory_{what}"]) for what in ("instances", "fragments")]


def content_of(s3, key):
    return s3_server.content(s3, BUCKET, key)


def an_object_survives_two_instances_and_then_the_server(running, s3):
    body = os.urandom(100 * MIB + 17)
    s3.put_object(Bucket=BUCKET, Key="k", Body=body)
    assert in_memory(running) == [GROUP, 1]
    for victim in random.sample(sorted(instances(running)), 2):
        os.kill(victim, signal.SIGKILL)
    assert content_of(s3, "k") == body
    waiting.until(lambda: len(instances(running)) >= GROUP, "two new instances")
    assert content_of(s3, "k") == body
    running.kill()
    running.start()
    s3 = s3_server.client(running.s3_url)
    assert in_memory(running)[1] == 0
    assert content_of(s3, "k") == body
    waiting.until(lambda: in_memory(running)[1] == 1, "the object to be in memory again")
    assert content_of(s3, "k") == body


def an_object_is_read_while_all_instances_are_dead(running, s3):
    body = os.urandom(20 * MIB)
    s3.put_object(Bucket=BUCKET, Key="k", Body=body)
    for victim in instances(running):
        os.kill(victim, signal.SIGKILL)
    assert content_of(s3, "k") == body


def acknowledged_objects_survive_kills_under_load(running, s3):
    """Each round writes from several clients, and kills instances, then the server, in the midst."""
    acknowledged, rounds = {}, 4
    for number in range(rounds):
        url = running.s3_url

        def write(writer):
            client, done = s3_server.client(url), {}
            for index in range(30):
                key, size = f"{writer}-{index % 7}", random.choice([0, 100, 9000, MIB, 3 * MIB + 1])
                body = os.urandom(size)
                done[key] = {None, hashlib.md5(body).hexdigest()}
                try:
                    client.put_object(Bucket=BUCKET, Key=key, Body=body)
                except Exception:
                    # The server is gone. The write may have taken effect.
                    done[key] |= acknowledged.get(key, {None})
                    return done
                done[key].discard(None)
                acknowledged[key] = done[key]
            return done

        def kill():
            waiting.until(lambda: len(acknowledged) > number, "some objects")
            for victim in random.sample(sorted(instances(running)), min(3, len(instances(running)))):
                os.kill(victim, signal.SIGKILL)
            running.kill()

        *written, _ = waiting.together(*(lambda w=w: write(w) for w in range(3)), kill)
        running.start()
        client = s3_server.client(running.s3_url)
        stored = set(s3_server.keys(client.list_objects_v2(Bucket=BUCKET)))
        for key, possible in {key: value for done in written for key, value in done.items()}.items():
            found = hashlib.md5(content_of(client, key)).hexdigest() if key in stored else None
            assert found in possible, (key, found, possible)
            acknowledged[key] = {found}


def a_deleted_object_leaves_no_file(running, s3):
    folder = running.directory / "data" / "objects" / "memory"

    def files():
        return [path for path in folder.rglob("*") if path.is_file()]

    s3.put_object(Bucket=BUCKET, Key="k", Body=os.urandom(2 * MIB))
    s3.put_object(Bucket=BUCKET, Key="k", Body=os.urandom(3 * MIB))
    waiting.until(lambda: len(files()) == 1, "the replaced version to be collected")
    s3.delete_object(Bucket=BUCKET, Key="k")
    waiting.until(lambda: not files(), "the deleted object to be collected")
    assert in_memory(running)[1] == 0
