"""Connections: kept, never shared between processes, and closed after an untrustworthy response."""

import asyncio
import gc
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import warnings
import weakref
from pathlib import Path
from typing import Callable, List, Optional

import pytest

import cluster
import kinds
import landfast
from landfast import _connection, aio

INTERRUPTING_S = 900
EVENT_LOOP_CLOSES_S = 30
"""The event loop's own patience with a peer of TLS."""
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HOSTILE = {
    "nothing": b"",
    "no head": b"\x00\xff\r\n\r\n",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
    "half a status": b"HTTP/1.1 200",
    "no fields": b"HTTP/1.1 200 OK\r\n",
    "half a field": b"HTTP/1.1 200 OK\r\nContent-Le",
    "no end of the head": b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n",
    "no length": b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\nok",
    "less than promised": b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nok",
    "more than there is room for": b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\nok",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"X-A: " + b"a" * 200_000 + b"\r\n\r\n",
    "half a chunk": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab",
    "a chunk of no length": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\nab",
}
UNUSUAL = {
    "chunks": b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1;x=y\r\no\r\n1\r\nk\r\n0\r\nT: v\r\n\r\n",
    "until the end": b"HTTP/1.0 200 OK\r\n\r\nok",
    "continue first": b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
    "any case": b"HTTP/1.1 200 OK\r\ncontent-LENGTH:2\r\n\r\nok",
}


class RawServer:
    """Responds to each connection with the next of some bytes, then closes it."""

    def __init__(self, *answers: bytes) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, args=(answers,), daemon=True).start()

    def _serve(self, answers: "tuple[bytes, ...]") -> None:
        with self._listener:
            for answer in answers:
                connection, _ = self._listener.accept()
                with connection:
                    connection.recv(65536)
                    # A client may hang up on the hostile responses before it has read them all.
                    try:
                        connection.sendall(answer)
                    except OSError:
                        continue


async def _reads_ok(client: kinds.Client) -> None:
    assert await client.state().get("a") == b"ok"


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("name", HOSTILE)
def an_answer_that_is_not_whole_counts_as_lost(kind: str, name: str) -> None:
    server = RawServer(HOSTILE[name], OK)
    asyncio.run(kinds.with_client(kind, server.url, _reads_ok))


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
@pytest.mark.parametrize("name", UNUSUAL)
def unusual_answers_are_understood(kind: str, name: str) -> None:
    server = RawServer(UNUSUAL[name])
    asyncio.run(kinds.with_client(kind, server.url, _reads_ok))


def a_forked_process_leaves_the_connection_of_its_parent_alone() -> None:
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        client.state().put("a", b"1")
        child = os.fork()
        if child == 0:
            is_right = client.state().get("a") == b"1"
            os._exit(0 if is_right else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        client.state().put("a", b"2")
        parent, forked, again = [seen.peer for seen in servers.seen]
        assert parent == again and forked != parent


@pytest.mark.parametrize("leaves", ["at its end", "by an exception"])
def a_forked_process_leaves_the_transaction_of_its_parent_alone(leaves: str) -> None:
    """T4."""
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        child = 0
        try:
            with client.transaction(id="x") as t:
                t.put("a", b"1")
                child = os.fork()
                if child == 0 and leaves == "by an exception":
                    raise ZeroDivisionError
                if child != 0:
                    _, status = os.waitpid(child, 0)
                    assert os.waitstatus_to_exitcode(status) == 7
                    assert [str(seen) for seen in servers.seen[2:]] == [], "the child has said something"
        finally:
            if child == 0:
                os._exit(7)
        assert servers.store.commits == ["x"]


def each_thread_has_its_own_connection() -> None:
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        together = threading.Barrier(4)

        def work(number: int) -> None:
            together.wait()
            for _ in range(20):
                client.state().put(f"{number}", b"%d" % number)
                assert client.state().get(f"{number}") == b"%d" % number

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(servers.seen) == 160
        assert len({seen.peer for seen in servers.seen}) == 4


def tasks_share_a_bounded_number_of_connections() -> None:
    async def scenario(url: str) -> None:
        async with aio.connect(url) as client:
            await asyncio.gather(*[client.state().put(f"{number}", b"1") for number in range(300)])
            await asyncio.gather(*[client.state().put(f"{number}", b"2") for number in range(300)])

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers.url))
        assert len(servers.store.values) == 300
        assert len({seen.peer for seen in servers.seen}) <= 64


