"""Requests: which are repeated, where, how often, and the error when they are not."""

import contextlib
import contextvars
import gc
import threading
import time
import unittest.mock
from typing import Any

import pytest

import cluster
import kinds
import landfast
from landfast import _after, _requests

COMMIT = "POST .*/commit$"


@kinds.over()
async def a_transaction_writes_all_of_it_when_its_block_ends(client: kinds.Client, servers: cluster.Cluster) -> None:
    async with client.transaction(id="order 1/2") as t:
        await t.put("a", b"1")
        await t.put(b"\x00/\xff", b"2")
        await t.put("", b"empty")
        await t.put("..", b"dots")
        assert await t.get("a") == b"1"
        assert await t.get("b") is None
        await t.delete("a")
        assert servers.store.values == {}
    assert servers.store.values == {b"\x00/\xff": b"2", b"": b"empty", b"..": b"dots"}
    assert servers.store.commits == ["order 1/2"]
    # Proxies in between may resolve `..` and merge parts that look like a folder.
    assert servers.requests("/v1/transactions/order%201%2F2/keys/%2E%2E$")
    assert {seen.headers.get("landfast-attempt") for seen in servers.seen[1:]} == {"1"}


@kinds.over(nodes=2)
async def a_scan_is_repeated_at_the_next_node(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T18. Its keys go to the server and come back as bytes."""
    page = b'{"keys":[{"key":"a%2F%FF","bytes":1,"value":"MQ=="}],"next":"a%2Fz"}'
    servers.fail("GET /v1/state\\?", cluster.reset_unheard, cluster.reply(200, page))
    assert await client.state().scan("a/", after=b"\xff&", limit=7) == landfast.Page([(b"a/\xff", b"1")], b"a/z")
    assert [(seen.node, seen.path) for seen in servers.seen] == [
        (node, "/v1/state?prefix=a%2F&after=%FF%26&limit=7") for node in (0, 1)
    ]


@kinds.over()
async def a_limit_that_no_page_has_is_refused_before_it_is_sent(client: kinds.Client, servers: cluster.Cluster) -> None:
    for limit in (0, -1, 1_001):
        with pytest.raises(landfast.InvalidRequest, match="between 1 and 1,000"):
            await client.state().scan(limit=limit)
    assert servers.seen == []


@kinds.over()
async def an_exception_aborts(client: kinds.Client, servers: cluster.Cluster) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.transaction(id="x") as t:
            await t.put("a", b"1")
            raise ZeroDivisionError
    assert servers.store.values == {}
    assert servers.store.transactions["x"].state == "aborted"


@kinds.over()
async def a_commit_whose_answer_is_lost_is_repeated_under_its_id_and_takes_effect_once(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4."""
    servers.fail(COMMIT, cluster.reset_after, cluster.reset_after)
    async with client.transaction(id="pay") as t:
        await t.put("a", b"1")
    assert servers.store.commits == ["pay"]
    assert [seen.path for seen in servers.requests(COMMIT)] == ["/v1/transactions/pay/commit"] * 3
    assert t.after == "0-0-1"


@kinds.over()
async def a_write_under_a_condition_is_not_sent_again_after_a_lost_answer(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T20: the repeat would meet the effect of the first."""
    state = client.state()
    for fault in (cluster.reset_after, cluster.refuse(503, "outcome-unknown")):
        servers.fail("/state/", fault, fault, fault)
        for write in (state.put("a", b"1", if_absent=True), state.put("a", b"1", if_match='"1"'), state.delete("a", if_match="*")):
            with pytest.raises(landfast.OutcomeUnknown):
                await write
    assert [seen.headers.get("if-none-match") or seen.headers.get("if-match") for seen in servers.requests("/state/")] == ["*", '"1"', "*"] * 2


@kinds.over()
async def every_request_of_a_transaction_survives_a_reset_before_and_after_it_takes_effect(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4."""
    for number, fault in enumerate([cluster.reset_unheard, cluster.reset_after]):
        for pattern in ["POST /v1/transactions$", "GET .*/keys/", "PUT .*/keys/", "DELETE .*/keys/", COMMIT]:
            servers.fail(pattern, fault)
            async with client.transaction(id=f"{pattern}{number}") as t:
                assert await t.get("absent") is None
                await t.put("a", b"1")
                await t.delete("b")
    assert len(servers.store.commits) == len(set(servers.store.commits)) == 10


@kinds.over(nodes=3)
async def the_next_node_is_asked_at_the_first_reset(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T10."""
    never = unittest.mock.patch("landfast._repeat.full_jitter", return_value=2 * cluster.GUARD_S)
    async with client.transaction(id="x") as t:
        await t.put("a", b"1")
        servers.nodes[0].kill()
        with never:
            await t.put("b", b"2")
    assert [seen.node for seen in servers.seen] == [0, 0, 1, 1]
    assert servers.store.values == {b"a": b"1", b"b": b"2"}


@kinds.over(nodes=3)
async def a_client_follows_its_transaction_to_the_next_node(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T10."""
    async with client.transaction() as t:
        servers.fail("PUT", cluster.reset_unheard)
        await t.put("a", b"1")
    await client.state().put("b", b"2")
    assert [seen.node for seen in servers.seen] == [0, 0, 1, 1, 1]


@kinds.over(nodes=2)
async def a_node_that_cannot_serve_is_passed_over_at_once(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T10."""
    servers.fail("/v1/state", cluster.refuse(503, "unavailable", {"Retry-After": f"{2 * cluster.GUARD_S:.0f}"}))
    await client.state().put("a", b"1")
    assert [seen.node for seen in servers.seen] == [0, 1]


@kinds.over(nodes=2)
async def a_commit_that_is_answered_unknown_is_asked_at_the_next_node(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4, T10. The node may be the one that cannot reach the commit sequencer, so the next
    transaction begins at the next node, too.
    """
    servers.fail(COMMIT, cluster.refuse(503, "outcome-unknown"))
    async with client.transaction(id="pay") as t:
        await t.put("a", b"1")
    async with client.transaction():
        pass
    assert [seen.node for seen in servers.seen] == [0, 0, 0, 1, 1, 1]
    assert [seen.path for seen in servers.requests(COMMIT)][:2] == ["/v1/transactions/pay/commit"] * 2


@kinds.over(nodes=2)
async def a_run_whose_begin_is_answered_unknown_is_asked_for_where_it_was_begun(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """W1. Elsewhere it could be begun once more."""
    run = b'{"run":"r","status":"running"}'
    servers.fail("POST /v1/workflows", cluster.refuse(503, "outcome-unknown", id="r"), cluster.reply(200, run))
    assert (await client.runs("order").run(id="r")).status == "running"
    assert [seen.node for seen in servers.seen] == [0, 0]


@kinds.over()
async def a_server_that_comes_back_in_time_is_waited_for(client: kinds.Client, servers: cluster.Cluster) -> None:
    async with client.transaction(id="x") as t:
        await t.put("a", b"1")
        servers.nodes[0].kill()
        threading.Timer(0.3, servers.restart, [0]).start()
    assert servers.store.commits == ["x"]


@kinds.over()
async def retry_after_is_waited_for(client: kinds.Client, servers: cluster.Cluster) -> None:
    refusal = cluster.refuse(429, "too-much-buffered", {"Retry-After": "1"})
    servers.fail("PUT", refusal)
    began = time.monotonic()
    async with client.transaction() as t:
        await t.put("a", b"1")
    assert time.monotonic() - began >= 1


@kinds.over()
async def a_wait_that_would_outlast_the_deadline_is_not_begun(client: kinds.Client, servers: cluster.Cluster) -> None:
    servers.fail("POST", cluster.refuse(429, "too-many-transactions", {"Retry-After": "600"}))
    began = time.monotonic()
    with pytest.raises(landfast.TooManyTransactions) as caught:
        async with client.transaction():
            raise AssertionError("the block must not be entered")
    assert time.monotonic() - began < cluster.GUARD_S, "it waited until its own deadline"
    assert caught.value.retry_after == 600


@kinds.over()
async def a_commit_that_is_never_answered_is_unknown_and_can_be_asked_again(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4."""
    servers.fail(COMMIT, *[cluster.reset_after] * 1000)
    transaction = client.transaction(id="x")
    with contextlib.ExitStack() as later, pytest.raises(landfast.OutcomeUnknown) as caught:
        async with transaction as t:
            await t.put("a", b"1")
            later.enter_context(kinds.hurried(1))
    assert "commit transaction 'x' at 127.0.0.1:" in str(caught.value)
    assert "repeat it with the same id" in str(caught.value)
    assert not servers.requests("DELETE"), "what may have committed must not be aborted"
    servers.forgive()
    with pytest.raises(landfast.AlreadyCommitted, match="its id has committed before"):
        async with transaction:
            raise AssertionError("the block must not be entered")
    await transaction.commit()
    assert await transaction.status() == "committed"
    assert servers.store.commits == ["x"]


@kinds.over()
async def a_commit_that_was_never_sent_is_not_called_unknown(client: kinds.Client, servers: cluster.Cluster) -> None:
    servers.fail("PUT", cluster.answer_and_close)
    with contextlib.ExitStack() as later, pytest.raises(landfast.Unavailable):
        async with client.transaction() as t:
            await t.put("a", b"1")
            servers.nodes[0].kill()
            later.enter_context(kinds.hurried(1))
    assert not servers.requests(COMMIT)


@kinds.over(timeout=1)
async def an_answer_that_does_not_come_in_time_counts_as_lost(client: kinds.Client, servers: cluster.Cluster) -> None:
    end = threading.Event()
    servers.fail("GET", cluster.silent(end))
    began = time.monotonic()
    with pytest.raises(landfast.Unavailable, match="no answer in time"):
        await client.state().get("a")
    assert time.monotonic() - began > 0.9
    end.set()


@kinds.over()
async def a_late_copy_of_a_write_never_undoes_a_later_one(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T8. The first copy of a write can arrive after the next write of the key: that attempt is given up."""
    arrives, has_arrived = threading.Event(), threading.Event()
    servers.fail("PUT", cluster.late(arrives, has_arrived))
    runs = 0

    async def body(t: kinds.Transaction) -> None:
        nonlocal runs
        runs += 1
        await t.put("a", b"first")
        await t.put("a", b"second")
        arrives.set()
        assert has_arrived.wait(cluster.GUARD_S)

    await client.transact(body, id="x")
    assert servers.store.values == {b"a": b"second"}
    assert runs == 2


@kinds.over()
async def an_attempt_does_not_commit_after_a_write_that_may_be_missing(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4. All or nothing, even for a body that ignores the error."""
    servers.fail("PUT", *[cluster.reset_unheard] * 1000)
    with pytest.raises(landfast.Unavailable, match="may still arrive"):
        async with client.transaction() as t:
            with contextlib.suppress(landfast.Unavailable), kinds.hurried(1):
                await t.put("a", b"1")
            await t.commit()
    assert not servers.requests(COMMIT)


@kinds.over()
async def an_effect_whose_answer_is_lost_is_repeated_under_its_place(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T13. The server recognises a repeat by its position, which the next attempt counts from zero
    again.
    """
    servers.fail("POST .*/messages/", cluster.reset_unheard, cluster.reset_after)
    async with client.transaction() as t:
        await t.send("mail", b"hello")
        await t.send("mail", b"again")
        await t.invoke("notify", b"both")
    async with client.transaction() as t:
        await t.send("mail", b"other")
    places = [seen.headers.get("landfast-effect") for seen in servers.requests("POST .*/(messages|invocations)/")]
    assert places == ["0", "0", "0", "1", "2", "0"]
    assert len(servers.store.commits) == 2


@kinds.over()
async def what_was_committed_is_carried_to_the_next_begin(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T14."""
    async with client.transaction() as t:
        await t.put("a", b"1")
    async with client.transaction():
        pass
    async with client.transaction(after="7-7-7"):
        pass
    assert [seen.headers.get("landfast-after") for seen in servers.requests("POST /v1/transactions$")] == [
        None,
        "0-0-1",
        "7-7-7",
    ]


@kinds.over()
async def plain_state_is_written_read_and_deleted(client: kinds.Client, servers: cluster.Cluster) -> None:
    state = client.state()
    assert await state.get("a/b c") is None
    servers.fail("PUT", cluster.reset_after)
    await state.put("a/b c", b"1")
    assert await state.get("a/b c") == b"1"
    await state.delete("a/b c")
    assert await state.get("a/b c") is None


@kinds.over(timeout=1)
async def a_state_write_without_an_answer_is_unknown(client: kinds.Client, servers: cluster.Cluster) -> None:
    servers.fail("PUT", *[cluster.reset_unheard] * 1000)
    with pytest.raises(landfast.OutcomeUnknown, match="put key 'a' at"):
        await client.state().put("a", b"1")


@kinds.over(nodes=2)
async def no_refusal_of_a_repeat_denies_what_a_lost_copy_may_have_done(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4. The second node refuses the client; the first may have committed all the same."""
    servers.fail(COMMIT, cluster.reset_after, cluster.refuse(401, "unauthorized"))
    with pytest.raises(landfast.OutcomeUnknown):
        async with client.transaction(id="x") as t:
            await t.put("a", b"1")
    assert servers.store.commits == ["x"]


@kinds.over()
async def a_connection_is_kept(client: kinds.Client, servers: cluster.Cluster) -> None:
    for number in range(20):
        await client.state().put("a", b"%d" % number)
    assert len({seen.peer for seen in servers.seen}) == 1


@kinds.over()
async def large_values_arrive_whole(client: kinds.Client, servers: cluster.Cluster) -> None:
    value = bytes(range(256)) * 40_000
    await client.state().put("large", value)
    assert servers.store.values[b"large"] == value
    assert await client.state().get("large") == value


@kinds.over()
async def what_no_server_takes_is_refused_before_it_is_sent(client: kinds.Client, servers: cluster.Cluster) -> None:
    with pytest.raises(landfast.TooLarge, match="put key 'a': 67,108,865 bytes, at most 67,108,864"):
        await client.state().put("a", bytes(64 * 1024 * 1024 + 1))
    with pytest.raises(landfast.InvalidRequest):
        client.transaction(id="")
    with pytest.raises(landfast.InvalidRequest):
        await client.state().get("\ud800")
    with pytest.raises(TypeError, match="a value is bytes, not str; encode it"):
        await client.state().put("a", "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="run the workflow 'order': an id is a str, not int"):
        await client.runs("order").run(1, id=5)  # type: ignore[arg-type]
    assert servers.seen == []


@kinds.over(timeout=1)
async def a_repeat_that_is_cut_short_does_not_hide_what_the_server_said(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """Except for a change that may have taken effect: a refusal that denies the effect is not
    reported as its cause.
    """
    end = threading.Event()
    busy, unknown = cluster.refuse(429, "too-much-buffered"), cluster.refuse(503, "outcome-unknown")
    for read, refusal, error, said in [
        (True, busy, landfast.TooMuchBuffered, "too-much-buffered"),
        (False, busy, landfast.OutcomeUnknown, "no answer in time"),
        (False, unknown, landfast.OutcomeUnknown, "said by the test: outcome-unknown"),
    ]:
        servers.fail("state", refusal, *[cluster.silent(end)] * 3)
        with pytest.raises(error, match=said):
            await (client.state().get("a") if read else client.state().put("a", b"1"))
        servers.forgive()
    end.set()


def threads_that_share_a_transaction_give_each_message_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4. The server would take the second of two equal messages in one position for a repeat of
    the first.
    """
    made = _requests.send
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client, client.transaction() as t:

        def overtaken(*of: Any) -> _requests.Call:
            monkeypatch.setattr(_requests, "send", made)
            other = threading.Thread(target=t.send, args=("mail", b"hello"))
            other.start()
            other.join()
            return made(*of)

        monkeypatch.setattr(_requests, "send", overtaken)
        t.send("mail", b"hello")
        assert sorted(seen.headers["landfast-effect"] for seen in servers.requests("/messages/")) == ["0", "1"]


def tokens_of_clients_that_are_gone_are_not_kept() -> None:
    """A program may make a client for each request that it handles."""

    def scenario() -> None:
        living = _after.After()
        living.heard("living")
        for _ in range(3):
            _after.After().heard("gone")
            gc.collect()
        last = _after.After()
        last.heard("last")
        assert (living.token, last.token) == ("living", "last")
        assert "gone" not in _after._tokens.get().values()

    contextvars.Context().run(scenario)
