"""`examples/transfer`: it finds the faults, and its columns show what they claim."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples/transfer"
sys.path[:0] = [str(EXAMPLE), str(REPOSITORY / "clients/python")]

import plan  # noqa: E402
import reckoning  # noqa: E402
from bank import OPENING, Account  # noqa: E402

RUN_SECONDS = 900
# From the first account to the second, twice.
TRANSFERS = [plan.Transfer(0, 0, 1, 10, ()), plan.Transfer(1, 0, 1, 5, ())]


class Seen(reckoning.Evidence):
    """Invented evidence: `run` is a run that replaced the versions of these two runs."""

    def run(self, stamp, source, destination, sides=(0, 1)):
        self.replaced[(stamp, 0)], self.replaced[(stamp, 1)] = source, destination
        self.effects.update((stamp, side) for side in sides)
        return self

    def end(self, source, destination):
        """The histories at the end, without their openings; the balances agree with them."""
        amounts = {transfer.number: transfer.amount for transfer in TRANSFERS}
        for history, sign in [(source, -1), (destination, 1)]:
            balance = Account().balance + sum(sign * amounts[int(stamp[0])] for stamp in history)
            self.accounts = [*self.accounts, Account(balance, (OPENING, *history))]
        return self

    def figures(self):
        found = reckoning.figures(TRANSFERS, self)
        return {
            name: value
            for name, value in vars(found).items()
            if value and name in ["duplicates", "partial", "missing", "fractured_reads", "lost_updates"]
        }


@pytest.mark.parametrize("rate", ["-1", "1.5", "nan"])
def test_a_rate_that_is_no_part_of_the_runs_is_refused(rate):
    command = [sys.executable, "-B", EXAMPLE / "transfer.py", "--kill-rate", rate]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
    assert done.returncode == 2 and "--kill-rate: from 0 to 1" in done.stderr, done.stderr


@pytest.fixture
def transfer(server):
    """Runs the example against the shared server: `transfer("--seed", "1")`."""
    if type(server).__name__ != "Landfast":
        pytest.skip("transactions are Landfast's alone")
    address = re.search(r"http=(\S+)", server.ready_line()).group(1)

    def run(*options):
        command = [sys.executable, "-B", EXAMPLE / "transfer.py", "--url", f"http://{address}", "--json", *options]
        done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_SECONDS)
        assert done.returncode == 0, done.stderr
        assert "workers killed" in done.stderr
        return json.loads(done.stdout)

    return run


def killed_workers_damage_plain_writes_and_no_transaction(transfer):
    """T1, T2, T4, T11."""
    found = transfer("--transfers", "60", "--accounts", "4", "--at-a-time", "8", "--kill-rate", "0.5")
    plain, atomic, serializable = found["plain writes"], found["read-atomic"], found["serializable"]
    kills = [kill for transfer in plan.transfers(60, 4, 0.5, seed=7) for kill in transfer.kills]
    assert plain["crashes"] == atomic["crashes"] == serializable["crashes"] == len(kills)
    # Each as planned: half of a transfer is gone, or all of it is made again.
    assert plain["partial"] == kills.count(plan.DEBIT) > 0
    assert plain["duplicates"] == kills.count(plan.CREDIT) > 0
    for column in [atomic, serializable]:
        assert (column["duplicates"], column["partial"], column["fractured_reads"]) == (0, 0, 0)
        assert column["audits"] > 0
    # The example shows the anomalies that read-atomic permits: sixty transfers over four accounts
    # do collide.
    assert plain["lost_updates"] > 0 and atomic["lost_updates"] > 0
    assert plain["missing"] == atomic["missing"] == serializable["missing"] == 0
    assert (serializable["lost_updates"], serializable["money"]) == (0, serializable["money_opening"])


def transfers_go_on_where_all_want_the_same_two_accounts(transfer):
    """T4."""
    found = transfer("--transfers", "200", "--accounts", "2", "--at-a-time", "32")
    serializable = found["serializable"]
    assert (serializable["missing"], serializable["lost_updates"]) == (0, 0)
    assert serializable["money"] == serializable["money_opening"]


def one_transfer_at_a_time_in_transactions_keeps_the_money(transfer):
    """T4."""
    found = transfer("--transfers", "20", "--accounts", "4", "--at-a-time", "1", "--kill-rate", "0.5")
    plain, atomic = found["plain writes"], found["read-atomic"]
    assert atomic["crashes"] > 0
    assert (atomic["lost_updates"], atomic["money"]) == (0, atomic["money_opening"])
    assert plain["lost_updates"] == 0
    assert plain["partial"] > 0 and plain["money"] < plain["money_opening"]


def a_seed_gives_the_same_transfers_and_the_same_kills():
    made = plan.transfers(1000, 100, 0.25, seed=7)
    assert made == plan.transfers(1000, 100, 0.25, seed=7) != plan.transfers(1000, 100, 0.25, seed=8)
    kills = [kill for transfer in made for kill in transfer.kills]
    assert set(kills) == set(plan.STEPS) and 200 < len(kills) < 400
    assert not any(transfer.kills for transfer in plan.transfers(1000, 100, 0, seed=7))


def a_clean_history_has_nothing_to_count():
    clean = Seen().run("0.1", OPENING, OPENING).run("1.1", "0.1", "0.1").end(["0.1", "1.1"], ["0.1", "1.1"])
    assert clean.figures() == {}
    found = reckoning.figures(TRANSFERS, clean)
    assert found.money == found.money_opening == 2000


def each_kind_of_damage_is_counted_as_what_it_is():
    doubled = Seen().run("0.1", OPENING, OPENING).run("0.2", "0.1", "0.1").run("1.1", "0.2", "0.2")
    assert doubled.end(["0.1", "0.2", "1.1"], ["0.1", "0.2", "1.1"]).figures() == {"duplicates": 1}

    half = Seen().run("0.1", OPENING, OPENING, [0]).run("0.2", "0.1", OPENING).run("1.1", "0.2", "0.2")
    assert half.end(["0.1", "0.2", "1.1"], ["0.2", "1.1"]).figures() == {"partial": 1}

    # Found at the end or by an audit, though no client learned that it took effect.
    unacknowledged = Seen().run("0.1", OPENING, OPENING, []).run("0.2", "0.1", OPENING).run("1.1", "0.2", "0.2")
    assert unacknowledged.end(["0.1", "0.2", "1.1"], ["0.2", "1.1"]).figures() == {"partial": 1}
    dirty = Seen().run("0.1", OPENING, OPENING).run("1.1", "0.1", "0.1").end(["0.1", "1.1"], ["0.1", "1.1"])
    dirty.audits = [(("1.2", 0), ("1.1", 1))]
    assert dirty.figures()["partial"] == 1

    overwritten = Seen().run("0.1", OPENING, OPENING).run("1.1", OPENING, "0.1").end(["1.1"], ["0.1", "1.1"])
    assert overwritten.figures() == {"lost_updates": 1}

    # No run wrote over it, and it is gone all the same.
    vanished = Seen().run("0.1", OPENING, OPENING).run("1.1", "0.1", OPENING, [0]).end(["0.1", "1.1"], ["0.1"])
    assert vanished.figures() == {"partial": 1, "missing": 1}
    vanished = Seen().run("0.1", OPENING, OPENING).run("1.1", "0.1", "0.1").end(["0.1", "1.1"], ["0.1"])
    assert vanished.figures() == {"partial": 1, "missing": 1}


@pytest.mark.parametrize(
    "source, destination, is_fractured",
    [
        ("0.1", "0.1", False),
        ("0.1", OPENING, True),
        (OPENING, "0.1", True),
        ("1.1", OPENING, True),
        ("1.1", "0.1", True),
        ("0.1", "1.1", True),
        (OPENING, OPENING, False),
    ],
)
def an_audit_is_fractured_if_one_side_is_older_than_the_other_says(source, destination, is_fractured):
    seen = Seen().run("0.1", OPENING, OPENING).run("1.1", "0.1", "0.1").end(["0.1", "1.1"], ["0.1", "1.1"])
    seen.audits = [((source, 0), (destination, 1)), ((destination, 1), (source, 0))]
    assert seen.figures() == ({"fractured_reads": 2} if is_fractured else {})


def an_audit_that_saw_a_rival_of_what_it_missed_is_not_fractured():
    """An observer cannot tell which of two runs that overwrote each other is the newer one, so it
    does not count.
    """
    seen = Seen().run("0.1", OPENING, OPENING).run("1.1", "0.1", OPENING).end(["0.1", "1.1"], ["1.1"])
    seen.audits = [(("1.1", 0), ("0.1", 1))]
    assert seen.figures() == {"lost_updates": 1}


def an_account_that_does_not_add_up_is_no_ground_for_figures():
    seen = Seen(accounts=[Account(999, (OPENING,)), Account()])
    with pytest.raises(ValueError, match="account 0 holds 999, but its history adds up to 1000"):
        reckoning.figures(TRANSFERS, seen)
