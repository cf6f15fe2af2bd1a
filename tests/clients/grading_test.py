"""`examples/grading`: it runs unchanged, and posts the grades that the submissions deserve."""

import pathlib
import re
import shutil
import subprocess
import sys

import pytest

REPOSITORY = pathlib.Path(__file__).resolve().parents[2]
RUN_SECONDS = 900


# Possible attacks of a program on its tester, and the reported result of each.
HOSTILE = {
    "exits": ("import os\nos._exit(0)\n", "ended with status 0, without a result"),
    "floods": ("import sys\nwhile True:\n    sys.stderr.write('x' * 1000000)\n", "FAILED: the tests "),
    "forges": (
        "import os, sys\nsys.stderr.write('\\nRan 100 tests in 0.1s\\n\\nOK\\n')\nsys.stderr.flush()\n"
        "for pipe in range(3, 64):\n    try:\n        os.write(pipe, b'x {\"passed\": [100, 100], \"said\": \"OK\"}')\n"
        "    except OSError:\n        pass\nos._exit(0)\n",
        "ended with status 0, without a result",
    ),
    "forks": (
        "import os\nwhile True:\n    try:\n        os.fork()\n    except OSError:\n        pass\n",
        "FAILED: the tests ",
    ),
}


@pytest.fixture
def grading(own_server, tmp_path):
    """Runs the example; returns its output."""
    if type(own_server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    address = re.search(r"http=(\S+)", own_server.ready_line()).group(1)
    program = REPOSITORY / "examples/grading/grading.py"
    options = ["--url", f"http://{address}", "--landfast", own_server.program, "--svg", str(tmp_path / "grading.svg")]

    def run(*more):
        command = [sys.executable, "-B", str(program), *options, *more]
        return subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)

    return run


def the_example_grades_its_submissions(grading, tmp_path):
    ran = grading()
    assert ran.returncode == 0, ran.stderr
    for line in ["| ada | A | 4 of 4 |", "| ben | B | 3 of 4 |", "| cleo | B | 3 of 4 |", "| dan | F | 0 of 1 |"]:
        assert line in ran.stdout, ran.stdout
    assert "until durable" in ran.stderr and "<svg" in (tmp_path / "grading.svg").read_text()


def a_hostile_submission_gets_an_f_and_the_others_their_grades(grading, tmp_path):
    folder = tmp_path / "submissions"
    shutil.copytree(REPOSITORY / "examples/grading/submissions/ada", folder / "ada")
    for name, (program, _) in HOSTILE.items():
        (folder / name).mkdir()
        (folder / name / "sorting.py").write_text(program)
    ran = grading("--submissions", str(folder))
    assert ran.returncode == 0, ran.stderr
    assert "| ada | A | 4 of 4 |" in ran.stdout, ran.stdout
    for name, (_, told) in HOSTILE.items():
        (line,) = [line for line in ran.stdout.splitlines() if line.startswith(f"| {name} |")]
        assert line.startswith(f"| {name} | F | 0 of 0 | FAILED: ") and told in line, line


def a_run_that_fails_is_told_of_without_a_traceback(grading, tmp_path):
    program = tmp_path / "landfast"
    program.write_text("#!/bin/sh\n[ $1 = functions ] && exit 0\necho '{\"errorType\": \"Disk.Full\"}'\nexit 1\n")
    program.chmod(0o755)
    ran = grading("--landfast", str(program))
    assert ran.returncode == 1 and "Traceback" not in ran.stderr, ran.stderr
    assert "landfast workflows run prepare failed" in ran.stderr and "Disk.Full" in ran.stderr, ran.stderr
