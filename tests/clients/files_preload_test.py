"""`landfast files exec --preload`: programs as transactions without a mount, through the preloaded library."""

import os
import signal
import subprocess
import sys

import pytest

import files_exec
import files_exec_test
import files_mount
import waiting
from files_exec_test import FAILED

NOT_RUNNABLE = 126

# The cases of a mount that hold without one. Missing are shared mappings, and programs in the volume.
CASES = [
    files_exec_test.a_success_commits_and_then_its_output_is_printed_once,
    files_exec_test.a_failure_leaves_no_trace_and_has_the_commands_exit_code,
    files_exec_test.commands_that_cannot_run_have_the_codes_of_a_shell,
    files_exec_test.a_volume_that_does_not_exist_is_named,
    files_exec_test.nothing_is_printed_or_seen_before_the_end,
    files_exec_test.of_two_conflicting_commands_one_runs_again_and_both_count,
    files_exec_test.many_commands_at_once_all_count,
    files_exec_test.attempts_are_bounded_and_the_conflict_is_named,
    files_exec_test.a_lock_of_another_client_is_a_conflict_that_is_named,
    files_exec_test.write_skew_is_refused,
    files_exec_test.names_that_were_missing_or_listed_are_read_too,
    files_exec_test.a_reader_never_conflicts,
    files_exec_test.held_output_is_bounded,
    files_exec_test.stdin_is_empty_or_the_same_in_every_attempt,
    files_exec_test.a_long_time_limit_pins_the_state_that_is_read,
    files_exec_test.a_command_that_takes_too_long_is_ended,
    files_exec_test.a_signal_aborts,
    files_exec_test.after_a_kill_nothing_is_left,
    files_exec_test.processes_that_are_left_are_ended_before_the_commit,
    files_exec_test.a_server_that_is_away_does_not_keep_a_command_from_ending,
    files_exec_test.a_server_that_restarts_meanwhile_is_no_reason_to_abort,
    files_exec_test.every_increment_counts_once_though_the_server_is_killed,
    files_exec_test.git_commits_in_a_transaction,
]
globals().update({case.__name__: case for case in CASES})


@pytest.fixture
def volume(server, tmp_path):
    return files_exec.Volume(server, tmp_path, "--preload")


@pytest.fixture
def own_volume(own_server, tmp_path):
    return files_exec.Volume(own_server, tmp_path, "--preload")


@pytest.fixture
def mounts(server, tmp_path):
    files_exec.needs_mounts()
    yield from files_mount.mounts_of(server, tmp_path)


@pytest.mark.parametrize("journal", ["delete", "truncate", "persist", "memory", "off"])
def sqlite_works_in_a_transaction(volume, journal):
    files_exec_test.sqlite_works_in_a_transaction(volume, journal)


def tar_packs_and_unpacks(volume):
    volume.run("mkdir in; for i in 1 2 3; do head -c 100000 /dev/urandom > in/$i; done; (cd in; sha256sum * > ../sums)")
    volume.run("tar czf all.tgz in; mkdir out; tar xzf all.tgz -C out; exit 3", code=3)
    volume.run("tar czf all.tgz in; mkdir out; tar xzf all.tgz -C out")
    assert volume.run("cd out/in; sha256sum -c ../../sums") == "1: OK\n2: OK\n3: OK\n"


def python_imports_from_the_volume(volume):
    volume.run("mkdir package; echo 'from . import other' > package/__init__.py; echo 'name = __file__' > package/other.py")
    imports = "import package; print(package.other.name)"
    assert volume.run(f"PYTHONDONTWRITEBYTECODE= {sys.executable} -c '{imports}'") == f"{volume.root}/package/other.py\n"
    assert "other.cpython" in volume.run("ls package/__pycache__"), "what the import has written is committed"


def the_volume_is_where_it_is_asked_for(volume):
    assert volume.run("touch inside; ls; pwd", "--at", "/nowhere/else/") == "inside\n/nowhere/else\n"
    place = volume.folder / "place"
    place.mkdir()
    (place / "outside").touch()
    command = [*volume.words("--at", str(place)), "sh", "-c", "ls"]
    told = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
    assert (told.returncode, told.stdout) == (0, "inside\n"), "a working directory leads into the volume"
    told = volume.run("true", "--at", "/nowhere/../else", code=FAILED)
    assert "/nowhere/../else" in told and "nothing was changed" in told, told


def programs_that_cannot_be_served_are_refused_by_name(volume):
    static = volume.folder / "static"
    # An ELF header of a 64-bit program whose one program header is no interpreter.
    header = bytearray(64 + 56)
    header[:6] = b"\x7fELF\x02\x01"
    header[32], header[54], header[56], header[64] = 64, 56, 1, 1
    static.write_bytes(header)
    static.chmod(0o755)
    script = volume.folder / "script"
    script.write_text(f"#! {static} argument\n")
    script.chmod(0o755)
    for program in (static, script):
        told = volume.run(f"touch a; {program}", code=NOT_RUNNABLE)
        assert f"{static} is a static program" in told and "nothing was changed" in told, told
        told = subprocess.run([*volume.words(), program], capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
        assert told.returncode == NOT_RUNNABLE and f"{static} is a static program" in told.stderr, told
    assert volume.run("ls") == ""


def a_library_that_is_missing_or_not_loaded_stops_the_command(volume):
    nowhere = str(volume.folder / "nowhere.so")
    told = volume.run("touch a", "--preload-library", nowhere, code=FAILED)
    assert nowhere in told and "nothing was changed" in told, told
    other = volume.folder / "other.so"
    other.write_text("no library")
    told = volume.run("touch a", "--preload-library", str(other), code=FAILED)
    assert f"did not load {other}" in told, told
    assert volume.run("ls") == ""


def no_process_outlives_the_command(volume):
    """Without a PID namespace: a process leaves its parent and its session, and is ended all the same."""
    pid = volume.folder / "pid"
    volume.run(f"(setsid sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000' &); while ! test -e {pid}; do :; done")
    assert not os.path.exists(f"/proc/{pid.read_text().strip()}")
    pid.unlink()
    process = volume.start(f"(setsid sh -c 'echo $$ > {pid}.new; mv {pid}.new {pid}; exec sleep 1000' &); sleep 1000")
    waiting.until(pid.exists, "the start")
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=waiting.GUARD_SECONDS)
    waiting.until(lambda: not os.path.exists(f"/proc/{pid.read_text().strip()}"), "the end")
