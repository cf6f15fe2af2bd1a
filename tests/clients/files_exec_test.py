"""`landfast files exec`: programs as transactions on a volume, through real mounts of a real server."""

import os
import pathlib
import random
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading

import pytest

import files_exec
import files_mount
import waiting

UNKNOWN = 74
CONFLICT = 75
TIME_UP = 124
FAILED = 125


@pytest.fixture
def volume(server, tmp_path):
    return files_exec.mountable(server, tmp_path)


def a_success_commits_and_then_its_output_is_printed_once(volume):
    told = volume.run("echo one > a; mkdir -p d/e; ln -s ../../a d/e/link; echo done; cat d/e/link")
    assert told == "done\none\n"
    assert volume.run("cat a; readlink d/e/link") == "one\n../../a\n"
    process = volume.start("echo out; echo error >&2")
    assert process.communicate(timeout=waiting.GUARD_SECONDS) == ("out\n", "error\n")
    assert process.returncode == 0


def a_failure_leaves_no_trace_and_has_the_commands_exit_code(volume):
    volume.run("echo one > a")
    told = volume.run("echo two > a; touch b; rm a; echo why >&2; echo lost; exit 3", code=3)
    assert told.startswith("why\n") and "nothing was changed" in told
    assert volume.run("cat a; ls") == "one\na\n"
    volume.run("rm a; kill -9 $$", code=128 + 9)
    assert volume.run("ls") == "a\n"
    process = volume.start("rm a; echo lost; exit 3")
    assert process.communicate(timeout=waiting.GUARD_SECONDS)[0] == "", "stdout of a failure is not printed"


