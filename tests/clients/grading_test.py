"""`examples/grading`: that it runs as it is, and posts what the submissions deserve."""

import pathlib
import re
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RUN_SECONDS = 100


def the_example_grades_its_submissions(own_server, tmp_path):
    if type(own_server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    address = re.search(r"http=(\S+)", own_server.ready_line()).group(1)
    program = REPOSITORY / "examples/grading/grading.py"
    options = ["--url", f"http://{address}", "--landfast", own_server.program, "--svg", str(tmp_path / "grading.svg")]
    ran = subprocess.run(
        [sys.executable, "-B", str(program), *options], capture_output=True, text=True, timeout=RUN_SECONDS
    )
    assert ran.returncode == 0, ran.stderr
    for line in ["| ada | A | 4 of 4 |", "| ben | B | 3 of 4 |", "| cleo | B | 3 of 4 |", "| dan | F | 0 of 1 |"]:
        assert line in ran.stdout, ran.stdout
    assert "until durable" in ran.stderr and "<svg" in (tmp_path / "grading.svg").read_text()
