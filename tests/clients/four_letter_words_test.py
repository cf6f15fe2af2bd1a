"""Commands for operators: each line has ZooKeeper's form, so that exporters and scripts can read it.

The same tests pass against a real ZooKeeper (`make test-oracle`).
"""

import re
import subprocess

import pytest

import waiting
import wire

PEER = r" /127\.0\.0\.1:\d+"
NUMBER = r"\d+"
AVERAGE = r"\d+\.\d{1,4}"
SESSION = r"0x[0-9a-f]+"
COUNTS = rf"queued={NUMBER},recved={NUMBER},sent={NUMBER}"
BRIEF = rf"{PEER}\[[01]\]\({COUNTS}\)"
FULL = (
    rf"{PEER}\[1\]\({COUNTS},sid={SESSION},lop=[A-Z2]+,est={NUMBER},to={NUMBER},lcxid=0x[0-9a-f]+,lzxid=0x[0-9a-f]+,"
    rf"lresp={NUMBER},llat={NUMBER},minlat={NUMBER},avglat={NUMBER},maxlat={NUMBER}\)"
)
SERVER = [
    rf"Latency min/avg/max: {NUMBER}/{AVERAGE}/{NUMBER}",
    rf"Received: {NUMBER}",
    rf"Sent: {NUMBER}",
    rf"Connections: {NUMBER}",
    rf"Outstanding: {NUMBER}",
    r"Zxid: 0x[0-9a-f]+",
    "Mode: standalone",
    rf"Node count: {NUMBER}",
]
VERSION = r"Zookeeper version: 3\.9\.5-.+"
# What exporters of metrics read.
METRICS = """version server_state avg_latency min_latency max_latency packets_received packets_sent
    num_alive_connections outstanding_requests znode_count watch_count ephemerals_count approximate_data_size
    open_file_descriptor_count max_file_descriptor_count global_sessions local_sessions uptime bytes_received_count
    connection_rejected""".split()


def _ask(server, word):
    with wire.open_socket(server.port) as connection:
        connection.sendall(word.encode())
        return connection.makefile("rb").read().decode()


def _have_form(text, patterns):
    lines = text.splitlines()
    assert len(lines) == len(patterns), text
    for line, pattern in zip(lines, patterns, strict=True):
        assert re.fullmatch(pattern, line), f"{line!r} is not {pattern}"


def _figures(server):
    return dict(line.split("\t", 1) for line in _ask(server, "mntr").splitlines() if line)


@pytest.fixture
def watched(own_server):
    """A server with two sessions, ephemerals and watches."""
    one, other = wire.Session(own_server.port), wire.Session(own_server.port)
    one.created("/a")
    one.created("/a/e", b"x", wire.EPHEMERAL)
    other.created("/f", b"y", wire.EPHEMERAL)
    one.get("/a", watch=True)
    one.children("/a", watch=True)
    other.get("/a", watch=True)
    other.exists("/none", watch=True)
    other.ask(wire.ADD_WATCH, wire.string("/p") + wire.integer(0))
    other.ask(wire.ADD_WATCH, wire.string("/r") + wire.integer(1))
    yield own_server, one, other
    one.drop()
    other.drop()


def the_short_answers_are_zookeepers(own_server):
    assert _ask(own_server, "ruok") == "imok"
    assert _ask(own_server, "isro") == "rw"
    assert _ask(own_server, "crst") == "Connection stats reset.\n"
    assert _ask(own_server, "srst") == "Server stats reset.\n"
    _have_form(_ask(own_server, "dirs"), [rf"datadir_size: {NUMBER}", rf"logdir_size: {NUMBER}"])


