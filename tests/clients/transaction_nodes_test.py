"""Transactions on several processes: each takes any call, and the state left when one is killed,
stopped or leaves.
"""

import random
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import http_api
import server as servers
import several_processes
import waiting
from several_processes import house, process, redis  # noqa: F401

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "clients/python"))

import landfast  # noqa: E402


@pytest.fixture
def apis(house):
    opened = [http_api.Api(one) for one in house]
    yield opened
    for api in opened:
        api.close()


def _problem(api, method, path, body=None, **headers):
    return api.ask(method, path, body, **headers).problem


def _serves(process):
    """Whether it serves the store at the moment."""
    return http_api.Api(process).ask("GET", "/v1/state/any").status != 503


class Load:
    """The commits of clients of several nodes, each transaction under an id of its own and with a
    stamp of its run.
    """

    def __init__(self, processes):
        self.urls = [f"http://{one.http}" for one in processes]
        self.acknowledged, self.times, self.failures = {}, [], []

    def has_committed(self, name, stamp):
        self.acknowledged[name] = stamp
        self.times.append(time.monotonic())

    def check(self, api):
        """T4: each acknowledged commit is there as its run wrote it, whole, and committed under its
        id.
        """
        def ask(*asked):
            # A busy machine may cost a node its lease.
            serves = lambda: (answer := api.ask(*asked)).status != 503 and answer  # noqa: E731
            return waiting.until(serves, "the node to serve")

        assert self.acknowledged
        for name, stamp in self.acknowledged.items():
            keys = [f"/v1/state/{http_api.segment(f'{side} {name}')}" for side in ["left", "right"]]
            left, right = [http_api.value_of(ask("GET", key)) for key in keys]
            assert left == right and left is not None, f"{name} is there in part, or lost"
            # A client that learns that its id has committed does not know which of its runs
            # committed.
            assert stamp in [left, None], f"{name} committed twice"
            answer = ask("POST", "/v1/transactions", f'{{"id":"{name}"}}')
            assert (answer.status, answer.document["status"]) == (200, "committed"), answer


class PythonLoad(Load):
    """Of the Python client."""

    def __init__(self, processes, clients):
        super().__init__(processes)
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def work(self, client):
        turned = client % len(self.urls)
        with landfast.connect(self.urls[turned:] + self.urls[:turned], timeout=waiting.GUARD_SECONDS) as connection:
            number = 0
            while not self.stop.is_set():
                number += 1
                name = f"{client}-{number}"

                def body(t, name=name):
                    stamp = f"{name} {random.getrandbits(64):016x}".encode()
                    t.put(f"left {name}", stamp)
                    t.get(f"hot {random.randrange(4)}")
                    t.put(f"right {name}", stamp)
                    t.put(f"hot {random.randrange(4)}", stamp)
                    return stamp

                try:
                    self.has_committed(name, connection.transact(body, id=name))
                except landfast.Error as error:
                    self.failures.append(error)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(waiting.GUARD_SECONDS)
            assert not thread.is_alive()


class RustLoad(Load):
    """Of the Rust client, in a process of its own."""

    def __init__(self, processes, _clients):
        super().__init__(processes)
        program = Path(servers.Landfast.program).parent / "examples/orders"
        assert program.exists(), "build it: cargo build -p landfast-client --example orders"
        pipe = subprocess.PIPE
        self.process = subprocess.Popen([program, *self.urls], stdin=pipe, stdout=pipe, stderr=pipe, text=True)
        self.thread = threading.Thread(target=self.read, daemon=True)
        self.thread.start()

    def read(self):
        for line in self.process.stdout:
            name, stamp = line.rstrip("\n").split("\t")
            self.has_committed(name, stamp.encode() or None)

    def end(self):
        self.process.stdin.close()
        self.thread.join(waiting.GUARD_SECONDS)
        assert not self.thread.is_alive()
        if self.process.wait(waiting.GUARD_SECONDS) != 0:
            self.failures.append(self.process.stderr.read())


def any_node_takes_any_call(apis):
    """T10, T5."""
    first, second, third = apis
    begun = first.begin()
    at = lambda api: http_api.Transaction(api, begun.id, begun.attempt)  # noqa: E731
    at(second).put("key", b"value")
    at(third).put("large", bytes(3_000_000))
    assert at(third).get("key") == b"value"
    at(first).delete("gone")
    after = at(second).commit()["after"]
    assert at(third).commit()["after"] == after, "a repeat is answered alike, wherever"
    assert [at(api).status() for api in apis] == ["committed"] * 3
    for api in apis:
        seen = lambda api=api: api.state("key") == b"value"  # noqa: E731
        waiting.until(seen, "a commit to be seen elsewhere")
    assert third.state("large") == bytes(3_000_000)
    # T14: at once, for a client that carries the token.
    carried = second.put_state("key", b"newer")
    assert third.begin(after=carried).get("key") == b"newer"


