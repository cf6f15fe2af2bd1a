"""`landfast zookeeper copy`: trees of znodes between two servers.

LANDFAST_TEST_COPY=zookeeper also copies between a real ZooKeeper and Landfast, both ways. LANDFAST_TEST_COPY_ZNODES is
the size of the tree whose copy is interrupted (default 2000).
"""

import itertools
import os
import signal
import socket
import struct
import subprocess
import threading

import pytest
from kazoo import security
from kazoo.exceptions import NoNodeError

import server as servers
import waiting
from zookeeper_copy import FAN_OUT, PAIRS, TLS, ZNODES, Sides

numbers = itertools.count()


class StrictLandfast(servers.Landfast):
    """It takes short packets only."""

    def options(self):
        return [*super().options(), "--zookeeper-packet-bytes-max", "100000"]


@pytest.fixture(scope="module", params=PAIRS, ids="-to-".join)
def sides(request, tmp_path_factory):
    """The source and the target, for all tests that do not stop them; each works below a path of its own."""
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER") or os.environ.get("LANDFAST_TEST_PROVIDER"):
        pytest.skip("the test says itself between which servers it copies")
    both = Sides(request.param, tmp_path_factory.mktemp("sides"))
    yield both
    for side in both:
        side.close()


@pytest.fixture
def path():
    """A path that no other test uses."""
    return f"/t{next(numbers)}"


def a_tree_is_copied_with_data_and_acls(sides, path):
    source, target = sides
    owner = security.make_digest_acl("owner", "secret", all=True)
    readable = [owner, security.make_acl("world", "anyone", read=True, create=True)]
    source.client.create(path, b"top")
    source.client.create(f"{path}/empty", b"")
    source.client.create(f"{path}/long", os.urandom(900_000))
    source.client.create(f"{path}/guarded", b"x", acl=readable)
    source.client.create(f"{path}/guarded/\u00e4 b", b"y")
    source.client.create(f"{path}/here", b"", ephemeral=True)
    report = sides.copy("--path", path, "--from-auth", "digest:owner:secret", "--to-auth", "digest:owner:secret")
    assert (report["verified"], report["created"], report["equal"], report["ephemerals"]) == (True, 5, 5, 1)
    assert report["differences"] == []
    # The hash is shown to its owner.
    for side in sides:
        side.client.add_auth("digest", "owner:secret")
    assert target.tree(path) == source.tree(path)
    assert target.client.exists(f"{path}/here") is None
    again = sides.copy("--path", path, "--from-auth", "digest:owner:secret", "--to-auth", "digest:owner:secret")
    assert (again["verified"], again["passes"], again["created"], again["updated"]) == (True, 1, 0, 0)


def a_second_copy_brings_changes_and_deletes_only_when_told(sides, path):
    source, target = sides
    source.create_all([path, f"{path}/a", f"{path}/b", f"{path}/b/c"])
    sides.copy("--path", path)
    source.client.set(f"{path}/a", b"new")
    source.client.set_acls(f"{path}/b", [security.make_acl("world", "anyone", read=True, create=True, delete=True)])
    source.client.delete(f"{path}/b/c")
    target.client.create(f"{path}/other/deep", b"", makepath=True)
    target.client.create(f"{path}/live", b"", ephemeral=True)
    report = sides.copy("--path", path)
    assert (report["verified"], report["updated"], report["extra"], report["deleted"]) == (True, 2, 3, 0)
    report = sides.copy("--path", path, "--delete")
    assert (report["verified"], report["extra"], report["deleted"]) == (True, 1, 3)
    assert f"it stays, because {path}/live is an ephemeral znode" in report["differences"][-1]["what"]
    assert target.tree(path) == source.tree(path)
    assert target.client.exists(f"{path}/live")
    target.client.delete(f"{path}/live")


