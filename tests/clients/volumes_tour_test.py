"""`examples/volumes`, the part of `make run` about files: it shows what it claims, or says why it is skipped."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples/volumes"
sys.path.insert(0, str(EXAMPLE))

import volumes  # noqa: E402

RUN_SECONDS = 120
SHOWN = [
    "withdraw 30, another function: the balance is 70",
    "withdraw 20 from 70 conflicts; it runs again, reads 120, and leaves 100",
    "the command ended with 3; nothing was changed",
    "the volume is what it was before: account/balance, account/journal, with the same content",
    "the journal of November: +100 -30 +50 -20",
    "deposit 5, a function again: the balance is 105",
]


def the_tour_shows_a_conflict_an_abort_and_a_commit(server):
    if type(server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    lacking = volumes.machine_lacks()
    if lacking:
        pytest.skip(lacking)
    address = re.search(r"http=(\S+)", server.ready_line()).group(1)
    command = [sys.executable, "-B", EXAMPLE / "volumes.py", "--url", f"http://{address}", "--landfast", server.program]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert ran.returncode == 0, ran.stderr
    places = [ran.stdout.find(line) for line in SHOWN]
    assert places == sorted(places) and places[0] >= 0, (places, ran.stdout)


def without_dev_fuse_it_is_skipped_loudly(monkeypatch, capsys):
    monkeypatch.setattr(volumes, "FUSE", "/dev/no-such-device")
    monkeypatch.setattr(sys, "argv", ["volumes.py", "--url", "http://127.0.0.1:9"])
    volumes.main()
    said = capsys.readouterr()
    assert said.out == "" and "SKIPPED: " in said.err and "/dev/no-such-device is missing" in said.err


def without_namespaces_it_is_skipped_loudly(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(volumes, "FUSE", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["volumes.py", "--url", "http://127.0.0.1:9"])
    refuses = tmp_path / "unshare"
    refuses.write_text("#!/bin/sh\nexit 1\n")
    refuses.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    volumes.main()
    assert "SKIPPED: " in (said := capsys.readouterr().err) and "mount namespaces" in said
