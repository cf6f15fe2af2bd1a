"""`landfast files mount`: volumes as directories, through real mounts of a real server."""

import contextlib
import errno
import json
import os
import signal
import sqlite3
import subprocess
import time
from random import Random

import pytest

import files_mount
import waiting


@pytest.fixture
def mounts(server, tmp_path):
    yield from files_mount.mounts_of(server, tmp_path)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def a_signal_unmounts(mounts, name):
    at, process = mounts.start("a", "--json")
    assert json.loads(mounts.line) == {"volume": mounts.volume, "directory": str(at)}
    (at / "f").write_text("hello")
    assert mounts.api.ask("GET", f"/v1/volumes/{mounts.volume}/files/f").body == b"hello"
    assert files_mount.ended(process, signal.Signals[name]) == 0
    assert list(at.iterdir()) == []
    at, process = mounts.start("a")
    assert mounts.line == f"mounted {mounts.volume} on {at}\n"
    assert (at / "f").read_text() == "hello"
    subprocess.run(["umount", at], check=True)
    assert process.wait(waiting.GUARD_SECONDS) == 0, "an unmount from outside ends the process"


def open_files_outlive_the_unmount(mounts):
    at, process = mounts.start("a")
    with open(at / "f", "w") as file:
        process.send_signal(signal.SIGTERM)
        waiting.until(lambda: not (at / "f").exists(), "the unmount")
        file.write("late")
    assert process.wait(waiting.GUARD_SECONDS) == 0
    at, _ = mounts.start("a")
    assert (at / "f").read_text() == "late"


def what_cannot_be_mounted_is_refused(mounts, tmp_path):
    missing, file = tmp_path / "missing", tmp_path / "file"
    file.touch()
    for at, words in ((missing, "No such file"), (file, "must be a directory")):
        told = mounts.refused(at)
        assert str(at) in told and words in told, told
    at, _ = mounts.start("a", "--read-only")
    with pytest.raises(OSError) as refused:
        (at / "f").touch()
    assert refused.value.errno == errno.EROFS
    assert "no server answers" in mounts.refused(tmp_path, "--volumes-socket", str(tmp_path / "none.sock"))
    mounts.volume = "nowhere"
    told = mounts.refused(tmp_path)
    assert "nowhere" in told and "no such volume" in told, told


def programs_work_across_mounts(mounts):
    (one, _), (two, _) = mounts.start("one"), mounts.start("two")
    script = f"{files_mount.GIT} git init -q -b main repo; cd repo; seq 100 > f; git add f; git commit -qm first"
    files_mount.sh(one, script)
    assert files_mount.sh(two, "git clone -q repo copy; git -C copy fsck --full --strict; git -C copy log --oneline | wc -l") == "1\n"
    assert files_mount.sh(one, "git -C copy gc -q; git -C copy status --porcelain; cat copy/f | wc -l") == "100\n"
    with sqlite3.connect(one / "database") as connection:
        connection.execute("CREATE TABLE numbers (value)")
        connection.execute("INSERT INTO numbers VALUES (0)")
    connection.close()
    command = ["python3", "-c", files_mount.INCREMENTS]
    processes = [subprocess.Popen([*command, str(at / "database")]) for at in (one, two)]
    assert [process.wait(waiting.GUARD_SECONDS) for process in processes] == [0, 0]
    connection = sqlite3.connect(two / "database")
    assert connection.execute("SELECT value FROM numbers").fetchone() == (60,)
    assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


def mounts_see_each_change_at_once(mounts, tmp_path):
    """Each call of one mount returns before the other one looks. Both have it in memory."""
    places = [mounts.start(name)[0] for name in ("one", "two")]
    model = tmp_path / "model"
    model.mkdir()
    lookers = [subprocess.Popen(["python3", "-c", files_mount.LOOK, str(at), str(os.getpid())]) for at in places]
    try:
        for round in range(150):
            writer, reader = Random(round).sample(places, 2)
            files_mount.change(model, Random(round))
            files_mount.change(writer, Random(round))
            assert files_mount.seen(reader) == files_mount.seen(model), round
            if round % 10 == 0:
                # What was written rests for a second before it is cached again.
                time.sleep(1.1)
                assert files_mount.seen(reader) == files_mount.seen(writer) == files_mount.seen(model)
    finally:
        for looker in lookers:
            looker.kill()
            looker.wait(waiting.GUARD_SECONDS)


