"""Cancels a task at every turn of its event loop, and provides a server for that.

The server runs in the same event loop, so that a request takes the same few turns each time. A
cancellation meets each of them, including the one in which the awaited result has already come.
"""

import asyncio
import contextlib
from typing import AsyncIterator, Awaitable, Callable, List

TURNS = 80
"""More than a request takes with its connection, so that each of its turns is met in some round."""
SETTLING_TURNS = 200
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Server:
    """Answers each request at once, or never."""

    def __init__(self, answer: bytes) -> None:
        self.answer = answer
        self.url = ""
        self.open: List[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open.append(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b"\r\n\r\n")
                writer.write(self.answer)
        self.open.remove(writer)
        writer.close()


@contextlib.asynccontextmanager
async def serving(answer: bytes = OK) -> AsyncIterator[Server]:
    server = Server(answer)
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def none_open(server: Server) -> None:
    """Waits until no connection of the server is open."""
    while server.open:
        await asyncio.sleep(0)


async def cancel_at_every_turn(work: Callable[[], Awaitable[object]]) -> None:
    """Repeats `work`, and cancels it once at each turn; it never ends by itself."""

    async def over_and_over() -> None:
        while True:
            await work()

    for count in range(TURNS):
        task = asyncio.ensure_future(over_and_over())
        await turns(count)
        task.cancel()
        await turns(SETTLING_TURNS)
        was_heard = task.done()
        while not task.done():
            task.cancel()
            await turns(1)
        assert was_heard and task.cancelled(), f"the cancellation at turn {count} was lost"
