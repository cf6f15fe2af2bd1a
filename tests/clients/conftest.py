"""A server for the tests, and clients that are gone when a test ends."""

import hashlib
import itertools
import logging
import os
import subprocess
import threading

import pytest
from kazoo.client import KazooClient

import application
import s3_server
import s3_wire
import server as servers
import waiting
import wire

# Several tests are about reconnecting; kazoo's warnings about it would drown a real failure.
logging.getLogger("kazoo").setLevel(logging.ERROR)

# The files that take longest, so that they do not end after all others. All of a file runs in one process.
SLOWEST = ["workflows_far_test", "kazoo_suite_test", "files_mount_test", "transaction_nodes_test", "functions_test",
           "grading_test", "files_nodes_test", "zookeeper_clients_test", "consistency_test", "disk_test"]

# The longest that a server grants: kazoo gives a silent server up after two thirds of it.
SESSION_SECONDS = 40
numbers = itertools.count()


def pytest_collection_modifyitems(items):
    places = {name: place for place, name in enumerate(SLOWEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(SLOWEST)))


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """One server for all tests that do not stop it; each works below a path of its own."""
    running = servers.new(tmp_path_factory.mktemp("server")).start()
    yield running
    running.shut_down()


@pytest.fixture
def own_server(tmp_path):
    """A server that the test may stop, kill and start again."""
    running = servers.new(tmp_path)
    if not running.can_restart:
        pytest.skip("a server that somebody else runs cannot be restarted")
    yield running.start()
    running.shut_down()


@pytest.fixture
def apps(tmp_path, request):
    """An application of functions on a server of its own."""
    servers.needs_landfast()
    own_server = request.getfixturevalue("own_server")
    if type(own_server).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    return application.Application(tmp_path / "app", own_server)


@pytest.fixture
def stays(apps):
    """Starts the program as a client that stays: `stays(arguments...)`; its lines so far."""
    running = []

    def start(*arguments):
        environment = {**os.environ, "LANDFAST_URL": f"http://{apps.address}"}
        process = subprocess.Popen(
            [apps.server.program, *arguments], env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        lines = []
        reader = threading.Thread(target=lambda: lines.extend(map(str.rstrip, iter(process.stdout.readline, ""))), daemon=True)
        reader.start()
        running.append((process, reader))
        return lines

    yield start
    for process, reader in running:
        process.terminate()
        process.wait(waiting.GUARD_SECONDS)
        reader.join(waiting.GUARD_SECONDS)
        process.stdout.close()


@pytest.fixture
def clients():
    """Starts kazoo clients: `clients(server)`."""
    started = []

    def start(running, **options):
        client = KazooClient(hosts=running.hosts, **{"timeout": SESSION_SECONDS, **options})
        client.start(timeout=waiting.GUARD_SECONDS)
        started.append(client)
        return client

    yield start
    for client in started:
        client.stop()
        client.close()


@pytest.fixture
def client(clients, server):
    """A kazoo client on the shared server."""
    return clients(server)


@pytest.fixture
def sessions():
    """Opens sessions by hand: `sessions(server)`."""
    opened = []

    def start(running, **connect):
        session = wire.Session(running.port, **connect)
        opened.append(session)
        return session

    yield start
    for session in opened:
        session.drop()


@pytest.fixture
def session(sessions, server):
    """A session by hand on the shared server."""
    return sessions(server)


@pytest.fixture
def path(server):
    """A path that no other test uses; it does not exist yet."""
    return f"/t{next(numbers)}"


@pytest.fixture
def node(session, path):
    """A node that no other test uses."""
    return session.created(path)


def pytest_terminal_summary(terminalreporter):
    """Says what was skipped the way every test of the repository does."""
    for report in terminalreporter.stats.get("skipped", []):
        terminalreporter.write_line(f"skipped: {report.nodeid}: {report.longrepr[2].removeprefix('Skipped: ')}")


@pytest.fixture(scope="module")
def objects_server(tmp_path_factory):
    """A server with its S3 listener, for all tests of a file."""
    running = s3_server.Landfast(tmp_path_factory.mktemp("s3")).start()
    yield running
    running.shut_down()


@pytest.fixture(scope="module")
def s3(objects_server):
    """A boto3 client."""
    return s3_server.client(objects_server.s3_url)


@pytest.fixture
def bucket(objects_server, request):
    """A bucket of the test's own."""
    name = "b" + hashlib.sha256(request.node.name.encode()).hexdigest()[:20]
    s3_server.client(objects_server.s3_url).create_bucket(Bucket=name)
    return name


@pytest.fixture(name="wire")
def wire_of_s3(objects_server):
    """A connection for requests that are made by hand."""
    return s3_wire.Wire(objects_server)
