"""Computes a column's figures from its observations. Without I/O, so that the checks themselves can
be tested.

Words
- A *run* is one call of a transfer's function; it is named by its stamp. It *took effect* on an
  account if its write was acknowledged (in a transaction: its commit), or if any reader saw it
  there.
- *Partial*: a run that took effect on one of its two accounts.
- *Duplicate*: each run beyond the first that took effect on both accounts, for one transfer.
- *Lost update*: a run's effect on an account that is not in the account's history at the end,
  because a later write had read the version before it. A write that is gone without a later write
  over it makes its run partial.
- *Fractured read*: two accounts read together, of which one shows a run's effect, and the other the
  value that this very run had replaced there, or something older.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Dict, List, Sequence, Set, Tuple

from bank import OPENING, OPENING_BALANCE, Account
from plan import Transfer

Effect = Tuple[str, int]
"""A stamp and an account."""


@dataclass
class Evidence:
    """The observations of one column."""

    crashes: int = 0
    replaced: Dict[Effect, str] = field(default_factory=dict)
    """Which run's version a run's write to an account replaces."""
    effects: Set[Effect] = field(default_factory=set)
    """The acknowledged writes."""
    audits: List[Tuple[Effect, Effect]] = field(default_factory=list)
    """Two accounts read together, each with the run that had written it."""
    seconds: List[float] = field(default_factory=list)
    """The duration of each run that was not killed."""
    accounts: Sequence[Account] = ()
    """The accounts at the end."""


@dataclass(frozen=True)
class Figures:
    crashes: int
    duplicates: int
    partial: int
    missing: int
    """Transfers that no run made whole: zero, since each is repeated until it is done."""
    fractured_reads: int
    audits: int
    lost_updates: int
    money: int
    money_opening: int
    p50_ms: float
    p99_ms: float


def figures(transfers: Sequence[Transfer], evidence: Evidence) -> Figures:
    _check_balances(transfers, evidence.accounts)
    effects = _effects(evidence)
    gone = {effect for effect in effects if effect[0] not in evidence.accounts[effect[1]].history}
    vanished = {effect for effect in gone if _nothing_was_written_over(effect, evidence)}
    sides = Counter(stamp for stamp, _ in effects - vanished)
    whole = Counter(_transfer(stamp) for stamp, count in sides.items() if count == 2)
    return Figures(
        crashes=evidence.crashes,
        duplicates=sum(count - 1 for count in whole.values()),
        partial=sum(count == 1 for count in sides.values()),
        missing=sum(transfer.number not in whole for transfer in transfers),
        fractured_reads=sum(_is_fractured(one, other, evidence.replaced) for one, other in evidence.audits),
        audits=len(evidence.audits),
        lost_updates=len(gone - vanished),
        money=sum(account.balance for account in evidence.accounts),
        money_opening=OPENING_BALANCE * len(evidence.accounts),
        p50_ms=_percentile(evidence.seconds, 0.50) * 1000,
        p99_ms=_percentile(evidence.seconds, 0.99) * 1000,
    )


def _effects(evidence: Evidence) -> Set[Effect]:
    at_the_end = {(stamp, number) for number, account in enumerate(evidence.accounts) for stamp in account.history}
    audited = {effect for pair in evidence.audits for effect in pair}
    return {effect for effect in evidence.effects | at_the_end | audited if effect[0] != OPENING}


def _nothing_was_written_over(effect: Effect, evidence: Evidence) -> bool:
    return evidence.replaced.get(effect) == evidence.accounts[effect[1]].last


def _is_fractured(one: Effect, other: Effect, replaced: Dict[Effect, str]) -> bool:
    return _is_older(one, other, replaced) or _is_older(other, one, replaced)


def _is_older(seen: Effect, than: Effect, replaced: Dict[Effect, str]) -> bool:
    """Whether `seen` is below what the run of `than` wrote to that account, if it is one of its two."""
    stamp, account = than[0], seen[1]
    while (stamp, account) in replaced:
        stamp = replaced[(stamp, account)]
        if stamp == seen[0]:
            return True
    return False


def _check_balances(transfers: Sequence[Transfer], accounts: Sequence[Account]) -> None:
    """A balance must equal the sum of its history: otherwise the figures would not describe the
    money.
    """
    for number, account in enumerate(accounts):
        balance = OPENING_BALANCE
        for stamp in account.history[1:]:
            transfer = transfers[_transfer(stamp)]
            balance += transfer.amount if transfer.destination == number else -transfer.amount
        if balance != account.balance:
            raise ValueError(f"account {number} holds {account.balance}, but its history adds up to {balance}")


def _transfer(stamp: str) -> int:
    return int(stamp.partition(".")[0])


def _percentile(values: Sequence[float], part: float) -> float:
    ordered = sorted(values)
    return ordered[min(int(len(ordered) * part), len(ordered) - 1)] if ordered else 0.0
