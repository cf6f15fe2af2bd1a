"""`landfast backup` and `landfast restore`: the whole store of a running server in a file, and a server on it."""

import fcntl
import json
import os
import resource
import shutil
import signal
import subprocess
import threading
from http.client import HTTPException

import pytest
from botocore.exceptions import BotoCoreError
from kazoo.exceptions import KazooException, NoNodeError

import http_api
import s3_server
import server as servers
import waiting
from distant_objects_test import BUCKET, OnDistantStore, far, near  # noqa: F401
from s3_server import MIB


@pytest.fixture
def server(tmp_path):
    if os.environ.get("LANDFAST_TEST_PROVIDER"):
        pytest.skip("only the embedded store has backups")
    folder = tmp_path / "first"
    folder.mkdir()
    running = s3_server.Landfast(folder).start()
    yield running
    running.shut_down()


@pytest.fixture
def run(tmp_path):
    """Runs the program on a server; the process that has ended."""

    def run(server, *arguments, variables=(), **options):
        url = f"{getattr(server, 'scheme', 'http')}://127.0.0.1:{server.http_port}"
        environment = {**os.environ, "LANDFAST_URL": url, **dict(variables)}
        command = [server.program, *map(str, arguments)]
        options = {"timeout": waiting.GUARD_SECONDS, "cwd": tmp_path, **options}
        ended = subprocess.run(command, capture_output=True, env=environment, **options)
        assert b"panicked" not in ended.stderr
        return ended

    return run


@pytest.fixture
def restored(run, tmp_path):
    """A server on a restored backup, which is started by the test."""
    started = []

    def restore(server, file, kind=s3_server.Landfast):
        folder = tmp_path / f"restored{len(started)}"
        folder.mkdir()
        done = run(server, "restore", file, "--data-dir", folder / "data", "--json")
        assert done.returncode == 0, done.stderr
        running = kind(folder)
        started.append(running)
        return running, json.loads(done.stdout)

    yield restore
    for running in started:
        running.shut_down()


def _until_stopped(stop, step):
    """Repeats `step(number)` in a thread, until told to stop or until the server is gone."""
    done = [0]

    def repeat():
        number = 0
        while not stop.is_set():
            number += 1
            try:
                step(number)
            except (KazooException, BotoCoreError, HTTPException, OSError, AssertionError):
                return
            done[0] = number

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    return done, thread


