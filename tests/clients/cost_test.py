"""`landfast cost`: known requests cause known counts, and the sums of the table are right."""

import json
import os

import pytest

import bills
import function_memory
import s3_server
import waiting
from s3_server import MIB

BUCKET = "cost"
DATA, GROUP = 10, 12
"""The instances that a GET reads from, and those that a PUT writes to."""


class ShortLived(s3_server.Landfast):
    """A server whose function memory is released within seconds."""

    def options(self):
        ages = {"gc-interval-s": 1, "active-intervals": 1, "degraded-intervals": 0}
        return [*super().options(), *(f"--memory-{name}={value}" for name, value in ages.items())]


@pytest.fixture(params=[s3_server.Landfast])
def running(request, tmp_path):
    server = request.param(tmp_path).start()
    yield server
    server.shut_down()


def puts_gets_and_recoveries_are_counted(running, tmp_path):
    assert not bills.amounts(bills.bill(running)).get(("I/O", "invocations")) and bills.bill(running)["provisioned"] is None
    s3 = s3_server.client(running.s3_url)
    s3.create_bucket(Bucket=BUCKET)
    for number in range(3):
        s3.put_object(Bucket=BUCKET, Key=f"k{number}", Body=os.urandom(MIB))
    first = tmp_path / "first.json"
    first.write_text(bills.cost(running, "--json"))
    counted = bills.amounts(json.loads(first.read_text()))
    assert counted["I/O", "invocations"] == 3 * GROUP
    assert counted["object store", "puts and lists"] >= 3
    assert counted["items", "write units"] >= 3
    assert ("recovery", "invocations") not in counted and ("warm-up", "invocations") not in counted

    assert len(s3_server.content(s3, BUCKET, "k1")) == MIB
    later = bills.bill(running, "--since", str(first))
    since = bills.amounts(later)
    assert since["I/O", "invocations"] == DATA
    assert ("object store", "puts and lists") not in since and ("object store", "gets") not in since
    assert later["counts"]["memory"]["io"]["count"] == 3 * GROUP + DATA, "they serve for the next --since"
    assert 0 < later["hours"] < bills.bill(running)["hours"]

    os.kill(min(function_memory.instances(running)), 9)
    recovered = waiting.until(lambda: bills.amounts(bills.bill(running)).get(("recovery", "invocations")), "a recovery")
    waiting.until(lambda: bills.amounts(bills.bill(running))["recovery", "invocations"] >= 3, "a recovery of each chunk")
    assert recovered and bills.bill(running)["overhead_percent"] > 0


def the_sums_and_prices_are_right(running):
    s3 = s3_server.client(running.s3_url)
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="k", Body=os.urandom(20 * MIB))
    found = bills.bill(running)
    for charge in found["charges"]:
        assert charge["usd"] == pytest.approx(charge["amount"] * charge["usd_each"])
    assert found["usd"] == pytest.approx(sum(charge["usd"] for charge in found["charges"]))
    memory, book = found["counts"]["memory"], found["price_book"]
    assert memory["resident_bytes_max"] == 20 * MIB
    seconds = memory["io"]["count"] * book["invocation"]["fixed_ms"] / 1000
    seconds += memory["io"]["bytes"] / book["invocation"]["transfer_bytes_per_second"]
    assert memory["io"]["bytes"] > 24 * MIB, "with parity"
    assert bills.amounts(found)["I/O", "GB-seconds"] == pytest.approx(seconds * memory["instance_bytes"] / (1 << 30))
    assert memory["running_bytes"] == GROUP * memory["instance_bytes"]
    cache = found["provisioned"]
    node = book["nodes"][cache["node"]]
    assert cache["nodes"] == 1 and cache["usd"] == pytest.approx(found["hours"] * node["usd_per_hour"])
    for price in [*book["prices"].values(), *book["nodes"].values()]:
        assert price["region"] and price["date"] and price["source"].startswith("https://")

    lines = bills.cost(running).splitlines()
    rows = [line.split() for line in lines[2:]]
    usd = {tuple(row[:2]): float(row[-1]) for row in rows if row[1] == "all"}
    services = {row[0] for row in rows if row[1] == "all"} - {"all"}
    assert {"memory", "coordination"} <= services
    assert sum(usd[service, "all"] for service in services) == pytest.approx(usd["all", "all"], abs=1e-5)
    assert any(line.startswith("provisioned ") and cache["node"] in line for line in lines)


@pytest.mark.parametrize("running", [ShortLived], indirect=True)
def released_memory_costs_nothing_more(running):
    s3 = s3_server.client(running.s3_url)
    s3.create_bucket(Bucket=BUCKET)
    s3.put_object(Bucket=BUCKET, Key="k", Body=os.urandom(MIB))
    waiting.until(lambda: function_memory.groups_released(running) == 1, "the memory to be released")
    waiting.until(lambda: bills.bill(running)["counts"]["memory"]["running_bytes"] == 0, "all instances to end")
    before, after = bills.bill(running), bills.bill(running)
    assert after["hours"] > before["hours"]
    for counts in ("io", "warm_up", "recovery", "running_byte_seconds"):
        assert after["counts"]["memory"][counts] == before["counts"]["memory"][counts]
    assert before["counts"]["memory"]["running_byte_seconds"] > 0


def figures_of_another_start_are_refused(running, tmp_path):
    earlier = tmp_path / "earlier.json"
    earlier.write_text(bills.cost(running, "--json"))
    running.kill()
    running.start()
    refused = s3_server.command(running, "cost", "--since", str(earlier))
    assert refused.returncode == 1 and "the server has started after the earlier figures" in refused.stderr
    earlier.write_text("{}")
    refused = s3_server.command(running, "cost", "--since", str(earlier))
    assert refused.returncode == 1 and "not the output of `landfast cost --json`" in refused.stderr
