"""Worker processes that are killed, and the supervisor that assigns their work and restarts them.

Each worker makes one transfer at a time. Where the plan says so, SIGKILL kills it, which no process
can handle or delay. Another worker then takes its place and makes the same transfer again, as a
function's platform would. A worker's reports before its death are in the pipe and are not lost with
it. Meanwhile auditors read the accounts of transfers in progress.
"""

import multiprocessing
import os
import random
import signal
import time
from multiprocessing.connection import Connection, wait
from typing import Callable, Dict, List, Optional, Sequence

import landfast

from bank import Bank, Run, random_order
from plan import Transfer
from reckoning import Evidence

AUDITORS = 2
# Forked, since starting an interpreter takes longer than a transfer. This process opens no connection before.
_context = multiprocessing.get_context("fork")


class Column:
    """One way to make the transfers: a title, and the isolation of its transactions if it has any."""

    def __init__(self, name: str, isolation: Optional[str]) -> None:
        self.name = name
        self.isolation = isolation


class _TellingRun(Run):
    """A run in a worker: it reports its steps, and dies where the plan says so."""

    def __init__(self, transfer: Transfer, number: int, told: Connection) -> None:
        super().__init__(transfer, number)
        self._told = told
        self._last_step = transfer.kills[number - 1] if number <= len(transfer.kills) else None

    def read(self, source: str, destination: str) -> None:
        self._told.send(("read", self.stamp, source, destination))

    def took_effect(self, *accounts: int) -> None:
        self._told.send(("effect", self.stamp, accounts))

    def passed(self, step: str) -> None:
        if step == self._last_step:
            os.kill(os.getpid(), signal.SIGKILL)


def _work(url: str, prefix: str, isolation: Optional[str], transfers: Sequence[Transfer], told: Connection) -> None:
    """A worker's life: it receives a transfer's number and the run's number, and reports its steps."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bank = Bank(landfast.connect(url), prefix, isolation)
    # A message ends it: the pipe's other end does not close with its owner, since later workers
    # have a copy.
    for number, run in iter(told.recv, None):
        began = time.monotonic()
        bank.transfer(_TellingRun(transfers[number], run, told))
        told.send(("done", time.monotonic() - began))


def _audit(
    url: str, prefix: str, isolation: Optional[str], transfers: Sequence[Transfer], current, seed: int, told: Connection
) -> None:
    """An auditor's life: reads the accounts of a transfer in progress, until it is told to stop."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    bank = Bank(landfast.connect(url), prefix, isolation)
    chance = random.Random(seed)
    while not told.poll():
        one, other = random_order(chance, transfers[chance.choice(current)])
        found = bank.audit(one, other)
        told.send(("seen", (found[0], one), (found[1], other)))


class _Worker:
    """One of the slots for workers: a process, and the transfer that it makes."""

    def __init__(self, start: Callable[[Connection], multiprocessing.Process]) -> None:
        self._start = start
        self.transfer: Optional[Transfer] = None
        self.run = 0
        self._fork()

    def _fork(self) -> None:
        self.told, theirs = _context.Pipe()
        self.process = self._start(theirs)
        # The end of the pipe is the end of the process only if no other process holds its other
        # end.
        theirs.close()

    def give(self, transfer: Transfer) -> None:
        self.transfer, self.run = transfer, 1
        self.told.send((transfer.number, self.run))

    def replace(self) -> None:
        """Lets another process make the same transfer again."""
        self.process.join()
        if self.process.exitcode != -signal.SIGKILL or self.transfer is None:
            raise SystemExit(f"a worker ended by itself, with status {self.process.exitcode}")
        self.told.close()
        self._fork()
        self.run += 1
        self.told.send((self.transfer.number, self.run))

    def stop(self) -> List[tuple]:
        """Lets it end, and returns its remaining reports."""
        self.told.send(None)
        rest = []
        try:
            while True:
                rest.append(self.told.recv())
        except (EOFError, ConnectionResetError):
            self.process.join()
        return rest


def run(
    column: Column,
    url: str,
    prefix: str,
    transfers: Sequence[Transfer],
    accounts: int,
    at_a_time: int,
    progress: Callable[[int, int], None],
) -> Evidence:
    """Makes all transfers, `at_a_time` at a time, and returns the observations."""
    evidence = Evidence()
    with landfast.connect(url) as client:
        bank = Bank(client, prefix, column.isolation)
        bank.open(accounts)
        client.close()
        _make(column, url, prefix, transfers, min(at_a_time, len(transfers)), evidence, progress)
        evidence.accounts = bank.accounts(accounts)
        bank.close(accounts, len(transfers))
    return evidence


def _make(
    column: Column,
    url: str,
    prefix: str,
    transfers: Sequence[Transfer],
    at_a_time: int,
    evidence: Evidence,
    progress: Callable[[int, int], None],
) -> None:
    # The current transfer of each worker, for the auditors.
    current = _context.RawArray("i", range(at_a_time))
    given = (url, prefix, column.isolation, transfers)

    def start(target: Callable[..., None], *more: object) -> multiprocessing.Process:
        process = _context.Process(target=target, args=(*given, *more), daemon=True)
        process.start()
        return process

    workers = [_Worker(lambda theirs: start(_work, theirs)) for _ in range(at_a_time)]
    auditors = [_Worker(lambda theirs, seed=seed: start(_audit, current, seed, theirs)) for seed in range(AUDITORS)]
    waiting = list(reversed(transfers))
    done = 0
    for worker in workers:
        worker.give(waiting.pop())
    while done < len(transfers):
        by_pipe: Dict[Connection, _Worker] = {worker.told: worker for worker in [*workers, *auditors]}
        for told in wait(list(by_pipe)):
            worker = by_pipe[told]
            try:
                message = told.recv()
            except (EOFError, ConnectionResetError):
                worker.replace()
                evidence.crashes += 1
                continue
            _note(evidence, worker, message)
            if message[0] == "done":
                done += 1
                progress(done, evidence.crashes)
                if waiting:
                    worker.give(waiting.pop())
                    current[workers.index(worker)] = worker.transfer.number
    for worker in [*auditors, *workers]:
        for message in worker.stop():
            _note(evidence, worker, message)


def _note(evidence: Evidence, worker: _Worker, message) -> None:
    kind, *rest = message
    if kind == "read":
        stamp, source, destination = rest
        evidence.replaced[(stamp, worker.transfer.source)] = source
        evidence.replaced[(stamp, worker.transfer.destination)] = destination
    elif kind == "effect":
        stamp, accounts = rest
        evidence.effects.update((stamp, account) for account in accounts)
    elif kind == "seen":
        evidence.audits.append(tuple(rest))
    elif kind == "done":
        evidence.seconds.append(rest[0])

