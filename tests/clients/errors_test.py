"""Requests that cannot be granted get ZooKeeper's exact code, and the connection goes on."""

import pytest

import wire
from wire import BAD_ARGUMENTS, INVALID_ACL, MARSHALLING, NO_NODE, NODE_EXISTS, OK, UNIMPLEMENTED

INVALID_NAMES = [".", "..", "a\0b", "\u0001", "\u001f", "\u007f", "\u009f", "\uf8ff", "\ufff0"]


@pytest.mark.parametrize("name", INVALID_NAMES, ids=ascii)
def an_invalid_name_is_refused_with_bad_arguments(session, node, name):
    assert session.create(f"{node}/{name}").error == BAD_ARGUMENTS


def a_create_with_an_odd_path_answers_as_the_order_of_its_checks_tells(session, node):
    assert session.create("").error == BAD_ARGUMENTS
    assert session.create("nope").error == BAD_ARGUMENTS
    assert session.create("/").error == NODE_EXISTS
    assert session.create(f"{node}/").error == BAD_ARGUMENTS
    # The server looks up the parent `/a/` before it checks the path as a whole.
    assert session.create(f"{node}//b").error == NO_NODE
    assert session.create(node).error == NODE_EXISTS
    assert session.create(f"{node}/missing/child").error == NO_NODE


def reads_do_not_validate_paths(session, node):
    for path in [node + "/", "nope", node + "//"]:
        assert session.get(path).error == NO_NODE, path
        assert session.exists(path).error == NO_NODE, path
        assert session.children(path).error == NO_NODE, path


def a_set_validates_its_path(session, node):
    for path in ["nope", node + "/", node + "//b", node + "/.", ""]:
        assert session.set(path, b"").error == BAD_ARGUMENTS, path
    assert session.set(node + "/missing", b"").error == NO_NODE


def the_root_and_what_lies_under_zookeeper_are_not_deleted(session):
    for path in ["/", "/zookeeper", "/zookeeper/quota", "/zookeeper/config", "nope", ""]:
        assert session.delete(path).error == BAD_ARGUMENTS, path


def a_missing_node_is_told_by_every_operation(session, path):
    for reply in [session.get(path), session.exists(path), session.children(path), session.delete(path), session.set(path, b"")]:
        assert reply.error == NO_NODE
        assert reply.body.finished(), "an error reply has no body"


def a_node_needs_an_acl(session, path):
    assert session.create(path, entries=()).error == INVALID_ACL
    assert session.create(path, entries=((31, "nonsense", "x"),)).error == INVALID_ACL
    assert session.create(path, entries=((31, "world", "nobody"),)).error == INVALID_ACL
    assert session.create(path).error == OK


@pytest.mark.parametrize("flags", [7, -1, 100])
def unknown_create_flags_are_bad_arguments(session, path, flags):
    assert session.create(path, flags=flags).error == BAD_ARGUMENTS
    assert session.exists(path).error == NO_NODE


def a_truncated_request_is_told_and_the_connection_goes_on(session, path):
    for operation in [wire.CREATE, wire.GET_DATA, wire.SET_DATA, wire.DELETE, wire.EXISTS, wire.GET_CHILDREN]:
        assert session.ask(operation, b"\0\0").error == MARSHALLING, operation
    assert session.ask(wire.GET_DATA, wire.integer(1000) + b"/short").error == MARSHALLING
    assert session.create(path).error == OK


def a_null_path_is_told_and_the_connection_goes_on(session, path):
    assert session.get(None).error == MARSHALLING
    assert session.create(path).error == OK


def an_unknown_operation_is_told_and_the_connection_closes(session):
    reply = session.ask(4242)
    assert reply.error == UNIMPLEMENTED
    assert session.receive() is None


def a_check_outside_a_multi_is_not_implemented(session, node):
    assert session.ask(wire.CHECK, wire.string(node) + wire.integer(-1)).error == UNIMPLEMENTED


def a_path_that_begins_with_two_slashes_makes_nothing(session):
    for flags in [wire.PERSISTENT, wire.SEQUENTIAL]:
        assert session.create("//", flags=flags).error == BAD_ARGUMENTS
        assert session.create("//twice", flags=flags).error == BAD_ARGUMENTS
    assert session.exists("/twice").error == NO_NODE


def a_sequential_child_of_the_root_may_be_its_number_alone(session):
    made = session.created("/", flags=wire.SEQUENTIAL)
    assert len(made) == 11 and made[1:].isdigit(), made
    assert session.delete(made).error == OK


def a_character_that_is_two_in_java_is_not_allowed(session, path):
    assert session.create(path + "\U0001f600").error == BAD_ARGUMENTS


def a_path_with_a_null_is_not_deleted(session, path):
    assert session.delete(path + "\0").error == BAD_ARGUMENTS


def the_empty_path_reads_as_the_root(session):
    assert session.get("").error == OK
    assert "zookeeper" in session.children("").body.strings()


def an_authentication_that_fails_is_told_and_ends_the_connection(session):
    body = wire.integer(0) + wire.string("nonsense") + wire.buffer(b"user:password")
    reply = session.ask(wire.AUTH, body, xid=wire.AUTH_XID)
    assert (reply.zxid, reply.error) == (0, wire.AUTHENTICATION_FAILED)
    assert session.receive() is None
