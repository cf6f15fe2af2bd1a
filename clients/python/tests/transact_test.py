"""Bodies: run again only where they may, always under one id, and skipped once that id has
committed.
"""

import asyncio
import contextlib
import os
import threading
import unittest.mock
from typing import Awaitable, List, Sequence, Tuple

import pytest

import cluster
import kinds
import landfast
from landfast import aio

COMMIT = "POST .*/commit$"
MAY_RUN_AGAIN = [
    cluster.refuse(409, "conflict"),
    cluster.refuse(409, "no-valid-version"),
    cluster.refuse(409, "snapshot-too-old"),
    cluster.refuse(409, "transaction-finished", outcome="aborted"),
    cluster.refuse(404, "no-such-transaction"),
]
MUST_NOT = [
    (cluster.refuse(409, "transaction-finished", outcome="expired"), landfast.TransactionFinished),
    (cluster.refuse(409, "transaction-finished", outcome="begun-anew"), landfast.TransactionFinished),
    (cluster.refuse(409, "expired"), landfast.Expired),
    (cluster.refuse(413, "too-large"), landfast.TooLarge),
    (cluster.refuse(400, "invalid-request"), landfast.InvalidRequest),
    (cluster.refuse(400, "several-sequencers"), landfast.SeveralSequencers),
    (cluster.refuse(507, "no-room"), landfast.NoRoom),
]


class Body:
    """Counts its runs, and writes which one committed."""

    def __init__(self) -> None:
        self.ids: List[str] = []

    async def __call__(self, t: kinds.Transaction) -> int:
        self.ids.append(t.id)
        await t.get("read")
        await t.put("run", b"%d" % len(self.ids))
        return len(self.ids)