def a_backup_under_load_is_of_one_moment(server, run, restored, clients, tmp_path):
    client, s3, api = clients(server), s3_server.client(server.s3_url), http_api.Api(server)
    s3.create_bucket(Bucket="bucket")
    client.create("/left", b"0")
    client.create("/right", b"0")
    assert run(server, "files", "create", "demo").returncode == 0

    def znodes(number):
        pair = client.transaction()
        pair.set_data("/left", str(number).encode())
        pair.set_data("/right", str(number).encode())
        assert not any(isinstance(result, Exception) for result in pair.commit())

    def state(number):
        transaction = api.begin()
        for key in ("left", "right"):
            transaction.put(key, str(number).encode())
        transaction.commit()

    def volume(number):
        # A large value lies in an object, and the object of the last one is collected.
        content = bytes([number % 256]) * (2 * MIB)
        assert run(server, "files", "put", "-", "demo", "file", input=content).returncode == 0

    def objects(number):
        s3.put_object(Bucket="bucket", Key="k", Body=str(number).encode() * 10_000)

    stop = threading.Event()
    loads = [_until_stopped(stop, step) for step in (znodes, state, volume, objects)]
    for n in range(3):
        reached = [done[0] for done, _ in loads]
        waiting.until(lambda: all(done[0] > now for (done, _), now in zip(loads, reached)), "every load to advance")
        reached = [done[0] for done, _ in loads]
        taken = run(server, "backup", f"{n}.lf", "--json")
        assert taken.returncode == 0, taken.stderr
        assert (tmp_path / f"{n}.lf").stat().st_mode & 0o777 == 0o600
        assert json.loads(taken.stdout) == json.loads(run(server, "backup", f"{n}.lf", "--verify", "--json").stdout)
    server.kill()
    stop.set()
    for _, thread in loads:
        thread.join(waiting.GUARD_SECONDS)
    copy, report = restored(server, "2.lf")
    assert report["objects"] > 0
    checked = run(copy, "files", "check", "demo", "--offline", "--data-dir", copy.directory / "data")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    copy.start()
    after, s3, api = clients(copy), s3_server.client(copy.s3_url), http_api.Api(copy)
    left = int(after.get("/left")[0])
    assert (left, left >= reached[0]) == (int(after.get("/right")[0]), True)
    left = int(api.state("left"))
    assert (left, left >= reached[1]) == (int(api.state("right")), True)
    got = run(copy, "files", "get", "demo", "file", tmp_path / "file")
    assert got.returncode == 0, got.stderr
    content = (tmp_path / "file").read_bytes()
    assert len(content) == 2 * MIB and content == content[:1] * len(content)
    content = s3.get_object(Bucket="bucket", Key="k")["Body"].read()
    number = content[: len(content) // 10_000]
    assert content == number * 10_000 and int(number) >= reached[3]
    # It is a server like any other.
    after.set("/left", b"later")
    volume_again = run(copy, "files", "put", "-", "demo", "file", input=b"later")
    assert volume_again.returncode == 0, volume_again.stderr
    assert not list((copy.directory / "data/objects").rglob("*#*")), "held names are not in a backup"


def sessions_live_on_and_their_timeouts_start_again(server, run, restored, clients):
    client = clients(server, timeout=4)
    client.create("/mine", b"", ephemeral=True)
    owner = client.client_id[0]
    assert run(server, "backup", "b.lf").returncode == 0
    copy, _ = restored(server, "b.lf")
    client.stop()
    copy.start()
    other = clients(copy)
    assert other.get("/mine")[1].ephemeralOwner == owner
    waiting.until(lambda: not other.exists("/mine"), "the session to expire")


def a_damaged_or_cut_backup_is_refused_with_its_frame(server, run, tmp_path):
    for n in range(50):
        assert run(server, "state", "put", f"k{n}", os.urandom(200).hex()).returncode == 0
    assert run(server, "backup", "b.lf").returncode == 0
    whole = (tmp_path / "b.lf").read_bytes()
    refused = run(server, "restore", "b.lf", "--data-dir", server.directory / "data")
    assert refused.returncode == 1 and b"is not empty" in refused.stderr
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 4
    for name, content, said in (("flipped", flipped, b"damaged in frame"), ("cut", whole[:-7], b"it is cut off")):
        (tmp_path / name).write_bytes(content)
        for arguments in (["restore", name, "--data-dir", "new"], ["restore", name, "--dry-run"], ["backup", name, "--verify"]):
            refused = run(server, *arguments)
            assert refused.returncode == 1 and said in refused.stderr, refused.stderr
        piped = run(server, "restore", "-", "--data-dir", "new", input=bytes(content))
        assert piped.returncode == 1 and said in piped.stderr
        assert not [path for path in tmp_path.iterdir() if path.name.startswith("new")]
    piped = run(server, "restore", "-", "--data-dir", "new", input=whole)
    assert piped.returncode == 0 and (tmp_path / "new/state.redb").exists()


def an_interrupted_backup_leaves_no_file(server, run, tmp_path):
    assert run(server, "files", "create", "demo").returncode == 0
    for n in range(4):
        assert run(server, "files", "put", "-", "demo", f"f{n}", input=os.urandom(4 * MIB)).returncode == 0

    def small_files():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))

    full = run(server, "backup", "b.lf", preexec_fn=small_files)
    assert full.returncode == 1 and b"free disk space" in full.stderr, full.stderr
    assert not list(tmp_path.glob("b.lf*"))
    environment = {**os.environ, "LANDFAST_URL": f"http://127.0.0.1:{server.http_port}"}
    command = [server.program, "backup", "-"]
    pipe = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    # The pipe is full soon, and nothing more is taken.
    pipe.stdout.read(10_000)
    server.kill()
    _, said = pipe.communicate(timeout=waiting.GUARD_SECONDS)
    assert pipe.returncode == 1 and said
    server.start()
    waiting.until(lambda: not list((server.directory / "data/objects").rglob("*#*")), "the next start to clean up")
    assert run(server, "backup", "b.lf").returncode == 0


