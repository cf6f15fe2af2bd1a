"""A full disk refuses writes by an answer; reads, sessions and reconnects go on, and it ends when space returns."""

import socket

import pytest
from kazoo.client import KazooState

import http_api
import s3_server
import server as servers
import small_disk
import waiting
from wire import EPHEMERAL

LARGER_THAN_A_MESSAGE = b"l" * 500_000
# A client that is silent for two thirds of it while the disk fills counts as lost.
SESSION_SECONDS = 12


@pytest.fixture
def running(tmp_path):
    yield from _running(small_disk.OnSmallDisk, tmp_path)


@pytest.fixture
def running_with_objects(tmp_path):
    yield from _running(small_disk.ObjectsOnSmallDisk, tmp_path)


@pytest.fixture
def running_with_s3(tmp_path):
    yield from _running(S3OnSmallDisk, tmp_path)


class S3OnSmallDisk(small_disk.OnSmallDisk, s3_server.Landfast):
    """All of it there, with known keys of S3 clients."""


def _running(kind, directory):
    if type(servers.new(directory)).__name__ != "Landfast":
        pytest.skip("it fills the disk of landfast")
    if not small_disk.can_be_mounted(directory):
        pytest.skip("this machine does not let the test mount a tmpfs")
    server = kind(directory)
    yield server.start()
    server.stop()
    server.unmount()


def a_full_disk_refuses_writes_and_nothing_else(clients, sessions, running):
    client, states, seen = clients(running, timeout=SESSION_SECONDS), [], []
    client.add_listener(states.append)
    client.create("/mine", b"before", ephemeral=True)
    client.create("/filler")
    doomed = sessions(running, timeout_ms=SESSION_SECONDS * 1000)
    doomed.created("/doomed", flags=EPHEMERAL)
    assert not running.says_full()

    of_others = running.fill()
    assert small_disk.is_refused(client.set_async, "/mine", LARGER_THAN_A_MESSAGE), "it would be a file of its own"
    assert running.says_full()
    client.set("/mine", b"small")
    created = small_disk.fill_the_journal(client, doomed.ping)
    assert running.says_full()
    assert small_disk.is_refused(client.set_async, "/mine", b"refused")
    assert client.get("/mine", watch=seen.append)[0] == b"small"
    assert client.exists(f"/filler/{created}") is None
    assert states == [], "no client lost the connection"

    newcomer = clients(running, timeout=SESSION_SECONDS)
    assert newcomer.get(f"/filler/{created - 1}")[0] == small_disk.FILLER
    newcomer.delete(f"/filler/{created - 1}")
    owner = client.client_id[0]
    client._connection._socket.shutdown(socket.SHUT_RDWR)
    waiting.until(lambda: states == [KazooState.SUSPENDED, KazooState.CONNECTED], "the client to resume")
    assert client.get("/mine")[1].ephemeralOwner == owner == client.client_id[0]

    doomed.drop()
    waiting.until(lambda: newcomer.exists("/doomed") is None, "the end of a session without a client")
    assert states == [KazooState.SUSPENDED, KazooState.CONNECTED], "who pings lives, however long the disk is full"
    assert client.exists("/mine").ephemeralOwner == owner
    assert small_disk.is_refused(client.set_async, "/mine", b"refused")

    of_others.unlink()
    waiting.until(lambda: not small_disk.is_refused(client.set_async, "/mine", b"after"), "a write to be taken again")
    waiting.until(lambda: seen, "the watch that was set while the disk was full")
    client.set("/mine", LARGER_THAN_A_MESSAGE)
    assert newcomer.get("/mine")[0] == LARGER_THAN_A_MESSAGE
    assert not running.says_full()
    assert client.client_id[0] == owner


def a_server_starts_on_a_full_disk_and_goes_on_as_before(clients, running):
    client, states = clients(running), []
    client.create("/mine", b"before", ephemeral=True)
    for parent in ("/filler", "/killed", "/stopped"):
        client.create(parent)
    client.add_listener(states.append)
    http_api.Api(running).put_state("kept", b"before")
    of_others = running.fill()
    small_disk.fill_the_journal(client, lambda: None)
    owner = client.client_id[0]
    for end, parent in ((running.kill, "/killed"), (running.stop, "/stopped")):
        end()
        running.start()
        waiting.until(lambda: states[-2:] == [KazooState.SUSPENDED, KazooState.CONNECTED], "the client to resume")
        states.clear()
        assert client.exists("/mine").ephemeralOwner == owner == client.client_id[0]
        # A start folds the journal, whose room can be written again.
        small_disk.fill_the_journal(client, lambda: None, parent)
        assert small_disk.is_refused(client.set_async, "/mine", small_disk.FILLER)
        assert running.says_full()
        api = http_api.Api(running)
        assert api.state("kept") == b"before"
        assert api.ask("PUT", "/v1/state/kept", b"refused").problem == (507, "no-room")
    of_others.unlink()
    waiting.until(lambda: not small_disk.is_refused(client.set_async, "/mine", b"after"), "a write to be taken again")
    assert client.get("/mine")[0] == b"after"