def a_name_is_begun_anew_at_another_node(apis):
    """T8, T4."""
    first, second, third = apis
    earlier = first.begin(id="named")
    earlier.put("a", b"earlier")
    later = second.begin(id="named")
    later.put("a", b"later")
    assert earlier.ask("POST", "/commit").problem == (409, "transaction-finished")
    later.commit()
    answer = third.ask("POST", "/v1/transactions", '{"id":"named"}')
    assert (answer.status, answer.document["status"]) == (200, "committed")
    assert third.begin(after=answer.headers["Landfast-After"]).get("a") == b"later"


@pytest.mark.parametrize("kind", [PythonLoad, RustLoad])
def one_of_three_is_killed_under_load(clients, house, kind):
    """T4, T5, T10."""
    watcher = clients(house[1])
    several_processes.are_members(watcher, house)
    load = kind(house, 6)
    waiting.until(lambda: len(load.times) > 200, "some commits")
    doomed, rest = house[0], house[1:]
    killed_at = time.monotonic()
    doomed.kill()
    several_processes.are_members(watcher, rest)
    print(f"gone after {time.monotonic() - killed_at:.1f} s")
    before = len(load.times)
    waiting.until(lambda: len(load.times) > before + 200, "commits to go on")
    # Another process takes its place, and its work.
    doomed.start()
    several_processes.are_members(watcher, house)
    waiting.until(lambda: _serves(doomed), "it to serve")
    load.end()
    assert not load.failures, load.failures[:3]
    for one in house:
        load.check(http_api.Api(one))


def what_was_open_at_a_node_that_died_ends_without_waiting_for_its_membership(house, apis):
    """T4, T7: a client that moves on begins again at once."""
    open_one, named = apis[0].begin(), apis[0].begin(id="named")
    for transaction in [open_one, named]:
        transaction.put("never", b"committed")
    house[0].kill()
    for api, transaction in zip(apis[1:], [open_one, named]):
        there = http_api.Transaction(api, transaction.id, transaction.attempt)
        answer = there.ask("GET", "/keys/never")
        assert answer.problem == (409, "transaction-finished"), answer
        assert answer.document["outcome"] == "aborted"
        assert there.ask("POST", "/commit").problem == (409, "transaction-finished")
    again = apis[2].begin(id="named")
    again.put("ever", b"committed")
    again.commit()
    assert [api.state("never") for api in apis[1:]] == [None, None]


