"""The paper's appendices A and B over TCP, while servers are killed, frozen and started again (`history.py`).

LANDFAST_TEST_HISTORY sets how many disturbances there are and which ones, as COUNT or COUNT,SEED.
"""

import copy
import dataclasses
import os
import random
import signal
import threading
import time

import pytest

import history
import history_client
import redis_server
import server as servers
import waiting
import wire

CLIENTS = 5
MOMENTS_BETWEEN = 600
KILLS_MORE = 8  # at most, until a client was told of a change that it had missed
COUNT, _, SEED = os.environ.get("LANDFAST_TEST_HISTORY", "4,0").partition(",")


@pytest.fixture(scope="module", params=[1, 3], ids=["one_server", "three_servers"])
def running(request, tmp_path_factory):
    """One server, or three on one Redis server."""
    directory = tmp_path_factory.mktemp("history")
    if request.param == 1:
        alone = servers.new(directory)
        if not alone.can_restart:
            pytest.skip("a server that somebody else runs cannot be restarted")
        yield [alone.start()]
        alone.shut_down()
        return
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER"):
        pytest.skip("a provider is Landfast's alone")
    redis = redis_server.Redis(directory / "redis").start()
    several = [servers.LandfastBeside(directory / f"process-{number}", redis) for number in range(request.param)]
    try:
        waiting.together(*(one.start for one in several))
        yield several
    finally:
        for one in several:
            one.shut_down()
        redis.stop()


def _kill(server, _go_on):
    server.kill()
    server.start()


def _freeze(server, go_on, seconds=0):
    """Lets the other servers go on without it."""
    thaws = time.monotonic() + seconds
    server.process.send_signal(signal.SIGSTOP)
    try:
        go_on()
        while time.monotonic() < thaws:
            go_on()
    finally:
        server.process.send_signal(signal.SIGCONT)


def _freeze_beyond_its_leases(server, go_on):
    _freeze(server, go_on, seconds=5)


def _disturbances(running):
    """What is done to which server, one after the other; one server alone is not frozen."""
    rng = random.Random(int(SEED or 0))
    kinds = [_kill] if len(running) == 1 else [_kill, _freeze_beyond_its_leases, _kill, _freeze]
    return [(kinds[number % len(kinds)], rng.choice(running)) for number in range(int(COUNT))]


@pytest.fixture(scope="module")
def histories(running):
    """What five clients saw meanwhile."""
    with wire.Session(running[0].port) as first:
        first.created("/history", b"")
    stop = threading.Event()
    clients = [history_client.Client(running, f"{SEED}.{number}", stop) for number in range(CLIENTS)]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()

    def go_on():
        count = sum(len(client.history) for client in clients) + MOMENTS_BETWEEN
        waiting.until(lambda: sum(len(client.history) for client in clients) > count, "the clients to work")

    for disturb, server in _disturbances(running):
        go_on()
        disturb(server, go_on)
    go_on()
    for _ in range(KILLS_MORE):
        if any(map(_is_event_after_a_reconnect, (m for client in clients for m in client.history))):
            break
        _kill(running[0], go_on)
        go_on()
    stop.set()
    for thread in threads:
        thread.join(waiting.GUARD_SECONDS)
    assert all(client.has_ended for client in clients), "a client failed"
    return [client.history for client in clients]


def _is_event_after_a_reconnect(moment):
    return moment.kind == "event" and moment.zxid == -1


def _replies(seen, name):
    return [moment for moment in seen if moment.kind == "replied" and moment.operation[0] == name]


def clients_see_one_order_while_servers_are_killed_and_frozen(histories):
    assert history.violations_of(histories) == []
    done = sum(len(_replies(seen, history.SET)) for seen in histories)
    multis = [m for seen in histories for m in _replies(seen, "multi") if isinstance(m.result, list)]
    events = [m for seen in histories for m in seen if m.kind == "event"]
    lost = sum(m.kind == "lost" for seen in histories for m in seen)
    assert done > 100 and multis and events and lost > CLIENTS, (done, len(multis), len(events), lost)


def _reads(histories):
    return [m for seen in histories for m in _replies(seen, "get") if isinstance(m.result, tuple)]


def _show(read, **fields):
    read.result = (dataclasses.replace(read.result[0], **fields), read.result[1])


def _without_events(histories):
    for seen in histories:
        seen[:] = [moment for moment in seen if moment.kind != "event"]


def _without_the_events_after_a_reconnect(histories):
    for seen in histories:
        seen[:] = [moment for moment in seen if not _is_event_after_a_reconnect(moment)]


def _with_an_old_read(histories):
    reads = [read for read in _reads(histories) if read.result[0].version > 2]
    paths = {}
    for read in reads:
        first = paths.setdefault((read.operation[1], read.result[0].czxid), read)
        if first.result[0].version < read.result[0].version:
            read.result = first.result
            return
    pytest.fail("no znode was read twice")


