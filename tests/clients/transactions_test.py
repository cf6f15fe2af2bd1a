"""Transactions and state over HTTP, against the real program."""

import itertools
import json
import re
import signal
import socket
import threading

import pytest

import http_api
import waiting

ENDS = [signal.SIGTERM, signal.SIGKILL]
numbers = itertools.count()


@pytest.fixture
def apis():
    """Connects clients: `apis(server)`."""
    opened = []

    def connect(server):
        if type(server).__name__ != "Landfast":
            pytest.skip("transactions are Landfast's alone")
        api = http_api.Api(server)
        opened.append(api)
        return api

    yield connect
    for api in opened:
        api.close()


@pytest.fixture
def api(apis, server):
    """A client of the shared server."""
    return apis(server)


@pytest.fixture
def key():
    """A key that no other test uses; it has no value yet."""
    return f"key-{next(numbers)}"


def a_transaction_reads_its_own_writes_and_shows_them_when_it_commits(api, apis, server, key):
    """T1, T3."""
    other = apis(server)
    transaction = api.begin()
    assert transaction.get(key) is None
    for value in [b"one", b"", bytes(range(256))]:
        transaction.put(key, value)
        assert transaction.get(key) == value
        assert other.state(key) is None
        assert other.begin().get(key) is None
    transaction.delete(key)
    assert transaction.get(key) is None
    transaction.put(key, b"last")
    assert transaction.status() == "open"
    transaction.commit()
    assert transaction.status() == "committed"
    assert other.state(key) == b"last"
    assert other.begin().get(key) == b"last"


def reads_repeat_and_what_was_written_together_is_read_together(api, apis, server, key):
    """T2, T3."""
    left, right = f"{key}-left", f"{key}-right"

    def write_both(value):
        writer = api.begin()
        writer.put(left, value)
        writer.put(right, value)
        writer.commit()

    write_both(b"old")
    reader = apis(server).begin()
    assert reader.get(left) == b"old"
    write_both(b"new")
    assert reader.get(right) == b"old"
    assert reader.get(left) == b"old"
    assert apis(server).begin().get(right) == b"new"


def parallel_readers_never_see_half_of_a_transaction(apis, server, key):
    """T2. Writers move both keys together; a reader of both, in either order, sees one
    transaction's values.
    """
    left, right = f"{key}-left", f"{key}-right"
    done = threading.Event()

    def write(api, number):
        try:
            for turn in range(100):
                transaction = api.begin()
                for name in [left, right]:
                    transaction.put(name, f"{number}-{turn}".encode())
                transaction.commit()
        finally:
            done.set()

    def read(api, names):
        while not done.is_set():
            transaction = api.begin()
            first = transaction.ask("GET", f"/keys/{names[0]}")
            second = transaction.ask("GET", f"/keys/{names[1]}")
            transaction.abort()
            # Keys that were created after it began may be refused, never half seen.
            if (first.status, second.status) == (200, 200):
                assert first.body == second.body
            elif first.status == 200:
                assert second.problem == (409, "no-valid-version")

    one, two, three, four = (apis(server) for _ in range(4))
    waiting.together(
        lambda: write(one, 0),
        lambda: write(two, 1),
        lambda: read(three, [left, right]),
        lambda: read(four, [right, left]),
    )


def serializable_increments_are_all_counted(apis, server, key):
    """T11. Two clients increment one counter at a time, each again until it has committed."""

    def increment(api):
        for _ in range(50):
            while True:
                transaction = api.begin(isolation="serializable")
                value = int(transaction.get(key) or b"0")
                transaction.put(key, b"%d" % (value + 1))
                ended = transaction.ask("POST", "/commit")
                if ended.status == 200:
                    break
                assert ended.problem == (409, "conflict")
                assert transaction.ask("POST", "/commit").problem[0] == 409, "once and for all"

    one, two = apis(server), apis(server)
    waiting.together(lambda: increment(one), lambda: increment(two))
    assert one.state(key) == b"100"


def serializable_readers_see_one_instant_and_never_conflict(api, apis, server, key):
    """T11, T12."""
    writer = apis(server)
    writer.put_state(key, b"old")
    reader = api.begin(isolation="serializable")
    writer.put_state(key, b"new")
    writer.put_state(f"{key}-other", b"new")
    assert reader.get(f"{key}-other") is None
    assert reader.get(key) == b"old"
    reader.commit()