def a_backup_without_a_server_opens_the_directory(server, run, restored):
    assert run(server, "state", "put", "k", "v").returncode == 0
    place = ["--offline", "--data-dir", server.directory / "data"]
    refused = run(server, "backup", "b.lf", *place)
    assert refused.returncode == 1 and b"leave out --offline while a server runs" in refused.stderr
    server.kill()
    taken = run(server, "backup", "b.lf", *place)
    assert taken.returncode == 0, taken.stderr
    copy, _ = restored(server, "b.lf")
    copy.start()
    assert run(copy, "state", "get", "k").stdout == b"v"


class OnDirectory(s3_server.Landfast):
    """`landfast serve` with its objects in a directory of their own."""

    def options(self):
        return [*super().options(), "--objects", f"file://{self.directory}/objects"]


def a_backup_without_a_server_needs_the_objects_of_the_store(server, run, tmp_path):
    folder = tmp_path / "second"
    folder.mkdir()
    other = OnDirectory(folder).start()
    other.kill()
    place = ["--offline", "--data-dir", folder / "data"]
    refused = run(other, "backup", "b.lf", *place)
    assert refused.returncode == 1 and b"the store keeps objects elsewhere" in refused.stderr, refused.stderr
    typo = run(other, "backup", "b.lf", *place, "--objects", f"file://{folder}/typo")
    assert typo.returncode == 1 and b"there is no such directory" in typo.stderr, typo.stderr
    assert not (folder / "typo").exists()
    (folder / "empty").mkdir()
    wrong = run(other, "backup", "b.lf", *place, "--objects", f"file://{folder}/empty")
    assert wrong.returncode == 1 and b"not this store's" in wrong.stderr, wrong.stderr
    assert not list(tmp_path.glob("b.lf*"))
    taken = run(other, "backup", "b.lf", *place, "--objects", f"file://{folder}/objects")
    assert taken.returncode == 0, taken.stderr


class Guarded(servers.Landfast):
    """`landfast serve` with TLS, with keys of S3 clients that it makes, and with further options."""

    scheme = "https"
    more = ()

    def options(self):
        (self.directory / "token").write_text(TOKEN)
        files = ["--tls-cert", TLS / "server.pem", "--tls-key", TLS / "server-key.pem"]
        return [*super().options(), *files, *(option.format(ca=TLS / "ca.pem", directory=self.directory) for option in self.more)]


TLS = servers.REPOSITORY / "tests/clients/testdata/tls"
TOKEN = "only-bearers-of-this-may-ask"
TRUST = {"LANDFAST_TLS_CA": str(TLS / "ca.pem")}
CERTIFIED = {**TRUST, "LANDFAST_TLS_CLIENT_CERT": str(TLS / "client.pem"), "LANDFAST_TLS_CLIENT_KEY": str(TLS / "client-key.pem")}
FILE, CA, MODES = "--http-token-file={directory}/token", "--tls-client-ca={ca}", "--tls-client-certificates="


@pytest.mark.parametrize(
    ("options", "proof", "has_keys"),
    [
        ([], TRUST, False),
        ([FILE], {**TRUST, "LANDFAST_TOKEN": TOKEN}, True),
        ([CA], CERTIFIED, True),
        ([CA, MODES + "none,http=required"], CERTIFIED, True),
        ([CA, MODES + "http=none"], TRUST, False),
        ([CA, MODES + "optional"], CERTIFIED, False),
    ],
    ids=["tls", "token", "certificates", "certificates-for-http", "certificates-elsewhere", "certificates-optional"],
)
def the_keys_of_s3_are_given_only_to_clients_that_are_identified(run, restored, tmp_path, options, proof, has_keys):
    folder = tmp_path / "second"
    folder.mkdir()
    other = Guarded(folder)
    other.more = options
    other.start()
    try:
        if has_keys:
            refused = run(other, "backup", "b.lf", variables=TRUST)
            assert refused.returncode == 1 and not (tmp_path / "b.lf").exists(), refused.stderr
        taken = run(other, "backup", "b.lf", variables=proof)
        assert taken.returncode == 0, taken.stderr
    finally:
        other.kill()
    _has_keys_and_no_other_secret(other, restored, "b.lf", has_keys)