def _with_a_read_of_the_future(histories):
    read = _reads(histories)[-1]
    _show(read, mzxid=read.zxid + 1)


def _with_an_old_state_after_a_reconnect(histories):
    for seen in histories:
        for moment in seen:
            if moment.kind == "replied" and moment.operation[0] == "set watches" and moment.operation[1] > 0:
                moment.zxid = moment.operation[1] - 1
                return
    pytest.fail("no client reconnected")


def _with_an_old_acl(histories):
    acls = {m.result[0].czxid: m for seen in histories for m in _replies(seen, history.SET_ACL) if isinstance(m.result, tuple)}
    for read in _reads(histories):
        acl = acls.get(read.result[0].czxid)
        if acl and acl.operation[1] == read.operation[1] and read.result[0].aversion >= acl.result[0].aversion:
            _show(read, aversion=acl.result[0].aversion - 1)
            return
    pytest.fail("no znode was read under a new ACL")


def _with_a_read_that_the_acl_forbids(histories):
    acls = [m for seen in histories for m in _replies(seen, history.SET_ACL) if isinstance(m.result, tuple)]
    hidden = next(acl for acl in acls if not acl.operation[2] & history.READ)
    read = next(read for read in _reads(histories) if read.operation[1] == hidden.operation[1])
    _show(read, czxid=hidden.result[0].czxid, aversion=hidden.result[0].aversion)


def _with_one_zxid_for_two_updates(histories):
    one, other = _replies(histories[0], history.SET)[-1], _replies(histories[1], history.SET)[-1]
    other.zxid = one.zxid


def _with_an_update_before_one_that_was_answered(histories):
    first = _replies(histories[0], history.SET)[0]
    late = next(m for m in _replies(histories[1], history.SET) if m.asked_at > first.at)
    late.zxid = first.zxid - 0.5


def _with_a_sync_that_reaches_too_little(histories):
    first = _replies(histories[0], history.SET)[0]
    late = next(m for m in _replies(histories[1], "sync") if m.asked_at > first.at)
    late.zxid = first.zxid - 1


def _with_half_a_multi(histories):
    """A read after a multi shows one of its znodes as it was before."""
    for multi in (m for seen in histories for m in _replies(seen, "multi") if isinstance(m.result, list)):
        for read in _reads(histories):
            if read.result[0].mzxid == multi.zxid:
                _show(read, mzxid=multi.zxid - 1)
                return
    pytest.fail("no multi was read")


def _with_replies_out_of_order(histories):
    replied = [m for m in histories[0] if m.kind == "replied" and m.zxid > 0]
    replied[-2].zxid, replied[-1].zxid = replied[-1].zxid + 1, replied[-2].zxid


def _with_a_reply_to_another_request(histories):
    read = _replies(histories[0], "get")[-1]
    read.kind, read.result = "disorder", read.xid + 1


@pytest.mark.parametrize(
    ("falsify", "broken"),
    [
        (_without_events, "before the event of"),
        (_without_the_events_after_a_reconnect, "before the event of"),
        (_with_an_old_read, ", after Update"),
        (_with_a_read_of_the_future, "too early"),
        (_with_an_old_state_after_a_reconnect, "sees zxid"),
        (_with_an_old_acl, "has ACL version"),
        (_with_a_read_that_the_acl_forbids, "which forbids it"),
        (_with_one_zxid_for_two_updates, "two updates"),
        (_with_an_update_before_one_that_was_answered, "answered before it was asked for"),
        (_with_a_sync_that_reaches_too_little, "answered before it was asked for"),
        (_with_half_a_multi, "after Update"),
        (_with_replies_out_of_order, "sees zxid"),
        (_with_a_reply_to_another_request, "came in place of"),
    ],
)
def a_false_history_is_recognised(histories, falsify, broken):
    history.violations_of(histories)  # joins replies with their requests
    false = copy.deepcopy(histories)
    falsify(false)
    violations = history.violations_of(false)
    assert any(broken in violation for violation in violations), violations


class _AnswersTheNextRequest:
    """A session whose replies have the xid of the request after theirs."""

    def send(self, _operation, _body):
        return 1

    def receive(self):
        return wire.Reply(2, 1, wire.OK, wire.Reader(b""))


def a_client_records_a_reply_to_another_request():
    client = history_client.Client(servers=None, seed=0, stop=None)
    client.history.append(history.Moment("connected", session=1))
    client.session = _AnswersTheNextRequest()
    with pytest.raises(ConnectionError):
        client.window()
    assert history.violations_of([client.history]) == ["session 0x1: the reply to 2 came in place of 1"]