def nothing_of_an_aborted_transaction_is_ever_seen(api, key):
    """T1."""
    api.put_state(key, b"kept")
    transaction = api.begin()
    transaction.put(key, b"dropped")
    transaction.abort()
    transaction.abort()
    assert transaction.status() == "aborted"
    assert api.state(key) == b"kept"
    late = transaction.ask("POST", "/commit")
    assert late.problem == (409, "transaction-finished")
    assert late.document["outcome"] == "aborted"


@pytest.mark.parametrize("end", ENDS, ids=lambda end: end.name)
def a_commit_repeated_after_a_restart_is_answered_alike(apis, own_server, end):
    """T4. For generated ids and client ids, for any caller; an id that has committed is not begun
    again.
    """
    api = apis(own_server)
    committed = []
    for transaction in [api.begin(), api.begin(id="order-17")]:
        transaction.put("count", b"once")
        answer = transaction.commit()
        assert transaction.commit() == answer
        committed.append((transaction, answer))
    own_server.stop(end)
    own_server.start()
    again = apis(own_server)
    again.put_state("count", b"later")
    for transaction, answer in committed:
        for _ in range(2):
            transaction.api = again
            assert transaction.commit() == answer
            assert again.ask("POST", f"{transaction.path}/commit").document == answer
        assert transaction.status() == "committed"
        late = transaction.ask("PUT", "/keys/count", b"twice")
        assert late.problem == (409, "transaction-finished")
        assert late.document["outcome"] == "committed"
    begun = again.ask("POST", "/v1/transactions", json.dumps({"id": "order-17"}))
    assert begun.status == 200, begun
    assert (begun.document["id"], begun.document["status"]) == ("order-17", "committed")
    assert again.state("count") == b"later"


def an_id_that_has_committed_is_answered_as_such_however_often_it_is_begun(api, key):
    """T4."""
    name = f"order {key}/ü"
    transaction = api.begin(id=name)
    assert transaction.id == name
    transaction.put(key, b"once")
    transaction.commit()
    for _ in range(3):
        begun = api.ask("POST", "/v1/transactions", json.dumps({"id": name}))
        assert begun.status == 200, begun
        assert (begun.document["id"], begun.document["status"]) == (name, "committed")
    assert api.state(key) == b"once"


def later_calls_of_an_earlier_attempt_are_refused(api, key):
    """T8."""
    earlier = api.begin(id=f"job-{key}")
    earlier.put(f"{key}-earlier", b"x")
    later = api.begin(id=f"job-{key}")
    for method, below in [("PUT", f"/keys/{key}"), ("GET", f"/keys/{key}"), ("POST", "/commit")]:
        refused = earlier.ask(method, below)
        assert refused.problem == (409, "transaction-finished")
        assert refused.document["outcome"] == "begun-anew"
    later.put(key, b"y")
    later.commit()
    assert api.state(f"{key}-earlier") is None
    assert api.state(key) == b"y"


def an_acknowledged_commit_survives_kill_9(apis, own_server):
    """T5. Every acknowledged write is there; of the one commit whose response was lost, all or
    nothing.
    """
    acknowledged, asked = [], []
    enough = threading.Event()
    writing = apis(own_server)

    def write():
        try:
            for number in range(100_000):
                transaction = writing.begin()
                for name in ["left", "right"]:
                    transaction.put(f"{name}-{number}", str(number).encode())
                asked.append(transaction)
                transaction.commit()
                acknowledged.append(number)
                if len(acknowledged) == 100:
                    enough.set()
        except (OSError, http_api.http.client.HTTPException):
            pass

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    assert enough.wait(waiting.GUARD_SECONDS)
    own_server.kill()
    writer.join(waiting.GUARD_SECONDS)
    own_server.start()
    api = apis(own_server)
    for number in acknowledged:
        assert api.state(f"left-{number}") == str(number).encode()
        assert api.state(f"right-{number}") == str(number).encode()
    unknown = len(acknowledged)
    assert api.state(f"left-{unknown}") == api.state(f"right-{unknown}")
    if len(asked) > unknown:
        lost = asked[unknown]
        outcome = api.ask("POST", f"{lost.path}/commit")
        has_value = api.state(f"left-{unknown}") is not None
        assert (outcome.status == 200) == has_value, outcome


def what_was_open_when_the_server_died_never_happened(apis, own_server):
    """T1, T7."""
    api = apis(own_server)
    generated, named = api.begin(), api.begin(id="job")
    for transaction in [generated, named]:
        transaction.put("k", b"never")
    own_server.kill()
    own_server.start()
    again = apis(own_server)
    assert again.state("k") is None
    for transaction in [generated, named]:
        transaction.api = again
        refused = transaction.ask("POST", "/commit")
        assert refused.problem in [(409, "transaction-finished"), (404, "no-such-transaction")], refused
    anew = again.begin(id="job")
    anew.put("k", b"anew")
    anew.commit()
    assert again.state("k") == b"anew"


