"""The real program, for the tests that need no fault at a chosen moment."""

from pathlib import Path
from typing import Iterator

import pytest

import program


@pytest.fixture(scope="session")
def landfast_serve(tmp_path_factory: pytest.TempPathFactory) -> Iterator[program.Program]:
    """One server for all tests that do not stop it; each uses keys and ids of its own."""
    running = program.Program(tmp_path_factory.mktemp("landfast"))
    running.start()
    yield running
    running.stop()


@pytest.fixture
def own_landfast_serve(tmp_path: Path) -> Iterator[program.Program]:
    """A server that the test may kill and start again."""
    running = program.Program(tmp_path)
    running.start()
    yield running
    running.stop()


def pytest_terminal_summary(terminalreporter: "pytest.TerminalReporter") -> None:
    """Reports skipped tests the way every test of the repository does."""
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"skipped: {report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}")
