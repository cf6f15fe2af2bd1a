"""Objects in function memory: instances and servers are killed, and nothing acknowledged is lost (M7)."""

import hashlib
import os
import random
import signal

import pytest

import function_memory
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


def an_object_survives_two_instances_and_then_the_server(running, s3):
    body = os.urandom(100 * MIB + 17)
    s3.put_object(Bucket=BUCKET, Key="k", Body=body)
    assert function_memory.in_memory(running) == [GROUP, 1]
    for victim in random.sample(sorted(function_memory.instances(running)), 2):
        os.kill(victim, signal.SIGKILL)
    assert s3_server.content(s3, BUCKET, "k") == body
    waiting.until(lambda: len(function_memory.instances(running)) >= GROUP, "two new instances")
    assert s3_server.content(s3, BUCKET, "k") == body
    running.kill()
    running.start()
    s3 = s3_server.client(running.s3_url)
    assert function_memory.in_memory(running)[1] == 0
    assert s3_server.content(s3, BUCKET, "k") == body
    waiting.until(lambda: function_memory.in_memory(running)[1] == 1, "the object to be in memory again")
    assert s3_server.content(s3, BUCKET, "k") == body


class ShortLived(s3_server.Landfast):
    """A server whose function memory ages within seconds."""

    def options(self):
        ages = {"gc-interval-s": 1, "active-intervals": 1, "degraded-intervals": 1}
        return [*super().options(), *(f"--memory-{name}={value}" for name, value in ages.items())]


def memory_that_is_not_used_is_released_and_comes_back(tmp_path):
    server = ShortLived(tmp_path).start()
    try:
        s3 = s3_server.client(server.s3_url)
        s3.create_bucket(Bucket=BUCKET)
        body = os.urandom(20 * MIB)
        s3.put_object(Bucket=BUCKET, Key="k", Body=body)
        waiting.until(lambda: function_memory.groups_released(server) == 1, "the memory to be released")
        waiting.until(lambda: not function_memory.instances(server), "all instances to end")
        assert function_memory.in_memory(server) == [0, 0]
        assert s3_server.content(s3, BUCKET, "k") == body
        waiting.until(lambda: function_memory.groups_released(server) == 2, "the object to be in memory once more")
        assert s3_server.content(s3, BUCKET, "k") == body
    finally:
        server.shut_down()


def an_object_is_read_while_all_instances_are_dead(running, s3):
    body = os.urandom(20 * MIB)
    s3.put_object(Bucket=BUCKET, Key="k", Body=body)
    for victim in function_memory.instances(running):
        os.kill(victim, signal.SIGKILL)
    assert s3_server.content(s3, BUCKET, "k") == body


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
            victims = sorted(function_memory.instances(running))
            for victim in random.sample(victims, min(3, len(victims))):
                os.kill(victim, signal.SIGKILL)
            running.kill()

        *written, _ = waiting.together(*(lambda w=w: write(w) for w in range(3)), kill)
        running.start()
        client = s3_server.client(running.s3_url)
        stored = set(s3_server.keys(client.list_objects_v2(Bucket=BUCKET)))
        for key, possible in {key: value for done in written for key, value in done.items()}.items():
            found = hashlib.md5(s3_server.content(client, BUCKET, key)).hexdigest() if key in stored else None
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
    assert function_memory.in_memory(running)[1] == 0