def a_client_that_carries_its_last_commit_sees_it(api, apis, server, key):
    transaction = api.begin()
    transaction.put(key, b"mine")
    after = transaction.commit()["after"]
    assert apis(server).begin(after=after).get(key) == b"mine"
    after = api.put_state(key, b"plain")
    assert apis(server).begin(after=after).get(key) == b"plain"


def plain_state_is_the_same_keys(api, key):
    for value in [b"one", b"", bytes(range(256))]:
        api.put_state(key, value)
        assert api.state(key) == value
        assert api.begin().get(key) == value
    for _ in range(2):
        assert api.ask("DELETE", f"/v1/state/{key}").status == 204
        assert api.state(key) is None


@pytest.mark.parametrize("isolation", ["read-atomic", "serializable"])
def the_result_kept_with_a_commit_is_returned_to_each_later_begin(apis, own_server, isolation):
    """T19: over a kill of the server too."""
    api = apis(own_server)
    transaction = api.begin(id="order", isolation=isolation)
    transaction.put("order", b"1")
    commit = lambda body: transaction.ask("POST", "/commit", body)
    for wrong in (b"[1]", b'{"results": 1}', b'{"result": NaN}', b'{"result": 1'):
        assert commit(wrong).problem == (400, "invalid-request")
    longest = json.dumps("r" * (65536 - 2))
    assert commit(b'{"result": %s}' % json.dumps("r" * (65536 - 1)).encode()).problem == (413, "too-large")
    assert commit(b'{"result": {"total": 9007199254740993, "by": "\xc3\xa4"}}').document["status"] == "committed"
    first = {"total": 9007199254740993, "by": "\u00e4"}
    begin = lambda: api.ask("POST", "/v1/transactions", json.dumps({"id": "order"}))
    assert begin().document["result"] == first
    assert commit(b'{"result": "another"}').document["result"] == first
    assert "result" not in commit(None).document
    long = api.begin(id="long", isolation=isolation)
    assert long.ask("POST", "/commit", b'{"result": %s}' % longest.encode()).status == 200
    own_server.kill()
    own_server.start()
    api = apis(own_server)
    assert begin().document["result"] == first
    assert api.ask("POST", "/v1/transactions", json.dumps({"id": "long"})).document["result"] == "r" * (65536 - 2)
    without = api.begin(id="without")
    assert without.ask("POST", "/commit", b"{}").status == 200
    assert "result" not in api.ask("POST", "/v1/transactions", json.dumps({"id": "without"})).document


def a_plain_write_takes_effect_under_its_condition_alone(api, key):
    """T20."""
    path = f"/v1/state/{key}"
    refused = (412, "condition-not-met")
    assert api.ask("PUT", path, b"0", if_match="*").problem == refused
    assert api.ask("DELETE", path, if_match='"1-1"').problem == refused
    first = api.ask("PUT", path, b"1", if_none_match="*")
    tag = first.headers["ETag"]
    assert first.status == 204 and first.headers["Landfast-After"] and re.fullmatch(r'"[^"]+"', tag)
    assert api.ask("PUT", path, b"2", if_none_match="*").problem == refused
    read = api.ask("GET", path)
    assert (read.body, read.headers["ETag"]) == (b"1", tag)
    assert api.ask("HEAD", path).headers["ETag"] == tag
    second = api.ask("PUT", path, b"2", if_match=tag)
    assert second.status == 204 and second.headers["ETag"] != tag
    assert api.ask("PUT", path, b"3", if_match=tag).problem == refused
    # A plain write and a transaction change it too.
    plain = api.ask("PUT", path, b"2")
    assert api.ask("GET", path).headers["ETag"] == plain.headers["ETag"] != second.headers["ETag"]
    assert api.ask("PUT", path, b"3", if_match=second.headers["ETag"]).problem == refused
    assert api.ask("PUT", path, b"3", if_match="*").status == 204
    for wrong in ({"if_match": '"1-1", "2-2"'}, {"if_none_match": tag}, {"if_match": "*", "if_none_match": "*"},
                  {"if_unmodified_since": "x"}, {"range": "bytes=0-1"}):
        assert api.ask("PUT", path, b"4", **wrong).problem == (400, "invalid-request"), wrong
    assert api.state(key) == b"3"
    assert api.ask("DELETE", path, if_match=tag).problem == refused
    assert api.ask("DELETE", path, if_match=api.ask("GET", path).headers["ETag"]).status == 204
    assert api.ask("PUT", path, b"5", if_match="*").problem == refused, "a deleted key has no value"
    assert api.ask("PUT", path, b"5", if_none_match="*").status == 204


