"""Sockets of the blocking client: one keep-alive connection per thread and node.

Threads share no connection, so nothing is locked. A forked child inherits the parent's sockets and
must not touch them: two processes reading one connection would take each other's responses.
"""

from __future__ import annotations

import functools
import http.client
import io
import os
import socket
import ssl
import threading
import time
import weakref
from typing import Any, Dict, Mapping, Optional, Union, cast

from ._nodes import Node
from ._pace import Pace
from ._repeat import Pause, Send, Steps, T
from ._requests import ANSWER_BYTES_MAX, Lost, Response

IDLE_SECONDS_MAX = 5.0
"""Servers end idle connections after 10 s; a younger one that breaks is a sign that its node is gone."""
_PIECE_BYTES = 1024 * 1024
_TIMEOUT_S_MIN = 0.001
"""A socket treats a timeout of zero as non-blocking mode."""


def tls_context(ca: Optional[str]) -> ssl.SSLContext:
    """Trusts the authorities in the PEM file `ca`, or those of the system. Servers that ask for a certificate get the one
    of the environment."""
    context = ssl.create_default_context(cafile=ca) if ca else ssl.create_default_context()
    certificate = os.environ.get("LANDFAST_TLS_CLIENT_CERT")
    if certificate:
        context.load_cert_chain(certificate, os.environ.get("LANDFAST_TLS_CLIENT_KEY"))
    return context


class _Connection:
    def __init__(self, node: Node, timeout: float, ca: Optional[str]) -> None:
        if node.is_tls:
            context = tls_context(ca)
            self.http: http.client.HTTPConnection = http.client.HTTPSConnection(
                node.host, node.port, timeout=timeout, context=context
            )
        else:
            self.http = http.client.HTTPConnection(node.host, node.port, timeout=timeout)
        self.used_at = time.monotonic()
        # A thread that ends drops its connections, and nothing else refers to them. So does the
        # program at its end.
        weakref.finalize(self, self.http.close)


class _Arriving(io.RawIOBase):
    """The bytes of a response from its socket, for as long as `pace` allows."""

    _file: Optional[socket.SocketIO] = None
    """None also if an interruption comes before it is set: the collector closes a half-made object."""
    is_in_head = True
    """`http.client` takes the end of a connection for the end of a head: half a head would be a
    response with no body.
    """
    _has_begun = False

    def __init__(self, pace: Pace, sock: socket.socket) -> None:
        self._pace = pace
        self._sock = sock
        # A connection that ends with its response is closed before the response is read; the
        # response's files keep the socket open.
        self._file = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            now = time.monotonic()
            if self._pace.is_over(now):
                raise TimeoutError
            self._sock.settimeout(max(self._pace.ends_at - now, _TIMEOUT_S_MIN))
            try:
                count = self._sock.recv_into(buffer)
            except socket.timeout as error:
                if _is_of_handler(error):
                    raise
                continue
            self._pace.heard(count)
            if count == 0 and self.is_in_head and self._has_begun:
                raise ConnectionResetError("the connection ended in the midst of an answer's head")
            self._has_begun = True
            return count

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        super().close()


class _Paced:
    """The part of a socket's interface from which `http.client` reads a response."""

    def __init__(self, pace: Pace, sock: socket.socket) -> None:
        self._pace = pace
        self._sock = sock
        self.arriving: Optional[_Arriving] = None

    def makefile(self, mode: str) -> io.BufferedReader:
        self.arriving = _Arriving(self._pace, self._sock)
        return io.BufferedReader(self.arriving)


class _Answer(http.client.HTTPResponse):
    fp: Any = None
    """None also if an interruption comes before it is set, as in `_Arriving`."""

    def __init__(self, pace: Pace, sock: socket.socket, *arguments: Any, **options: Any) -> None:
        self._paced = _Paced(pace, sock)
        super().__init__(cast(Any, self._paced), *arguments, **options)

    def begin(self) -> None:
        super().begin()
        assert self._paced.arriving is not None, "it was made with this"
        self._paced.arriving.is_in_head = False


class _Thread(threading.local):
    def __init__(self) -> None:
        self.process = os.getpid()
        self.connections: Dict[Node, _Connection] = {}


