"""kazoo's recipes, unmodified, do what their documentation says."""

import threading

import pytest
from kazoo.exceptions import LockTimeout
from kazoo.recipe.watchers import PatientChildrenWatch

import waiting

RIVALS = 4


def only_one_client_at_a_time_holds_a_lock(clients, server, path):
    rivals = [clients(server) for _ in range(RIVALS)]
    inside, most, turns = [], [], []

    def work(client):
        for _ in range(5):
            with client.Lock(path, str(client.client_id[0])):
                inside.append(client)
                most.append(len(inside))
                client.exists(path)  # long enough for a rival to slip in, were it let
                turns.append(client)
                inside.remove(client)

    waiting.together(*[lambda client=client: work(client) for client in rivals])
    assert max(most) == 1
    assert len(turns) == RIVALS * 5


def a_lock_held_by_another_times_out_and_is_then_free_for_the_next(clients, server, path):
    holder, rival = clients(server), clients(server)
    held = holder.Lock(path, "holder")
    assert held.acquire(timeout=waiting.GUARD_SECONDS)
    wanted = rival.Lock(path, "rival")
    with pytest.raises(LockTimeout):
        wanted.acquire(timeout=0.2)
    assert rival.Lock(path).contenders() == ["holder"]
    held.release()
    assert wanted.acquire(timeout=waiting.GUARD_SECONDS)
    wanted.release()


def a_lock_passes_on_when_its_holder_leaves(clients, server, path):
    holder, rival = clients(server), clients(server)
    assert holder.Lock(path, "holder").acquire(timeout=waiting.GUARD_SECONDS)
    wanted = rival.Lock(path, "rival")
    won = threading.Event()
    waiter = threading.Thread(target=lambda: wanted.acquire() and won.set(), daemon=True)
    waiter.start()
    waiting.until(lambda: len(rival.Lock(path).contenders()) == 2, "the rival to queue up")
    assert not won.is_set()
    holder.stop()
    assert won.wait(waiting.GUARD_SECONDS), "the lock of a closed session was not passed on"
    wanted.release()


def a_reading_lock_is_shared_and_keeps_writers_out(clients, server, path):
    first, second, writer = clients(server), clients(server), clients(server)
    readers = [first.ReadLock(path), second.ReadLock(path)]
    assert all(reader.acquire(timeout=waiting.GUARD_SECONDS) for reader in readers)
    with pytest.raises(LockTimeout):
        writer.WriteLock(path).acquire(timeout=0.2)
    for reader in readers:
        reader.release()
    assert writer.WriteLock(path).acquire(timeout=waiting.GUARD_SECONDS)


def every_candidate_of_an_election_leads_once_and_alone(clients, server, path):
    leading, led = [], []

    def lead(client):
        leading.append(client)
        assert len(leading) == 1, "two leaders at once"
        led.append(client)
        leading.remove(client)

    candidates = [clients(server) for _ in range(RIVALS)]
    waiting.together(
        *[lambda client=client: client.Election(path, str(client.client_id[0])).run(lead, client) for client in candidates]
    )
    assert len(led) == RIVALS


def a_counter_misses_no_addition_of_concurrent_clients(clients, server, path):
    def add(client):
        counter = client.Counter(path)
        for _ in range(10):
            counter += 1

    rivals = [clients(server) for _ in range(RIVALS)]
    waiting.together(*[lambda client=client: add(client) for client in rivals])
    assert rivals[0].Counter(path).value == RIVALS * 10


def a_barrier_holds_until_it_is_removed(clients, server, path):
    first, second = clients(server), clients(server)
    barrier = first.Barrier(path)
    barrier.create()
    assert not second.Barrier(path).wait(0.2)
    passed = []
    waiter = threading.Thread(target=lambda: passed.append(second.Barrier(path).wait(waiting.GUARD_SECONDS)), daemon=True)
    waiter.start()
    assert barrier.remove()
    waiter.join(waiting.GUARD_SECONDS)
    assert passed == [True]


def a_double_barrier_lets_all_in_together_and_out_together(clients, server, path):
    inside, seen = [], []

    def take_part(client):
        barrier = client.DoubleBarrier(path, RIVALS)
        barrier.enter()
        assert barrier.participating
        inside.append(client)
        waiting.until(lambda: len(inside) == RIVALS, "all to be inside")
        seen.append(len(inside))
        barrier.leave()

    members = [clients(server) for _ in range(RIVALS)]
    waiting.together(*[lambda client=client: take_part(client) for client in members])
    assert seen == [RIVALS] * RIVALS


