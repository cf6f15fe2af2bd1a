"""Volumes as users meet them: the commands, curl, and fsspec with what stands on it."""

import json
import os
import subprocess
import sys
import uuid

import fsspec
import pytest

import server as servers

sys.path.insert(0, str(servers.REPOSITORY / "clients/python"))

from landfast._fsspec import LandfastFileSystem  # noqa: E402

fsspec.register_implementation("landfast", LandfastFileSystem, clobber=True)


@pytest.fixture
def command(server):
    """Runs `landfast files`; the process that has ended."""
    if type(server).__name__ != "Landfast":
        pytest.skip("volumes are tested on the embedded store")

    def run(*arguments, **options):
        environment = {**os.environ, "LANDFAST_URL": f"http://127.0.0.1:{server.http_port}"}
        command = [server.program, "files", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, env=environment, timeout=60, **options)

    return run


@pytest.fixture
def done(command):
    """The same for commands that succeed; what they print."""

    def run(*arguments, **options):
        ended = command(*arguments, **options)
        assert ended.returncode == 0, ended.stderr
        return ended.stdout

    return run


@pytest.fixture
def volume(done):
    """A volume of the test's own."""
    name = f"v{uuid.uuid4().hex[:12]}"
    done("create", name)
    yield name
    done("delete", name, "--yes")


@pytest.fixture
def fs(server, volume):
    """fsspec on the server."""
    return LandfastFileSystem(url=f"http://127.0.0.1:{server.http_port}", skip_instance_cache=True)


