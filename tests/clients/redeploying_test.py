"""Work in progress while functions are deployed again: waiting events and steps, and deployments
that the caller abandons.
"""

import io
import socket
import tarfile

import pytest

import application
import waiting

GATED = """
    import landfast, time
    def handler(event, context):
        print("begun", VALUE)
        while landfast.state().get("gate") is None:
            time.sleep(0.05)
        return VALUE
"""


@pytest.fixture
def apps(tmp_path, own_server):
    """An application on a server of its own."""
    if type(own_server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    return application.Application(tmp_path / "app", own_server)


def what_waits_for_an_instance_while_its_function_is_deployed_again_runs_as_deployed(apps):
    """A3, U4: waiting is no attempt."""
    apps.function("gated", GATED.replace("VALUE", "1"), retries=0, concurrency=1, timeout_s=600)
    apps.function("tell", "def handler(event, context): pass")
    apps.tables["gated"]["on_failure"] = "tell"
    apps.workflow("gated", 'steps = ["gated"]')
    apps.deploy()
    runs = [f"run{number}" for number in range(4)]
    for run in runs:
        assert apps.run("gated", 1, f"?id={run}")[0] in (200, 202)
    waiting.until(lambda: "begun 1" in apps.lines("gated"), "the first run to have the only instance")
    apps.client().invoke(FunctionName="gated", InvocationType="Event", Payload=b"{}")
    apps.file("gated.py", GATED.replace("VALUE", "2"))
    apps.deploy()
    # The first call of the new deployment is the moment when instances of the old one are given up.
    assert apps.run("gated", 1, "?id=last")[0] in (200, 202)
    waiting.until(lambda: "begun 2" in apps.lines("gated"), "an instance of the new deployment")
    assert apps.ask("PUT", "/v1/state/gate", b"open").status in (200, 204)
    ended = [apps.ask("GET", f"/v1/workflows/gated/runs/{run}?wait=100").document for run in [*runs, "last"]]
    assert [run["status"] for run in ended] == ["succeeded"] * 5, ended
    assert sorted(str(run["output"]) for run in ended) == ["1", "2", "2", "2", "2"], ended
    assert not apps.lines("tell"), "the event has failed"


def a_client_that_hangs_up_on_its_deployment_does_not_hinder_the_next_one(apps):
    """A1."""
    apps.function("f", "def handler(event, context): return 0", triggers=[{"queue": f"q{n}"} for n in range(5)])
    apps.deploy()
    manifest = (apps.folder / "app.toml").read_bytes()
    for attempt in range(30):
        _hang_up(apps.address, _packed(manifest, attempt), seconds=attempt / 1000)
    answer = apps.ask("PUT", "/v1/applications/shop", _packed(manifest, 1000))
    assert answer.status == 200, answer.document
    assert apps.call("f") == 1000


def a_queue_that_starts_a_function_is_refused_to_that_of_another_application(apps, tmp_path):
    """A4."""
    apps.function("pay", "def handler(event, context): pass", triggers=[{"queue": "orders"}])
    apps.deploy()
    other = application.Application(tmp_path / "other", apps.server, "store")
    other.function("sell", "def handler(event, context): pass", triggers=[{"queue": "orders"}])
    answer = other.command("functions", "deploy", str(other.write()))
    assert answer.returncode != 0
    said = answer.stderr.replace('\\"', '"')
    assert 'the queue "orders" starts the function "pay" of the application "shop"' in said


def _packed(manifest, value):
    """An archive whose function answers `value`."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz") as archive:
        code = f"def handler(event, context): return {value}\n".encode()
        for name, data in {"landfast-application.toml": manifest, "code/f.py": code}.items():
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    return content.getvalue()


def _hang_up(address, body, seconds):
    """Deploys `body`, and waits for the response for no more than `seconds`."""
    host, port = address.split(":")
    with socket.create_connection((host, int(port))) as connection:
        head = f"PUT /v1/applications/shop HTTP/1.1\r\nHost: {address}\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        connection.settimeout(max(seconds, 0.0001))
        try:
            connection.recv(1)
        except TimeoutError:
            pass
