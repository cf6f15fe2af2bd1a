"""Two functions that share a volume: an invocation of each is one transaction on the account in it."""

import pathlib
import time

import landfast

ACCOUNT = pathlib.Path("/mnt/data/account")
BALANCE, JOURNAL = ACCOUNT / "balance", ACCOUNT / "journal"
WAIT_SECONDS = 20

seen = {}


def deposit(event, context):
    ACCOUNT.mkdir(exist_ok=True)
    before = int(BALANCE.read_text()) if BALANCE.exists() else 0
    return change(before, event["amount"])


def withdraw(event, context):
    before = int(BALANCE.read_text())
    # Memory is outside of the volume: it keeps what attempts that met a conflict have seen.
    balances = seen.setdefault(context.aws_request_id, [])
    balances.append(before)
    if event.get("meet"):
        wait_for_a_deposit(event["meet"])
    return {"balance": change(before, -event["amount"]), "balances read": balances}


def change(before, amount):
    BALANCE.write_text(str(before + amount))
    with JOURNAL.open("a") as journal:
        journal.write(f"{amount:+}\n")
    return before + amount


def wait_for_a_deposit(meet):
    """Tells that the balance is read, by a key of plain state, and waits for the answer."""
    state = landfast.state()
    state.put(f"{meet}/read", b"yes")
    deadline = time.monotonic() + WAIT_SECONDS
    while state.get(f"{meet}/deposited") is None:
        if time.monotonic() > deadline:
            raise TimeoutError("no deposit came")
        time.sleep(0.02)