class Connections:
    """Every open connection of one client."""

    def __init__(self, headers: Mapping[str, str], ca: Optional[str] = None) -> None:
        self._headers = headers
        self._ca = ca
        self._thread = _Thread()
        self._all: weakref.WeakSet[_Connection] = weakref.WeakSet()

    def drive(self, steps: Steps[T]) -> T:
        """Performs the requests of `steps` until they finish, or tells them that they will get no
        more results.
        """
        try:
            action = next(steps)
            while True:
                if isinstance(action, Pause):
                    time.sleep(action.seconds)
                    action = steps.send(None)
                else:
                    action = steps.send(self.send(action))
        except StopIteration as done:
            result: T = done.value
            return result
        finally:
            steps.close()

    def send(self, send: Send) -> Union[Response, Lost]:
        """Sends one request once."""
        try:
            connection = self._open(send)
        except (OSError, http.client.HTTPException) as error:
            if _is_of_handler(error):
                raise
            return Lost(_reason(error), was_sent=False)
        try:
            return self._exchange(connection, send)
        except (OSError, http.client.HTTPException) as error:
            self._drop(send.node)
            if _is_of_handler(error):
                raise
            return Lost(_reason(error), was_sent=True)
        except BaseException:
            # Interrupted half way: a connection with a response in progress takes no other request.
            self._drop(send.node)
            raise

    def close(self) -> None:
        """Closes the connections of all threads; the next call opens new ones."""
        for connection in list(self._all):
            connection.http.close()
        self._thread.connections.clear()

    def _open(self, send: Send) -> _Connection:
        if self._thread.process != os.getpid():
            self._thread.process = os.getpid()
            self._thread.connections.clear()
        known = self._thread.connections.get(send.node)
        if known is not None:
            sock = known.http.sock
            if sock is not None and time.monotonic() - known.used_at < IDLE_SECONDS_MAX and _is_silent(sock):
                return known
            self._drop(send.node)
        connection = _Connection(send.node, send.connect_s, self._ca)
        connection.http.connect()
        self._thread.connections[send.node] = connection
        self._all.add(connection)
        return connection

    def _exchange(self, connection: _Connection, send: Send) -> Response:
        client = connection.http
        assert client.sock is not None, "it was opened a moment ago"
        client.sock.settimeout(send.reply_s)
        pace = Pace(send.reply_s, time.monotonic())
        # Each response has a pace of its own, and `http.client` creates the response from this
        # class attribute.
        client.response_class = cast(Any, functools.partial(_Answer, pace))
        request = send.request
        headers = {**self._headers, **request.headers, "Content-Length": str(len(request.body))}
        is_whole = False
        request.may_have_arrived = True
        # A server that refuses a body closes before it has read it all; its refusal may be there to
        # read.
        try:
            client.request(request.method, request.path, request.body or None, headers)
            is_whole = True
        except BrokenPipeError as error:
            if _is_of_handler(error):
                raise
        answer = client.getresponse()
        body = _read(answer)
        connection.used_at = time.monotonic()
        if answer.will_close or not is_whole:
            self._drop(send.node)
        return Response(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)

    def _drop(self, node: Node) -> None:
        connection: Optional[_Connection] = self._thread.connections.pop(node, None)
        if connection is not None:
            connection.http.close()


def _is_silent(sock: socket.socket) -> bool:
    """Whether nothing has arrived, not even an end, on a connection without a pending request. A
    request over a connection that its server has closed certainly has no effect, but the client
    could not know that.
    """
    sock.settimeout(0)
    try:
        # With TLS, this peeks at the raw bytes too: TLS sockets do not allow a peek.
        socket.socket.recv(sock, 1, socket.MSG_PEEK)
    except OSError as error:
        if _is_of_handler(error):
            raise
        return isinstance(error, BlockingIOError)
    return False


def _read(answer: http.client.HTTPResponse) -> bytes:
    pieces = []
    length = 0
    while True:
        piece = answer.read(_PIECE_BYTES)
        if not piece:
            break
        length += len(piece)
        if length > ANSWER_BYTES_MAX:
            raise http.client.HTTPException(f"the answer is longer than {ANSWER_BYTES_MAX:,} bytes")
        pieces.append(piece)
    if answer.length:
        raise http.client.IncompleteRead(b"", answer.length)
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _is_of_handler(error: BaseException) -> bool:
    """Whether a signal handler raised it, and no socket: a handler may raise any error that sockets
    raise.

    A handler receives the frame that it interrupts. No other function that sockets, and their
    possible wrappers, call receives one.
    """
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        interrupted, step = step.tb_frame, step.tb_next
        for value in step.tb_frame.f_locals.values():
            # A handler may take its arguments as `*args`.
            if any(given is interrupted for given in (value if isinstance(value, tuple) else (value,))):
                return True
    return False


def _reason(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    return "no answer in time" if isinstance(error, TimeoutError) or text == "timed out" else text
