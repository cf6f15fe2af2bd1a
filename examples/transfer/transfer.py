"""Transfers between accounts by workers that are killed at random, with plain writes and in transactions.

    transfer.py [--url http://127.0.0.1:7600] [--seed 7] [--json]

Every column makes the same transfers, and its workers die at the same points. What the rows mean stands in
reckoning.py.
"""

import argparse
import dataclasses
import json
import os
import sys
import time
import uuid
from pathlib import Path
from typing import Dict, List

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python"))

import plan  # noqa: E402
import workers  # noqa: E402
from reckoning import Figures, figures  # noqa: E402
from workers import Column  # noqa: E402

COLUMNS = [
    Column("plain writes", None),
    Column("read-atomic", "read-atomic"),
    Column("serializable", "serializable"),
]
LABEL_WIDTH, WIDTH = 26, 20


def main() -> None:
    options = arguments()
    transfers = plan.transfers(options.transfers, options.accounts, options.kill_rate, options.seed)
    name = f"transfer/{uuid.uuid4().hex}"
    found: Dict[str, Figures] = {}
    for column in COLUMNS:
        progress = Progress(column.name, len(transfers))
        prefix = f"{name}/{column.name}"
        seen = workers.run(
            column, options.url, prefix, transfers, options.accounts, options.at_a_time, progress.show
        )
        progress.end()
        found[column.name] = figures(transfers, seen)
    if options.json:
        print(json.dumps({name: dataclasses.asdict(of) for name, of in found.items()}, indent=2))
    else:
        print("\n".join(["", *table(found), "", *legend()]), flush=True)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    default = os.environ.get("LANDFAST_URL", "http://127.0.0.1:7600")
    parser.add_argument("--url", default=default, help="where the server is (default LANDFAST_URL, or %(default)s)")
    parser.add_argument("--transfers", type=_at_least(1), default=1000, help="default %(default)s")
    parser.add_argument("--accounts", type=_at_least(2), default=100, help="default %(default)s")
    parser.add_argument("--at-a-time", type=_at_least(1), default=32, help="workers; default %(default)s")
    parser.add_argument("--kill-rate", type=_part, default=0.25, help="part of the runs, from 0 to 1; default %(default)s")
    parser.add_argument("--seed", type=int, default=7, help="of the transfers and the kills; default %(default)s")
    parser.add_argument("--json", action="store_true", help="the figures as JSON instead of a table")
    return parser.parse_args()


def _at_least(least: int):
    def number(text: str) -> int:
        if int(text) < least:
            raise argparse.ArgumentTypeError(f"at least {least}")
        return int(text)

    return number


def _part(text: str) -> float:
    if not 0 <= float(text) <= 1:
        raise argparse.ArgumentTypeError("from 0 to 1")
    return float(text)


class Progress:
    """A line that grows, on a terminal; a line at its end elsewhere. On stderr: stdout is for the
    figures.
    """

    def __init__(self, name: str, count: int) -> None:
        self._name, self._count = name, count
        self._began = time.monotonic()
        self._line = ""

    def show(self, done: int, crashes: int) -> None:
        bar = "#" * (20 * done // self._count)
        self._line = f"  {self._name:14} [{bar:20}] {done:,} transfers, {crashes:,} workers killed"
        if sys.stderr.isatty():
            print(f"\r{self._line}", end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        start = "\r" if sys.stderr.isatty() else ""
        print(f"{start}{self._line}, {time.monotonic() - self._began:.1f} s", file=sys.stderr, flush=True)


def table(found: Dict[str, Figures]) -> List[str]:
    rows = {
        "": lambda of, name: name,
        "crashes injected": lambda of, _: f"{of.crashes:,}",
        "duplicates applied": lambda of, _: f"{of.duplicates:,}",
        "partial transfers": lambda of, _: f"{of.partial:,}",
        "fractured reads observed": lambda of, _: f"{of.fractured_reads:,} of {of.audits:,}",
        "lost updates": lambda of, _: f"{of.lost_updates:,}",
        "money in the system": lambda of, _: f"{of.money:,} ({of.money - of.money_opening:+,})",
        "p50": lambda of, _: f"{of.p50_ms:.1f} ms",
        "p99": lambda of, _: f"{of.p99_ms:.1f} ms",
    }
    return [
        f"  {label:{LABEL_WIDTH}}" + "".join(f"{cell(of, name):>{WIDTH}}" for name, of in found.items())
        for label, cell in rows.items()
    ]


def legend() -> List[str]:
    return [
        "  Read-atomic transactions make every transfer whole and once, and are never seen half. Two that change an",
        "  account at a time may still overwrite each other: those are the lost updates, and the money they cost. Serializable",
        "  ones are as if one ran after the other: whoever read what another has written meanwhile runs again, which is their",
        "  price. The times are of runs that were not killed, with all their repeats.",
    ]


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit(130)
