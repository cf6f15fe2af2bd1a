"""Ids: a retried function finds its own commits by them."""

import contextlib
import os
import re
import sys
import threading
import unittest.mock
from types import ModuleType
from typing import Callable, List, Optional

import pytest

import cluster
import kinds
import landfast
from landfast import _attempt, _ids

STATE_KEYS = ["a", "b", "c"]


def _handle(client: landfast.Client, die_after: Optional[int] = None) -> None:
    """A request's three transactions, the second of which has one inside; dies at the given point."""
    for number, key in enumerate(STATE_KEYS):

        def add(t: landfast.Transaction) -> None:
            if key == "b":
                client.transact(lambda inner: _increment(inner, "inner"))
            _increment(t, key)

        client.transact(add)
        if number == die_after:
            raise SystemExit


def _increment(t: landfast.Transaction, key: str) -> None:
    t.put(key, b"%d" % (int(t.get(key) or b"0") + 1))


def a_request_that_dies_anywhere_and_is_retried_takes_effect_once() -> None:
    """T4. Also where a body is skipped on the retry, or was run twice before the death."""
    for death in range(len(STATE_KEYS)):
        with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
            # The second block runs twice before it commits, and so does the block inside it.
            servers.fail("POST .*message-1%2F2/commit$", cluster.refuse(409, "conflict"))
            with pytest.raises(SystemExit), landfast.request("message-1"):
                _handle(client, die_after=death)
            with landfast.request("message-1"):
                _handle(client)
            assert servers.store.values == {b"a": b"1", b"b": b"1", b"c": b"1", b"inner": b"1"}
            assert sorted(servers.store.commits) == ["message-1/1", "message-1/2", "message-1/2/1", "message-1/3"]
            with landfast.request("message-2"):
                _handle(client)
            assert servers.store.values[b"c"] == b"2"


def ids_are_random_outside_a_request_and_kept_for_the_life_of_the_object() -> None:
    client = landfast.connect("http://127.0.0.1:1")
    first, second = client.transaction(), client.transaction()
    assert first.id == first.id and re.fullmatch(r"random-[0-9a-f]{32}", first.id)
    assert first.id != second.id


def long_names_give_ids_within_the_limit_that_still_differ() -> None:
    client = landfast.connect("http://127.0.0.1:1")
    with landfast.request("é" * 64):
        ids = {client.transaction().id for _ in range(100)}
    assert len(ids) == 100
    assert all(len(id.encode()) <= 128 for id in ids)


def given_ids_are_used_as_they_are() -> None:
    client = landfast.connect("http://127.0.0.1:1")
    with landfast.request("r"):
        assert client.transaction(id="mine").id == "mine"
        assert client.transaction().id == "r/1"
        with landfast.request("s"):
            assert client.transaction().id == "s/1"
        assert client.transaction().id == "r/2"


def the_request_id_of_a_lambda_invocation_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4. The runtime client keeps it in its module; the trace id, which several invocations share, is not used."""
    runtime = ModuleType("awslambdaric.bootstrap")
    monkeypatch.setitem(sys.modules, "awslambdaric.bootstrap", runtime)
    monkeypatch.setenv("_X_AMZN_TRACE_ID", "Root=1-5759e988-bd862e3fe1be46a994272793")
    client = landfast.connect("http://127.0.0.1:1")
    assert len(client.transaction().id) == 39
    for request in ["8476a536", "8476a537"]:
        runtime._GLOBAL_AWS_REQUEST_ID = request  # type: ignore[attr-defined]
        assert [client.transaction().id for _ in range(2)] == [f"{request}/1", f"{request}/2"]
    # Retried, on the same instance: an equal id in a string object of its own.
    runtime._GLOBAL_AWS_REQUEST_ID = "".join(["8476", "a537"])  # type: ignore[attr-defined]
    assert client.transaction().id == "8476a537/1"
    found: List[str] = []
    thread = threading.Thread(target=lambda: found.append(client.transaction().id))
    thread.start()
    thread.join()
    assert len(found[0]) == 39, "threads begin in no stable order"


def _said_by_child(said: Callable[[], str]) -> str:
    """The output of a process that is forked here."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(write, said().encode())
        finally:
            os._exit(0)
    os.close(write)
    with open(read, encoding="utf-8") as answer:
        text = answer.read()
    os.waitpid(child, 0)
    return text


def forked_processes_derive_no_ids_from_the_request_of_their_parent() -> None:
    """T4. All would count on from the same position, and all but one find their work done."""
    client = landfast.connect("http://127.0.0.1:1")

    def drawn() -> str:
        with landfast.request("own"):
            own = client.transaction().id
        return f"{client.transaction().id} {own} {_ids.run_id_for(None)}"

    with landfast.request("r"):
        said = [_said_by_child(drawn).split() for _ in range(2)]
        assert client.transaction().id == "r/1"
    assert [(len(id), own, run) for id, own, run in said] == [(39, "own/1", "None")] * 2
    assert said[0][0] != said[1][0]


