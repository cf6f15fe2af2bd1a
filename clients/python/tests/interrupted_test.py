"""Transactions that are interrupted: by a signal whose handler raises, or by a cancellation.

The client ends the possibly open transaction, unless another client may have begun it. Otherwise a
client that is interrupted often would fill the server with open transactions.
"""

import asyncio
import gc
import http.client
import os
import signal
import socket
import threading
import time
from typing import Callable, Iterator, Optional, Type

import pytest

import cluster
import landfast
from landfast import _attempt, aio
from landfast._attempts import Attempts
from landfast._client import Settings
from landfast._repeat import Event, Limits, Pause, Send, Steps
from landfast._requests import Lost, Response

BEGIN = "POST /v1/transactions$"
COMMIT = "POST .*/commit"


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the client does about an interruption may take its time, unless a test says otherwise."""
    for name in ("_transaction.UNHEARD_S", "aio._transaction.ASIDE_S", "aio._connection._CLOSE_S"):
        monkeypatch.setattr(f"landfast.{name}", cluster.GUARD_S)
    monkeypatch.setattr(Limits, "abort_s", cluster.GUARD_S)


class Interrupted(BaseException):
    """The exception of the signal's handler."""


@pytest.fixture
def interrupt() -> Iterator[Callable[[], None]]:
    """Interrupts the main thread, from any other."""

    def handler(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGUSR1, handler)
    yield lambda: os.kill(os.getpid(), signal.SIGUSR1)
    signal.signal(signal.SIGUSR1, before)


def an_interrupted_begin_leaves_no_transaction_open(interrupt: Callable[[], None]) -> None:
    """T7."""
    end = threading.Event()
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail(BEGIN, cluster.interrupting(interrupt, end))
        with pytest.raises(Interrupted), client.transaction():
            raise AssertionError("it has begun")
        end.set()
        assert servers.states() == ["aborted"]


@pytest.mark.parametrize(
    "kind", [TimeoutError, socket.timeout, OSError, BrokenPipeError, ConnectionResetError, http.client.HTTPException]
)
@pytest.mark.parametrize("takes_all", [False, True])
def an_interruption_that_raises_what_sockets_raise_is_one(
    interrupt: Callable[[], None], kind: Type[Exception], takes_all: bool
) -> None:
    """T7. The client neither waits until the end nor takes it for the loss of a connection."""

    def handler(number: int, frame: object) -> None:
        raise kind("of the handler")

    def all_taking(*arguments: object) -> None:
        raise kind("of the handler")

    signal.signal(signal.SIGUSR1, all_taking if takes_all else handler)
    end = threading.Event()
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail(BEGIN, cluster.interrupting(interrupt, end))
        with pytest.raises(kind, match="of the handler"), client.transaction():
            raise AssertionError("it has begun")
        end.set()
        assert servers.states() == ["aborted"]