def a_party_lists_who_has_joined_and_not_left(clients, server, path):
    first, second = clients(server), clients(server)
    here, there = first.Party(path, "here"), second.Party(path, "there")
    here.join()
    there.join()
    waiting.until(lambda: set(here) == {"here", "there"}, "both members")
    assert len(there) == 2
    second.stop()
    waiting.until(lambda: set(here) == {"here"}, "the member of the closed session to be gone")


def a_shallow_party_names_its_members_without_reading_them(clients, server, path):
    first, second = clients(server), clients(server)
    first.ShallowParty(path, "one").join()
    second.ShallowParty(path, "two").join()
    waiting.until(lambda: set(first.ShallowParty(path)) == {"one", "two"}, "both members")


def a_queue_gives_each_item_once_in_the_order_of_priority_then_arrival(clients, server, path):
    queue = clients(server).Queue(path)
    for item, priority in [(b"late", 200), (b"first", 100), (b"second", 100), (b"urgent", 1)]:
        queue.put(item, priority)
    assert len(queue) == 4
    other = clients(server).Queue(path)
    assert [other.get() for _ in range(5)] == [b"urgent", b"first", b"second", b"late", None]


def concurrent_takers_of_a_queue_share_its_items(clients, server, path):
    queue = clients(server).Queue(path)
    items = {str(number).encode() for number in range(20)}
    for item in items:
        queue.put(item)

    def take_all(client):
        mine = client.Queue(path)
        return list(iter(mine.get, None))

    takers = [clients(server) for _ in range(3)]
    taken = sum(waiting.together(*[lambda client=client: take_all(client) for client in takers]), [])
    assert sorted(taken) == sorted(items)


def a_data_watch_sees_the_value_each_change_and_the_end(client, path):
    seen = []
    client.DataWatch(path, lambda data, stat: seen.append(data))
    waiting.until(lambda: seen == [None], "the missing node")
    for number, value in enumerate([b"one", b"two"]):
        client.set(path, value) if number else client.create(path, value)
        waiting.until(lambda: seen[-1] == value, f"{value} to be seen")
    client.delete(path)
    waiting.until(lambda: seen[-1] is None, "the deletion to be seen")
    assert seen == [None, b"one", b"two", None]


def a_children_watch_sees_every_membership(clients, server, path):
    watcher, actor = clients(server), clients(server)
    actor.ensure_path(path)
    seen = []
    watcher.ChildrenWatch(path, lambda children: seen.append(sorted(children)))
    for change, expected in [
        (lambda: actor.create(path + "/a"), ["a"]),
        (lambda: actor.create(path + "/b", ephemeral=True), ["a", "b"]),
        (lambda: actor.delete(path + "/a"), ["b"]),
        (lambda: actor.stop(), []),
    ]:
        change()
        waiting.until(lambda: seen[-1] == expected, f"the children {expected}")


def a_patient_children_watch_reports_once_the_children_settle(client, path):
    client.ensure_path(path)
    client.create(path + "/a")
    children, changed = PatientChildrenWatch(client, path, time_boundary=0.2).start().get(timeout=waiting.GUARD_SECONDS)
    assert children == ["a"]
    client.create(path + "/b")
    changed.get(timeout=waiting.GUARD_SECONDS)


def a_semaphore_admits_as_many_as_it_has_leases(clients, server, path):
    inside, most = [], []

    def work(client):
        with client.Semaphore(path, max_leases=2):
            inside.append(client)
            most.append(len(inside))
            client.exists(path)
            inside.remove(client)

    rivals = [clients(server) for _ in range(RIVALS)]
    waiting.together(*[lambda client=client: work(client) for client in rivals])
    assert len(most) == RIVALS
    assert max(most) <= 2


def a_tree_cache_follows_a_subtree(clients, server, path):
    from kazoo.recipe.cache import TreeCache

    watcher, actor = clients(server), clients(server)
    actor.ensure_path(path + "/below")
    cache = TreeCache(watcher, path)
    cache.start()
    waiting.until(lambda: cache.get_children(path), "the cache to be filled")
    actor.set(path + "/below", b"new")
    waiting.until(lambda: cache.get_data(path + "/below").data == b"new", "the change to reach the cache")
    actor.create(path + "/below/deeper", b"leaf")
    waiting.until(lambda: cache.get_data(path + "/below/deeper"), "the new leaf to reach the cache")
    cache.close()