@kinds.over()
async def a_body_runs_again_under_its_id_where_its_attempt_had_no_effect(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4."""
    for pattern in ["GET .*/keys/", "PUT .*/keys/", COMMIT]:
        body = Body()
        servers.fail(pattern, *MAY_RUN_AGAIN)
        assert await client.transact(body) == len(MAY_RUN_AGAIN) + 1
        assert len(set(body.ids)) == 1
        assert servers.store.commits[-1] == body.ids[0]
    assert len(servers.store.commits) == 3


@kinds.over()
async def a_body_does_not_run_again_where_it_may_not(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T4."""
    for pattern in ["GET .*/keys/", "PUT .*/keys/", COMMIT]:
        for fault, error in MUST_NOT:
            body = Body()
            servers.fail(pattern, fault)
            with pytest.raises(error):
                await client.transact(body)
            assert len(body.ids) == 1
    assert servers.store.commits == []


@kinds.over()
async def a_body_does_not_run_again_while_its_commit_is_unknown(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T4."""
    body = Body()
    servers.fail(COMMIT, *[cluster.reset_after] * 1000)
    with contextlib.ExitStack() as later:

        async def hurries(t: kinds.Transaction) -> None:
            await body(t)
            later.enter_context(kinds.hurried(0.5))

        with pytest.raises(landfast.OutcomeUnknown):
            await client.transact(hurries, id="x")
    assert servers.store.commits == ["x"] and len(body.ids) == 1
    servers.forgive()
    assert await client.transact(body, id="x") is None
    assert servers.store.commits == ["x"] and len(body.ids) == 1


@kinds.over()
async def the_runs_are_bounded_and_the_last_error_is_raised(client: kinds.Client, servers: cluster.Cluster) -> None:
    body = Body()
    servers.fail(COMMIT, *[cluster.refuse(409, "conflict")] * 100)
    with pytest.raises(landfast.Conflict, match="Nothing was written; run the body again"):
        await client.transact(body, runs_max=4)
    assert len(body.ids) == 4


@kinds.over(timeout=0.5)
async def a_begin_that_no_node_serves_in_time_is_not_tried_for_each_run(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    servers.nodes[0].kill()
    again = unittest.mock.patch("landfast._transact.full_jitter", side_effect=AssertionError("it is tried for another run"))
    with again, pytest.raises(landfast.Unavailable, match="is `landfast serve` running"):
        await client.transact(Body())


@kinds.over()
async def an_id_that_has_committed_is_skipped_by_transact_and_named_by_transaction(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4."""
    body = Body()
    assert await client.transact(body, id="x") == 1
    assert await client.transact(body, id="x") == 1
    with pytest.raises(landfast.AlreadyCommitted, match="begin transaction 'x'"):
        async with client.transaction(id="x"):
            raise AssertionError("the block must not be entered")
    assert len(body.ids) == 1


@kinds.over()
async def a_conflict_leaves_a_transaction_as_an_exception(client: kinds.Client, servers: cluster.Cluster) -> None:
    servers.fail(COMMIT, cluster.refuse(409, "conflict"))
    transaction = client.transaction(id="x")
    with pytest.raises(landfast.Conflict):
        async with transaction as t:
            await t.put("a", b"1")
    assert len(servers.requests(COMMIT)) == 1
    # The same object again is the next attempt under the same id.
    async with transaction as t:
        await t.put("a", b"2")
    assert servers.store.commits == ["x"]


@kinds.over()
async def an_error_of_another_transaction_does_not_run_the_body_again(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    runs = 0

    async def body(t: kinds.Transaction) -> None:
        nonlocal runs
        runs += 1
        raise landfast.Conflict("commit transaction 'inner'", transaction="inner")

    with pytest.raises(landfast.Conflict):
        await client.transact(body, id="outer")
    assert runs == 1
    assert servers.store.transactions["outer"].state == "aborted"


@kinds.over()
async def a_body_does_not_run_again_where_that_would_be_later_than_a_call_takes(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    servers.fail(COMMIT, cluster.refuse(409, "conflict", {"Retry-After": f"{cluster.GUARD_S + 1:.0f}"}))
    body = Body()
    with pytest.raises(landfast.Conflict) as caught:
        await client.transact(body)
    assert caught.value.retry_after == cluster.GUARD_S + 1 and len(body.ids) == 1


@kinds.over()
async def an_attempt_that_was_begun_anew_is_left_alone(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T8."""
    with pytest.raises(landfast.TransactionFinished, match="leave it to them"):
        async with client.transaction(id="x") as earlier:
            await earlier.put("a", b"earlier")
            async with client.transaction(id="x") as later:
                with pytest.raises(landfast.TransactionFinished):
                    await earlier.put("b", b"earlier")
                await later.put("a", b"later")
            await earlier.put("a", b"too late")
    assert servers.store.values == {b"a": b"later"}
    assert not servers.requests("DELETE"), "an abort would have hit the later attempt"


@kinds.over()
async def an_attempt_ended_by_a_late_copy_of_its_own_begin_is_made_again(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    arrives, has_arrived = threading.Event(), threading.Event()
    servers.fail("POST /v1/transactions$", cluster.late(arrives, has_arrived))
    runs = 0

    async def body(t: kinds.Transaction) -> None:
        nonlocal runs
        runs += 1
        arrives.set()
        assert has_arrived.wait(cluster.GUARD_S)
        await t.put("a", b"1")

    await client.transact(body, id="x")
    assert runs == 2
    assert servers.store.commits == ["x"]


@kinds.over()
async def a_body_that_takes_no_notice_of_its_end_is_judged_by_it(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    runs = 0

    async def heedless(t: kinds.Transaction) -> None:
        nonlocal runs
        runs += 1
        with contextlib.suppress(landfast.Error):
            await t.put("a", b"1")
        await t.put("b", b"2")

    servers.fail("PUT", cluster.refuse(409, "transaction-finished", outcome="aborted"))
    await client.transact(heedless)
    assert runs == 2
    servers.fail("PUT", cluster.refuse(409, "transaction-finished", outcome="begun-anew"))
    with pytest.raises(landfast.TransactionFinished):
        await client.transact(heedless)
    assert runs == 3

    async def heedless_at_the_end(t: kinds.Transaction) -> None:
        nonlocal runs
        runs += 1
        with contextlib.suppress(landfast.Error):
            await t.put("a", b"1")

    commits = len(servers.store.commits)
    servers.fail("PUT", cluster.refuse(409, "transaction-finished", outcome="aborted"))
    await client.transact(heedless_at_the_end)
    assert (runs, len(servers.store.commits)) == (5, commits + 1)
    servers.fail("PUT", cluster.refuse(409, "transaction-finished", outcome="expired"))
    with pytest.raises(landfast.TransactionFinished, match="expired"):
        await client.transact(heedless_at_the_end)
    assert (runs, len(servers.store.commits)) == (6, commits + 1)

    async def ends_itself(t: kinds.Transaction) -> None:
        nonlocal runs
        runs += 1
        await t.abort()
        await t.put("b", b"2")

    with pytest.raises(landfast.TransactionFinished):
        await client.transact(ends_itself)
    assert runs == 7


@kinds.over()
async def an_ended_transaction_takes_no_more_calls(client: kinds.Client, servers: cluster.Cluster) -> None:
    transaction = client.transaction(id="x")
    with pytest.raises(RuntimeError, match="not begun; use `with"):
        await transaction.get("a")
    async with transaction as t:
        await t.commit()
        with pytest.raises(landfast.TransactionFinished):
            await t.put("a", b"1")
        with pytest.raises(landfast.TransactionFinished):
            await t.abort()
    async with client.transaction(id="y") as t:
        await t.abort()
        await t.abort()
        with pytest.raises(landfast.TransactionFinished):
            await t.commit()
    assert servers.store.commits == ["x"]


def a_decorated_function_is_a_transaction_named_by_its_arguments() -> None:
    """T4."""
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:

        @client.transactional(id=lambda order, amount: f"pay/{order}")
        def pay(t: landfast.Transaction, order: int, amount: int) -> int:
            balance = int(t.get("balance") or b"0") + amount
            t.put("balance", b"%d" % balance)
            return balance

        servers.fail(COMMIT, cluster.refuse(409, "conflict"), cluster.reset_after)
        assert pay(1, amount=5) == 5
        assert pay(1, amount=5) == 5
        assert pay(2, amount=5) == 10
        assert pay.__name__ == "pay"

        @client.transactional
        def count(t: landfast.Transaction) -> None:
            t.put("count", b"%d" % (int(t.get("count") or b"0") + 1))

        count()
        count()
        assert client.state().get("count") == b"2"


@kinds.over(kinds=("asyncio",))
async def a_decorated_coroutine_is_a_transaction_named_by_its_arguments(
    client: aio.Client, servers: cluster.Cluster
) -> None:
    @client.transactional(id=lambda order: f"pay/{order}")
    async def pay(t: aio.Transaction, order: int) -> int:
        await t.put("paid", b"%d" % order)
        return order

    servers.fail(COMMIT, cluster.refuse(409, "conflict"), cluster.reset_after)
    assert await pay(1) == 1
    assert await pay(1) == 1
    assert servers.store.commits == ["pay/1"]


@kinds.over()
async def a_body_runs_again_whatever_it_makes_of_the_failure_of_its_transaction(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4. `asyncio.TaskGroup` makes a group of it."""
    runs = []

    async def body(t: kinds.Transaction) -> int:
        runs.append(t.id)
        try:
            await t.put("a", b"1")
        except landfast.Error as error:
            raise ValueError("of its own") from error
        return len(runs)

    servers.fail("PUT .*/keys/", *MAY_RUN_AGAIN)
    assert await client.transact(body) == len(MAY_RUN_AGAIN) + 1
    servers.fail("PUT .*/keys/", cluster.refuse(413, "too-large"))
    with pytest.raises(ValueError):
        await client.transact(body)


@kinds.over()
async def an_id_that_has_committed_meanwhile_is_skipped_whatever_the_body_goes_on_to_ask(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4."""

    async def tidies_up(t: kinds.Transaction) -> bool:
        try:
            await t.put("a", b"1")
        finally:
            await t.delete("b")
        return True

    async def takes_no_notice(t: kinds.Transaction) -> bool:
        with contextlib.suppress(landfast.AlreadyCommitted):
            await t.put("a", b"1")
        await t.put("b", b"2")
        return True

    async def makes_a_group_of_it(t: kinds.Transaction) -> bool:
        raise Group([await _raised_by(t.put("a", b"1")), await _raised_by(t.put("b", b"2"))])

    for body in [tidies_up, takes_no_notice, makes_a_group_of_it]:
        servers.fail("PUT .*/keys/a", cluster.refuse(409, "transaction-finished", outcome="committed"))
        assert await client.transact(body) is None
    assert len(servers.requests("/keys/")) == 3


@kinds.over()
async def the_first_result_of_an_id_is_returned_as_json_gives_it_back(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T19."""
    longest = "r" * (landfast._transact.RESULT_BYTES_MAX - 2)
    cycle: List[object] = []
    cycle.append(cycle)
    results: Sequence[Tuple[object, object]] = [
        ({"paid": (1, None), "by": "\u00e4"}, {"paid": [1, None], "by": "\u00e4"}),
        (longest, longest),
        (0, 0),
        (longest + "r", None),
        (b"bytes", None),
        (float("nan"), None),
        (cycle, None),
        (None, None),
    ]
    for number, (result, again) in enumerate(results):

        async def body(t: kinds.Transaction, result: object = result) -> object:
            await t.put("a", b"1")
            return result

        assert await client.transact(body, id=f"order {number}") is result
        assert await client.transact(body, id=f"order {number}") == again
    assert len(servers.store.commits) == len(results)
    await client.transact(body)
    assert not servers.requests(COMMIT)[-1].body, "no repeat asks for the result of a random id"


@kinds.over()
async def the_result_of_another_callers_commit_is_asked_for(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T19. Another caller has committed the id while this one's body was under way."""

    async def other(t: kinds.Transaction) -> str:
        await t.put("a", b"1")
        return "the first"

    async def body(t: kinds.Transaction) -> str:
        assert await client.transact(other, id="x") == "the first"
        servers.fail("PUT .*/keys/a", cluster.refuse(409, "transaction-finished", outcome="committed"))
        await t.put("a", b"2")
        raise AssertionError("its attempt has ended")

    assert await client.transact(body, id="x") == "the first"
    assert servers.store.commits == ["x"]


@kinds.over()
async def the_error_that_leaves_a_body_decides_and_not_one_of_its_cleanup(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    runs = 0

    async def body(t: kinds.Transaction) -> int:
        nonlocal runs
        runs += 1
        try:
            await t.get("a")
        except landfast.Error:
            with contextlib.suppress(landfast.TooLarge):
                await t.put("log", b"failed")
            raise
        return runs

    servers.fail("GET .*/keys/", cluster.refuse(409, "no-valid-version"))
    servers.fail("PUT .*/keys/", cluster.refuse(413, "too-large"))
    assert await client.transact(body) == 2


@kinds.over()
async def a_failure_that_a_body_has_dealt_with_does_not_run_it_again(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    charged: List[str] = []

    async def charges(t: kinds.Transaction) -> None:
        with contextlib.suppress(landfast.NoValidVersion):
            await t.get("discount")
        charged.append(t.id)
        raise CardDeclined

    servers.fail("GET .*/keys/", *[cluster.refuse(409, "no-valid-version")] * 16)
    with pytest.raises(CardDeclined):
        await client.transact(charges)
    assert len(charged) == 1

    async def is_declined_at_once(t: kinds.Transaction) -> None:
        charged.append(t.id)
        raise CardDeclined

    # Python makes the error that is handled here the context of the body's error.
    try:
        raise landfast.Conflict("commit transaction 'pay'", transaction="pay")
    except landfast.Conflict:
        with pytest.raises(CardDeclined):
            await client.transact(is_declined_at_once, id="pay")
    assert len(charged) == 2


@kinds.over()
async def what_a_body_raises_after_a_commit_of_its_own_is_raised(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4. A second run would find its id committed, and lose the error."""

    async def body(t: kinds.Transaction) -> None:
        try:
            await t.get("a")
        except landfast.NoValidVersion as error:
            await t.commit()
            raise CardDeclined from error

    servers.fail("GET .*/keys/", cluster.refuse(409, "no-valid-version"))
    with pytest.raises(CardDeclined):
        await client.transact(body, id="pay")
    assert servers.store.commits == ["pay"] and len(servers.requests("POST /v1/transactions$")) == 1


def a_body_that_goes_on_in_a_forked_process_is_not_run_again_there() -> None:
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        runs = 0

        def body(t: landfast.Transaction) -> None:
            nonlocal runs
            runs += 1
            with contextlib.suppress(landfast.NoValidVersion):
                t.get("a")
            if runs == 1 and os.fork() == 0:
                t.put("a", b"1")
                raise AssertionError("the transaction is the parent's")

        servers.fail("GET .*/keys/", cluster.refuse(409, "no-valid-version"))
        parent = os.getpid()
        try:
            client.transact(body)
        except BaseException as error:
            if os.getpid() != parent:
                # The begin was sent once, and the id was not begun anew.
                os._exit("put key" in str(error))
            raise
        _, status = os.wait()
        assert os.waitstatus_to_exitcode(status) == 1


@kinds.over()
async def a_transaction_that_is_open_is_not_entered_again(client: kinds.Client, servers: cluster.Cluster) -> None:
    async with client.transaction(id="x") as t:
        with pytest.raises(RuntimeError, match="'x' is open; begin another one"):
            async with t:
                raise AssertionError("it is entered")
        await t.put("a", b"1")
    assert servers.store.commits == ["x"]


@kinds.over(kinds=("asyncio",))
async def a_call_of_an_earlier_run_changes_nothing_of_the_later_one(
    client: aio.Client, servers: cluster.Cluster
) -> None:
    """T8. It is left behind where `asyncio.gather` raises the error of another call."""
    is_over = threading.Event()
    left: List["asyncio.Future[None]"] = []

    async def body(t: aio.Transaction) -> int:
        if not left:
            for key in ["ended", "cancelled"]:
                servers.fail(f"PUT .*/keys/{key}", cluster.slow(is_over))
                left.append(asyncio.ensure_future(t.put(key, b"1")))
                while not servers.requests(f"PUT .*/keys/{key}"):
                    await asyncio.sleep(0)
            await asyncio.gather(t.put("a", b"1"), *left)
        left[1].cancel()
        is_over.set()
        ended, cancelled = await asyncio.gather(*left, return_exceptions=True)
        assert isinstance(ended, landfast.TransactionFinished) and ended.outcome == "begun-anew"
        assert isinstance(cancelled, asyncio.CancelledError)
        await t.put("a", b"2")
        return len(servers.requests("POST /v1/transactions$"))

    servers.fail("PUT .*/keys/a", cluster.refuse(409, "conflict"))
    assert await client.transact(body) == 2
    assert servers.store.values == {b"a": b"2"}


@kinds.over(kinds=("asyncio",))
async def a_call_that_comes_back_after_the_commit_does_not_hide_what_the_body_raises(
    client: aio.Client, servers: cluster.Cluster
) -> None:
    """T4. It learns that the transaction has committed, which this very attempt did."""
    has_committed = threading.Event()

    async def body(t: aio.Transaction) -> None:
        late = asyncio.ensure_future(t.get("a"))
        while not servers.requests("GET .*/keys/a"):
            await asyncio.sleep(0)
        await t.commit()
        has_committed.set()
        await late

    refusal = cluster.refuse(409, "transaction-finished", outcome="committed")
    servers.fail("GET .*/keys/a", cluster.held(has_committed, refusal))
    with pytest.raises(landfast.TransactionFinished, match="outcome: committed"):
        await client.transact(body)


@kinds.over(kinds=("asyncio",))
async def whichever_call_comes_back_first_an_id_that_has_committed_meanwhile_is_skipped(
    client: aio.Client, servers: cluster.Cluster
) -> None:
    """T4."""
    is_told = threading.Event()

    async def body(t: aio.Transaction) -> bool:
        late = [asyncio.ensure_future(t.get(key)) for key in ("finished", "lost")]
        while len(servers.requests("GET .*/keys/")) < len(late):
            await asyncio.sleep(0)
        with pytest.raises(landfast.AlreadyCommitted):
            await t.put("a", b"1")
        is_told.set()
        raise Group([await _raised_by(call) for call in late])

    finished = cluster.refuse(409, "transaction-finished", outcome="committed")
    servers.fail("PUT", finished)
    servers.fail("GET .*/keys/finished", cluster.held(is_told, finished))
    servers.fail("GET .*/keys/lost", cluster.held(is_told, cluster.refuse(409, "conflict")))
    assert await client.transact(body) is None


async def _raised_by(call: Awaitable[object]) -> landfast.Error:
    with pytest.raises(landfast.Error) as error:
        await call
    return error.value


class CardDeclined(Exception):
    pass


class Group(Exception):
    """As `asyncio.TaskGroup` raises it, which exists from Python 3.11 on."""

    def __init__(self, exceptions: Sequence[Exception]) -> None:
        super().__init__("some failed")
        self.exceptions = tuple(exceptions)
