"""A walk through a running server with kazoo, a ZooKeeper client that knows nothing of Landfast.

    tour.py HOST:PORT
"""

import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.protocol.states import EventType

SECONDS = 20


def main():
    hosts = sys.argv[1]
    clients = {name: connect(hosts, name) for name in ["alice", "bob", "carol"]}
    clients["alice"].ensure_path("/tour")
    try:
        lock(clients)
        election(clients)
        watch(clients)
    finally:
        keeper = connect(hosts)
        keeper.delete("/tour", recursive=True)
        for client in [*clients.values(), keeper]:
            client.stop()
            client.close()


def lock(clients):
    title("A lock: one holder at a time")
    got_it = threading.Event()
    held = clients["alice"].Lock("/tour/lock", "alice")
    held.acquire(timeout=SECONDS)
    say("alice holds /tour/lock")

    def wait_for_it():
        with clients["bob"].Lock("/tour/lock", "bob"):
            got_it.set()

    waiter = threading.Thread(target=wait_for_it)
    waiter.start()
    deadline = time.monotonic() + SECONDS
    while len(held.contenders()) < 2:
        must(time.monotonic() < deadline, "bob queued up")
    say(f"bob asks for it too and waits: the queue is {held.contenders()}, bob holds it: {got_it.is_set()}")
    held.release()
    must(got_it.wait(SECONDS), "bob got the lock")
    waiter.join()
    say("alice releases it, and bob holds it")


def election(clients):
    title("An election: when the leader leaves, another one leads")
    leaders, changed, finish = [], threading.Condition(), {name: threading.Event() for name in clients}

    def lead(name):
        with changed:
            leaders.append(name)
            changed.notify_all()
        finish[name].wait(SECONDS)

    def leader(number):
        with changed:
            must(changed.wait_for(lambda: len(leaders) >= number, SECONDS), f"leader {number} was elected")
            return leaders[number - 1]

    def run(name):
        clients[name].Election("/tour/election", name).run(lead, name)

    candidates = [threading.Thread(target=run, args=(name,), daemon=True) for name in clients]
    for candidate in candidates:
        candidate.start()
    first = leader(1)
    say(f"{', '.join(clients)} run; {first} leads")
    finish[first].set()
    second = leader(2)
    say(f"{first} steps down; {second} leads")
    for event in finish.values():
        event.set()
    for candidate in candidates:
        candidate.join(SECONDS)
    say(f"{second} steps down; {leader(3)} led last, and nobody is left")


def watch(clients):
    title("A watch: told of a change, not asking for it")
    told, events = threading.Event(), []

    def on_change(event):
        events.append(event)
        told.set()

    clients["alice"].create("/tour/price", b"10")
    value, _ = clients["bob"].get("/tour/price", watch=on_change)
    say(f"bob reads /tour/price = {value.decode()} and leaves a watch")
    clients["alice"].set("/tour/price", b"12")
    must(told.wait(SECONDS), "bob was told")
    value, stat = clients["bob"].get("/tour/price")
    say(f"alice sets it; bob is told ({events[0].type.lower()}) and reads {value.decode()}, version {stat.version}")

    told.clear()
    clients["carol"].create("/tour/carol-is-here", ephemeral=True)
    clients["bob"].exists("/tour/carol-is-here", watch=on_change)
    say("carol leaves an ephemeral node that lives as long as her session")
    clients["carol"].stop()
    must(told.wait(SECONDS), "bob was told of the end of carol's session")
    must(events[-1].type == EventType.DELETED, "the node was deleted")
    say("her session ends; the node is gone, and bob is told")


def connect(hosts, name=None):
    client = KazooClient(hosts=hosts, timeout=10)
    client.start(timeout=SECONDS)
    if name:
        say(f"{name} is connected, session {client.client_id[0]:#x}")
    return client


def title(text):
    print(f"\n{text}", flush=True)


def say(text):
    print(f"  {text}", flush=True)


def must(held, what):
    if not held:
        sys.exit(f"the tour failed: it did not happen that {what}")


if __name__ == "__main__":
    main()