def a_cancelled_write_does_not_leave_its_answer_to_the_next_request_nor_let_its_attempt_commit() -> None:
    """T4. A body that stops waiting for a put does not know whether it arrived."""
    end = threading.Event()

    async def scenario(url: str, servers: cluster.Cluster) -> None:
        loop = asyncio.get_running_loop()
        async with aio.connect(url) as client:
            with pytest.raises(landfast.Unavailable):
                async with client.transaction() as t:
                    put = asyncio.ensure_future(t.put("a", b"1"))
                    servers.fail("PUT", cluster.interrupting(lambda: loop.call_soon_threadsafe(put.cancel), end))
                    with pytest.raises(asyncio.CancelledError):
                        await put
                    await t.commit()
            assert await client.state().get("a") is None

    with cluster.Cluster() as servers:
        asyncio.run(scenario(servers.url, servers))
        end.set()
        assert servers.store.commits == []


def an_interrupted_call_leaves_neither_its_answer_nor_a_broken_connection_to_the_next_one() -> None:
    end = threading.Event()

    def interrupt(number: int, frame: object) -> None:
        end.set()
        raise KeyboardInterrupt

    def interrupting(handler: cluster.Handler, answer: Callable[[], cluster.Reply]) -> Optional[cluster.Reply]:
        os.kill(os.getpid(), signal.SIGUSR1)
        return cluster.slow(end)(handler, answer)

    before = signal.signal(signal.SIGUSR1, interrupt)
    try:
        with cluster.Cluster(2) as servers, landfast.connect(servers.url) as client:
            client.state().put("a", b"of a")
            client.state().put("b", b"of b")
            servers.fail("GET", interrupting)
            with pytest.raises(KeyboardInterrupt):
                client.state().get("a")
            assert client.state().get("b") == b"of b"
            assert {seen.node for seen in servers.seen} == {0}, "it was taken for a node that is gone"
    finally:
        signal.signal(signal.SIGUSR1, before)


def an_interrupted_call_leaves_nothing_that_cannot_be_closed() -> None:
    """The collector closes a half-made object, and reports its exceptions then; Python shows them
    in its development mode.
    """
    program = str(Path(__file__).with_name("interrupting.py"))
    with cluster.Cluster() as servers:
        environment = {"LANDFAST_URL": servers.url, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        command = [sys.executable, "-B", "-X", "dev", "-W", "ignore::ResourceWarning", program]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=INTERRUPTING_S)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert int(ended.stdout) > 100, "nothing was interrupted"


def a_client_serves_one_event_loop_after_another() -> None:
    with cluster.Cluster() as servers:
        client = aio.connect(servers.url)

        async def scenario() -> None:
            await client.state().put("a", b"1")
            await client.close()

        for _ in range(3):
            asyncio.run(scenario())


@pytest.mark.parametrize("url", ["", "127.0.0.1:7600", "ftp://a", "http://", "http://a/b", "http://a:99999"])
def a_url_that_names_no_server_is_refused(url: str) -> None:
    with pytest.raises(ValueError):
        landfast.connect([url])


def the_environment_names_the_servers_and_the_token(monkeypatch: pytest.MonkeyPatch) -> None:
    with cluster.Cluster(2) as servers:
        monkeypatch.setenv("LANDFAST_URL", servers.url)
        monkeypatch.setenv("LANDFAST_TOKEN", "secret")
        with landfast.connect() as client:
            servers.fail("PUT", cluster.reset_unheard)
            client.state().put("a", b"1")
        seen: List[cluster.Seen] = servers.seen
        assert [(request.node, request.headers["authorization"]) for request in seen] == [
            (0, "Bearer secret"),
            (1, "Bearer secret"),
        ]


