"""Draws a conversation from a seed: `drawn_conversation.py SEED TURNS > testdata/drawn-SEED.txt`.

Three clients send random requests about a few znodes, so that they meet: every operation, flag and
error, right and wrong versions, watches, and one client that closes its session. Only requests are
drawn; `UPDATE=1 make test-oracle` adds ZooKeeper's responses.

Not drawn: multi, getACL and setACL, ACLs other than the open one, containers, times to live,
persistent watches, and paths beyond 1,000 bytes.
"""

import random
import sys

NAMES = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/zookeeper", "/zookeeper/config", "/zookeeper/config/x", "/", "/gone"]
ODD_NAMES = ["nope", "-", "/a/", "/a//x", "/a/.", "/a/..", "/a/\\u0001", "/a/\\ud7ff", "//"]
FLAGS = ["0", "ephemeral", "sequential", "ephemeral-sequential", "7", "-1"]
ACLS = ["31:world:anyone", "31:world:nobody", "31:nonsense:anyone", "31:world:anyone 31:world:anyone"]
RAW = ["4 0000", "5 000000022f61ffffffff", "1 000000022f61", "2 000000022f61", "101 00", "9 ffffffff", "12 000000022f6101"]


class Draw:
    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.turn = 0

    def path(self):
        odd = self.chance.random() < 0.08
        return self.chance.choice(ODD_NAMES if odd else NAMES)

    def version(self):
        return self.chance.choice(["-1", "-1", "0", "1", "2", "-2"])

    def watch(self):
        return self.chance.choice(["", " watch"])

    def request(self):
        kind = self.chance.choice(
            "create create create create2 create2 delete delete set set set get get exists exists children children2 sync "
            "ping raw watches acl".split()
        )
        path = self.path()
        if kind == "acl":
            return f"create {path} x {self.chance.choice(FLAGS[:4])} {self.chance.choice(ACLS)}"
        if kind in ("create", "create2"):
            return f"{kind} {path} {self.chance.choice(['-', 'one', 'two'])} {self.chance.choice(FLAGS)}"
        if kind == "delete":
            return f"delete {path} {self.version()}"
        if kind == "set":
            return f"set {path} {self.chance.choice(['-', 'three', 'four'])} {self.version()}"
        if kind == "sync":
            return f"sync {path}"
        if kind == "ping":
            return "ping"
        if kind == "raw":
            return f"raw {self.chance.choice(RAW)}"
        if kind == "watches":
            watches = {f"{aspect}:{self.chance.choice(NAMES)}" for aspect in ("data", "exists", "children")}
            return f"watches z0 {' '.join(sorted(watches))}"
        return f"{kind} {path}{self.watch()}"

    def conversation(self, turns):
        lines = [f"{self.chance.choice('abc')}: {self.request()}" for _ in range(turns)]
        return [*lines, "c: close", *(f"{self.chance.choice('ab')}: {self.request()}" for _ in range(turns // 10))]


if __name__ == "__main__":
    seed, turns = int(sys.argv[1]), int(sys.argv[2])
    print(f"# Drawn by drawn_conversation.py {seed} {turns}.")
    print("\n".join(Draw(seed).conversation(turns)))
