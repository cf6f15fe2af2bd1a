"""The transfers, and the deaths of their workers: from a seed alone, so that every column has the
same.
"""

import random
from dataclasses import dataclass
from typing import List, Tuple

DEBIT, CREDIT, ENTRY, END = "debit", "credit", "entry", "end"
STEPS = (DEBIT, CREDIT, ENTRY, END)
"""A worker dies right after one of these: a write of the three, or the end of the transfer, before
it can report it.
"""

AMOUNT_MAX = 20
KILLS_MAX = 3


@dataclass(frozen=True)
class Transfer:
    """Money from one account to another; the first runs of it are killed, each after the step named here."""

    number: int
    source: int
    destination: int
    amount: int
    kills: Tuple[str, ...]


def transfers(count: int, accounts: int, kill_rate: float, seed: int) -> List[Transfer]:
    chance = random.Random(seed)
    planned = []
    for number in range(count):
        source, destination = chance.sample(range(accounts), 2)
        planned.append(Transfer(number, source, destination, chance.randint(1, AMOUNT_MAX), _kills(chance, kill_rate)))
    return planned


def _kills(chance: random.Random, kill_rate: float) -> Tuple[str, ...]:
    kills: List[str] = []
    while len(kills) < KILLS_MAX and chance.random() < kill_rate:
        kills.append(chance.choice(STEPS))
        if kills[-1] in (ENTRY, END):
            # The next run may find its work done and have no step to die after, as it does with plain writes.
            break
    return tuple(kills)
