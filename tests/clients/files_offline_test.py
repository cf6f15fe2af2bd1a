"""`landfast files check --offline`: a volume in a data directory that no server uses."""

import json
import os
import subprocess
import zlib

import pytest

import waiting


@pytest.fixture
def landfast(own_server):
    """A server of the test's own, which may be stopped."""
    if type(own_server).__name__ != "Landfast":
        pytest.skip("only the embedded store has a data directory")
    return own_server


@pytest.fixture
def files(landfast):
    """Runs `landfast files`; the process that has ended."""

    def run(*arguments, **options):
        environment = {**os.environ, "LANDFAST_URL": f"http://127.0.0.1:{landfast.http_port}"}
        command = [landfast.program, "files", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, env=environment, timeout=100, **options)

    return run


@pytest.fixture
def check(landfast, files):
    """An offline check; the process that has ended."""

    def run(*options, volume="demo", directory=None):
        directory = directory or landfast.directory / "data"
        ended = files("check", volume, "--offline", "--data-dir", directory, *options)
        assert b"panicked" not in ended.stderr
        return ended

    return run


@pytest.fixture
def filled(landfast, files):
    """A volume with small files, and a long one in an object; the server is killed. The object's path."""
    assert files("create", "demo").returncode == 0
    for n in range(20):
        assert files("put", "-", "demo", f"small{n}", input=b"x" * n).returncode == 0
    assert files("put", "-", "demo", "long", input=os.urandom(3 << 20)).returncode == 0
    installed = lambda: json.loads(files("show", "demo", "--json").stdout)["bytes"] > 3 << 20  # noqa: E731
    waiting.until(installed, "the rows that name the object")
    # Durable, and so are these rows.
    assert files("put", "-", "demo", "last", input=b"x").returncode == 0
    landfast.kill()
    folder = landfast.directory / "data/objects/volumes"
    (path,) = folder.glob("*/" + "[0-9a-f]" * 32)
    return path


def _flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def a_volume_of_a_killed_server_is_checked_and_served_again(landfast, files, check, filled):
    found = check()
    assert (found.returncode, found.stderr) == (0, b"")
    assert found.stdout == (
        b"checked 1 objects of large values\nchecked 23 inodes, 22 names, 212 blocks: 0 problems are left\n"
    )
    report = json.loads(check("--repair", "--json").stdout)
    assert (report["findings"], report["objects"]["findings"], report["store_damage"]) == ([], [], None)
    landfast.start()
    assert files("check", "demo").stdout.endswith(b"212 blocks: 0 problems are left\n")
    refused = check()
    assert refused.returncode == 1 and b"leave out --offline while a server runs" in refused.stderr


def objects_that_are_damaged_missing_or_unused_are_named(landfast, files, check, filled):
    unused = filled.with_name("0" * 32)
    unused.write_bytes(b"left by a crash")
    _flip(filled, 2_000_000)
    found = check()
    assert found.returncode == 1
    lines = found.stdout.decode().splitlines()
    assert lines[0].startswith("/long: damaged block ")
    assert lines[1] == f"volumes/{filled.parent.name}/{filled.name}: damaged object (repair impossible)"
    assert lines[2].startswith("checked 2 objects of large values; 1 hold none")
    assert lines[3].endswith(": 2 problems are left")
    repaired = check("--repair")
    assert repaired.returncode == 1 and b"; deleted 1 that held none\n" in repaired.stdout
    assert filled.exists() and not unused.exists()
    data = filled.read_bytes()
    filled.unlink()
    found = check("--repair")
    assert b": missing object (repair impossible)\n" in found.stdout, found.stdout
    # Restored from a copy.
    filled.write_bytes(data)
    _flip(filled, 2_000_000)
    assert check("--repair").returncode == 0
    landfast.start()
    assert files("check", "demo").stdout.endswith(b": 0 problems are left\n")


def damage_of_the_store_is_named(landfast, check, filled):
    store = landfast.directory / "data/state.redb"
    whole = store.read_bytes()
    for part in range(1, 6):
        store.write_bytes(whole)
        _flip(store, len(whole) * part // 6)
        found = check()
        said = found.stdout + found.stderr
        assert found.returncode == 0 or b"state.redb is damaged at byte" in said, said


def places_without_a_store_are_refused_and_nothing_is_made(landfast, check, filled, tmp_path):
    refused = check(directory=tmp_path / "none")
    assert refused.returncode == 1 and b"no such directory" in refused.stderr
    refused = check(directory=tmp_path)
    assert refused.returncode == 1 and b"no server has kept anything there" in refused.stderr
    assert not (tmp_path / "none").exists() and not (tmp_path / "LOCK").exists()
    refused = check(volume="none")
    assert refused.returncode == 1 and b"no such volume" in refused.stderr
    refused = check("--objects", f"file://{tmp_path}/none")
    assert refused.returncode == 1 and b"no such directory" in refused.stderr
    record = landfast.directory / "data/format"
    lines = record.read_text().splitlines()
    newer = "\n".join(["landfast embedded", "format 9", "readable by 9.0.0", *lines[3:-1]]) + "\n"
    record.write_text(f"{newer}check {zlib.crc32(newer.encode()):08x}\n")
    refused = check()
    assert refused.returncode == 1 and b"format 9" in refused.stderr, refused.stderr