def a_wrong_word_in_the_list_is_refused_at_the_start_with_those_that_are_answered(own_server, tmp_path):
    command = [own_server.program, "serve", "--data-dir", tmp_path / "unused", "--zookeeper-four-letter-words", "ruok,foo"]
    refused = subprocess.run(command, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
    assert refused.returncode == 1, refused.stderr
    found = re.search("--zookeeper-four-letter-words foo: give .* some of ([a-z,]+)", refused.stderr)
    assert found, refused.stderr
    words = "conf cons crst dirs dump envi gtmk hash isro mntr ruok srst srvr stat stmk wchc wchp wchs".split()
    answered = [word for word in words if "is not in the whitelist" not in _ask(own_server, word)]
    assert found.group(1).split(",") == answered


def the_server_and_its_connections_are_described(watched):
    server, *_ = watched
    _have_form(_ask(server, "srvr"), [VERSION, *SERVER])
    _have_form(_ask(server, "stat"), [VERSION, "Clients:", BRIEF, BRIEF, BRIEF, "", *SERVER])
    lines = _ask(server, "cons").splitlines()
    assert lines.pop() == ""
    _have_form("\n".join(sorted(lines, key=len)), [BRIEF, FULL, FULL])


def the_figures_of_a_connection_are_its_own(watched):
    server, one, _ = watched
    one.ping()
    (line,) = [line for line in _ask(server, "cons").splitlines() if f"sid={one.id:#x}," in line]
    assert "queued=0,recved=6,sent=6," in line
    assert ",lop=PING," in line
    assert f",lcxid={one.xid:#x}," in line
    _ask(server, "crst")
    one.ping()
    (line,) = [line for line in _ask(server, "cons").splitlines() if f"sid={one.id:#x}," in line]
    assert "queued=0,recved=1,sent=1," in line


def exporters_find_their_metrics(watched):
    server, *_ = watched
    found = _figures(server)
    assert not [name for name in METRICS if f"zk_{name}" not in found]
    exact = {"znode_count": 8, "ephemerals_count": 2, "approximate_data_size": 54, "watch_count": 7, "global_sessions": 2}
    assert {name: found[f"zk_{name}"] for name in exact} == {name: str(value) for name, value in exact.items()}
    assert int(found["zk_open_file_descriptor_count"]) > 0
    assert re.fullmatch(AVERAGE, found["zk_avg_latency"])


def the_size_of_the_tree_follows_each_change(own_server):
    with wire.Session(own_server.port) as session:
        session.created("/n", b"12345")
        session.set("/n", b"1")
        session.created("/n/child")
        session.delete("/n/child")
        session.created("/e", b"", wire.EPHEMERAL)
        session.delete("/e")
        session.set("/", b"root")
        session.sync()
        found = _figures(own_server)
    assert (found["zk_znode_count"], found["zk_ephemerals_count"]) == ("6", "0")
    assert found["zk_approximate_data_size"] == str(44 + len("/n1root"))


def watches_are_listed_by_session_and_by_path(watched):
    server, one, other = watched
    assert _ask(server, "wchs") == "2 connections watching 4 paths\nTotal watches:5\n"
    groups = lambda text: {
        head: sorted(lines) for head, *lines in (group.split("\n\t") for group in re.split(r"\n(?!\t)", text.rstrip()))
    }
    first, second = f"{one.id:#x}", f"{other.id:#x}"
    assert groups(_ask(server, "wchc")) == {first: ["/a"], second: ["/a", "/none", "/p", "/r"]}
    by_path = groups(_ask(server, "wchp"))
    assert by_path == {"/a": sorted([first, second]), "/none": [second], "/p": [second], "/r": [second]}
    one.drop()
    waiting.until(lambda: _ask(server, "wchs") == "1 connections watching 4 paths\nTotal watches:4\n", "its end")


def a_dump_names_sessions_with_their_ephemerals(watched):
    server, one, other = watched
    text = _ask(server, "dump")
    assert text.startswith("SessionTracker dump:\nSession Sets (")
    assert "\nephemeral nodes dump:\nSessions with Ephemerals (2):\n" in text
    for session, path in [(one, "/a/e"), (other, "/f")]:
        assert f"\n\t{session.id:#x}\n" in text
        assert f"\n{session.id:#x}:\n\t{path}\n" in text
        assert re.search(rf"\n\tip: {PEER.strip()} sessionId: {session.id:#x}\n", text)
    assert "\nConnections dump:\nConnections Sets (" in text


def the_configuration_has_zookeepers_names(own_server):
    names = """clientPort secureClientPort dataDir dataDirSize dataLogDir dataLogSize tickTime maxClientCnxns
        minSessionTimeout maxSessionTimeout clientPortListenBacklog serverId""".split()
    found = [line.split("=", 1) for line in _ask(own_server, "conf").splitlines()]
    assert [name for name, _ in found] == names
    values = dict(found)
    assert (values["clientPort"], values["tickTime"]) == (str(own_server.port), "2000")
    assert (values["minSessionTimeout"], values["maxSessionTimeout"]) == ("4000", "40000")
    environment = _ask(own_server, "envi")
    assert environment.startswith("Environment:\nzookeeper.version=3.9.5-")
    assert re.search(r"\nos\.name=Linux\nos\.arch=\w+\nos\.version=\S+\nuser\.name=", environment)


def resetting_the_figures_of_the_server_starts_them_again(own_server):
    with wire.Session(own_server.port) as session:
        for _ in range(20):
            session.ping()
        assert int(_figures(own_server)["zk_packets_received"]) >= 20
        _ask(own_server, "srst")
        assert int(_figures(own_server)["zk_packets_received"]) < 20
