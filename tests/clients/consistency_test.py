"""The paper's appendices A and B over TCP, while the server is killed and started again (`history.py`)."""

import copy
import dataclasses
import threading

import pytest

import history
import history_client
import server as servers
import waiting
import wire

CLIENTS = 5


def _until_moments(clients, count):
    waiting.until(lambda: sum(len(client.history) for client in clients) > count, "the clients to work")


@pytest.fixture(scope="module")
def histories(tmp_path_factory):
    """What five clients saw of a server that was killed twice meanwhile."""
    running = servers.new(tmp_path_factory.mktemp("history"))
    if not running.can_restart:
        pytest.skip("a server that somebody else runs cannot be restarted")
    running.start()
    with wire.Session(running.port) as first:
        first.created("/history", b"")
    stop = threading.Event()
    clients = [history_client.Client(running, seed, stop) for seed in range(CLIENTS)]
    threads = [threading.Thread(target=client.run, daemon=True) for client in clients]
    for thread in threads:
        thread.start()
    for count in (1_500, 3_000):
        _until_moments(clients, count)
        running.kill()
        running.start()
    _until_moments(clients, 6_000)
    stop.set()
    for thread in threads:
        thread.join(waiting.GUARD_SECONDS)
    assert all(client.has_ended for client in clients), "a client failed"
    yield [client.history for client in clients]
    running.shut_down()


def _replies(seen, name):
    return [moment for moment in seen if moment.kind == "replied" and moment.operation[0] == name]


def clients_see_one_order_while_the_server_is_killed(histories):
    assert history.violations_of(histories) == []
    done = sum(len(_replies(seen, history.SET)) for seen in histories)
    multis = [m for seen in histories for m in _replies(seen, "multi") if isinstance(m.result, list)]
    events = [m for seen in histories for m in seen if m.kind == "event"]
    lost = sum(m.kind == "lost" for seen in histories for m in seen)
    assert done > 100 and multis and events and lost > CLIENTS, (done, len(multis), len(events), lost)


def _without_events(histories):
    for seen in histories:
        seen[:] = [moment for moment in seen if moment.kind != "event"]


def _with_an_old_read(histories):
    reads = [m for seen in histories for m in _replies(seen, "get") if m.result is not None and m.result[0].version > 2]
    paths = {}
    for read in reads:
        first = paths.setdefault((read.operation[1], read.result[0].czxid), read)
        if first.result[0].version < read.result[0].version:
            read.result = first.result
            return
    pytest.fail("no znode was read twice")


def _with_one_zxid_for_two_updates(histories):
    one, other = _replies(histories[0], history.SET)[-1], _replies(histories[1], history.SET)[-1]
    other.zxid = one.zxid


def _with_half_a_multi(histories):
    """A read after a multi shows one of its znodes as it was before."""
    reads = [m for seen in histories for m in _replies(seen, "get") if m.result is not None]
    for multi in (m for seen in histories for m in _replies(seen, "multi") if isinstance(m.result, list)):
        for read in reads:
            if read.result[0].mzxid == multi.zxid:
                read.result = (dataclasses.replace(read.result[0], mzxid=multi.zxid - 1), read.result[1])
                return
    pytest.fail("no multi was read")


def _with_replies_out_of_order(histories):
    replied = [m for m in histories[0] if m.kind == "replied" and m.zxid > 0]
    replied[-2].zxid, replied[-1].zxid = replied[-1].zxid + 1, replied[-2].zxid


def _with_a_reply_to_another_request(histories):
    read = _replies(histories[0], "get")[-1]
    read.kind, read.result = "disorder", read.xid + 1


@pytest.mark.parametrize(
    "falsify",
    [
        _without_events,
        _with_an_old_read,
        _with_one_zxid_for_two_updates,
        _with_half_a_multi,
        _with_replies_out_of_order,
        _with_a_reply_to_another_request,
    ],
)
def a_false_history_is_recognised(histories, falsify):
    history.violations_of(histories)  # joins replies with their requests
    false = copy.deepcopy(histories)
    falsify(false)
    assert history.violations_of(false) != []


class _AnswersTheNextRequest:
    """A session whose replies have the xid of the request after theirs."""

    def send(self, _operation, _body):
        return 1

    def receive(self):
        return wire.Reply(2, 1, wire.OK, wire.Reader(b""))


def a_client_records_a_reply_to_another_request():
    client = history_client.Client(server=None, seed=0, stop=None)
    client.history.append(history.Moment("connected", session=1))
    client.session = _AnswersTheNextRequest()
    with pytest.raises(ConnectionError):
        client.window()
    assert history.violations_of([client.history]) == ["session 0x1: the reply to 2 came in place of 1"]
