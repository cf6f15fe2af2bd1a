"""Watches: which ones fire, how often, and in which order."""

import wire
from wire import NODE_CHILDREN_CHANGED, NODE_CREATED, NODE_DATA_CHANGED, NODE_DELETED, NO_NODE, OK

CONNECTED = 3


def the_event_of_ones_own_write_comes_before_its_reply(session, node):
    session.get(node, watch=True)
    xid = session.send(wire.SET_DATA, wire.string(node) + wire.buffer(b"new") + wire.integer(-1))
    event, reply = session.receive(), session.receive()
    assert event.is_event
    assert reply.xid == xid
    assert event.zxid == reply.zxid
    event = wire.Event.of(event)
    assert (event.kind, event.state, event.path) == (NODE_DATA_CHANGED, CONNECTED, node)


def an_event_comes_before_any_reply_that_shows_its_change(sessions, server, node):
    watcher, writer = sessions(server), sessions(server)
    for number in range(50):
        watcher.get(node, watch=True)
        watcher.events.clear()
        writer.send(wire.SET_DATA, wire.string(node) + wire.buffer(str(number).encode()) + wire.integer(-1))
        while watcher.get(node).body.buffer() != str(number).encode():
            pass
        assert [event.kind for event in watcher.events] == [NODE_DATA_CHANGED]
        assert writer.receive().error == OK


def a_watch_fires_once(session, node):
    session.get(node, watch=True)
    session.set(node, b"one")
    session.set(node, b"two")
    assert len(session.events) == 1


def a_data_and_an_exists_watch_on_one_node_are_one(session, node):
    session.get(node, watch=True)
    session.exists(node, watch=True)
    session.exists(node, watch=True)
    session.set(node, b"new")
    assert [event.kind for event in session.events] == [NODE_DATA_CHANGED]


def an_exists_watch_on_a_missing_node_sees_it_created(session, path):
    assert session.exists(path, watch=True).error == NO_NODE
    created = session.create(path)
    (event,) = session.events
    assert (event.kind, event.path, event.zxid) == (NODE_CREATED, path, created.zxid)


def a_get_of_a_missing_node_sets_no_watch(session, path):
    assert session.get(path, watch=True).error == NO_NODE
    assert session.children(path, watch=True).error == NO_NODE
    session.created(path)
    session.sync()
    assert session.events == []


def creating_a_child_is_told_to_the_child_then_to_its_parent(session, node):
    session.exists(node + "/a", watch=True)
    session.children(node, watch=True)
    session.created(node + "/a")
    told = [(event.kind, event.path) for event in session.events]
    assert told == [(NODE_CREATED, node + "/a"), (NODE_CHILDREN_CHANGED, node)]


def deleting_a_node_is_told_once_for_its_two_watches_then_to_its_parent(session, node):
    session.created(node + "/a")
    session.get(node + "/a", watch=True)
    session.children(node + "/a", watch=True)
    session.children(node, watch=True)
    session.delete(node + "/a")
    told = [(event.kind, event.path) for event in session.events]
    assert told == [(NODE_DELETED, node + "/a"), (NODE_CHILDREN_CHANGED, node)]


def a_child_watch_ignores_data_and_grandchildren(session, node):
    session.created(node + "/a")
    session.children(node, watch=True)
    session.set(node, b"new")
    session.set(node + "/a", b"new")
    session.created(node + "/a/below")
    session.sync()
    assert session.events == []


def a_write_that_is_refused_fires_nothing(session, node):
    session.get(node, watch=True)
    session.children(node, watch=True)
    session.set(node, b"", 99)
    session.delete(node, 99)
    session.create(node)
    session.sync()
    assert session.events == []


def every_connection_with_a_watch_is_told(sessions, server, node):
    watchers = [sessions(server) for _ in range(5)]
    for watcher in watchers:
        watcher.get(node, watch=True)
    changed = sessions(server).set(node, b"new")
    for watcher in watchers:
        event = watcher.event()
        assert (event.kind, event.path, event.zxid) == (NODE_DATA_CHANGED, node, changed.zxid)


