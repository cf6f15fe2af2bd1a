"""Multis and session ends beyond the size of an item are refused or divided, and block nobody's session."""

import kazoo.security
import pytest
from kazoo.exceptions import SystemZookeeperError

import server as servers
import waiting

ENTRIES = 70


def _long_acl():
    """An ACL of almost four kilobytes."""
    return [kazoo.security.make_digest_acl(f"user-{number:03}", "password", all=True) for number in range(ENTRIES)]


def _made_with_long_acls(client, path, count, **options):
    client.add_auth("digest", "user-000:password")
    client.ensure_path(path)
    acl = _long_acl()
    made = [client.create_async(f"{path}/{number:04}", b"", acl=acl, **options) for number in range(count)]
    return [one.get(waiting.GUARD_SECONDS) for one in made]


def a_multi_whose_events_fit_no_slot_is_refused_and_the_session_goes_on(client, path):
    servers.needs_landfast()
    made = _made_with_long_acls(client, path, 600)
    transaction = client.transaction()
    for one in made:
        transaction.delete(one)
    with pytest.raises(SystemZookeeperError):
        transaction.commit()
    assert len(client.get_children(path)) == 600
    some = client.transaction()
    for one in made[:100]:
        some.delete(one)
    assert all(result is True for result in some.commit())
    assert len(client.get_children(path)) == 500


def checks_of_one_znode_with_a_long_acl_do_not_repeat_it(client, path):
    (made,) = _made_with_long_acls(client, path, 1)
    transaction = client.transaction()
    for _ in range(1_500):
        transaction.check(made, 0)
    assert all(result is True for result in transaction.commit())


def many_large_multis_at_once_are_all_answered(client, path):
    client.ensure_path(path)
    client.create(f"{path}/n")
    waiting_for = []
    for _ in range(24):
        transaction = client.transaction()
        for _ in range(2_000):
            transaction.set_data(f"{path}/n", b"")
        waiting_for.append(transaction.commit_async())
    for one in waiting_for:
        assert len(one.get(waiting.GUARD_SECONDS)) == 2_000
    assert client.get(f"{path}/n")[1].version == 48_000


@pytest.mark.parametrize("count", [600])
def an_end_of_ephemerals_with_long_acls_comes(clients, server, path, count):
    owner, other = clients(server), clients(server)
    _made_with_long_acls(owner, path, count, ephemeral=True)
    assert len(other.get_children(path)) == count
    owner.stop()
    waiting.until(lambda: other.get_children(path) == [], "the ephemerals to go")