def _has_keys_and_no_other_secret(server, restored, file, has_keys):
    """The keys of S3 clients are inside or not; TLS keys and tokens never are."""
    keys = (server.directory / "data/s3-credentials").read_text()
    secret = next(line.partition("=")[2].strip() for line in keys.splitlines() if "secret" in line)
    copy, _ = restored(server, file, servers.Landfast)
    inside = {path: path.read_bytes() for path in (copy.directory / "data").rglob("*") if path.is_file()}
    holders = [path.name for path, content in inside.items() if secret.encode() in content]
    assert holders == ["s3-credentials"] * has_keys
    key = (TLS / "server-key.pem").read_bytes().splitlines()[1]
    assert not [path for path, content in inside.items() if key in content or TOKEN.encode() in content]
    copy.start()
    kept = copy.directory / "data/s3-credentials"
    assert kept.stat().st_mode & 0o777 == 0o600
    assert (kept.read_text() == keys) == has_keys, "a server without keys makes new ones"


def the_keys_of_s3_are_given_to_nobody_without_a_token(server, run, restored, tmp_path):
    folder = tmp_path / "second"
    folder.mkdir()
    other = servers.Landfast(folder)
    # It is asked for beyond loopback only.
    other.variables = {**other.variables, "LANDFAST_TOKEN": TOKEN}
    other.start()
    assert run(other, "backup", "open.lf").returncode == 0
    other.kill()
    assert run(other, "backup", "offline.lf", "--offline", "--data-dir", folder / "data").returncode == 0
    for file, has_keys in [("open.lf", False), ("offline.lf", True)]:
        _has_keys_and_no_other_secret(other, restored, file, has_keys)


def the_keys_of_s3_that_the_environment_gives_are_in_no_backup(server, run, restored, tmp_path):
    server.kill()
    assert run(server, "backup", "b.lf", "--offline", "--data-dir", server.directory / "data").returncode == 0
    copy, _ = restored(server, "b.lf")
    assert not (copy.directory / "data/s3-credentials").exists()
    files = [path for path in (copy.directory / "data").rglob("*") if path.is_file()]
    assert not [path for path in files if s3_server.SECRET_KEY.encode() in path.read_bytes()]


def two_backups_to_one_file_do_not_disturb_each_other(server, run, tmp_path):
    part = tmp_path / "b.lf.part"
    part.write_bytes(b"of another program")
    refused = run(server, "backup", "b.lf")
    assert refused.returncode == 1 and b"is not of a backup" in refused.stderr, refused.stderr
    assert part.read_bytes() == b"of another program"
    part.write_bytes(b"landfast backup 1 store")
    part.chmod(0o644)
    with part.open() as running:
        fcntl.flock(running, fcntl.LOCK_EX)
        refused = run(server, "backup", "b.lf")
        assert refused.returncode == 1 and b"another backup writes it" in refused.stderr, refused.stderr
        assert part.read_bytes() == b"landfast backup 1 store"
    # It was killed, so the next one takes its place.
    assert run(server, "backup", "b.lf").returncode == 0
    assert (tmp_path / "b.lf").stat().st_mode & 0o777 == 0o600
    assert not part.exists()
    assert run(server, "backup", "b.lf", "--verify").returncode == 0


def a_complete_backup_that_has_the_unfinished_name_too_is_kept(server, run, tmp_path):
    assert run(server, "backup", "b.lf").returncode == 0
    # A kill after the link, and the user moved the file.
    (tmp_path / "b.lf.part").hardlink_to(tmp_path / "b.lf")
    (tmp_path / "b.lf").rename(tmp_path / "moved.lf")
    whole = (tmp_path / "moved.lf").read_bytes()
    assert run(server, "backup", "b.lf").returncode == 0
    assert (tmp_path / "moved.lf").read_bytes() == whole
    assert not (tmp_path / "moved.lf").samefile(tmp_path / "b.lf")


