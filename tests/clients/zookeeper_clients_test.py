"""ZooKeeper's clients in Java, unmodified: Apache Curator's recipes, and zkCli beside its output with ZooKeeper."""

import difflib
import os
import pathlib
import subprocess

import pytest

import server as servers
import zkcli

PLAN = pathlib.Path(__file__).parent / "testdata/zkcli/plan.txt"
OUTPUT = PLAN.with_name("output.txt")


@pytest.fixture
def jars():
    if not (zkcli.PEER / "classes").is_dir():
        pytest.skip("it needs the jars that scripts/install-zookeeper-clients installs")
    return zkcli.PEER


def every_recipe_of_curator_works(jars, own_server):
    command = ["java", "-Xmx256m", "-cp", f"{jars}/classes:{jars}/lib/*", "Recipes", own_server.hosts]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=600)
    printed = ended.stdout.decode()
    assert ended.returncode == 0, printed
    assert " passed, 0 failed" in printed


def zkcli_prints_what_it_prints_with_zookeeper(jars, own_server):
    printed = zkcli.transcript(own_server.port, PLAN.read_text().splitlines())
    if os.environ.get("UPDATE") == "1":
        assert isinstance(own_server, servers.ZooKeeper), "only ZooKeeper itself may say what ZooKeeper answers"
        OUTPUT.write_text("\n".join(printed) + "\n")
        return
    recorded = OUTPUT.read_text().splitlines()
    difference = "\n".join(difflib.unified_diff(recorded, printed, "ZooKeeper", "this server", lineterm=""))
    assert not difference, f"\n{difference}"
