"""Cancelling a task of the asyncio client at every turn of the event loop: it ends, and leaves no
permit taken.
"""

import asyncio
import contextlib

import pytest

import cancelling
import cluster
import landfast
from landfast import aio
from landfast.aio import _connection
from landfast.aio._places import Places


def a_task_that_reads_is_cancelled_whenever_it_is_asked_to() -> None:
    async def scenario() -> None:
        async with cancelling.serving() as server, aio.connect(server.url) as client:
            await cancelling.cancel_at_every_turn(lambda: client.state().get("a"))
            assert await client.state().get("a") == b"ok"

    asyncio.run(scenario())


def a_task_that_connects_is_cancelled_and_leaves_no_connection_open() -> None:
    async def scenario() -> None:
        async with cancelling.serving() as server, aio.connect(server.url) as client:

            async def connect_and_read() -> None:
                await client.state().get("a")
                await client.close()

            await cancelling.cancel_at_every_turn(connect_and_read)
            await client.close()
            await asyncio.wait_for(cancelling.none_open(server), cluster.GUARD_S)

    asyncio.run(scenario())


def a_task_that_waits_for_a_connection_is_cancelled_and_the_place_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_connection, "CONNECTIONS_MAX", 1)

    async def scenario() -> None:
        async with cancelling.serving() as server, aio.connect(server.url) as client:

            async def three_at_once() -> None:
                await asyncio.gather(*[client.state().get("a") for _ in range(3)])

            await cancelling.cancel_at_every_turn(three_at_once)
            assert await client.state().get("a") == b"ok"

    asyncio.run(scenario())


def a_cancellation_that_meets_the_time_limit_of_a_reply_is_a_cancellation() -> None:
    async def scenario() -> None:
        # 0.1 ms a call: the limit is over after a turn or two, and often in the one in which the
        # task is cancelled.
        async with cancelling.serving(b"") as server, aio.connect(server.url, timeout=0.0001) as client:

            async def read_in_vain() -> None:
                with pytest.raises(landfast.Unavailable):
                    await client.state().get("a")

            await cancelling.cancel_at_every_turn(read_in_vain)

    asyncio.run(scenario())


def a_cancellation_that_meets_the_time_limit_of_a_place_is_a_cancellation() -> None:
    async def scenario() -> None:
        places = Places(0)

        async def wait_in_vain() -> None:
            assert not await places.take(0)

        await cancelling.cancel_at_every_turn(wait_in_vain)

    asyncio.run(scenario())


def what_is_left_of_a_cancelled_write_is_not_sent() -> None:
    """It would arrive whole, after a later acknowledged write of that key, and replace it."""
    value = bytes(32 * 1024 * 1024)

    async def scenario() -> None:
        has_arrived, is_read, arrived = asyncio.Event(), asyncio.Event(), 0

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal arrived
            await reader.readuntil(b"\r\n\r\n")
            has_arrived.set()
            await has_gone.wait()
            with contextlib.suppress(ConnectionError):
                while piece := await reader.read(1024 * 1024):
                    arrived += len(piece)
            writer.close()
            is_read.set()

        has_gone = asyncio.Event()
        listener = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with aio.connect(f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}") as client:
            task = asyncio.ensure_future(client.state().put("a", value))
            await has_arrived.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            has_gone.set()
            await asyncio.wait_for(is_read.wait(), cluster.GUARD_S)
        listener.close()
        assert arrived < len(value)

    asyncio.run(scenario())


@pytest.mark.parametrize("order", ["the place first", "the cancellation first"])
def a_place_that_is_given_back_in_the_turn_of_a_cancellation_is_not_lost(order: str) -> None:
    async def scenario() -> None:
        places = Places(1)
        assert await places.take(60)
        task = asyncio.ensure_future(places.take(60))
        await cancelling.turns(2)
        if order == "the place first":
            places.give_back()
            task.cancel()
        else:
            task.cancel()
            places.give_back()
        await cancelling.turns(5)
        assert task.cancelled()
        assert await places.take(0), "the place went with the cancelled task"

    asyncio.run(scenario())


def places_are_had_in_the_order_in_which_they_are_asked_for() -> None:
    async def scenario() -> None:
        places, had = Places(1), []

        async def take(number: int) -> None:
            assert await places.take(60)
            had.append(number)
            places.give_back()

        assert await places.take(60)
        tasks = [asyncio.ensure_future(take(number)) for number in range(4)]
        await cancelling.turns(2)
        places.give_back()
        await asyncio.gather(*tasks)
        assert had == [0, 1, 2, 3]

    asyncio.run(scenario())