def a_tree_is_copied_over_tls_by_clients_with_certificates(sides, path):
    source, target = sides
    source.create_all([path, *(f"{path}/{number}" for number in range(300))])
    source.client.set(path, os.urandom(900_000))
    ca, certificate, key = (TLS / f"{name}.pem" for name in ["ca", "client", "client-key"])
    own = {side: [f"--{side}-cert", certificate, f"--{side}-key", key] for side in ["from", "to"]}
    for options, complaint in [
        (["--tls-ca", TLS / "other-ca.pem", *own["from"]], "invalid peer certificate"),
        (["--tls-ca", ca, *own["to"]], "--from: the source localhost:"),
        (["--tls-ca", ca, *own["from"]], "--to: the target localhost:"),
    ]:
        error = sides.copy("--path", path, *options, status=1, has_tls=True)
        assert complaint in error and "certificate" in error, error
    for options, has_tls, complaint in [
        (["--tls-ca", ca], False, "--tls-ca: no side has TLS"),
        (own["from"], False, "--from-cert: "),
        (own["to"], False, "--to-cert: "),
        (["--tls-ca", ca, "--to-key", key], True, "--to-key: give its certificate too"),
        (["--tls-ca", key], True, "--tls-ca: "),
        (["--tls-ca", ca, "--from-cert", ca], True, "--from-cert: "),
    ]:
        error = sides.copy("--path", path, *options, status=1, has_tls=has_tls)
        assert complaint in error, error
    report = sides.copy("--path", path, "--tls-ca", ca, *own["from"], *own["to"], has_tls=True)
    assert (report["verified"], report["created"], report["equal"]) == (True, 301, 301)
    assert target.tree(path) == source.tree(path)


def an_interrupted_copy_goes_on_where_it_was(sides, path):
    source, target = sides
    paths = source.fill(path, ZNODES)
    first = sides.start("--path", path)

    def has_begun():
        try:
            return len(target.client.get_children(path)) > len(source.client.get_children(path)) // 2
        except NoNodeError:
            return False

    waiting.until(has_begun, "some of the tree to be copied")
    first.send_signal(signal.SIGKILL)
    first.communicate()
    there = target.filled(path)
    report = sides.copy("--path", path)
    assert report["verified"] and report["equal"] == len(paths)
    assert report["created"] >= len(paths) - there - 256 * 2, "it copied what was there"
    assert target.tree(path) == source.tree(path)