def the_end_of_a_session_tells_the_watchers_of_its_ephemerals(sessions, server, node):
    owner, watcher = sessions(server), sessions(server)
    owner.created(node + "/a", flags=wire.EPHEMERAL)
    owner.created(node + "/b", flags=wire.EPHEMERAL)
    for child in ["/a", "/b"]:
        watcher.exists(node + child, watch=True)
    watcher.children(node, watch=True)
    owner.close()
    events = [watcher.event() for _ in range(3)]
    assert {(event.kind, event.path) for event in events} == {
        (NODE_DELETED, node + "/a"),
        (NODE_DELETED, node + "/b"),
        (NODE_CHILDREN_CHANGED, node),
    }
    assert len({event.zxid for event in events}) == 1, "the ephemerals of a session go in one transaction"


def set_watches_tells_what_was_missed_before_its_reply(sessions, server, node):
    session, writer = sessions(server), sessions(server)
    for child in ["changed", "deleted", "quiet"]:
        session.created(f"{node}/{child}")
    seen = session.sync().zxid
    seen = max(seen, session.stat(node).pzxid)
    writer.set(f"{node}/changed", b"new")
    writer.delete(f"{node}/deleted")
    writer.created(f"{node}/created")
    session.sync()
    assert session.events == []
    data = [f"{node}/{child}" for child in ["changed", "deleted", "quiet"]]
    reply = session.set_watches(seen, data=data, exist=[f"{node}/created", f"{node}/missing"], child=[node])
    assert reply.error == OK
    told = {(event.kind, event.path, event.zxid) for event in session.events}
    assert told == {
        (NODE_DATA_CHANGED, f"{node}/changed", -1),
        (NODE_DELETED, f"{node}/deleted", -1),
        (NODE_CREATED, f"{node}/created", -1),
        (NODE_CHILDREN_CHANGED, node, -1),
    }
    session.events.clear()
    writer.set(f"{node}/quiet", b"new")
    writer.created(f"{node}/missing")
    told = {(event.kind, event.path) for event in [session.event(), session.event()]}
    assert told == {(NODE_DATA_CHANGED, f"{node}/quiet"), (NODE_CREATED, f"{node}/missing")}


def watches_go_with_their_connection(sessions, server, node):
    first = sessions(server)
    first.get(node, watch=True)
    second = sessions(server, session=first.id, password=first.password)
    sessions(server).set(node, b"new")
    second.sync()
    assert second.events == []


def a_recursive_watch_reports_every_change_below_in_order(sessions, server, path):
    watcher, writer = sessions(server), sessions(server)
    added = watcher.ask(wire.ADD_WATCH, wire.string(path) + wire.integer(1))
    assert (added.error, added.body.integer()) == (OK, OK)
    writer.created(path)
    for number in range(100):
        writer.send(wire.CREATE, wire.create_body(f"{path}/{number}"))
        writer.send(wire.SET_DATA, wire.string(f"{path}/{number}") + wire.buffer(b"new") + wire.integer(-1))
        writer.send(wire.DELETE, wire.string(f"{path}/{number}") + wire.integer(-1))
    changes = [writer.receive() for _ in range(300)]
    watcher.sync(path)
    kinds = [NODE_CREATED, NODE_DATA_CHANGED, NODE_DELETED]
    expected = [(NODE_CREATED, path)] + [(kind, f"{path}/{number}") for number in range(100) for kind in kinds]
    assert [(event.kind, event.path) for event in watcher.events] == expected
    assert [event.zxid for event in watcher.events[1:]] == [change.zxid for change in changes]


def watches_of_one_connection_are_not_those_of_another(sessions, server, node):
    watcher, other = sessions(server), sessions(server)
    watcher.ask(wire.ADD_WATCH, wire.string(node) + wire.integer(0))
    kind = wire.string(node) + wire.integer(3)
    assert other.ask(wire.REMOVE_WATCHES, kind).error == wire.NO_WATCHER
    assert watcher.ask(wire.CHECK_WATCHES, kind).error == OK
    other.set(node, b"new")
    watcher.sync(node)
    assert [event.kind for event in watcher.events] == [NODE_DATA_CHANGED]
    assert watcher.ask(wire.REMOVE_WATCHES, kind).error == OK
    other.set(node, b"silence")
    watcher.sync(node)
    assert len(watcher.events) == 1