def an_interrupted_begin_that_arrives_late_leaves_no_transaction_open(interrupt: Callable[[], None]) -> None:
    """T7. The first abort finds nothing yet."""
    is_asked, has_begun = threading.Event(), threading.Event()

    def late_begin(handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
        interrupt()
        is_asked.wait(cluster.GUARD_S)
        answer()
        has_begun.set()
        return None

    def abort(handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
        reply = answer()
        assert reply.status == 404
        is_asked.set()
        has_begun.wait(cluster.GUARD_S)
        return reply

    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail(BEGIN, late_begin)
        servers.fail("DELETE", abort)
        with pytest.raises(Interrupted), client.transaction():
            raise AssertionError("it has begun")
        assert is_asked.is_set() and servers.states() == ["aborted"]


@pytest.mark.parametrize("is_derived", [False, True])
def an_interrupted_begin_of_a_chosen_id_leaves_others_of_that_id_alone(
    interrupt: Callable[[], None], is_derived: bool
) -> None:
    """T8. An earlier attempt of the same work, or a later one, may be running under that id."""
    end = threading.Event()
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail(BEGIN, cluster.interrupting(interrupt, end))
        with pytest.raises(Interrupted), landfast.request("order"):
            with client.transaction(id=None if is_derived else "pay"):
                raise AssertionError("it has begun")
        end.set()
        assert servers.states() == ["open"] and servers.requests("DELETE") == []


def a_program_that_was_interrupted_waits_a_second_at_most_for_a_server_that_is_silent(
    interrupt: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("landfast._transaction.UNHEARD_S", 0.3)
    end = threading.Event()
    with cluster.Cluster() as servers, landfast.connect(servers.url, timeout=cluster.GUARD_S) as client:
        servers.fail(BEGIN, cluster.interrupting(interrupt, end))
        servers.fail("DELETE", *[cluster.silent(end)] * 10)
        began = time.monotonic()
        with pytest.raises(Interrupted), client.transaction():
            raise AssertionError("it has begun")
        assert time.monotonic() - began < cluster.GUARD_S / 2 and servers.requests("DELETE")
        end.set()


@pytest.mark.parametrize("id", [None, "pay"])
def a_cancelled_begin_leaves_no_transaction_open_and_its_task_does_not_wait(id: Optional[str]) -> None:
    """T7, T8."""
    end = threading.Event()

    async def scenario(servers: cluster.Cluster) -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(servers.url) as client:

            async def begin() -> None:
                async with client.transaction(id=id):
                    raise AssertionError("it has begun")

            task = asyncio.ensure_future(begin())
            servers.fail(BEGIN, cluster.interrupting(lambda: loop.call_soon_threadsafe(task.cancel), end))
            servers.fail("DELETE", cluster.slow(end))
            with pytest.raises(asyncio.CancelledError):
                await task
            assert servers.states() == ["open"], "the task waited for the abort"
            end.set()

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        assert servers.states() == (["aborted"] if id is None else ["open"])


def what_is_done_aside_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landfast.aio._connection.ASIDE_MAX", 2)
    end = threading.Event()

    async def scenario(servers: cluster.Cluster) -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(servers.url) as client:
            for _ in range(4):

                async def begin() -> None:
                    async with client.transaction():
                        raise AssertionError("it has begun")

                task = asyncio.ensure_future(begin())
                servers.fail(BEGIN, cluster.interrupting(lambda: loop.call_soon_threadsafe(task.cancel), end))
                servers.fail("DELETE", cluster.slow(end))
                with pytest.raises(asyncio.CancelledError):
                    await task
            end.set()

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        assert sorted(servers.states()) == ["aborted", "aborted", "open", "open"]


def a_commit_that_is_interrupted_before_it_is_sent_leaves_no_transaction_open(interrupt: Callable[[], None]) -> None:
    """T7."""
    end = threading.Event()

    def unheard(handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
        interrupt()
        end.wait(cluster.GUARD_S)
        return None

    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail(COMMIT, unheard)
        with pytest.raises(Interrupted), client.transaction(id="pay") as t:
            t.put("a", b"1")
        end.set()
        assert servers.states() == ["aborted"]


def a_commit_that_is_interrupted_once_it_was_sent_stays_committed(interrupt: Callable[[], None]) -> None:
    """T4. `status` returns the transaction's outcome."""
    end = threading.Event()
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail(COMMIT, cluster.interrupting(interrupt, end))
        with pytest.raises(Interrupted), client.transaction(id="pay") as t:
            t.put("a", b"1")
        end.set()
        t.commit()
        assert servers.store.commits == ["pay"]


def _interrupted_begin() -> "tuple[Attempts, Steps[None]]":
    """A transaction whose begin was sent and is interrupted, and the steps that end it."""
    attempts = Settings.of("http://127.0.0.1:1", None, 30).attempts(None, None, None)
    begin = attempts.begin()
    _sent(begin)
    begin.close()
    return attempts, attempts.latest.end(30)


def _sent(steps: "Steps[None]", event: Event = None) -> Send:
    """The next request, after `event`."""
    action = steps.send(event)
    while isinstance(action, Pause):
        action = steps.send(None)
    action.request.may_have_arrived = True
    return action


def what_ends_an_interrupted_begin_leaves_the_next_attempt_alone() -> None:
    """T8."""
    attempts, ending = _interrupted_begin()
    next(attempts.begin())
    assert list(ending) == []


def what_ends_an_interrupted_begin_is_not_repeated_once_that_is_begun_anew() -> None:
    """T8. It names no attempt, and would end the next one, which may have begun at another server."""
    attempts, ending = _interrupted_begin()
    assert _sent(ending).request.method == "DELETE"
    assert _sent(ending, Lost("reset", was_sent=True)).request.method == "DELETE", "as long as there is no answer"
    next(attempts.begin())
    with pytest.raises(StopIteration):
        ending.send(Lost("reset", was_sent=True))


def an_interrupted_begin_does_not_hide_that_the_commit_before_it_may_be_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4. A server that has forgotten it would run its work a second time."""
    attempts = Settings.of("http://127.0.0.1:1", None, 30).attempts(None, None, None)
    begin = attempts.begin()
    _sent(begin)
    with pytest.raises(StopIteration):
        begin.send(Response(200, {}, b'{"attempt":"1"}'))
    interrupted = attempts.latest.commit()
    _sent(interrupted)
    interrupted.close()
    for _ in range(2):
        interrupted = attempts.begin()
        _sent(interrupted)
        interrupted.close()
        attempts.latest.end(30)
    monkeypatch.setattr(_attempt, "RANDOM_KEPT_S", 0.0)
    with pytest.raises(landfast.Expired):
        attempts.begin()


def an_attempt_that_has_begun_is_not_held_for_the_commit_of_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """T4. The server has reported that there was none."""
    attempts = Settings.of("http://127.0.0.1:1", None, 30).attempts(None, None, None)
    for is_last in (False, True):
        begin = attempts.begin()
        _sent(begin)
        with pytest.raises(StopIteration):
            begin.send(Response(200, {}, b'{"attempt":"1"}'))
        if not is_last:
            commit = attempts.latest.commit()
            _sent(commit)
            commit.close()
    attempts.latest.end(30)
    monkeypatch.setattr(_attempt, "RANDOM_KEPT_S", 0.0)
    next(attempts.begin())


def a_begin_of_which_nothing_was_sent_has_nothing_to_end() -> None:
    attempts = Settings.of("http://127.0.0.1:1", None, 30).attempts(None, None, None)
    begin = attempts.begin()
    next(begin)
    begin.close()
    assert list(attempts.latest.end(30)) == []
    next(attempts.begin())


class OnePlace:
    """A client of one connection, which a slow request has until `is_free`."""

    def __init__(self, servers: cluster.Cluster, client: aio.Client) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._has_arrived = asyncio.Event()
        self._servers = servers
        self.is_free = threading.Event()

    def _arrived(self, handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
        self._loop.call_soon_threadsafe(self._has_arrived.set)
        return cluster.slow(self.is_free)(handler, answer)

    async def take(self) -> "asyncio.Task[Optional[bytes]]":
        self._servers.fail("GET /v1/state", self._arrived)
        slow = asyncio.ensure_future(self._client.state().get("slow"))
        await self._has_arrived.wait()
        return slow


def a_begin_that_is_cancelled_while_it_waits_for_a_connection_asks_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """T15. There are many such begins under load, and aborts of each would add to that load."""
    monkeypatch.setattr("landfast.aio._connection.CONNECTIONS_MAX", 1)

    async def scenario(servers: cluster.Cluster) -> None:
        async with aio.connect(servers.url) as client:
            place = OnePlace(servers, client)
            slow = await place.take()

            async def begin() -> None:
                async with client.transaction():
                    raise AssertionError("it has begun")

            task = asyncio.ensure_future(begin())
            await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            place.is_free.set()
            await slow

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        assert not servers.requests(BEGIN) and not servers.requests("DELETE")


def a_commit_that_is_cancelled_before_it_is_sent_leaves_no_transaction_open(monkeypatch: pytest.MonkeyPatch) -> None:
    """T7. It waits for a connection, as most do under load."""
    monkeypatch.setattr("landfast.aio._connection.CONNECTIONS_MAX", 1)

    async def scenario(servers: cluster.Cluster) -> None:
        async with aio.connect(servers.url) as client:
            place, is_leaving = OnePlace(servers, client), asyncio.Event()

            async def work() -> None:
                async with client.transaction(id="pay") as t:
                    await t.put("a", b"1")
                    slow.append(await place.take())
                    is_leaving.set()

            slow: "list[asyncio.Task[Optional[bytes]]]" = []
            task = asyncio.ensure_future(work())
            await is_leaving.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert not servers.requests(COMMIT) and servers.states() == ["open"]
            place.is_free.set()
            await slow[0]

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        assert servers.states() == ["aborted"]


def a_block_that_ends_in_order_commits_though_a_commit_of_its_own_was_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """T4. It ended in silence, and was aborted."""
    monkeypatch.setattr("landfast.aio._connection.CONNECTIONS_MAX", 1)

    async def scenario(servers: cluster.Cluster) -> None:
        async with aio.connect(servers.url) as client:
            place = OnePlace(servers, client)
            async with client.transaction(id="pay") as t:
                await t.put("a", b"1")
                slow = await place.take()
                commit = asyncio.ensure_future(t.commit())
                await asyncio.sleep(0)
                commit.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await commit
                assert not servers.requests(COMMIT)
                place.is_free.set()
            await slow

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        assert servers.store.commits == ["pay"]


def an_abort_that_finds_no_connection_in_time_is_sent_once_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """T7. The code after the block does not wait for that."""
    monkeypatch.setattr("landfast.aio._connection.CONNECTIONS_MAX", 1)
    monkeypatch.setattr(Limits, "abort_s", 0.01)

    async def scenario(servers: cluster.Cluster) -> None:
        async with aio.connect(servers.url) as client:
            place = OnePlace(servers, client)
            with pytest.raises(ZeroDivisionError):
                async with client.transaction(id="pay"):
                    slow = await place.take()
                    raise ZeroDivisionError
            assert not servers.requests("DELETE")
            place.is_free.set()
            await slow

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        assert servers.states() == ["aborted"]


async def _cancelled_in_its_body(client: aio.Client) -> None:
    is_open = asyncio.Event()

    async def work() -> None:
        async with client.transaction(id="pay"):
            is_open.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(work())
    await is_open.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def a_task_that_is_cancelled_in_a_transaction_does_not_wait_for_its_end() -> None:
    """T7."""
    end = threading.Event()

    async def scenario(servers: cluster.Cluster) -> None:
        async with aio.connect(servers.url) as client:
            servers.fail("DELETE", cluster.slow(end))
            await _cancelled_in_its_body(client)
            assert servers.states() == ["open"], "the task waited for the abort"
            end.set()

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        assert servers.states() == ["aborted"]


def what_is_done_aside_does_not_hold_a_close_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landfast.aio._connection._CLOSE_S", 0.05)
    end = threading.Event()

    async def scenario(servers: cluster.Cluster) -> None:
        async with aio.connect(servers.url) as client:
            servers.fail("DELETE", *[cluster.silent(end)] * 10)
            await _cancelled_in_its_body(client)
            began = time.monotonic()
        assert time.monotonic() - began < cluster.GUARD_S / 2
        assert len(asyncio.all_tasks()) == 1, "something is still done aside"
        end.set()

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))


def tasks_that_end_with_their_event_loop_leave_no_transaction_open(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """T7. Their client is never closed, and their aborts wait for each other."""
    monkeypatch.setattr("landfast.aio._connection.CONNECTIONS_MAX", 1)

    async def scenario(servers: cluster.Cluster) -> None:
        client, are_open = aio.connect(servers.url), asyncio.Semaphore(0)

        async def work() -> None:
            async with client.transaction():
                are_open.release()
                await asyncio.Event().wait()

        tasks = [asyncio.ensure_future(work()) for _ in range(3)]
        for _ in tasks:
            await are_open.acquire()

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers))
        gc.collect()
        assert servers.states() == ["aborted"] * 3
        assert [record.getMessage() for record in caplog.records] == []