def a_stopped_mount_holds_up_a_write_for_a_while_and_is_not_stale(mounts):
    (one, process), (two, _) = mounts.start("one"), mounts.start("two")
    (two / "f").write_text("old")
    files_mount.warmed(one, "old")
    process.send_signal(signal.SIGSTOP)
    try:
        began = time.monotonic()
        (two / "f").write_text("new")
        took = time.monotonic() - began
    finally:
        process.send_signal(signal.SIGCONT)
    assert (one / "f").read_text() == "new"
    # Its lease ends after 2.1 s at the latest.
    assert took < 4, took


def mounts_with_leases_outlive_a_killed_server(own_server, tmp_path):
    for mounts in files_mount.mounts_of(own_server, tmp_path):
        (one, _), (two, _) = mounts.start("one"), mounts.start("two")
        (two / "f").write_text("first")
        for round in range(3):
            files_mount.warmed(one, (two / "f").read_text())
            own_server.kill()
            own_server.start()
            (two / "f").write_text(f"round {round}")
            assert (one / "f").read_text() == f"round {round}"


def a_killed_mount_is_replaced_and_its_locks_end(mounts):
    (one, process), (two, _) = mounts.start("one"), mounts.start("two")
    for round in range(3):
        file = os.open(one / f"f{round}", os.O_CREAT | os.O_WRONLY)
        os.write(file, b"synced")
        os.fsync(file)
        holder = subprocess.Popen(["flock", one / f"f{round}", "sleep", "100"])
        waiting.until(lambda: files_mount.locked(two / f"f{round}"), "the lock")
        files_mount.ended(process, signal.SIGKILL)
        with contextlib.suppress(OSError):
            os.close(file)
        holder.kill()
        holder.wait(waiting.GUARD_SECONDS)
        with pytest.raises(OSError) as dead:
            os.listdir(one)
        assert dead.value.errno == errno.ENOTCONN
        waiting.until(lambda: not files_mount.locked(two / f"f{round}"), "the end of the lock")
        _, process = mounts.start("one")
        assert "detached a mount whose process had died" in (mounts.folder / "one.log").read_text()
        assert (one / f"f{round}").read_text() == "synced"


def a_killed_server_loses_nothing_that_was_synced(own_server, tmp_path):
    for mounts in files_mount.mounts_of(own_server, tmp_path):
        at, _ = mounts.start("a")
        with open(at / "f", "ab", buffering=0) as file:
            for round in range(3):
                file.write(b"synced %d\n" % round)
                os.fsync(file.fileno())
                own_server.kill()
                own_server.start()
                # Calls wait for the server. A fault of what was not synced shows once.
                waiting.until(lambda: (at / "f").read_bytes().count(b"synced") == round + 1, "the file")
            os.unlink(at / "f")
            assert os.fstat(file.fileno()).st_nlink == 0
        assert os.listdir(at) == []


@pytest.mark.parametrize("seed", [1, 2])
def calls_on_two_mounts_are_those_of_a_local_directory(mounts, tmp_path, seed):
    trees = [mounts.start(name)[0] for name in ("one", "two")]
    local = tmp_path / "local"
    local.mkdir()
    random = Random(seed)
    for step in range(1_000):
        call = files_mount.drawn(random)
        found = files_mount.called(random.choice(trees), call)
        assert found == files_mount.called(local, call), (seed, step, call[:5])


def what_was_read_lately_needs_no_server(own_server, tmp_path):
    for mounts in files_mount.mounts_of(own_server, tmp_path):
        at, _ = mounts.start("a")
        (at / "d" / "e").mkdir(parents=True)
        (at / "d" / "e" / "f").write_text("text")
        with open(at / "d" / "e" / "f") as file:
            for _ in range(20):
                assert os.stat(at / "d" / "e" / "f").st_size == len(os.pread(file.fileno(), 9, 0))
                time.sleep(0.08)
            own_server.process.send_signal(signal.SIGSTOP)
            try:
                began = time.monotonic()
                for _ in range(50):
                    assert os.stat(at / "d" / "e" / "f").st_size == 4 and os.pread(file.fileno(), 9, 0) == b"text"
                took = time.monotonic() - began
            finally:
                own_server.process.send_signal(signal.SIGCONT)
        assert took < 1.3, took
