"""ACLs and proofs of identities with kazoo, and a server that requires a proof."""

import signal

import pytest
from kazoo import security
from kazoo.client import KazooState
from kazoo.exceptions import AuthFailedError, InvalidACLError, NoAuthError
from kazoo.security import CREATOR_ALL_ACL, OPEN_ACL_UNSAFE

import server as servers
import waiting
import wire
from wire import OK

USER, OTHER = [("digest", "user:password")], [("digest", "user:wrong")]
AUTHENTICATION_REQUIRED = -124


def _proof(name, password):
    return wire.integer(0) + wire.string("digest") + wire.buffer(f"{name}:{password}".encode())


def a_digest_acl_is_for_those_who_know_the_password(clients, server, path):
    user, other, stranger = clients(server, auth_data=USER), clients(server, auth_data=OTHER), clients(server)
    user.create(path, b"secret", acl=[security.make_digest_acl("user", "password", all=True)])
    assert user.get(path)[0] == b"secret"
    for client in (other, stranger):
        for refused in [
            lambda: client.get(path),
            lambda: client.exists(path),
            lambda: client.get_children(path),
            lambda: client.get_acls(path),
            lambda: client.set(path, b""),
            lambda: client.create(path + "/child"),
            lambda: client.set_acls(path, OPEN_ACL_UNSAFE),
            # A retry does not help, and does not go on for ever.
            lambda: client.retry(client.get, path),
        ]:
            with pytest.raises(NoAuthError):
                refused()
    user.create(path + "/child", b"x")
    with pytest.raises(NoAuthError):
        stranger.delete(path + "/child")
    user.set_acls(path, OPEN_ACL_UNSAFE)
    stranger.delete(path + "/child")


def a_proof_can_be_given_later_and_adds_to_those_before(clients, server, path):
    user, client = clients(server, auth_data=USER), clients(server, auth_data=OTHER)
    user.create(path, b"x", acl=CREATOR_ALL_ACL)
    with pytest.raises(NoAuthError):
        client.get(path)
    client.add_auth(*USER[0])
    assert client.get(path)[0] == b"x"
    client.create(path + "/both", acl=CREATOR_ALL_ACL)
    users = {entry.id.id.partition(":")[0] for entry in user.get_acls(path + "/both")[0]}
    assert users == {"user"} and len(user.get_acls(path + "/both")[0]) == 2


def default_acls_are_those_of_new_nodes(clients, server, path):
    private = [security.make_digest_acl("user", "password", all=True)]
    user = clients(server, auth_data=USER, default_acl=private)
    user.ensure_path(path + "/below")
    assert user.get_acls(path + "/below")[0] == private
    with pytest.raises(NoAuthError):
        clients(server).get(path)


def a_creators_acl_needs_a_creator(clients, server, path):
    client = clients(server)
    with pytest.raises(InvalidACLError):
        client.create(path, acl=CREATOR_ALL_ACL)
    with pytest.raises(InvalidACLError):
        client.create(path, acl=[security.make_acl("nonsense", "x", all=True)])


def a_scheme_that_is_not_offered_fails(clients, server):
    client = clients(server)
    with pytest.raises(AuthFailedError):
        client.add_auth("nonsense", "user:password")


def an_address_may_be_enough(clients, server, path):
    client = clients(server)
    client.create(path, b"x", acl=[security.make_acl("ip", "127.0.0.0/8", all=True)])
    assert client.get(path)[0] == b"x"
    client.set_acls(path, [security.make_acl("ip", "10.0.0.0/8", all=True)])
    with pytest.raises(NoAuthError):
        client.get(path)


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL], ids=lambda end: end.name)
def acls_and_proofs_hold_over_a_restart(clients, own_server, end):
    user, states = clients(own_server, auth_data=USER), []
    user.add_listener(states.append)
    user.create("/private", b"x", acl=CREATOR_ALL_ACL)
    seen = []
    user.DataWatch("/private", lambda data, stat: seen.append(data))
    own_server.stop(end)
    waiting.until(lambda: KazooState.SUSPENDED in states, "the client to notice")
    own_server.start()
    waiting.until(lambda: states[-1] == KazooState.CONNECTED, "the client to reconnect")
    assert user.retry(user.get, "/private")[0] == b"x"
    with pytest.raises(NoAuthError):
        clients(own_server).get("/private")
    user.set("/private", b"new")
    waiting.until(lambda: seen[-1] == b"new", "the watch to go on")


def the_administrator_passes_every_acl(clients, own_server):
    user, administrator = clients(own_server, auth_data=USER), clients(own_server, auth_data=[("digest", "super:secret")])
    user.create("/private", b"x", acl=[security.make_digest_acl("user", "password", read=True)])
    administrator.set("/private", b"new")
    administrator.set_acls("/private", OPEN_ACL_UNSAFE)
    assert clients(own_server).get("/private")[0] == b"new"


@pytest.fixture
def strict_server(tmp_path):
    """A server that requires a proof."""
    running = servers.new(tmp_path)
    if not running.can_restart:
        pytest.skip("a server that runs already has its own settings")
    running.requires_authentication = True
    yield running.start()
    running.shut_down()


def a_session_without_a_proof_is_refused_where_one_is_required(sessions, clients, strict_server):
    for operation, body in [
        (wire.EXISTS, wire.string("/") + wire.boolean(False)),
        (wire.CREATE, wire.create_body("/x")),
        (wire.PING, b""),
        (wire.CLOSE_SESSION, b""),
        (4242, b""),
    ]:
        session = sessions(strict_server)
        xid = session.send(operation, body)
        reply = session.receive()
        assert (reply.xid, reply.zxid, reply.error) == (xid, 0, AUTHENTICATION_REQUIRED)
        assert session.receive() is None
    session = sessions(strict_server)
    assert session.ask(wire.AUTH, _proof("user", "password"), xid=wire.AUTH_XID).error == OK
    assert session.create("/x").error == OK
    assert clients(strict_server, auth_data=USER).exists("/x")


def acls_and_proofs_of_any_size_do_no_harm(sessions, server, path):
    session = sessions(server)
    session.created(path + "-other")
    session.created(path)
    many = [(31, "digest", f"user{number}:hash") for number in range(20_000)]
    for entries in (many, [(31, "digest", "u" * 900_000 + ":hash")], [(31, "s" * 900_000, "x")]):
        entries = [*wire.OPEN_ACL, *entries]
        reply = session.ask(wire.SET_ACL, wire.string(path) + wire.acl(entries) + wire.integer(-1))
        # ZooKeeper accepts the valid ones.
        assert reply.error in (OK, wire.INVALID_ACL)
    assert session.exists(path + "-other").error == OK
    for size in (1, 1000, 10_000, 900_000):
        proof = sessions(server)
        reply = proof.ask(wire.AUTH, _proof("u" * size, "x"), xid=wire.AUTH_XID)
        assert reply.error in (OK, wire.AUTHENTICATION_FAILED)
    assert session.exists(path + "-other").error == OK