def an_interrupted_restore_is_not_in_the_way(server, run, tmp_path):
    assert run(server, "backup", "b.lf").returncode == 0
    whole = (tmp_path / "b.lf").read_bytes()
    restore = [server.program, "restore", "-", "--data-dir", "new"]
    killed = subprocess.Popen(restore, cwd=tmp_path, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    killed.stdin.write(whole[:-7])
    killed.stdin.flush()
    waiting.until((tmp_path / "new.restoring/state.redb").exists, "the restore to write")
    refused = run(server, "restore", "b.lf", "--data-dir", "new")
    assert refused.returncode == 1 and b"another restore to this directory runs" in refused.stderr, refused.stderr
    killed.kill()
    killed.wait()
    assert (tmp_path / "new.restoring").exists()
    assert run(server, "restore", "b.lf", "--data-dir", "new").returncode == 0
    assert not (tmp_path / "new.restoring").exists()


def objects_in_a_distant_store_are_listed(near, run, restored, far):  # noqa: F811
    s3 = s3_server.client(near.s3_url)
    s3.put_object(Bucket=BUCKET, Key="k", Body=b"x" * 100_000)
    waiting.until(near.is_drained, "the object to be copied")
    taken = run(near, "backup", "b.lf")
    assert taken.returncode == 0 and b"are needed and not inside" in taken.stdout, taken

    def kind(folder):
        server = OnDistantStore(folder)
        server.far = far
        return server

    near.kill()
    copy, report = restored(near, "b.lf", kind)
    assert report["absent_objects"] > 0 and report["absent_at"].startswith("s3://far")
    copy.start()
    content = s3_server.client(copy.s3_url).get_object(Bucket=BUCKET, Key="k")["Body"].read()
    assert content == b"x" * 100_000


def the_root_of_a_restored_tree_has_what_the_first_one_had(server, run, restored, clients):
    client = clients(server)
    for n in range(100):
        client.create(f"/n{n}", bytes(n), sequence=n % 2 == 0)
    assert run(server, "backup", "b.lf").returncode == 0
    client.create("/later")
    copy, _ = restored(server, "b.lf")
    copy.start()
    after = clients(copy)
    before = {name: client.get(f"/{name}") for name in client.get_children("/") if name not in ("later", "zookeeper")}
    assert {name: after.get(f"/{name}") for name in before} == before
    with pytest.raises(NoNodeError):
        after.get("/later")
    assert after.create("/n", sequence=True) == "/n0000000100", "the counter goes on"


class InObjects(s3_server.Landfast):
    """`landfast serve` with the data of znodes in objects."""

    def options(self):
        return [*super().options(), "--user-store", "objects"]


def a_resumed_session_does_not_meet_objects_of_the_lost_time(run, restored, clients, tmp_path):
    folder = tmp_path / "second"
    folder.mkdir()
    first = InObjects(folder).start()
    client = clients(first)
    client.create("/kept", b"before")
    client.create("/changed", b"before")
    assert run(first, "backup", "b.lf").returncode == 0
    for n in range(5):
        client.create(f"/lost{n}", b"of the lost time")
    session = client.client_id
    first.kill()
    copy, _ = restored(first, "b.lf", InObjects)
    objects = copy.directory / "data/objects"
    before = {path for path in objects.rglob("*") if path.is_file()}
    shutil.copytree(folder / "data/objects", objects, dirs_exist_ok=True)
    assert {path for path in objects.rglob("*") if path.is_file()} - before, "objects of the lost time are there"
    copy.start()
    resumed = clients(copy, client_id=session)
    assert resumed.client_id == session
    resumed.set("/changed", b"of this timeline")
    assert resumed.get("/changed")[0] == b"of this timeline"
    assert resumed.get("/kept")[0] == b"before"