def commands_copy_files_in_and_out(done, command, volume, tmp_path):
    long = os.urandom(40 << 20)
    (tmp_path / "long").write_bytes(long)
    done("put", tmp_path / "long", volume, "/long")
    done("put", "-", volume, "dir a", input=b"")
    assert done("cat", volume, "dir a") == b""
    done("get", volume, "long", tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == long
    done("mkdir", volume, "x/y")
    done("mv", volume, "dir a", "x/y/\u00fc")
    listed = done("ls", volume, "x/y").decode()
    assert listed.startswith("-rw-r--r--") and listed.endswith("Z \u00fc\n"), listed
    entries = [json.loads(line) for line in done("ls", volume, "--json").splitlines()]
    assert [(entry["name"], entry["type"], entry["size"]) for entry in entries] == [
        ("long", "file", len(long)),
        ("x", "directory", 0),
    ]
    done("rm", volume, "x/y/\u00fc")
    done("rm", volume, "x/y")
    refused = command("rm", volume, "x/y")
    assert refused.returncode == 1 and b"(no-such-file)" in refused.stderr


def the_creator_owns_the_root_directory(fs, volume):
    root = fs.info(volume)
    assert (root["uid"], root["gid"], root["mode"]) == (os.getuid(), os.getgid(), 0o755)
    fs.pipe(f"{volume}/a", b"x")
    assert fs.info(f"{volume}/a")["uid"] == os.getuid()


def a_volume_is_listed_with_its_quota_and_deleted_on_purpose(done, command, volume):
    done("quota", volume, "2MiB")
    shown = json.loads(done("show", volume, "--json"))
    assert (shown["name"], shown["block_bytes"], shown["quota_bytes"]) == (volume, 16384, 2 << 20)
    assert b"quota      2.0 MiB" in done("show", volume)
    assert any(line.startswith(volume.encode()) for line in done("list").splitlines())
    refused = command("put", "-", volume, "a", input=b"x" * (4 << 20))
    assert refused.returncode == 1 and b"(quota-exceeded)" in refused.stderr
    done("quota", volume, "none")
    done("put", "-", volume, "a", input=b"x" * (4 << 20))
    kept = command("delete", volume, stdin=subprocess.DEVNULL)
    assert kept.returncode == 1 and b"--yes" in kept.stderr
    assert b"a" in done("ls", volume)
    for arguments, name in (
        (["create", volume], b"(volume-exists)"),
        (["create", "UPPER"], b"(invalid-request)"),
        (["show", "none"], b"(no-such-volume)"),
        (["cat", volume, "a/b"], b"(file-conflict)"),
        (["cat", volume, "a", "--snapshot", "none"], b"(no-such-snapshot)"),
    ):
        refused = command(*arguments)
        assert refused.returncode == 1 and name in refused.stderr, (arguments, refused.stderr)


def a_check_finds_a_sound_volume_sound(done, volume):
    done("mkdir", volume, "a")
    done("put", "-", volume, "a/b", input=b"x" * 100_000)
    assert done("check", volume) == b"checked 3 inodes, 2 names, 7 blocks: 0 problems are left\n"
    report = json.loads(done("check", volume, "--repair", "--json"))
    assert (report["findings"], report["counts"]["bytes"]) == ([], 100_000)


def a_snapshot_keeps_the_past(done, volume, server):
    done("put", "-", volume, "a", input=b"old")
    done("snapshot", "take", volume, "monday")
    done("put", "-", volume, "a", input=b"new")
    assert done("cat", volume, "a", "--snapshot", "monday") == b"old"
    assert done("cat", volume, "a") == b"new"
    assert done("snapshot", "list", volume) == b"monday\n"
    old = LandfastFileSystem(url=f"http://127.0.0.1:{server.http_port}", snapshot="monday", skip_instance_cache=True)
    assert old.cat(f"{volume}/a") == b"old"
    done("snapshot", "delete", volume, "monday")
    assert done("snapshot", "list", volume) == b""


def files_survive_a_kill_of_the_server(own_server):
    if type(own_server).__name__ != "Landfast":
        pytest.skip("volumes are tested on the embedded store")
    fs = LandfastFileSystem(url=f"http://127.0.0.1:{own_server.http_port}", skip_instance_cache=True)
    fs.client.volumes().create("kept")
    for n in range(50):
        fs.pipe(f"kept/{n}", str(n).encode() * 1000)
    own_server.kill()
    own_server.start()
    assert [fs.cat(f"kept/{n}") for n in range(50)] == [str(n).encode() * 1000 for n in range(50)]
    fs.pipe("kept/after", b"x")
    assert len(fs.ls("kept")) == 51


def fsspec_reads_and_writes_as_it_does_elsewhere(fs, volume):
    fs.makedirs(f"{volume}/a/b")
    with fs.open(f"{volume}/a/b/text", "w") as file:
        file.write("one\ntwo\n")
    with fs.open(f"{volume}/a/b/text", "ab") as file:
        file.write(b"three\n")
    with fs.open(f"{volume}/a/b/text") as file:
        assert file.readline() == b"one\n" and file.seek(-6, 2) and file.read() == b"three\n"
    assert fs.cat_file(f"{volume}/a/b/text", -6, -1) == b"three"
    assert fs.find(volume) == [f"{volume}/a/b/text"]
    assert fs.glob(f"{volume}/*/b/t*") == [f"{volume}/a/b/text"]
    assert fs.isdir(f"{volume}/a") and fs.isfile(f"{volume}/a/b/text") and not fs.exists(f"{volume}/none")
    fs.cp(f"{volume}/a/b/text", f"{volume}/copy")
    fs.mv(f"{volume}/copy", f"{volume}/moved")
    assert fs.cat(f"{volume}/moved") == b"one\ntwo\nthree\n" and not fs.exists(f"{volume}/copy")
    fs.rm(f"{volume}/a", recursive=True)
    assert fs.ls(volume, detail=False) == [f"{volume}/moved"]


def a_long_file_appears_whole_when_it_is_closed(fs, volume):
    data = os.urandom((16 << 20) + 5) * 2
    file = fs.open(f"{volume}/long", "wb")
    file.write(data[: 20 << 20])
    assert not fs.exists(f"{volume}/long")
    file.write(data[20 << 20 :])
    file.close()
    assert fs.cat(f"{volume}/long") == data
    assert fs.ls(volume, detail=False) == [f"{volume}/long"]
    with fs.open(f"{volume}/long") as read:
        read.seek(1)
        fs.pipe(f"{volume}/long", data[:100])
        with pytest.raises(OSError):
            read.read(30 << 20)


def refusals_are_the_errors_of_the_operating_system(fs, volume):
    fs.pipe(f"{volume}/a", b"x")
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{volume}/none")
    with pytest.raises(FileNotFoundError):
        fs.ls("no-volume")
    with pytest.raises(FileExistsError):
        fs.mkdir(f"{volume}/a")
    with pytest.raises(FileExistsError):
        with fs.open(f"{volume}/a", "xb") as file:
            file.write(b"y")
    with pytest.raises(NotADirectoryError):
        fs.cat(f"{volume}/a/b")
    with pytest.raises(NotADirectoryError):
        fs.rmdir(f"{volume}/a")
    assert fs.cat(f"{volume}/a") == b"x"