def commands_that_cannot_run_have_the_codes_of_a_shell(volume):
    for command, code in (("landfast-has-no-such-command", 127), ("/etc/passwd", 126)):
        told = subprocess.run([*volume.words(), command], capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
        assert told.returncode == code and command in told.stderr, told


def a_volume_that_does_not_exist_is_named(volume):
    volume.name = "nowhere"
    told = volume.run("true", code=FAILED)
    assert "nowhere" in told and "no such volume" in told, told


def nothing_is_printed_or_seen_before_the_end(volume):
    volume.run("echo old > a")
    process = volume.start(f"echo early; echo new > a; touch {volume.mark('written')}; cat a; cat < {volume.mark('go')}")
    os.mkfifo(volume.folder / "go")
    waiting.until(lambda: (volume.folder / "written").exists(), "the write")
    assert volume.run("cat a") == "old\n"
    assert select.select([process.stdout], [], [], 0)[0] == [], "the output is held"
    (volume.folder / "go").write_text("")
    assert files_exec.ended(process) == "early\nnew\n"
    assert volume.run("cat a") == "new\n"


def of_two_conflicting_commands_one_runs_again_and_both_count(volume):
    volume.run("echo 0 > counter")
    process = volume.overtaken(
        ("n=$(cat counter)", "echo $((n + 1)) > counter; echo counted"), "echo $(($(cat counter) + 1)) > counter"
    )
    stdout, stderr = process.communicate(timeout=waiting.GUARD_SECONDS)
    assert (process.returncode, stdout) == (0, "counted\n"), stderr
    assert "attempt 2 of 10" in stderr
    assert volume.run("cat counter") == "2\n"
    assert volume.attempts() == 2


def many_commands_at_once_all_count(volume):
    volume.run("echo 0 > counter")
    command = "echo $(($(cat counter) + 1)) > counter"
    running = [volume.start(command, "--attempts", "100") for _ in range(6)]
    for process in running:
        files_exec.ended(process)
    assert volume.run("cat counter") == "6\n"


def attempts_are_bounded_and_the_conflict_is_named(volume):
    volume.run("mkdir d; echo 0 > d/counter")
    process = volume.overtaken(("cat d/counter", "echo 1 > d/counter"), "echo 5 > d/counter", "--attempts", "1")
    told = files_exec.ended(process, code=CONFLICT)
    assert "/d/counter" in told and "nothing was changed" in told, told
    assert volume.run("cat d/counter") == "5\n"


@pytest.fixture
def mounts(server, tmp_path):
    yield from files_mount.mounts_of(server, tmp_path)


def a_lock_of_another_client_is_a_conflict_that_is_named(volume, mounts):
    at, _ = mounts.start("outside")
    volume.name = mounts.volume
    (at / "ledger").write_text("")
    script = "flock -n ledger sh -c 'echo x > other'"
    holder = subprocess.Popen(["flock", "--no-fork", at / "ledger", "sleep", "100"])
    try:
        waiting.until(lambda: files_mount.locked(at / "ledger"), "the lock")
        told = volume.run(script, "--attempts", "2", code=CONFLICT)
        assert "attempt 2 of 2 begins" in told and "another client locked /ledger" in told, told
        assert not (at / "other").exists()
    finally:
        holder.kill()
        holder.wait()
    waiting.until(lambda: not files_mount.locked(at / "ledger"), "the end of the lock")
    volume.run(script)
    assert (at / "other").read_text() == "x\n"


def write_skew_is_refused(volume):
    volume.run("echo 1 > x; echo 1 > y")
    rule = "test $(($(cat x) + $(cat y))) = 2 || exit 0"
    process = volume.overtaken((rule, "echo 0 > x"), f"{rule}; echo 0 > y")
    files_exec.ended(process)
    assert volume.run("cat x y") == "1\n0\n"
    assert volume.attempts() == 1, "the second attempt ends at the rule"


def names_that_were_missing_or_listed_are_read_too(volume):
    volume.run("mkdir d")
    process = volume.overtaken(("ls d | wc -l > count", "true"), "touch d/new")
    files_exec.ended(process)
    assert volume.run("cat count") == "1\n"
    (volume.folder / "attempts").unlink()
    (volume.folder / "go").unlink()
    process = volume.overtaken(("test -e d/lock && exit 9", "touch d/lock"), "touch d/lock")
    files_exec.ended(process, code=9)


def a_reader_never_conflicts(volume):
    volume.run("echo 1 > x; echo 1 > y")
    script = ("cat x", "cat y")
    process = volume.overtaken(script, "echo 2 > x; echo 2 > y", "--read-only")
    assert files_exec.ended(process) == "1\n1\n", "both are of one state"
    assert volume.attempts() == 1
    told = volume.run("echo 3 > x", "--read-only", code=2)
    assert "Read-only" in told, told


def held_output_is_bounded(volume):
    bound = ("--output-bytes-max", "1000")
    assert len(volume.run("yes | head -c 1000", *bound)) == 1000
    told = volume.run("touch a; yes | head -c 600; yes | head -c 600 >&2", *bound, code=FAILED)
    assert "more than 1000 bytes" in told and "nothing was changed" in told, told
    volume.run("touch a; yes", *bound, code=FAILED)
    assert volume.run("ls") == ""


def stdin_is_empty_or_the_same_in_every_attempt(volume):
    assert volume.run("cat", input="ignored") == ""
    volume.run("cat > a", "--stdin", input="words\n")
    assert volume.run("cat a") == "words\n"
    told = volume.run("cat > a", "--stdin", "--output-bytes-max", "3", input="long", code=FAILED)
    assert "more than 3 bytes" in told, told


def a_long_time_limit_pins_the_state_that_is_read(volume):
    process = volume.overtaken(("test ! -e a", "ls"), "touch a", "--time-max", "2h", "--read-only")
    assert files_exec.ended(process) == ""


def a_command_that_takes_too_long_is_ended(volume):
    told = volume.run("touch a; echo started >&2; trap '' TERM; sleep 1000 & sleep 1000", "--time-max", "1s", code=TIME_UP)
    assert told.startswith("started\n") and "--time-max" in told, told
    assert volume.run("ls") == ""


def a_signal_aborts(volume):
    for number in (signal.SIGINT, signal.SIGTERM):
        mark = volume.folder / f"started{number}"
        process = volume.start(f"trap '' INT TERM; touch a {volume.mark(mark.name)}; sleep 1000; sleep 1000")
        waiting.until(mark.exists, "the start")
        process.send_signal(number)
        assert "nothing was changed" in files_exec.ended(process, code=128 + number)
    assert volume.run("ls") == ""


def after_a_kill_nothing_is_left(volume):
    read, write = os.pipe()
    mark = volume.mark("started")
    process = volume.start(f"touch a {mark}; sleep 1000 & setsid sleep 1000 & sleep 1000", pass_fds=[write])
    os.close(write)
    waiting.until(lambda: (volume.folder / "started").exists(), "the start")
    process.kill()
    process.communicate(timeout=waiting.GUARD_SECONDS)
    # The end of the pipe is in the command and in all that it started.
    with open(read, "rb") as pipe:
        assert waiting.together(pipe.read) == [b""]
    assert volume.name not in pathlib.Path("/proc/mounts").read_text()
    assert not os.path.exists(volume.root)
    assert volume.run("ls") == ""


def processes_that_are_left_are_ended_before_the_commit(volume):
    volume.run("(while :; do echo more >> a; done) & setsid sleep 1000 & echo first > b; exit 0")
    size = volume.run("wc -c < a || true")
    assert volume.run("wc -c < a || true") == size
    assert volume.run("cat b") == "first\n"


def mapped_memory_is_committed(volume):
    program = """
        import mmap
        with open("a", "w+b") as file:
            file.truncate(8192)
            mapped = mmap.mmap(file.fileno(), 8192)
            mapped[4096:4099] = b"new"
    """
    volume.run(f"{shlex.quote(sys.executable)} -c {shlex.quote(textwrap.dedent(program))}")
    assert volume.run("tail -c 4096 a | head -c 3") == "new"


def the_mount_is_where_it_is_asked_for(volume):
    place = volume.folder / "place"
    place.mkdir()
    (place / "outside").touch()
    command = [*volume.words("--at", str(place)), "sh", "-c", "touch inside; ls"]
    told = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
    assert (told.returncode, told.stdout) == (0, "inside\n"), "a working directory leads into the volume"
    assert [path.name for path in place.iterdir()] == ["outside"]
    assert volume.run("ls; pwd") == f"inside\n{volume.root}\n"
    command = [*volume.words("--at", str(place / "outside")), "true"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
    assert told.returncode == FAILED and "must be a directory" in told.stderr, told


def a_server_that_is_away_does_not_keep_a_command_from_ending(own_volume):
    own_volume.run("echo one > a")
    process = own_volume.start(f"touch {own_volume.mark('started')}; while cat a && ls > b; do :; done; sleep 1000")
    waiting.until(lambda: (own_volume.folder / "started").exists(), "the start")
    own_volume.server.process.send_signal(signal.SIGSTOP)
    try:
        threading.Event().wait(0.2)
        process.send_signal(signal.SIGTERM)
        files_exec.ended(process, code=128 + signal.SIGTERM)
    finally:
        own_volume.server.process.send_signal(signal.SIGCONT)
    assert own_volume.run("ls") == "a\n"


@pytest.fixture
def own_volume(own_server, tmp_path):
    """A volume of a server that the test may stop."""
    return files_exec.mountable(own_server, tmp_path)


def a_server_that_restarts_meanwhile_is_no_reason_to_abort(own_volume):
    own_volume.run("echo one > a")
    process = own_volume.start(f"cat a; echo two > b; touch {own_volume.mark('started')}; cat < {own_volume.mark('go')}; cat a")
    os.mkfifo(own_volume.folder / "go")
    waiting.until(lambda: (own_volume.folder / "started").exists(), "the start")
    own_volume.server.kill()
    (own_volume.folder / "go").write_text("")
    own_volume.server.start()
    assert files_exec.ended(process) == "one\none\n"
    assert own_volume.run("cat b") == "two\n"


def every_increment_counts_once_though_the_server_is_killed(own_volume):
    own_volume.run("echo 0 > counter")
    running = threading.Event()
    codes = []

    def increment():
        while not running.is_set():
            process = own_volume.start("n=$(($(cat counter) + 1)); echo $n > counter; echo $n", "--attempts", "1000")
            stdout, stderr = process.communicate(timeout=waiting.GUARD_SECONDS)
            codes.append(process.returncode)
            assert process.returncode in (0, 1, UNKNOWN, FAILED), stderr
            assert process.returncode == 0 or not stdout, "nothing is printed of what may not survive"

    def kill():
        seed = random.Random(7)
        for _ in range(5):
            threading.Event().wait(seed.uniform(0.05, 0.4))
            own_volume.server.kill()
            own_volume.server.start()
        running.set()

    waiting.together(increment, increment, kill)
    counted = int(own_volume.run("cat counter"))
    assert codes.count(0) <= counted <= codes.count(0) + codes.count(UNKNOWN), codes


GIT = "git -c user.name=test -c user.email=test@example.org -C repository"


def git_commits_in_a_transaction(volume):
    volume.run(f"git init -q repository; echo one > repository/file; {GIT} add .; {GIT} commit -qm one")
    volume.run(f"echo two > repository/file; {GIT} commit -qam two; exit 1", code=1)
    assert volume.run(f"{GIT} log --format=%s; {GIT} status --short; {GIT} fsck") == "one\n"
    volume.run(f"echo two > repository/file; {GIT} commit -qam two; {GIT} gc -q; git clone -q repository copy")
    assert volume.run("git -C copy log --format=%s; git -C copy fsck --strict; cat copy/file") == "two\none\ntwo\n"


SQLITE = """
    import sqlite3, sys
    journal, commands = sys.argv[1:]
    connection = sqlite3.connect("database", isolation_level=None)
    connection.execute(f"pragma journal_mode = {journal}").fetchall()
    for command in commands.split(";"):
        print(*(row[0] for row in connection.execute(command)))
"""


@pytest.mark.parametrize("journal", ["delete", "truncate", "persist", "memory", "off", "wal"])
def sqlite_works_in_a_transaction(volume, journal):
    def run(commands, end="", code=0):
        words = [sys.executable, "-c", textwrap.dedent(SQLITE), journal, commands]
        return volume.run(f"{shlex.join(words)}{end}", code=code)

    rows = ";".join(f"insert into t values ({number}, hex(randomblob(2000)))" for number in range(20))
    run(f"create table t (n integer primary key, text);begin;{rows};commit")
    run("delete from t", end="; exit 1", code=1)
    assert run("select count(*) from t;pragma integrity_check").split() == ["20", "ok"]
    run("update t set n = n + 100 where n < 10")
    assert run("select sum(n) from t;pragma integrity_check").split() == ["1190", "ok"]


def a_virtual_environment_is_made_whole_or_not_at_all(volume):
    make = f"{shlex.quote(sys.executable)} -m venv --without-pip environment"
    volume.run(f"{make}; exit 1", code=1)
    assert volume.run("ls") == ""
    volume.run(make)
    prefix = volume.run("environment/bin/python -c 'import sys; print(sys.prefix)'")
    assert prefix == f"{volume.root}/environment\n"


# Runs as an ordinary user, in a mount namespace in which that user may open /dev/fuse.
AS_A_USER = """
    set -e
    cd $1
    mknod fuse c 10 229
    chmod 666 fuse
    mount --bind fuse /dev/fuse
    mkdir data bin
    cp $2 bin/landfast
    chown -R 65534:65534 .
    exec setpriv --reuid 65534 --regid 65534 --clear-groups sh -ec '
        export PATH=$PWD/bin:$PATH HOME=$PWD TMPDIR=$PWD LANDFAST_DATA_DIR=$PWD/data
        listeners="--http 127.0.0.1:0 --zookeeper 127.0.0.1:0 --s3 127.0.0.1:0 --routes 127.0.0.1:0"
        landfast serve $listeners > ready 2> log &
        trap "kill $!; wait" EXIT
        until grep -q ^ready ready; do sleep 0.02; done
        export LANDFAST_URL=http://$(sed -n "s/.* http=\\([^ ]*\\).*/\\1/p" ready)
        landfast files create demo
        run() { landfast files exec demo --chdir / -- sh -ec "$1"; }
        run "id -u; echo one > a; stat -c %u a; sed -n s/CapEff://p /proc/self/status"
        run "rm a; exit 7" 2>&1 || echo "code $?"
        run "cat a"
    '
"""


def a_user_without_rights_can_run_it(server, tmp_path):
    files_exec.mountable(server, tmp_path)
    if os.geteuid() or subprocess.run(["unshare", "--user", "true"], capture_output=True).returncode:
        pytest.skip("only root can give up its rights, and users may make no namespaces")
    words = ["unshare", "--mount", "sh", "-c", textwrap.dedent(AS_A_USER), "sh"]
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        os.chmod(folder, 0o755)
        told = subprocess.run([*words, folder, server.program], capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
    assert told.returncode == 0, told
    lines = told.stdout.split("\n")
    assert lines[:2] == ["65534", "65534"] and int(lines[2], 16) == 0, told
    assert "nothing was changed" in lines[3] and lines[4:] == ["code 7", "one", ""], told
