"""A bank on Landfast: accounts, transfers between them, and audits, over plain writes or in
transactions.

An account carries, beside its balance, the history of the runs that changed it. So lost, doubled
and half-done transfers can be counted exactly instead of being guessed from the balance. A run is
named by a stamp, `17.2` for the second run of transfer 17, since a killed run and its repeat must
be told apart.
"""

import json
import random
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

import landfast

from plan import CREDIT, DEBIT, END, ENTRY, Transfer

OPENING = "opening"
OPENING_BALANCE = 1000
RUNS_MAX = 10_000
"""With few accounts all transfers need the same ones, and a transfer takes many more runs than it
usually may.
"""


@dataclass(frozen=True)
class Account:
    balance: int = OPENING_BALANCE
    history: Tuple[str, ...] = (OPENING,)

    @property
    def last(self) -> str:
        """The stamp of the run that wrote this."""
        return self.history[-1]

    def changed(self, amount: int, stamp: str) -> bytes:
        return Account(self.balance + amount, (*self.history, stamp)).encoded()

    def encoded(self) -> bytes:
        return json.dumps({"balance": self.balance, "history": self.history}, separators=(",", ":")).encode()

    @staticmethod
    def decoded(value: Optional[bytes]) -> "Account":
        if value is None:
            raise ValueError("an account is gone")
        found = json.loads(value)
        return Account(found["balance"], tuple(found["history"]))


class Run:
    """One run of a transfer, as seen by its observer. A worker's own class overrides all of this."""

    def __init__(self, transfer: Transfer, number: int) -> None:
        self.transfer = transfer
        self.stamp = f"{transfer.number}.{number}"

    def read(self, source: str, destination: str) -> None:
        """It is about to replace the versions that these runs wrote."""

    def took_effect(self, *accounts: int) -> None:
        """Its writes to these accounts took effect, as far as the bank knows."""

    def passed(self, step: str) -> None:
        """It may die here."""


class Bank:
    """Accounts under a prefix. Transactions if there is an isolation, plain writes otherwise."""

    def __init__(self, client: landfast.Client, prefix: str, isolation: Optional[str]) -> None:
        self._client = client
        self._prefix = prefix
        self._isolation = isolation

    def open(self, accounts: int) -> None:
        with self._client.transaction() as t:
            for number in range(accounts):
                t.put(self._account(number), Account().encoded())

    def close(self, accounts: int, transfers: int) -> None:
        """Leaves nothing behind."""
        with self._client.transaction() as t:
            for number in range(accounts):
                t.delete(self._account(number))
            for number in range(transfers):
                t.delete(self._entry(number))

    def accounts(self, count: int) -> List[Account]:
        state = self._client.state()
        return [Account.decoded(state.get(self._account(number))) for number in range(count)]

    def transfer(self, run: Run) -> None:
        """The work of a function that is called for a transfer, and called again after its death."""
        source, destination = run.transfer.source, run.transfer.destination
        if self._isolation is None:
            # As careful as it can be: it does not repeat a transfer that has left its entry.
            state = self._client.state()
            if state.get(self._entry(run.transfer.number)) is None:
                self._move(state, run, run.took_effect)
        else:
            id = f"{self._prefix}/{run.transfer.number}"

            def move(t: landfast.Transaction) -> Run:
                self._move(t, run, lambda _: None)
                return run

            # None: the id has committed before, so this run did nothing.
            if self._client.transact(move, id=id, isolation=self._isolation, runs_max=RUNS_MAX) is not None:
                run.took_effect(source, destination)
        run.passed(END)

    def audit(self, one: int, other: int) -> Tuple[str, str]:
        """The runs that wrote the values of two accounts."""

        def look(store) -> Tuple[str, str]:
            return Account.decoded(store.get(self._account(one))).last, Account.decoded(
                store.get(self._account(other))
            ).last

        if self._isolation is None:
            return look(self._client.state())
        return self._client.transact(look, isolation=self._isolation, runs_max=RUNS_MAX)

    def _move(self, store, run: Run, took_effect: Callable[[int], None]) -> None:
        """The transfer itself: the same over plain state and in a transaction."""
        transfer, stamp = run.transfer, run.stamp
        source = Account.decoded(store.get(self._account(transfer.source)))
        destination = Account.decoded(store.get(self._account(transfer.destination)))
        run.read(source.last, destination.last)
        store.put(self._account(transfer.source), source.changed(-transfer.amount, stamp))
        took_effect(transfer.source)
        run.passed(DEBIT)
        store.put(self._account(transfer.destination), destination.changed(transfer.amount, stamp))
        took_effect(transfer.destination)
        run.passed(CREDIT)
        store.put(self._entry(transfer.number), stamp.encode())
        run.passed(ENTRY)

    def _account(self, number: int) -> str:
        return f"{self._prefix}/accounts/{number}"

    def _entry(self, number: int) -> str:
        return f"{self._prefix}/entries/{number}"


def random_order(chance: random.Random, transfer: Transfer) -> Tuple[int, int]:
    """The two accounts of a transfer, in either order."""
    one, other = transfer.source, transfer.destination
    return (one, other) if chance.random() < 0.5 else (other, one)
