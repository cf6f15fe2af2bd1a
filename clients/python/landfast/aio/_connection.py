"""Sockets of the asyncio client: a small pool of keep-alive connections per node.

HTTP/1.1 as far as a client of Landfast needs it, over asyncio streams: no redirects, no
compression, no chunked requests. A connection serves one request at a time and goes back to the
pool only once its response has been read to the end. A task that is cancelled in between breaks the
connection off, and the unsent rest of its request is not sent.

A wait that takes too long ends through the thing it waits for: the connection is broken off, or the
permit is not granted. The client neither cancels a task for this nor uses `asyncio.wait_for`.
Before Python 3.11 a task cannot tell its own time limit from an outside cancellation, and before
3.12 `wait_for` loses a cancellation that comes together with its result.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import AsyncGenerator, Dict, List, Mapping, Optional, Sequence, Set, Tuple, Union

from .._connection import IDLE_SECONDS_MAX, tls_context
from .._nodes import Node
from .._pace import Pace
from .._problems import Error
from .._repeat import Pause, Send, Steps, T
from .._requests import ANSWER_BYTES_MAX, Lost, Request, Response
from ._places import Places

CONNECTIONS_MAX = 64
"""Per node; further requests wait for one. A server takes 256 connections in all."""
ASIDE_MAX = 10_000
"""Concurrent background tasks of one client: no server has more open transactions that could need
an abort.
"""
ASIDE_S = 10.0
"""How long each of them may take, with its wait for a connection. A server ends an idle transaction
after 60 s by itself.
"""
_CLOSE_S = 2.0
"""How long background tasks, and connections with a silent peer, may delay a close."""
_HEAD_BYTES_MAX = 64 * 1024
_PIECE_BYTES = 1024 * 1024
_TOO_LATE = "no answer in time"


class _Malformed(Exception):
    """The peer does not speak HTTP as a Landfast server does."""


@dataclass(frozen=True)
class _Connection:
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    used_at: float


class _Watch:
    """Breaks a connection off once its response no longer arrives."""

    def __init__(self, pace: Pace, transport: asyncio.WriteTransport, loop: asyncio.AbstractEventLoop) -> None:
        self.is_late = False
        self._pace = pace
        self._transport = transport
        self._loop = loop
        self._timer = loop.call_at(pace.ends_at, self._look)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        if self._pace.is_over(self._loop.time()):
            self.is_late = True
            self._transport.abort()
        else:
            self._timer = self._loop.call_at(self._pace.ends_at, self._look)


@dataclass
class _Pool:
    places: Places
    idle: List[_Connection] = field(default_factory=list)


class Connections:
    """Every open connection of one client; they belong to the event loop that opened them."""

    def __init__(self, headers: Mapping[str, str], ca: Optional[str] = None) -> None:
        self._headers = headers
        self._ca = ca
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._pools: Dict[Node, _Pool] = {}
        self._aside: Set[asyncio.Task[None]] = set()
        self._closing_with_loop: Optional[AsyncGenerator[None, None]] = None

    async def drive(self, steps: Steps[T]) -> T:
        """Performs the requests of `steps` until they finish, or tells them that they will get no
        more results.
        """
        try:
            action = next(steps)
            while True:
                if isinstance(action, Pause):
                    await asyncio.sleep(action.seconds)
                    action = steps.send(None)
                else:
                    action = steps.send(await self.send(action))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            steps.close()

    def drive_aside(self, steps: Steps[None]) -> Optional[asyncio.Task[None]]:
        """Performs the requests of `steps` in the background, until this is closed; an `Error` is
        dropped.

        Beyond `ASIDE_MAX` tasks at a time `steps` is dropped, and so it is where no event loop
        runs.
        """
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            # A coroutine is dropped after its event loop has ended.
            steps.close()
            return None
        if len(self._aside) >= ASIDE_MAX:
            steps.close()
            return None
        # Kept here: an event loop does not keep its tasks alive.
        task = loop.create_task(self._drive_unheard(steps))
        self._aside.add(task)
        task.add_done_callback(self._aside.discard)
        return task

    async def _drive_unheard(self, steps: Steps[None]) -> None:
        with contextlib.suppress(Error):
            await self.drive(steps)

    async def send(self, send: Send) -> Union[Response, Lost]:
        """Sends one request once."""
        pool = await self._pool(send.node)
        if not await pool.places.take(send.reply_s):
            return Lost(f"all {CONNECTIONS_MAX} connections were busy", was_sent=False)
        try:
            return await self._send(pool, send)
        finally:
            pool.places.give_back()

    async def close(self) -> None:
        """Closes the idle connections once the background tasks are done, within `_CLOSE_S` in all;
        the next call opens new ones.
        """
        closing, self._closing_with_loop = self._closing_with_loop, None
        if closing is None:
            return
        try:
            # Connections of an event loop that has ended cannot be closed in order; nothing refers
            # to them from here on.
            if self._loop is asyncio.get_running_loop():
                await closing.aclose()
        finally:
            self._loop, self._pools = None, {}

    async def _close_with_loop(self) -> AsyncGenerator[None, None]:
        """Closes the connections of the running event loop when it is itself closed, or when the
        loop ends.

        An event loop that ends in order (`asyncio.run`) cancels its tasks and then closes the
        generators that were begun in it. So even a client that is never closed does the background
        work of cancelled tasks.
        """
        pools, loop = self._pools, asyncio.get_running_loop()
        try:
            yield
        finally:
            ends_at = loop.time() + _CLOSE_S
            await self._end_aside(loop, ends_at)
            await _close([connection.writer for pool in pools.values() for connection in pool.idle], ends_at)
            pools.clear()
            if self._loop is loop:
                # Drops an event loop that has ended, and with it the loop's default client. A
                # generator, too, refers to its event loop for as long as it exists.
                self._loop, self._pools, self._closing_with_loop = None, {}, None

    async def _end_aside(self, loop: asyncio.AbstractEventLoop, ends_at: float) -> None:
        tasks = [task for task in self._aside if task.get_loop() is loop]
        if not tasks:
            return
        _, late = await asyncio.wait(tasks, timeout=max(ends_at - loop.time(), 0))
        for task in late:
            task.cancel()
        if late:
            await asyncio.wait(late)

    async def _pool(self, node: Node) -> _Pool:
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            self._loop = loop
            self._pools = {}
            self._closing_with_loop = self._close_with_loop()
            # The generator waits for nothing, but from here on the event loop knows it.
            await self._closing_with_loop.__anext__()
        if node not in self._pools:
            self._pools[node] = _Pool(Places(CONNECTIONS_MAX))
        return self._pools[node]

    async def _send(self, pool: _Pool, send: Send) -> Union[Response, Lost]:
        try:
            connection = _idle(pool) or await _opened_within(send.connect_s, send.node, self._ca)
        except OSError as error:
            return Lost(_reason(error), was_sent=False)
        loop = asyncio.get_running_loop()
        pace = Pace(send.reply_s, loop.time())
        transport = connection.writer.transport
        watch = _Watch(pace, transport, loop)
        is_clean = False
        try:
            response, is_clean = await _exchange(connection, send.node, send.request, self._headers, pace)
            # To its reader, a broken-off connection looks like a response that extends to the
            # connection's end.
            return Lost(_TOO_LATE, was_sent=True) if watch.is_late else response
        except (OSError, EOFError, asyncio.LimitOverrunError, _Malformed) as error:
            return Lost(_TOO_LATE if watch.is_late else _reason(error), was_sent=True)
        finally:
            watch.stop()
            if is_clean and not transport.is_closing():
                pool.idle.append(_Connection(connection.reader, connection.writer, time.monotonic()))
            else:
                # A close would send the rest of the request first: an abandoned write would arrive
                # whole, after later ones.
                transport.abort()


async def _close(writers: Sequence[asyncio.StreamWriter], ends_at: float) -> None:
    """Closes in order the connections that can be closed by then, and breaks the others off: over
    TLS the peer answers a close, or does not.
    """
    for writer in writers:
        writer.close()
    closings = [asyncio.ensure_future(writer.wait_closed()) for writer in writers]
    if not closings:
        return
    _, late = await asyncio.wait(closings, timeout=max(ends_at - asyncio.get_running_loop().time(), 0))
    for writer in writers if late else []:
        writer.transport.abort()
    # Their exceptions are dropped, but must be retrieved.
    await asyncio.gather(*closings, return_exceptions=True)


def _idle(pool: _Pool) -> Optional[_Connection]:
    while pool.idle:
        connection = pool.idle.pop()
        if time.monotonic() - connection.used_at < IDLE_SECONDS_MAX and not connection.reader.at_eof():
            return connection
        connection.writer.close()
    return None


async def _opened_within(seconds: float, node: Node, ca: Optional[str]) -> _Connection:
    opening = asyncio.ensure_future(_opened(node, ca))
    is_ours = False
    try:
        await asyncio.wait({opening}, timeout=seconds)
        is_ours = opening.done()
    finally:
        if not is_ours:
            # Cancelled, or too late: its eventual result is dropped.
            opening.add_done_callback(_close_unused)
            opening.cancel()
    if not is_ours:
        raise TimeoutError(_TOO_LATE)
    return opening.result()


def _close_unused(opening: asyncio.Future[_Connection]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().writer.close()


async def _opened(node: Node, ca: Optional[str]) -> _Connection:
    context = tls_context(ca) if node.is_tls else None
    reader, writer = await asyncio.open_connection(node.host, node.port, ssl=context, limit=_HEAD_BYTES_MAX)
    return _Connection(reader, writer, time.monotonic())


async def _exchange(
    connection: _Connection, node: Node, request: Request, headers: Mapping[str, str], pace: Pace
) -> Tuple[Response, bool]:
    """The response to a request, and whether the connection can take another one."""
    lines = [f"{request.method} {request.path} HTTP/1.1", f"Host: {node}"]
    lines += [f"{name}: {value}" for name, value in {**headers, **request.headers}.items()]
    lines += [f"Content-Length: {len(request.body)}", "", ""]
    if any("\r" in line or "\n" in line for line in lines):
        raise ValueError("a header's value has a line break")
    request.may_have_arrived = True
    try:
        connection.writer.write("\r\n".join(lines).encode("latin-1") + request.body)
        await connection.writer.drain()
    except (BrokenPipeError, ConnectionResetError):
        # A server that refuses a body closes before it has read it all; its refusal may be there to read.
        response, _ = await _response(connection.reader, pace)
        return response, False
    return await _response(connection.reader, pace)


async def _response(reader: asyncio.StreamReader, pace: Pace) -> Tuple[Response, bool]:
    status, headers, is_persistent = await _head(reader, pace)
    while 100 <= status < 200:
        status, headers, is_persistent = await _head(reader, pace)
    is_persistent = is_persistent and "close" not in headers.get("connection", "").lower()
    if status in (204, 304):
        return Response(status, headers, b""), is_persistent
    if "chunked" in headers.get("transfer-encoding", "").lower():
        return Response(status, headers, await _chunks(reader, pace)), is_persistent
    length = headers.get("content-length")
    if length is None:
        return Response(status, headers, await _rest(reader, pace)), False
    return Response(status, headers, await _exactly(reader, _bounded(length, 10), pace)), is_persistent


async def _head(reader: asyncio.StreamReader, pace: Pace) -> Tuple[int, Dict[str, str], bool]:
    text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    pace.heard(len(text))
    first, *lines = text[:-4].split("\r\n")
    version, _, rest = first.partition(" ")
    if version not in ("HTTP/1.1", "HTTP/1.0") or not rest[:3].isdecimal():
        raise _Malformed(f"the answer begins with {first[:40]!r}")
    headers = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not colon:
            raise _Malformed(f"a header reads {line[:40]!r}")
        headers[name.strip().lower()] = value.strip()
    return int(rest[:3]), headers, version == "HTTP/1.1"


async def _chunks(reader: asyncio.StreamReader, pace: Pace) -> bytes:
    pieces: List[bytes] = []
    total = 0
    while True:
        line = (await reader.readuntil(b"\r\n")).decode("latin-1")
        length = _bounded(line.partition(";")[0].strip(), 16)
        total += length
        if total > ANSWER_BYTES_MAX:
            raise _Malformed(f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
        if length == 0:
            break
        pieces.append((await _exactly(reader, length + 2, pace))[:-2])
    while await reader.readuntil(b"\r\n") != b"\r\n":
        pass
    return b"".join(pieces)


async def _exactly(reader: asyncio.StreamReader, count: int, pace: Pace) -> bytes:
    pieces: List[bytes] = []
    left = count
    while left:
        piece = await reader.read(min(left, _PIECE_BYTES))
        if not piece:
            raise asyncio.IncompleteReadError(b"".join(pieces), count)
        pace.heard(len(piece))
        left -= len(piece)
        pieces.append(piece)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


async def _rest(reader: asyncio.StreamReader, pace: Pace) -> bytes:
    pieces: List[bytes] = []
    total = 0
    while True:
        piece = await reader.read(_PIECE_BYTES)
        if not piece:
            return b"".join(pieces)
        pace.heard(len(piece))
        total += len(piece)
        if total > ANSWER_BYTES_MAX:
            raise _Malformed(f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
        pieces.append(piece)


def _bounded(text: str, base: int) -> int:
    try:
        length = int(text, base)
    except ValueError:
        raise _Malformed(f"{text[:40]!r} is not a length") from None
    if not 0 <= length <= ANSWER_BYTES_MAX:
        raise _Malformed(f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
    return length


def _reason(error: BaseException) -> str:
    if isinstance(error, asyncio.IncompleteReadError):
        return "the connection was closed before the answer was whole"
    return str(error) or type(error).__name__
