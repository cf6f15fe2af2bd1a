"""Servers in this process that respond as Landfast does, over real sockets, and fail on request.

They exist for faults that the real program cannot produce at a chosen moment: losing the response
to one request, holding one back, refusing the next. They implement transactions only as far as
clients can see.
"""

import http.server
import json
import re
import socket
import struct
import threading
import urllib.parse
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Set, Tuple

GUARD_S = 120.0
"""Only a test that hangs reaches it. No test asserts by it that something is fast."""
RESET = struct.pack("ii", 1, 0)


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    node: int
    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes
    peer: Tuple[str, int]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


@dataclass(frozen=True)
class Reply:
    status: int
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)


Fault = Callable[["Handler", Callable[[], Reply]], Optional[Reply]]


def reset_unheard(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
    """The connection breaks before the request has any effect."""
    return None


def reset_after(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
    """The request takes effect and its response is lost."""
    answer()
    return None


def late(arrives: threading.Event, has_arrived: threading.Event) -> Fault:
    """The connection breaks at once; the request takes effect only when `arrives` is set."""

    def fault(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
        def deliver() -> None:
            arrives.wait(GUARD_S)
            answer()
            has_arrived.set()

        threading.Thread(target=deliver, daemon=True).start()
        return None

    return fault


def silent(until: threading.Event) -> Fault:
    """The request takes effect and no response comes until it is too late for one."""

    def fault(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
        answer()
        until.wait(GUARD_S)
        return None

    return fault


def interrupting(interrupt: Callable[[], object], until: threading.Event) -> Fault:
    """The request takes effect, and its client is interrupted while it waits for the response,
    which never comes.
    """

    def fault(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
        answer()
        interrupt()
        until.wait(GUARD_S)
        return None

    return fault


def slow(until: threading.Event) -> Fault:
    """The request gets its usual response, only later."""

    def fault(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
        until.wait(GUARD_S)
        return answer()

    return fault


def held(until: threading.Event, fault: Fault) -> Fault:
    """The request fails in the given way, only later."""

    def later(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
        until.wait(GUARD_S)
        return fault(handler, answer)

    return later


def answer_and_close(handler: "Handler", answer: Callable[[], Reply]) -> Optional[Reply]:
    """The request gets its usual response; the next one needs a new connection."""
    reply = answer()
    return Reply(reply.status, reply.body, {**reply.headers, "Connection": "close"})


def refuse(status: int, type: str, headers: Optional[Mapping[str, str]] = None, **more: str) -> Fault:
    """The request has no effect and is refused with a problem document."""
    reply = problem(status, type, **more)
    return lambda handler, answer: Reply(reply.status, reply.body, {**reply.headers, **(headers or {})})


def reply(status: int, body: bytes, headers: Optional[Mapping[str, str]] = None) -> Fault:
    """The request has no effect; the response is as given."""
    return lambda handler, answer: Reply(status, body, headers or {})


def document(document: Any) -> Fault:
    """The same in JSON."""
    return reply(200, json.dumps(document).encode())


def problem(status: int, type: str, **more: str) -> Reply:
    document = {"type": type, "title": type, "status": status, "detail": f"said by the test: {type}", **more}
    return Reply(status, json.dumps(document).encode(), {"Content-Type": "application/problem+json"})


@dataclass
class Transaction:
    attempt: int = 0
    state: str = "aborted"
    writes: Dict[bytes, Optional[bytes]] = field(default_factory=dict)
    kept: Dict[str, Any] = field(default_factory=dict)
    """The body of its commit."""


class Store:
    """The state that all nodes of a cluster share."""

    def __init__(self) -> None:
        self.values: Dict[bytes, bytes] = {}
        self.transactions: Dict[str, Transaction] = {}
        self.commits: List[str] = []
        self._lock = threading.Lock()

    def answer(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        parts = [urllib.parse.unquote_to_bytes(part) for part in path.partition("?")[0].split("/")[2:]]
        with self._lock:
            if parts[0] == b"state":
                return self._state(method, parts[1], body)
            if len(parts) == 1:
                return self._begin(json.loads(body))
            return self._call(method, parts, headers, body)

    def _state(self, method: str, key: bytes, body: bytes) -> Reply:
        if method == "GET":
            return self._value(self.values.get(key))
        self._apply({key: body if method == "PUT" else None})
        return Reply(204, headers={"Landfast-After": self._token()})

    def _begin(self, asked: Dict[str, Any]) -> Reply:
        id = asked["id"]
        transaction = self.transactions.setdefault(id, Transaction())
        if transaction.state == "committed":
            return Reply(200, json.dumps({"id": id, "status": "committed", **transaction.kept}).encode())
        transaction.attempt += 1
        transaction.state = "open"
        transaction.writes = {}
        return Reply(201, json.dumps({"id": id, "attempt": str(transaction.attempt)}).encode())

    def _call(self, method: str, parts: List[bytes], headers: Mapping[str, str], body: bytes) -> Reply:
        transaction = self.transactions.get(parts[1].decode())
        if transaction is None:
            return problem(404, "no-such-transaction")
        if len(parts) == 2 and method == "GET":
            return Reply(200, json.dumps({"status": transaction.state}).encode())
        if headers.get("landfast-attempt", str(transaction.attempt)) != str(transaction.attempt):
            return problem(409, "transaction-finished", outcome="begun-anew")
        if parts[-1] == b"commit":
            return self._commit(parts[1].decode(), transaction, body)
        if transaction.state != "open":
            return problem(409, "transaction-finished", outcome=transaction.state)
        if len(parts) == 2:
            transaction.state = "aborted"
        elif method == "GET":
            return self._value(transaction.writes.get(parts[3], self.values.get(parts[3])))
        else:
            transaction.writes[parts[3]] = body if method == "PUT" else None
        return Reply(204)

    def _commit(self, id: str, transaction: Transaction, body: bytes) -> Reply:
        if transaction.state == "open":
            transaction.kept = json.loads(body or b"{}")
            self._apply(transaction.writes)
            transaction.state = "committed"
            self.commits.append(id)
        if transaction.state != "committed":
            return problem(409, "transaction-finished", outcome=transaction.state)
        return Reply(200, json.dumps({"status": "committed", "after": self._token()}).encode())

    def _apply(self, writes: Mapping[bytes, Optional[bytes]]) -> None:
        for key, value in writes.items():
            if value is None:
                self.values.pop(key, None)
            else:
                self.values[key] = value

    def _token(self) -> str:
        return f"0-0-{len(self.commits)}"

    def _value(self, value: Optional[bytes]) -> Reply:
        return problem(404, "no-such-key") if value is None else Reply(200, value)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # The head and the body of a response are written apart; without this the second would wait for
    # the first.
    disable_nagle_algorithm = True
    server: "Node"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = {name.lower(): value for name, value in self.headers.items()}
        seen = Seen(self.server.number, self.command, self.path, headers, body, self.client_address)
        fault = self.server.cluster.arrived(seen)
        store = self.server.cluster.store

        def answer() -> Reply:
            return store.answer(seen.method, seen.path, seen.headers, seen.body)

        reply = answer() if fault is None else fault(self, answer)
        if reply is None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            self.close_connection = True
            return
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            self.send_header(name, value)
        if reply.status != 204:
            self.send_header("Content-Length", str(len(reply.body)))
        self.end_headers()
        self.wfile.write(reply.body)

    do_GET = do_PUT = do_POST = do_DELETE = handle_any

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are kept, not printed."""


class Node(http.server.ThreadingHTTPServer):
    """One server; it keeps its port when it starts again."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, cluster: "Cluster", number: int, port: int = 0) -> None:
        self.cluster = cluster
        self.number = number
        self._connections: Set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), Handler)
        self.port: int = self.server_address[1]
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def process_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        # Without the usual shutdown before it, so that a connection set to reset is reset.
        self._connections.discard(request)
        self.close_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that hangs up is no error of the test."""

    def kill(self) -> None:
        """Stops listening and breaks every connection."""
        self.shutdown()
        self.server_close()
        for connection in list(self._connections):
            try:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                continue


class Cluster:
    """Nodes over one store, the requests that they have seen, and the next faults."""

    def __init__(self, nodes: int = 1) -> None:
        self.store = Store()
        self.seen: List[Seen] = []
        self._faults: List[Tuple[str, Fault]] = []
        self._lock = threading.Lock()
        self.nodes = [Node(self, number) for number in range(nodes)]

    @property
    def url(self) -> str:
        return ",".join(f"http://127.0.0.1:{node.port}" for node in self.nodes)

    def add_node(self) -> None:
        self.nodes.append(Node(self, len(self.nodes)))

    def restart(self, number: int) -> None:
        """A killed node listens again, at its old port."""
        self.nodes[number] = Node(self, number, self.nodes[number].port)

    def fail(self, pattern: str, *faults: Fault) -> None:
        """The next requests whose `METHOD PATH` contains the expression fail, each in the given way, in turn."""
        with self._lock:
            self._faults.extend((pattern, fault) for fault in faults)

    def arrived(self, seen: Seen) -> Optional[Fault]:
        with self._lock:
            self.seen.append(seen)
            for index, (pattern, fault) in enumerate(self._faults):
                if re.search(pattern, str(seen)):
                    del self._faults[index]
                    return fault
        return None

    def requests(self, pattern: str = "") -> List[Seen]:
        """The requests so far whose `METHOD PATH` contains the expression."""
        with self._lock:
            return [seen for seen in self.seen if re.search(pattern, str(seen))]

    def states(self) -> List[str]:
        """The outcome of each transaction so far."""
        return [transaction.state for transaction in self.store.transactions.values()]

    def forgive(self) -> None:
        """Removes all faults."""
        with self._lock:
            self._faults.clear()

    def __enter__(self) -> "Cluster":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes:
            node.kill()