def a_thread_that_ends_leaves_no_socket_open() -> None:
    with cluster.Cluster() as servers, warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        client = landfast.connect(servers.url)
        threads = [threading.Thread(target=client.state().get, args=("a",)) for _ in range(3)]
        for thread in threads:
            thread.start()
            thread.join()
        del thread, threads
        gc.collect()
        assert len({seen.peer for seen in servers.seen}) == 3
        assert [str(warning.message) for warning in said if warning.category is ResourceWarning] == []
        client.close()


def a_program_that_ends_leaves_no_socket_open() -> None:
    with cluster.Cluster() as servers:
        program = "import landfast; landfast.state().get('a')"
        environment = {"LANDFAST_URL": servers.url, "PYTHONPATH": str(Path(__file__).resolve().parents[1])}
        command = [sys.executable, "-B", "-X", "dev", "-c", program]
        ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=cluster.GUARD_S)
    assert (ended.returncode, ended.stderr) == (0, "")


def an_asyncio_client_may_be_closed_in_another_event_loop_than_it_was_used_in() -> None:
    with cluster.Cluster() as servers:
        client = aio.connect(servers.url)

        async def write() -> None:
            await client.state().put("a", b"1")

        asyncio.run(write())
        asyncio.run(client.close())
        asyncio.run(write())
        assert len(servers.seen) == 2


class SilentTlsServer:
    """Responds to one request on each of its connections, and to nothing from then on. It has no
    certificate.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch, connections: int) -> None:
        monkeypatch.setattr(ssl, "create_default_context", lambda: _without_certificate(ssl.PROTOCOL_TLS_CLIENT))
        self.is_over = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._all_answer = threading.Barrier(connections)
        self.url = f"https://127.0.0.1:{self._listener.getsockname()[1]}"
        for _ in range(connections):
            threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        accepted, _ = self._listener.accept()
        with _without_certificate(ssl.PROTOCOL_TLS_SERVER).wrap_socket(accepted, server_side=True) as connection:
            connection.recv(65536)
            self._all_answer.wait(cluster.GUARD_S)
            connection.sendall(OK)
            self.is_over.wait(cluster.GUARD_S)


def _without_certificate(protocol: "ssl._SSLMethod") -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("AECDH-AES128-SHA:@SECLEVEL=0")
    return context


def a_close_waits_for_no_silent_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over TLS the peer has to answer the close."""
    monkeypatch.setattr("landfast.aio._connection._CLOSE_S", 0.05)

    async def scenario() -> None:
        client = aio.connect(server.url)
        assert await asyncio.gather(*[client.state().get("a") for _ in range(3)]) == [b"ok"] * 3
        began = time.monotonic()
        await client.close()
        assert time.monotonic() - began < EVENT_LOOP_CLOSES_S

    server = SilentTlsServer(monkeypatch, 3)
    asyncio.run(scenario())
    server.is_over.set()


def what_must_not_be_asked_twice_is_not_asked_over_a_connection_that_has_ended() -> None:
    """The request would be lost there with an unknown outcome, though it cannot have taken effect:
    for example after a restart.
    """
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        servers.fail("/invocations", cluster.document(1), cluster.document(2))
        assert client.invoke("f") == 1
        servers.nodes[0].kill()
        servers.restart(0)
        assert client.invoke("f") == 2


def a_connection_over_tls_is_kept_and_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    server = SilentTlsServer(monkeypatch, 1)
    with landfast.connect(server.url) as client:
        assert client.state().get("a") == b"ok"
        (kept,) = client._connections._all
        assert kept.http.sock is not None and _connection._is_silent(kept.http.sock)
        server.is_over.set()
        assert select.select([kept.http.sock], [], [], cluster.GUARD_S)[0]
        assert not _connection._is_silent(kept.http.sock)


def an_event_loop_that_has_ended_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same holds for the default client, which is never closed: there may be one for each
    invocation.
    """

    async def scenario() -> "weakref.ref[asyncio.AbstractEventLoop]":
        await aio.state().put("a", b"1")
        return weakref.ref(asyncio.get_running_loop())

    with cluster.Cluster() as servers:
        monkeypatch.setenv("LANDFAST_URL", servers.url)
        ended = asyncio.run(scenario())
    gc.collect()
    assert ended() is None
