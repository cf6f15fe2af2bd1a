"""Begins that are interrupted: by a signal whose handler raises, or by a cancellation.

What they may have opened is ended, if nobody else can have begun it; else one that is interrupted often would fill the
server with open transactions.
"""

import asyncio
import os
import signal
import threading
import time
from typing import Callable, Iterator, Optional

import pytest

import cluster
import landfast
from landfast import aio

BEGIN = "POST /v1/transactions$"


class Interrupted(BaseException):
    """What the handler of the signal raises."""


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


def an_interrupted_begin_that_arrives_late_leaves_no_transaction_open(interrupt: Callable[[], None]) -> None:
    """T7. The first abort finds nothing yet."""
    is_asked, has_begun = threading.Event(), threading.Event()

    def late_begin(handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
        interrupt()
        is_asked.wait(30)
        answer()
        has_begun.set()
        return None

    def abort(handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
        reply = answer()
        assert reply.status == 404
        is_asked.set()
        has_begun.wait(30)
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
    """T8. An earlier attempt of the same work, or a later one, may be at work under that id."""
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
    monkeypatch.setattr("landfast._attempt._UNHEARD_S", 0.3)
    end = threading.Event()
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail(BEGIN, cluster.interrupting(interrupt, end))
        servers.fail("DELETE", *[cluster.silent(end)] * 10)
        began = time.monotonic()
        with pytest.raises(Interrupted), client.transaction():
            raise AssertionError("it has begun")
        assert time.monotonic() - began < 5 and servers.requests("DELETE")
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
