"""Type checkers know the client's types."""

import subprocess
import sys
from pathlib import Path

CLIENT = Path(__file__).resolve().parents[1]


def a_type_checker_knows_parameters_and_results() -> None:
    """`typed.py` lists the expected types."""
    command = [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "tests/typed.py"]
    checked = subprocess.run(command, cwd=CLIENT, capture_output=True, text=True, timeout=900)
    assert checked.returncode == 0, checked.stdout + checked.stderr