def a_server_on_a_full_disk_is_not_ready_until_there_is_room(clients, running):
    client, api = clients(running), http_api.Api(running)
    client.create("/filler")
    assert api.ask("GET", "/health/ready").status == 200
    of_others = running.fill()
    created = small_disk.fill_the_journal(client, lambda: None)
    answer = api.ask("GET", "/health/ready")
    assert answer.problem == (503, "not-ready"), answer
    assert "the disk is full" in answer.document["detail"]
    assert api.ask("GET", "/health/live").status == 200
    assert client.get(f"/filler/{created - 1}")[0] == small_disk.FILLER, "reads go on"
    of_others.unlink()
    waiting.until(lambda: api.ask("GET", "/health/ready").status == 200, "the server to be ready again")
    client.create("/after", small_disk.FILLER)


def a_full_disk_of_objects_alone_is_told(running_with_objects):
    running = running_with_objects
    api = http_api.Api(running)
    of_others = running.fill()
    assert api.ask("GET", "/health/ready").status == 200, "nothing was refused yet"
    assert api.ask("PUT", "/v1/state/long", LARGER_THAN_A_MESSAGE).problem == (507, "no-room")
    answer = api.ask("GET", "/health/ready")
    assert answer.problem == (503, "not-ready") and "the disk of --objects is full" in answer.document["detail"], answer
    assert running.says("objects_full 1") and api.ask("GET", "/v1/status").document["objects_full"]
    assert not running.says_full(), "the journal has room"
    assert api.ask("PUT", "/v1/state/short", b"taken").status == 204
    of_others.unlink()
    waiting.until(lambda: api.ask("GET", "/health/ready").status == 200, "the server to be ready again")
    assert running.says("objects_full 0")
    assert api.ask("PUT", "/v1/state/long", LARGER_THAN_A_MESSAGE).status == 204


def a_full_disk_refuses_objects_and_nothing_else(clients, running_with_s3):
    running, body = running_with_s3, s3_server.random_bytes(3 * s3_server.MIB)
    s3, full = s3_server.client(running.s3_url), (503, "SlowDown")
    s3.create_bucket(Bucket="disk")
    for key in ("one", "two"):
        s3.put_object(Bucket="disk", Key=key, Body=body)
    upload = s3.create_multipart_upload(Bucket="disk", Key="parts")["UploadId"]
    client = clients(running, timeout=SESSION_SECONDS)
    client.create("/filler")

    def refusal(call, **named):
        return s3_server.refusal(call, Bucket="disk", **named)

    of_others = running.fill()
    assert refusal(s3.put_object, Key="new", Body=body) == full
    assert refusal(s3.upload_part, Key="parts", UploadId=upload, PartNumber=1, Body=body) == full
    with pytest.raises(s3.exceptions.ClientError, match="The store is full. The server's operator must free space"):
        s3.put_object(Bucket="disk", Key="new", Body=body)
    s3.put_object(Bucket="disk", Key="small", Body=b"in the row")
    assert s3_server.keys(s3.list_objects_v2(Bucket="disk")) == ["one", "small", "two"], "nothing is stored half"

    small_disk.fill_the_journal(client, lambda: None)
    assert running.says_full()
    assert refusal(s3.put_object, Key="small", Body=b"other") == full
    assert s3_server.content(s3, "disk", "small") == b"in the row"
    assert s3_server.content(s3, "disk", "one") == body
    assert s3_server.content(s3, "disk", "two", Range="bytes=5-9") == body[5:10]
    s3.delete_object(Bucket="disk", Key="one")
    assert refusal(s3.get_object, Key="one") == (404, "NoSuchKey")
    s3.abort_multipart_upload(Bucket="disk", Key="parts", UploadId=upload)

    def is_taken():
        try:
            return s3.put_object(Bucket="disk", Key="new", Body=body)
        except s3.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] == "SlowDown", error
            return None

    of_others.unlink()
    waiting.until(is_taken, "a PUT to be taken again")
    assert s3_server.content(s3, "disk", "new") == body == s3_server.content(s3, "disk", "two")