def changes_during_a_copy_are_copied(sides, path):
    source, target = sides
    paths = source.fill(path)
    copying = sides.start("--path", path, "--delete")
    waiting.until(lambda: target.client.exists(path), "the copy to begin")
    changed = paths[1::7]
    for number, node in enumerate(changed):
        source.client.set(node, b"changed")
        source.client.create(f"{node}/added", b"")
        if number % 3 == 0 and node not in paths[: 1 + len(paths) // FAN_OUT]:
            source.client.delete(node, recursive=True)
        if number % 20 == 0 and target.client.exists(paths[-1]):
            break
    sides.ended(copying)
    # What the last pass had passed by is for the next one.
    report = sides.copy("--path", path, "--delete")
    assert report["verified"]
    assert target.tree(path) == source.tree(path)


def a_source_that_never_rests_is_reported(sides, path):
    source, _ = sides
    # A pass over many znodes takes longer than a change.
    source.create_all([path, f"{path}/busy", *(f"{path}/rest-{number:03}" for number in range(400))])
    stop = threading.Event()
    client = source.connected()

    def change():
        number = 0
        while not stop.is_set():
            number += 1
            client.set(f"{path}/busy", str(number).encode())

    changing = threading.Thread(target=change, daemon=True)
    changing.start()
    report = sides.copy("--path", path, status=1)
    stop.set()
    changing.join(waiting.GUARD_SECONDS)
    client.stop()
    client.close()
    assert (report["verified"], report["passes"], report["changed"]) == (False, 10, 1)
    assert report["differences"] == [{"path": f"{path}/busy", "what": "the data differed"}]


def a_wrong_password_names_the_znodes_and_what_to_give(sides, path):
    source, target = sides
    source.create_all([path, f"{path}/open"])
    guarded = [security.make_digest_acl("boss", "right", all=True)]
    source.client.create(f"{path}/guarded", b"", acl=guarded)
    shown = [*guarded, security.make_acl("world", "anyone", read=True)]
    source.client.create(f"{path}/hidden", b"", acl=shown)
    report = sides.copy("--path", path, "--from-auth", "digest:boss:wrong", status=1)
    assert (report["created"], report["failed"], report["verified"]) == (2, 2, False)
    found = {difference["path"]: difference["what"] for difference in report["differences"]}
    assert f"the source {source.server.hosts} answers NoAuth" in found[f"{path}/guarded"]
    assert "--from-auth" in found[f"{path}/guarded"] and "--to-auth" not in found[f"{path}/guarded"]
    assert "its ACL is hidden" in found[f"{path}/hidden"]
    assert target.client.exists(f"{path}/hidden") is None, "a hidden hash was copied"
    assert sides.copy("--path", path, "--from-auth", "digest:boss:right", "--to-auth", "digest:boss:right")["verified"]


def only_a_subtree_is_copied_and_what_is_above_it_is_made(sides, path):
    source, target = sides
    source.create_all([path, f"{path}/a", f"{path}/a/b", f"{path}/a/b/c", f"{path}/other"])
    report = sides.copy("--path", f"{path}/a/b")
    assert (report["verified"], report["created"], report["equal"]) == (True, 4, 2)
    assert sorted(target.tree(path)) == [path, f"{path}/a", f"{path}/a/b", f"{path}/a/b/c"]


def a_hidden_acl_above_the_path_is_not_copied(sides, path):
    source, target = sides
    # Only accounts with ADMIN see the hash.
    rest = security.make_acl("world", "anyone", read=True, create=True)
    acl = [security.make_digest_acl("boss", "right", all=True), rest]
    source.client.create(path, b"", acl=acl)
    source.client.create(f"{path}/a", b"")
    error = sides.copy("--path", f"{path}/a", status=1)
    assert f"{path}: its ACL is hidden; give --from-auth" in error
    assert target.client.exists(path) is None
    assert sides.copy("--path", f"{path}/a", "--from-auth", "digest:boss:right")["verified"]


def the_counter_of_the_root_is_raised_too(request, sides, tmp_path):
    both = Sides(PAIRS[0], tmp_path)
    request.addfinalizer(lambda: [side.close() for side in both])
    for _ in range(50):
        last = both.source.client.create("/item-", b"", sequence=True)
    for name in both.source.client.get_children("/"):
        if name.startswith("item-") and not last.endswith(name):
            both.source.client.delete(f"/{name}")
    assert both.copy()["low_counters"] == 1
    report = both.copy("--sequences")
    assert (report["verified"], report["low_counters"], report["raised_counters"]) == (True, 0, 1)
    made = [side.client.create("/item-", b"", sequence=True) for side in both]
    assert made[0] == made[1]


def a_path_that_is_not_there_is_refused(sides, path):
    error = sides.copy("--path", f"{path}/none", status=1)
    assert f"--path {path}/none" in error and "no such znode" in error


def a_copy_of_a_server_onto_itself_is_refused_under_all_of_its_names(sides, path):
    source, _ = sides
    source.client.create(path, b"")
    port = source.server.hosts.rsplit(":", 1)[1]
    for hosts in [f"127.0.0.1:{port}", f"localhost:{port}", f"0.0.0.0:{port}", f"127.0.0.1:1,localhost:{port}"]:
        command = [servers.Landfast.program, "zookeeper", "copy", "--from", f"127.0.0.1:{port}", "--to", hosts, "--path", path]
        done = subprocess.run(command, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
        assert (done.returncode, done.stdout) == (1, ""), (hosts, done.stdout)
        assert "--from and --to are the same server: " in done.stderr, (hosts, done.stderr)


def containers_and_ttl_znodes_keep_their_kind_by_patterns(sides, path):
    source, target = sides
    source.client.create(path, b"")
    source.create_all([f"{path}/c1", f"{path}/c1/x", f"{path}/t1"])
    report = sides.copy("--path", path, "--containers", f"{path}/c*", "--ttl", f"{path}/t*=700")
    assert (report["containers"], report["ttls"]) == (1, 1)
    target.client.delete(f"{path}/c1/x")
    waiting.until(lambda: not target.client.exists(f"{path}/c1"), "the container to go after its child")
    waiting.until(lambda: not target.client.exists(f"{path}/t1"), "the end of the TTL")


def sequence_numbers_go_on_when_told(sides, path):
    source, target = sides
    source.client.create(path, b"")
    for _ in range(400):
        last = source.client.create(f"{path}/item-", b"", sequence=True)
    for name in source.client.get_children(path):
        if not last.endswith(name):
            source.client.delete(f"{path}/{name}")
    report = sides.copy("--path", path)
    assert (report["verified"], report["low_counters"]) == (True, 1)
    report = sides.copy("--path", path, "--sequences")
    assert (report["verified"], report["low_counters"], report["raised_counters"]) == (True, 0, 1)
    made = [side.client.create(f"{path}/item-", b"", sequence=True) for side in sides]
    assert made[0] == made[1] == f"{path}/item-0000000400"


def a_copy_goes_on_after_a_restart_of_the_target(sides, path):
    source, target = sides
    paths = source.fill(path)
    copying = sides.start("--path", path)
    waiting.until(lambda: target.client.exists(path), "the copy to begin")
    target.server.kill()
    target.server.start()
    report = sides.ended(copying)
    assert report["verified"] and report["equal"] == len(paths)


def a_znode_beyond_the_packet_limit_of_the_target_is_named_and_the_others_are_copied(sides, path, tmp_path):
    source, _ = sides
    paths = source.fill(path)
    source.client.create(f"{path}/long", bytes(150_000))
    strict = StrictLandfast(tmp_path).start()
    try:
        command = [strict.program, "zookeeper", "copy", "--json", "--from", source.server.hosts, "--to", strict.hosts]
        copying = subprocess.Popen([*command, "--path", path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        report = sides.ended(copying, 1)
    finally:
        strict.stop()
    assert (report["equal"], report["failed"]) == (len(paths), 1)
    (difference,) = report["differences"]
    assert difference["path"] == f"{path}/long" and "--zookeeper-packet-bytes-max" in difference["what"]


CONNECTED = struct.pack(">iiiqi16sb", 37, 0, 30000, 1, 16, bytes(16), 0)


@pytest.mark.parametrize(
    ("connected", "answer"),
    [
        (b"", b""),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", b""),
        (b"\xff\xff\xff\xff", b""),
        (b"\0\0\0\x04\0\0\0\0", b""),
        (struct.pack(">iiiqi16sb", 37, 0, 0, 0, 16, bytes(16), 0), b""),
        (CONNECTED, b""),
        (CONNECTED, b"\0\0\0\x03abc"),
        (CONNECTED, b"\x7f\xff\xff\xff"),
        (CONNECTED, struct.pack(">iiqi", 16, 77, 0, 0)),
        (CONNECTED, struct.pack(">iiqi", 16, 1, 0, 0)),
        (CONNECTED, struct.pack(">iiqii", 20, 1, 0, 0, 0x7FFFFFFF)),
    ],
    ids=str,
)
def a_peer_that_is_no_zookeeper_is_named(sides, connected, answer):
    """Whatever it sends, the command ends with an error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]

        def serve():
            while True:
                try:
                    connection = listener.accept()[0]
                except OSError:
                    return
                with connection:
                    connection.settimeout(10)
                    try:
                        connection.recv(100)
                        connection.sendall(connected)
                        if connected == CONNECTED:
                            connection.recv(100)
                            connection.sendall(answer)
                    except OSError:
                        pass

        serving = threading.Thread(target=serve, daemon=True)
        serving.start()
        command = [servers.Landfast.program, "zookeeper", "copy", "--from", f"127.0.0.1:{port}"]
        command += ["--to", sides.target.server.hosts]
        done = subprocess.run(command, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
        listener.shutdown(socket.SHUT_RDWR)
        serving.join(waiting.GUARD_SECONDS)
    assert done.returncode == 1 and done.stderr.startswith("landfast: ") and not done.stdout, (done.stderr, done.stdout)
    assert f"127.0.0.1:{port}" in done.stderr
