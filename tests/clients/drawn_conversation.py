"""Draws a conversation from a seed: `drawn_conversation.py SEED TURNS > testdata/drawn-SEED.txt`.

Three clients send random requests about a few znodes, so that they meet: every operation, flag and
error, right and wrong versions, watches, and one client that closes its session. Only requests are
drawn; `UPDATE=1 make test-oracle` adds ZooKeeper's responses.

Seeds below 7 draw neither multis, nor ACLs of others, containers, times to live or persistent watches.
No seed draws paths beyond 1,000 bytes.
"""

import random
import sys

NAMES = ["/a", "/b", "/a/x", "/a/y", "/a/x/deep", "/zookeeper", "/zookeeper/config", "/zookeeper/config/x", "/", "/gone"]
ODD_NAMES = ["nope", "-", "/a/", "/a//x", "/a/.", "/a/..", "/a/\\u0001", "/a/\\ud7ff", "//"]
FLAGS = ["0", "ephemeral", "sequential", "ephemeral-sequential", "7", "-1"]
ACLS = ["31:world:anyone", "31:world:nobody", "31:nonsense:anyone", "31:world:anyone 31:world:anyone"]
OTHER_ACLS = ["31:world:anyone", "31:world:anyone", "31:auth:", "3:world:anyone", "30:digest:user:hash", "19:ip:127.0.0.1"]
OLD_KINDS = (
    "create create create create2 create2 delete delete set set set get get exists exists children children2 sync "
    "ping raw watches acl"
).split()
NEW_KINDS = "multi multi multi multi multiread multiread setacl getacl container ttl add check remove watches2 count".split()
NEW_KINDS += "ephemerals whoami auth".split()
PARTS = "create create create2 delete set set check check container ttl".split()
WATCHES = ["data", "children", "any", "persistent", "recursive"]
RAW = ["4 0000", "5 000000022f61ffffffff", "1 000000022f61", "2 000000022f61", "101 00", "9 ffffffff", "12 000000022f6101"]


class Draw:
    def __init__(self, seed):
        self.chance = random.Random(seed)
        self.kinds = OLD_KINDS if seed < 7 else OLD_KINDS + NEW_KINDS

    def path(self):
        odd = self.chance.random() < 0.08
        return self.chance.choice(ODD_NAMES if odd else NAMES)

    def version(self):
        return self.chance.choice(["-1", "-1", "0", "1", "2", "-2"])

    def watch(self):
        return self.chance.choice(["", " watch"])

    def request(self):
        kind = self.chance.choice(self.kinds)
        path = self.path()
        if kind in NEW_KINDS:
            return self.new_request(kind, path)
        return self.old_request(kind, path)

    def new_request(self, kind, path):
        pick = self.chance.choice
        if kind == "multi":
            return "multi " + " ; ".join(self.part(pick(PARTS)) for _ in range(self.chance.randint(1, 4)))
        if kind == "multiread":
            count = self.chance.randint(1, 4)
            return "multiread " + " ; ".join(f"{pick(['get', 'children'])} {self.path()}" for _ in range(count))
        if kind == "setacl":
            return f"setacl {pick(NAMES[:5])} {self.version()} {pick(OTHER_ACLS)}"
        if kind in ("container", "ttl"):
            return self.part(kind)
        if kind == "watches2":
            watches = {f"{aspect}:{pick(NAMES)}" for aspect in (*WATCHES[:2], "exists", *WATCHES[3:])}
            return f"watches2 z0 {' '.join(sorted(watches))}"
        if kind in ("add", "check", "remove"):
            return f"{kind} {path} {pick(WATCHES[3:] if kind == 'add' else WATCHES)}"
        return {"whoami": "whoami", "auth": f"auth digest {pick(['user', 'other'])}:x"}.get(kind, f"{kind} {path}")

    def part(self, kind):
        path, version = self.path(), self.version()
        if kind in ("create", "create2"):
            return f"{kind} {path} new {self.chance.choice(FLAGS[:4])}"
        if kind == "set":
            return f"set {path} five {version}"
        return f"{kind} {path} " + {"container": "data 4", "ttl": "data 5 3600000"}.get(kind, version)

    def old_request(self, kind, path):
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
