"""zkCli, the shell of ZooKeeper's own jar, and what it prints for a plan of commands."""

import re
import subprocess

import server as servers

PEER = servers.REPOSITORY / "target/peers/curator"
SECONDS = 120
# It runs behind the events of everything before it, so what it prints ends the output of one command.
BARRIER = "sync /"
BARRIER_PRINTS = "Sync is OK"


def transcript(port, plan):
    """Lines `> command`, each followed by what that command prints, without times, zxids and ids of sessions."""
    script = "\n".join(f"{command}\n{BARRIER}" for command in [BARRIER, *plan]) + "\nquit\n"
    main = ["org.apache.zookeeper.ZooKeeperMain", "-server", f"127.0.0.1:{port}"]
    command = ["java", "-Xmx128m", "-cp", f"{PEER}/lib/*", *main]
    ended = subprocess.run(
        command, input=script.encode(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=SECONDS
    )
    _, *sections = sections_of(ended.stdout.decode().splitlines(), plan)
    names = Names()
    lines = []
    for command, printed in zip(plan, sections):
        lines.append(f"> {command}")
        printed = in_order(printed)
        if command == "whoami":
            printed.sort()  # identities are a set
        lines.extend(names.normalised(line) for line in printed)
    return lines


def sections_of(lines, plan):
    """The output of each command. A `sync` of the plan itself prints the barrier's line once more."""
    expected = [BARRIER, *plan]
    sections, current, left = [], [], None
    for line in lines:
        if left is None and len(sections) < len(expected):
            # How many lines like the barrier's end this section.
            left = 2 if expected[len(sections)].startswith("sync ") else 1
        if line == BARRIER_PRINTS and left:
            left -= 1
            if left:
                current.append(line)
                continue
            sections.append(current)
            current, left = [], None
        else:
            current.append(line)
    # Where the connection failed, the rest belongs to the command that ran then.
    return sections if len(sections) == len(expected) else [*sections, current]


def in_order(lines):
    """Events come from a thread of their own, so they stand behind what the command itself printed."""
    lines = [line for line in lines if line not in ("", "WATCHER::")]
    return [line for line in lines if not line.startswith("WatchedEvent")] + [
        line for line in lines if line.startswith("WatchedEvent")
    ]


class Names:
    """The same name for the same zxid or session id, whatever its number."""

    def __init__(self):
        self.known = {}

    def of(self, kind, number):
        if number <= 0:
            return str(number)
        names = self.known.setdefault(kind, {})
        return names.setdefault(number, f"{kind}-{len(names) + 1}")

    def normalised(self, line):
        line = re.sub(r"^([cm]time) = .*", r"\1 = TIME", line)
        line = re.sub(r"^([cmp]Zxid) = 0x([0-9a-f]+)", lambda hit: f"{hit[1]} = {self.of('zxid', int(hit[2], 16))}", line)
        line = re.sub(r" zxid: (-?\d+)", lambda hit: f" zxid: {self.of('zxid', int(hit[1]))}", line)
        return re.sub(r"^ephemeralOwner = 0x([0-9a-f]+)", lambda hit: f"ephemeralOwner = {self.of('session', int(hit[1], 16))}", line)