def a_node_that_was_stopped_answers_nothing_stale(clients, house, apis):
    """T5, T10."""
    watcher = clients(house[1])
    several_processes.are_members(watcher, house)
    stopped, other = apis[0], apis[1]
    other.put_state("key", b"old")
    waiting.until(lambda: stopped.state("key") == b"old", "it to be seen, and kept")
    reader = stopped.begin()
    assert reader.get("key") == b"old"
    house[0].process.send_signal(signal.SIGSTOP)
    try:
        several_processes.are_members(watcher, house[1:])
        other.put_state("key", b"new")
        # Sent while it is stopped, so that these are the first requests that it serves.
        address = house[0].http.split(":")
        asked = [socket.create_connection((address[0], int(address[1])), waiting.GUARD_SECONDS) for _ in range(8)]
        for connection in asked:
            connection.sendall(b"GET /v1/state/key HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    finally:
        house[0].process.send_signal(signal.SIGCONT)
    answers = [connection.makefile("rb").read() for connection in asked]
    for answer in answers:
        assert b" 503 " in answer.splitlines()[0] or answer.endswith(b"\r\n\r\nnew"), answer
    assert reader.ask("GET", "/keys/key").status in (409, 503), "what it had open is over"
    waiting.until(lambda: stopped.ask("GET", "/v1/state/key").status == 200, "it to be a node again")
    assert stopped.state("key") == b"new"
    several_processes.are_members(watcher, house)


def a_node_that_leaves_is_missed_by_nobody(clients, house):
    """T4, T10."""
    watcher = clients(house[1])
    several_processes.are_members(watcher, house)
    load = PythonLoad(house, 3)
    waiting.until(lambda: len(load.times) > 60, "some commits")
    assert house[2].stop() == 0
    several_processes.are_members(watcher, house[:2])
    before = len(load.times)
    waiting.until(lambda: len(load.times) > before + 60, "commits to go on")
    load.end()
    assert not load.failures, load.failures[:3]
    load.check(http_api.Api(house[0]))
    assert house[2].log_lines("has_left=true"), "nothing has to be searched for"


class Chains:
    """Clients of several nodes that lengthen two of a few chains at a time. Each link names its
    transaction, so an impossible order shows.
    """

    COUNT = 4

    def __init__(self, processes, clients):
        self.urls = [f"http://{one.http}" for one in processes]
        self.acknowledged, self.times, self.failures, self.torn = {}, [], [], []
        self.stop = threading.Event()
        self.threads = [threading.Thread(target=self.work, args=(n,), daemon=True) for n in range(clients)]
        for thread in self.threads:
            thread.start()

    def work(self, client):
        turned = client % len(self.urls)
        with landfast.connect(self.urls[turned:] + self.urls[:turned], timeout=waiting.GUARD_SECONDS) as connection:
            number = 0
            while not self.stop.is_set():
                number += 1
                name = f"chains-{client}-{number}"
                chains = random.sample(range(self.COUNT), 2)

                def body(t, name=name, chains=chains):
                    links = {}
                    for chain in chains:
                        links[chain] = int(t.get(f"length {chain}") or b"0") + 1
                        t.put(f"length {chain}", str(links[chain]).encode())
                        t.put(f"link {chain} {links[chain]}", name.encode())
                    return links

                def look(t):
                    return [int(t.get(f"length {chain}") or b"0") for chain in range(self.COUNT)]

                try:
                    self.acknowledged[name] = connection.transact(body, id=name, isolation="serializable", runs_max=1_000)
                    self.times.append(time.monotonic())
                    if sum(connection.transact(look, isolation="serializable")) % 2:
                        self.torn.append(name)
                except landfast.Error as error:
                    self.failures.append(error)

    def end(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(waiting.GUARD_SECONDS)
            assert not thread.is_alive()

    def check(self, reader):
        """Nothing is lost, doubled, torn or in a cycle."""
        assert not self.torn, "a reader saw half of a commit"
        before = {}
        made = {}
        for chain in range(self.COUNT):
            length = int(reader.get(f"length {chain}") or b"0")
            last = None
            for place in range(1, length + 1):
                name = reader.get(f"link {chain} {place}").decode()
                made.setdefault(name, {})[chain] = place
                before.setdefault(name, set()).update({last} - {None})
                last = name
        links = sum(len(of_one) for of_one in made.values())
        assert links == sum(int(reader.get(f"length {chain}") or b"0") for chain in range(self.COUNT)), "one is there twice"
        assert all(len(of_one) == 2 for of_one in made.values()), "one is there in part"
        for name, told in self.acknowledged.items():
            # A client that learns that its id has committed does not know which of its runs
            # committed.
            assert name in made and told in [made[name], None], f"{name} is lost, or another than was told"
        # No cycle: a transaction without predecessors goes first.
        left = dict(before)
        while left:
            first = [name for name, others in left.items() if not others & left.keys()]
            assert first, "an order that there cannot be"
            for name in first:
                del left[name]


def serializable_transactions_run_at_all_nodes_and_one_is_killed(clients, house):
    """T4, T5, T11, T12: at whichever node sequences them."""
    watcher = clients(house[1])
    several_processes.are_members(watcher, house)
    load = Chains(house, 6)
    waiting.until(lambda: len(load.times) > 60, "some commits")
    # The first process that started is the sequencer.
    killed_at = time.monotonic()
    house[0].kill()
    several_processes.are_members(watcher, house[1:])
    before = len(load.times)
    waiting.until(lambda: len(load.times) > before + 30, "commits to go on")
    print(f"on again after {time.monotonic() - killed_at:.1f} s, {before} before, {len(load.times)} by now")
    house[0].start()
    several_processes.are_members(watcher, house)
    waiting.until(lambda: _serves(house[0]), "it to serve")
    load.end()
    assert not load.failures, load.failures[:3]
    for one in house:
        api = http_api.Api(one)
        begins = lambda: api.ask("POST", "/v1/transactions", '{"isolation":"serializable"}')  # noqa: E731, B023
        begun = waiting.until(lambda: (answer := begins()).status == 201 and answer, "a snapshot at each node")  # noqa: B023
        # It reads all acknowledged commits of all nodes, at once.
        load.check(http_api.Transaction(api, **begun.document))


def strangers_are_no_nodes(apis):
    """A caller that may call the listener is not yet one of the nodes of its store."""
    random.seed(7)
    for kind in [1, 2, 3, 4, 5, 77]:
        for length in [0, 1, 3, 40, 5_000]:
            message = bytes([kind]) + random.randbytes(length)
            answer = apis[0].ask("POST", "/v1/peers", message)
            if length > 4096 and kind in (1, 5, 77):
                assert answer.problem == (413, "too-large")
                apis[0].close()
                continue
            # The version, and "not here" or "unknown kind".
            assert answer.status == 200 and answer.body[0] == 1 and answer.body[1] in (2, 3), (message, answer)
    apis[0].put_state("still", b"here")
    waiting.until(lambda: apis[1].state("still") == b"here", "nodes to hear each other")
