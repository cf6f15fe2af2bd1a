"""Objects over S3 at several servers on one Redis: each takes any request, also while others are killed."""

import os
import random
import signal
import threading

import botocore.exceptions
import pytest

import function_memory
import s3_server
import server as servers
import waiting
from s3_server import MIB
from several_processes import redis  # noqa: F401

BUCKET = "shared"


class Beside(servers.LandfastBeside):
    """One of several servers with the same keys of S3 clients."""

    variables = s3_server.Landfast.variables

    def options(self):
        return [*super().options(), "--memory-total-mb", "1024"]

    @property
    def s3(self):
        return s3_server.client(f"http://127.0.0.1:{self.s3_port}")


@pytest.fixture
def pair(tmp_path, redis):
    both = [Beside(tmp_path / f"server-{number}", redis) for number in range(2)]
    waiting.together(*(one.start for one in both))
    both[0].s3.create_bucket(Bucket=BUCKET)
    yield both
    for one in both:
        one.shut_down()


def _retried(call, *arguments, **named):
    """The answer to a call, which S3's clients repeat while a server says 503."""
    def attempt():
        try:
            return call(*arguments, **named)
        except botocore.exceptions.ClientError as error:
            assert error.response["ResponseMetadata"]["HTTPStatusCode"] == 503, error
            return None

    return waiting.until(attempt, "an answer")


def each_object_is_written_and_read_at_any_server(pair):
    first, second = (one.s3 for one in pair)
    bodies = {f"photos/{n} ü.jpg": os.urandom(random.choice([10, 9000, 2 * MIB + n])) for n in range(20)}
    for key, body in bodies.items():
        first.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata={"a": "b"})
    assert s3_server.keys(second.list_objects_v2(Bucket=BUCKET)) == sorted(bodies, key=str.encode)
    for key, body in bodies.items():
        found = second.get_object(Bucket=BUCKET, Key=key)
        assert (found["Body"].read(), found["Metadata"]) == (body, {"a": "b"})
        assert s3_server.content(second, BUCKET, key, Range="bytes=3-7") == body[3:8]
        second.delete_object(Bucket=BUCKET, Key=key)
        assert s3_server.refusal(first.get_object, Bucket=BUCKET, Key=key) == (404, "NoSuchKey")


def the_owner_of_a_key_alone_has_it_in_memory(pair):
    clients = [one.s3 for one in pair]
    fragments = lambda: [function_memory.in_memory(one)[1] for one in pair]  # noqa: E731

    def knows(client, other):
        """Whether the server of `client` sends a request to the other one."""
        before = fragments()[other]
        for _ in range(4):
            client.put_object(Bucket=BUCKET, Key=f"probe/{os.urandom(8).hex()}", Body=bytes(9000))
        return fragments()[other] > before

    for client, other in zip(clients, (1, 0)):
        waiting.until(lambda: knows(client, other), "the servers to know each other")
    before = fragments()
    for number in range(40):
        body = os.urandom(20_000)
        clients[number % 2].put_object(Bucket=BUCKET, Key=f"{number}", Body=body)
        for client in clients:
            assert s3_server.content(client, BUCKET, f"{number}") == body
    added = [now - then for now, then in zip(fragments(), before)]
    assert sum(added) == 40 and min(added) > 5, added


def uploads_in_parts_and_conditions_hold_across_servers(pair):
    first, second = (one.s3 for one in pair)
    parts = [os.urandom(5 * MIB), os.urandom(6 * MIB), b"the last"]
    upload, done = s3_server.upload(first, BUCKET, "large", parts)
    s3_server.complete(second, BUCKET, "large", upload, done)
    assert s3_server.content(first, BUCKET, "large") == b"".join(parts)
    second.put_object(Bucket=BUCKET, Key="once", Body=b"second", IfNoneMatch="*")
    again = s3_server.refusal(first.put_object, Bucket=BUCKET, Key="once", Body=b"first", IfNoneMatch="*")
    assert again == (412, "PreconditionFailed")
    wrong = s3_server.client(f"http://127.0.0.1:{pair[0].s3_port}", secret_key="another")
    for number in range(8):
        refused = s3_server.refusal(wrong.get_object, Bucket=BUCKET, Key=f"{number}")
        assert refused == (403, "SignatureDoesNotMatch")


def what_was_acknowledged_is_read_after_the_owner_of_keys_is_killed(pair):
    acknowledged, stop, failures = {}, threading.Event(), []

    def put(client):
        number = 0
        while not stop.is_set():
            number += 1
            key, body = f"{client}/{number}", os.urandom(random.choice([100, 20_000, MIB]))
            try:
                pair[0].s3.put_object(Bucket=BUCKET, Key=key, Body=body)
                acknowledged[key] = body
            except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
                failures.append(error)

    threads = [threading.Thread(target=put, args=(client,), daemon=True) for client in range(4)]
    for thread in threads:
        thread.start()
    waiting.until(lambda: len(acknowledged) > 40, "objects")
    pair[1].kill()
    count = len(acknowledged)
    waiting.until(lambda: len(acknowledged) > count + 40, "objects after the death of a server")
    stop.set()
    for thread in threads:
        thread.join(waiting.GUARD_SECONDS)
    statuses = [getattr(one, "response", {}).get("ResponseMetadata", {}).get("HTTPStatusCode") for one in failures]
    assert set(statuses) <= {503}, failures
    for key, body in acknowledged.items():
        assert s3_server.content(pair[0].s3, BUCKET, key) == body, key
    pair[1].start()
    for key, body in acknowledged.items():
        assert _retried(s3_server.content, pair[1].s3, BUCKET, key) == body, key


def keys_of_a_stopped_owner_are_served_by_the_others(pair):
    bodies = {f"{n}": os.urandom(9000) for n in range(12)}
    for key, body in bodies.items():
        pair[0].s3.put_object(Bucket=BUCKET, Key=key, Body=body)
    pair[1].process.send_signal(signal.SIGSTOP)
    try:
        # It holds its connections open until its lease has run out.
        read = lambda key: _retried(s3_server.content, pair[0].s3, BUCKET, key)  # noqa: E731
        answers = waiting.together(*(lambda key=key: read(key) for key in bodies))
        assert answers == list(bodies.values())
        pair[0].s3.put_object(Bucket=BUCKET, Key="0", Body=b"another")
    finally:
        pair[1].process.send_signal(signal.SIGCONT)
    assert _retried(s3_server.content, pair[1].s3, BUCKET, "0") == b"another"


def servers_without_given_keys_share_those_of_the_store(tmp_path, redis):
    both = [servers.LandfastBeside(tmp_path / f"server-{number}", redis) for number in range(2)]
    waiting.together(*(one.start for one in both))
    files = [one.directory / "data" / "s3-credentials" for one in both]
    keys = {file.read_text() for file in files}
    assert len(keys) == 1 and all(file.stat().st_mode & 0o777 == 0o600 for file in files)
    access, secret = (line.split(" = ")[1] for line in keys.pop().splitlines()[1:])
    for one in both:
        client = s3_server.client(f"http://127.0.0.1:{one.s3_port}", access_key=access, secret_key=secret)
        assert client.list_buckets()["Buckets"] == []
        assert "s3-credentials" in s3_server.command(one, "status").stdout
        one.shut_down()
