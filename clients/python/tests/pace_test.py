"""The client waits for slow responses, and gives up on stalled ones."""

import asyncio
import socket
import threading
import time
from typing import Iterator

import pytest

import kinds
import landfast
from cluster import GUARD_S
from landfast._pace import Pace

TIMEOUT_S = 0.5
LINE_S = 2 * TIMEOUT_S
PAUSE_S = 0.01
PIECE = b"v" * 4096
KINDS = pytest.mark.parametrize("kind", ["blocking", "asyncio"])
FRAMES = pytest.mark.parametrize("frame", ["a length", "one chunk", "many chunks", "until the end"])
SOME_FRAMES = pytest.mark.parametrize("frame", ["a length", "until the end"])


class SlowServer:
    """Sends one value piece by piece for `LINE_S`, or stops half way."""

    def __init__(self, frame: str, stops: bool) -> None:
        self.end = threading.Event()
        self._frame = frame
        self._stops = stops
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    @property
    def value(self) -> bytes:
        return PIECE * int(LINE_S / PAUSE_S)

    def _serve(self) -> None:
        with self._listener:
            connection, _ = self._listener.accept()
        with connection:
            connection.recv(65536)
            for piece in self._pieces():
                try:
                    connection.sendall(piece)
                except OSError:
                    return
                # The pace of the line: only this server is slow.
                self.end.wait(PAUSE_S)

    def _pieces(self) -> Iterator[bytes]:
        count = int(LINE_S / PAUSE_S)
        whole = len(self.value)
        yield b"HTTP/1.1 200 OK\r\n" + {
            "a length": b"Content-Length: %d\r\n\r\n" % whole,
            "one chunk": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % whole,
            "many chunks": b"Transfer-Encoding: chunked\r\n\r\n",
            "until the end": b"Connection: close\r\n\r\n",
        }[self._frame]
        for number in range(count):
            if self._stops and number == 1:
                self.end.wait(GUARD_S)
                return
            yield b"%x\r\n%s\r\n" % (len(PIECE), PIECE) if self._frame == "many chunks" else PIECE
        yield {"one chunk": b"\r\n0\r\n\r\n", "many chunks": b"0\r\n\r\n"}.get(self._frame, b"")


@FRAMES
@KINDS
def an_answer_is_waited_for_as_long_as_it_goes_on_coming(kind: str, frame: str) -> None:
    server = SlowServer(frame, stops=False)

    async def scenario(client: kinds.Client) -> None:
        began = time.monotonic()
        assert await client.state().get("a") == server.value
        assert time.monotonic() - began > TIMEOUT_S, "the line was not slow"

    asyncio.run(kinds.with_client(kind, server.url, scenario, timeout=TIMEOUT_S))


@SOME_FRAMES
@KINDS
def an_answer_that_stops_half_way_counts_as_lost(kind: str, frame: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landfast._pace.WINDOW_S", TIMEOUT_S)
    server = SlowServer(frame, stops=True)

    async def scenario(client: kinds.Client) -> None:
        with pytest.raises(landfast.Unavailable, match="no answer in time"):
            await client.state().get("a")

    asyncio.run(kinds.with_client(kind, server.url, scenario, timeout=TIMEOUT_S))
    server.end.set()


def an_answer_has_its_time_to_begin_and_then_comes_at_64_kib_in_10_s() -> None:
    pace = Pace(60, now=1000)
    assert not pace.is_over(1059.9)
    pace.heard(1)
    assert not pace.is_over(1060) and pace.ends_at == 1070
    pace.heard(64 * 1024)
    assert not pace.is_over(1070) and pace.ends_at == 1080
    pace.heard(64 * 1024 - 1)
    assert not pace.is_over(1079.9) and pace.is_over(1080)


def an_answer_that_does_not_begin_in_time_is_not_waited_for() -> None:
    pace = Pace(2, now=1000)
    assert not pace.is_over(1001.9) and pace.is_over(1002)


def an_answer_that_has_begun_has_a_whole_window_however_little_time_was_left() -> None:
    pace = Pace(0.001, now=1000)
    pace.heard(1)
    assert not pace.is_over(1000.001) and pace.ends_at == pytest.approx(1010.001)
    pace.heard(64 * 1024)
    assert not pace.is_over(1010.001)