def forked_processes_derive_no_ids_from_the_invocation_of_their_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4. Whether or not the parent has derived one before; one that is forked to serve invocations does from its own."""
    runtime = ModuleType("landfast_runtime")
    monkeypatch.setitem(sys.modules, "landfast_runtime", runtime)
    client = landfast.connect("http://127.0.0.1:1")

    def drawn() -> str:
        id = client.transaction().id
        runtime.REQUEST_ID = "its own"  # type: ignore[attr-defined]
        return f"{id}, {client.transaction().id}"

    for request, has_derived in [("8476a536", False), ("8476a537", True)]:
        runtime.REQUEST_ID = request  # type: ignore[attr-defined]
        if has_derived:
            assert client.transaction().id == f"{request}/1"
        id, _, own = _said_by_child(drawn).partition(", ")
        assert len(id) == 39 and own == "its own/1"


def a_process_that_is_forked_before_the_client_is_imported_derives_no_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4. At the fork, the parent's invocation was not recorded; the runtime records its process."""
    runtime = ModuleType("landfast_runtime")
    monkeypatch.setitem(sys.modules, "landfast_runtime", runtime)
    runtime.REQUEST_ID, runtime.PROCESS = "8476a536", os.getpid()  # type: ignore[attr-defined]
    client = landfast.connect("http://127.0.0.1:1")

    def drawn() -> str:
        _ids._parents_invocation = None
        id = client.transaction().id
        runtime.REQUEST_ID, runtime.PROCESS = "its own", os.getpid()  # type: ignore[attr-defined]
        return f"{id}, {client.transaction().id}"

    id, _, own = _said_by_child(drawn).partition(", ")
    assert len(id) == 39 and own == "its own/1"
    assert client.transaction().id == "8476a536/1"


def a_transaction_that_has_not_begun_before_a_fork_is_another_one_in_the_child() -> None:
    """T4. Unless its id was given: then it is the same piece of work."""
    client = landfast.connect("http://127.0.0.1:1")
    with landfast.request("r"):
        derived = client.transaction()
    for transaction in [client.transaction(), derived]:
        id = _said_by_child(lambda: transaction.id)
        assert len(id) == 39 and id != transaction.id
    given = client.transaction(id="mine")
    assert _said_by_child(lambda: given.id) == "mine"


def a_transaction_that_has_begun_before_a_fork_is_refused_in_the_child() -> None:
    """T4."""

    def refused(use: Callable[[], object]) -> str:
        with pytest.raises(RuntimeError) as error:
            use()
        return str(error.value)

    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        for t in [client.transaction(id="x"), client.transaction()]:
            with t:
                uses = [lambda: t.get("a"), lambda: t.put("a", b"1"), t.commit, t.abort, t.__enter__]
                for use in uses:
                    assert "forked" in _said_by_child(lambda: refused(use))
            assert "forked" in _said_by_child(lambda: refused(t.__enter__))
        assert [seen.method for seen in servers.seen] == ["POST"] * 4


def forked_processes_draw_different_ids() -> None:
    read, write = os.pipe()
    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            os.write(write, landfast.connect("http://127.0.0.1:1").transaction().id.encode())
            os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    drawn = os.read(read, 64)
    os.close(read)
    os.close(write)
    assert len(drawn) == 64 and drawn[:32] != drawn[32:]


@kinds.over()
async def the_status_of_an_id_that_is_drawn_says_of_which_attempt(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T4. Without the attempt, a server that has forgotten the id would report that it never began."""
    for id in (None, "chosen"):
        async with client.transaction(id=id) as t:
            await t.put("a", b"1")
        assert await t.status() == "committed"
    asked = servers.requests("GET /v1/transactions/[^/]+$")
    assert [seen.headers.get("landfast-attempt") for seen in asked] == ["1", None]


@kinds.over()
async def an_id_that_is_drawn_is_not_begun_again_once_its_commit_may_be_forgotten(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4. A server that has forgotten it would run its work a second time."""
    transaction = client.transaction()
    servers.fail("POST .*/commit$", *[cluster.reset_after] * 1000)
    with contextlib.ExitStack() as later:
        with pytest.raises(landfast.OutcomeUnknown, match="within ten minutes, unless you chose the id"):
            async with transaction as t:
                await t.put("a", b"1")
                later.enter_context(kinds.hurried(0.5))
    servers.forgive()
    begins = servers.requests("POST /v1/transactions$")
    with unittest.mock.patch.object(_attempt, "RANDOM_KEPT_S", 0.0):
        servers.store.transactions.clear()
        with pytest.raises(landfast.Expired):
            async with transaction:
                raise AssertionError("the block must not be entered")
        assert servers.requests("POST /v1/transactions$") == begins
        async with client.transaction() as aborted:
            await aborted.abort()
        async with aborted as t:
            await t.put("a", b"2")
        with pytest.raises(landfast.AlreadyCommitted):
            async with aborted:
                raise AssertionError("the block must not be entered")
    assert len(servers.store.commits) == 2


@kinds.over()
async def an_id_that_is_drawn_and_was_found_committed_is_not_asked_for_again(
    client: kinds.Client, servers: cluster.Cluster
) -> None:
    """T4. A server forgets it in the end, regardless of earlier requests."""
    async with client.transaction() as t:
        await t.put("a", b"1")
    for _ in range(2):
        servers.store.transactions.clear()
        with pytest.raises(landfast.AlreadyCommitted):
            async with t:
                raise AssertionError("the block must not be entered")
    assert len(servers.store.commits) == 1


@kinds.over()
async def what_has_no_effect_is_begun_again_however_late(client: kinds.Client, servers: cluster.Cluster) -> None:
    """T4."""
    refusals = [
        cluster.refuse(409, "conflict"),
        cluster.refuse(409, "transaction-finished", outcome="aborted"),
        cluster.refuse(507, "no-room"),
    ]
    for refusal in refusals:
        servers.fail("POST .*/commit$", refusal)
        with unittest.mock.patch.object(_attempt, "RANDOM_KEPT_S", 0.0):
            transaction = client.transaction()
            with pytest.raises(landfast.Error):
                async with transaction as t:
                    await t.put("a", b"1")
            async with transaction as t:
                await t.put("a", b"2")
    assert len(servers.store.commits) == len(refusals)