def of_racing_writes_of_a_new_key_one_succeeds(apis, server, key):
    """T20."""
    clients = [apis(server) for _ in range(8)]
    ask = lambda client, number: client.ask("PUT", f"/v1/state/{key}", b"%d" % number, if_none_match="*").status
    asked = [lambda pair=pair: ask(*pair) for pair in zip(clients, range(8))]
    statuses = waiting.together(*asked)
    assert sorted(statuses) == [204] + [412] * 7
    assert clients[0].state(key) == b"%d" % statuses.index(204)


def a_plain_slash_in_a_key_is_explained(api):
    for path, meant in (
        ("/v1/state/orders/17", "/v1/state/orders%2F17"),
        ("/v1/transactions/t/keys/orders/17", "/v1/transactions/t/keys/orders%2F17"),
        ("/v1/workflows/w/state/orders/17", "/v1/workflows/w/state/orders%2F17"),
    ):
        answer = api.ask("GET", path)
        assert answer.problem == (404, "no-such-path")
        assert "a slash within it is sent as %2F" in answer.document["detail"] and meant in answer.document["detail"]
    assert "%2F" not in api.ask("GET", "/v1/nothing/here").document["detail"]


def an_unknown_transaction_is_not_found(api):
    for method, below in [("GET", ""), ("DELETE", ""), ("POST", "/commit"), ("GET", "/keys/k"), ("PUT", "/keys/k")]:
        answer = api.ask(method, f"/v1/transactions/never-begun{below}", b"")
        assert answer.problem == (404, "no-such-transaction"), (method, below)


def limits_are_refused_by_name(api, key):
    """T15. Each refusal by its name, at the bound and not before; none of its writes stay."""
    begin = lambda asked: api.ask("POST", "/v1/transactions", asked)  # noqa: E731
    for asked in [b"{", b'{"id":""}', json.dumps({"id": "x" * 129}), b'{"isolation":"snapshot"}', b'{"ids":1}']:
        assert begin(asked).problem == (400, "invalid-request"), asked
    assert begin(json.dumps({"id": "x" * 128})).status == 201
    assert begin(b"x" * (64 * 1024 + 1)).problem == (413, "too-large")

    transaction = api.begin()
    for path in ["/keys/" + "k" * 1025, "/keys/%zz"]:
        assert transaction.ask("PUT", path, b"v").problem == (400, "invalid-request")
    transaction.put("k" * 1024, b"v")
    transaction.put("", b"the empty key")
    assert transaction.get("") == b"the empty key"

    transaction.put(key, b"v")
    for number in range(10_000 - 3):
        transaction.put(f"{key}-{number}", b"")
    assert transaction.ask("PUT", f"/keys/{key}-more", b"").problem == (413, "too-large")
    transaction.abort()
    assert api.state(key) is None


def too_many_open_transactions_are_refused_by_name(apis, own_server):
    """T15. Open transactions go on."""
    api = apis(own_server)
    opened = _begun_together(api, 10_000)
    refused = api.ask("POST", "/v1/transactions")
    assert refused.problem == (429, "too-many-transactions")
    assert int(refused.headers["Retry-After"]) > 0
    opened[0].put("k", b"v")
    opened[0].commit()
    opened[1].abort()
    assert api.ask("POST", "/v1/transactions").status == 201


def _begun_together(api, count):
    """Begins so many transactions before the first is idle for too long: a hundred requests at a time."""
    request = b"POST /v1/transactions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n{}"
    begun = []
    with socket.create_connection((api.connection.host, api.connection.port), waiting.GUARD_SECONDS) as connection:
        answers = connection.makefile("rb")
        while len(begun) < count:
            connection.sendall(100 * request)
            for _ in range(100):
                head = b"".join(iter(answers.readline, b"\r\n"))
                assert head.startswith(b"HTTP/1.1 201 "), head
                length = int(re.search(rb"(?i)\r\ncontent-length: (\d+)", head).group(1))
                begun.append(http_api.Transaction(api, **json.loads(answers.read(length))))
    return begun


def the_status_and_the_metrics_count_transactions(api, key):
    before = api.ask("GET", "/v1/status").document["transactions"]
    api.put_state(key, b"v")
    transaction = api.begin()
    after = api.ask("GET", "/v1/status").document["transactions"]
    assert after["committed"] > before["committed"]
    assert after["open"] >= 1
    transaction.abort()
    assert b"landfast_transactions_committed_total " in api.ask("GET", "/metrics").body
