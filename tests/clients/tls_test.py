"""TLS and authentication on every port: kazoo, boto3, our clients and the command line, and peers that do it wrong."""

import http.client
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import sys
import time

import boto3
import botocore.client
import botocore.exceptions
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.security import CREATOR_ALL_ACL

import application
import s3_server
import server as servers
import waiting
import wire
from several_processes import redis  # noqa: F401

sys.path.insert(0, str(servers.REPOSITORY / "clients/python"))

FOLDER = pathlib.Path(__file__).parent / "testdata/tls"
CA = str(FOLDER / "ca.pem")
OTHER_CA = str(FOLDER / "other-ca.pem")
TOKEN = "open-sesame"


class Secure(s3_server.Landfast):
    """`landfast serve` with TLS on every port. The certificate is in its directory, where a test may replace it."""

    more = ()
    # The name of a client certificate.
    identity = None

    def options(self):
        self.secure_port = getattr(self, "secure_port", 0)
        if not (self.directory / "cert.pem").exists():
            self.put("server")
        (self.directory / "token").write_text(TOKEN + "\n")
        return [
            *super().options(),
            *("--tls-cert", self.directory / "cert.pem", "--tls-key", self.directory / "key.pem"),
            *("--zookeeper-secure-listen", f"127.0.0.1:{self.secure_port}"),
            *("--http-token-file", self.directory / "token"),
            *self.more,
        ]

    def put(self, name):
        for kind, target in [("", "cert.pem"), ("-key", "key.pem")]:
            shutil.copy(FOLDER / f"{name}{kind}.pem", self.directory / target)

    def start(self):
        super().start()
        words = dict(word.split("=") for word in self.ready_line().split()[1:])
        self.secure_port = int(words["zookeeper-secure"].rpartition(":")[2])
        return self

    @property
    def s3_url(self):
        return f"https://127.0.0.1:{self.s3_port}"

    @property
    def http_url(self):
        return f"https://127.0.0.1:{self.http_port}"

    def ask(self, path="/v1/status", token=TOKEN, port=None, method="GET", body=None, **headers):
        """The status and the body of one request over TLS."""
        context = ssl.create_default_context(cafile=CA)
        if self.identity:
            context.load_cert_chain(FOLDER / f"{self.identity}.pem", FOLDER / f"{self.identity}-key.pem")
        connection = http.client.HTTPSConnection(
            "127.0.0.1", port or self.http_port, timeout=waiting.GUARD_SECONDS, context=context
        )
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def presents(self, port=None):
        """The name in the certificate of a port."""
        with self.tls_socket(port or self.http_port) as connection:
            (name,) = [part[0][1] for part in connection.getpeercert()["subject"]]
            return name

    def tls_socket(self, port):
        plain = socket.create_connection(("127.0.0.1", port), waiting.GUARD_SECONDS)
        return ssl.create_default_context(cafile=CA).wrap_socket(plain, server_hostname="localhost")


@pytest.fixture
def secure(tmp_path):
    """Starts a secure server: `secure(options...)`."""
    if not isinstance(servers.new(tmp_path), servers.Landfast):
        pytest.skip("it tests the ports of landfast")
    running = []

    def start(*more):
        server = Secure(tmp_path)
        server.more = more
        running.append(server)
        return server.start()

    yield start
    for server in running:
        server.shut_down()


@pytest.fixture
def kazoo(request):
    """Connects kazoo over TLS: `kazoo(server, ca=, identity=)`."""

    def connect(server, ca=CA, identity=None, seconds=waiting.GUARD_SECONDS, **options):
        client = KazooClient(
            f"localhost:{server.secure_port}",
            use_ssl=True,
            ca=ca,
            certfile=identity and str(FOLDER / f"{identity}.pem"),
            keyfile=identity and str(FOLDER / f"{identity}-key.pem"),
            connection_retry={"max_tries": 1},
            **options,
        )
        request.addfinalizer(client.close)
        request.addfinalizer(client.stop)
        client.start(seconds)
        return client

    return connect


def kazoo_works_over_tls_without_and_with_a_client_certificate(secure, kazoo):
    server = secure("--tls-client-ca", CA, "--tls-client-certificates", "optional")
    one, other = kazoo(server), kazoo(server, identity="client")
    seen = []
    one.create("/a", b"x" * 900_000)
    other.DataWatch("/a", lambda data, stat: seen.append(data))
    one.set("/a", b"new")
    waiting.until(lambda: seen[-1:] == [b"new"], "the watch")
    plain = KazooClient(server.hosts)
    plain.start(waiting.GUARD_SECONDS)
    assert plain.get("/a")[0] == b"new", "the other port serves the same znodes"
    plain.stop()
    plain.close()


def an_acl_names_the_subject_of_a_client_certificate(secure, kazoo):
    server = secure("--tls-client-ca", CA, "--tls-client-certificates", "optional")
    owner, other = kazoo(server, identity="client"), kazoo(server)
    owner.create("/private", b"x", acl=CREATOR_ALL_ACL)
    (entry,) = owner.get_acls("/private")[0]
    assert (entry.id.scheme, entry.id.id) == ("x509", "CN=kafka-1,OU=Brokers,O=Example\\, Inc.,C=DE")
    assert kazoo(server, identity="client").get("/private")[0] == b"x"
    with pytest.raises(NoAuthError):
        other.get("/private")


def a_required_client_certificate_keeps_others_out(secure, kazoo):
    server = secure("--tls-client-ca", CA)
    assert kazoo(server, identity="client").get_children("/")
    for identity in [None, "stranger"]:
        with pytest.raises(KazooTimeoutError):
            kazoo(server, identity=identity, seconds=3)
    assert server.log_lines("the TLS handshake failed")


def a_port_serves_the_clients_whose_certificates_it_asks_for(secure, monkeypatch):
    server = secure("--tls-client-ca", CA, "--tls-client-certificates", "routes=none")
    ports = [server.http_port, server.s3_port]
    for server.identity in [None, "stranger"]:
        for port in ports:
            seen = len(server.log_lines("the TLS handshake failed"))
            waiting.until(lambda: _has_refused(server, port, seen), "the line")
    server.identity = None
    assert server.ask("/", port=server.routes_port)[0] == 404
    ran = _command_line(server, "status", LANDFAST_TOKEN=TOKEN, LANDFAST_TLS_CA=CA)
    assert ran.returncode != 0 and "LANDFAST_TLS_CLIENT_CERT" in ran.stderr
    server.identity = "client"
    # The token is asked for as well, because there is one.
    assert [server.ask(token=token)[0] for token in [TOKEN, "wrong"]] == [200, 401]
    _s3(server).create_bucket(Bucket="bucket")
    for name, end in [("CERT", ""), ("KEY", "-key")]:
        monkeypatch.setenv(f"LANDFAST_TLS_CLIENT_{name}", str(FOLDER / f"client{end}.pem"))
    ran = _command_line(server, "status", LANDFAST_TOKEN=TOKEN, LANDFAST_TLS_CA=CA)
    assert ran.returncode == 0, ran.stderr
    import landfast

    with landfast.connect(server.http_url, token=TOKEN, ca=CA) as client:
        client.state().put("a", b"1")


def _has_refused(server, port, seen):
    """Whether the server logs one more failed handshake; it logs one a second at most."""
    with pytest.raises((ssl.SSLError, OSError)):
        server.ask("/health/live", port=port)
    return len(server.log_lines("the TLS handshake failed")) > seen


def only_the_passwords_of_accounts_open_a_session(secure, kazoo, tmp_path):
    accounts = tmp_path / "accounts"
    accounts.write_text("# user:password\nuser:tpUq/4Pn5A64fVZyQ0gOJ8ZWqkY=\n")
    server = secure("--zookeeper-require-auth", "--zookeeper-accounts-file", accounts)
    assert kazoo(server, auth_data=[("digest", "user:password")]).get_children("/")
    for made_up in ["user:other", "made:up"]:
        with pytest.raises((AuthFailedError, KazooTimeoutError)):
            kazoo(server, auth_data=[("digest", made_up)], seconds=3).get_children_async("/").get(timeout=3)


def pipelined_requests_and_their_large_replies_arrive_in_order_over_tls(secure, kazoo):
    client = kazoo(secure())
    client.create("/a", b"x" * 100_000)
    replies = [client.get_async("/a") for _ in range(300)]
    assert all(len(reply.get(timeout=waiting.GUARD_SECONDS)[0]) == 100_000 for reply in replies)


def a_client_that_does_not_trust_the_certificate_connects_to_nothing(secure, kazoo):
    server = secure()
    with pytest.raises(KazooTimeoutError):
        kazoo(server, ca=OTHER_CA, seconds=3)
    with pytest.raises(botocore.exceptions.SSLError):
        _s3(server, OTHER_CA).list_buckets()
    ran = _command_line(server, "status", LANDFAST_TOKEN=TOKEN, LANDFAST_TLS_CA=OTHER_CA)
    assert ran.returncode != 0 and "certificate" in ran.stderr and "LANDFAST_TLS_CA" in ran.stderr


def _s3(server, ca=CA):
    return boto3.client(
        "s3",
        endpoint_url=server.s3_url,
        region_name=s3_server.REGION,
        aws_access_key_id=s3_server.ACCESS_KEY,
        aws_secret_access_key=s3_server.SECRET_KEY,
        verify=ca,
        config=botocore.client.Config(
            retries={"max_attempts": 0},
            client_cert=server.identity and tuple(str(FOLDER / f"{server.identity}{end}.pem") for end in ["", "-key"]),
        ),
    )


def boto3_keeps_objects_over_https(secure):
    client = _s3(secure())
    client.create_bucket(Bucket="bucket")
    # Larger than what is sent from files without TLS.
    content = os.urandom(9 * s3_server.MIB)
    client.put_object(Bucket="bucket", Key="k", Body=content)
    assert client.get_object(Bucket="bucket", Key="k")["Body"].read() == content
    upload = client.create_multipart_upload(Bucket="bucket", Key="m")["UploadId"]
    part = client.upload_part(Bucket="bucket", Key="m", UploadId=upload, PartNumber=1, Body=b"x")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": part}]}
    done = client.complete_multipart_upload(Bucket="bucket", Key="m", UploadId=upload, MultipartUpload=parts)
    assert done["Location"].startswith("https://")


def requests_need_the_token_but_for_health(secure):
    server = secure()
    assert server.ask()[0] == 200
    for wrong in [None, "", "open-sesam", "open-sesame1", TOKEN.upper()]:
        status, body = server.ask(token=wrong)
        assert (status, json.loads(body)["type"]) == (401, "unauthorized"), wrong
    for path in ["/health/live", "/health/ready"]:
        assert server.ask(path, token=None)[0] == 200
    # Functions authenticate their own callers: this one does not exist.
    assert server.ask("/", token=None, port=server.routes_port)[0] == 404


def _command_line(server, *arguments, **variables):
    environment = {**os.environ, "LANDFAST_URL": server.http_url, **variables}
    return subprocess.run(
        [server.program, *arguments], env=environment, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS
    )


def the_command_line_and_the_python_clients_reach_a_secure_server(secure, monkeypatch):
    import asyncio

    import landfast.aio

    server = secure()
    ran = _command_line(server, "status", LANDFAST_TOKEN=TOKEN, LANDFAST_TLS_CA=CA)
    assert ran.returncode == 0, ran.stderr
    ran = _command_line(server, "status", LANDFAST_TLS_CA=CA)
    assert ran.returncode != 0 and "unauthorized" in ran.stderr
    with landfast.connect(server.http_url, token=TOKEN, ca=CA) as client:
        client.state().put("a", b"1")
    for name, value in [("LANDFAST_URL", server.http_url), ("LANDFAST_TOKEN", TOKEN), ("LANDFAST_TLS_CA", CA)]:
        monkeypatch.setenv(name, value)

    async def read():
        async with landfast.aio.connect() as client:
            return await client.state().get("a")

    assert asyncio.run(read()) == b"1"
    with landfast.connect(token="wrong", timeout=5) as client, pytest.raises(landfast.Refused):
        client.state().get("a")


ECHO = """
    def handler(event, context):
        return event
"""


def _lambda(server, access_key=s3_server.ACCESS_KEY, secret_key=s3_server.SECRET_KEY):
    return boto3.client(
        "lambda",
        endpoint_url=server.http_url,
        region_name="eu-central-1",
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        verify=CA,
        config=botocore.client.Config(retries={"max_attempts": 0}),
    )


def a_right_signature_of_boto3_stands_for_the_token_and_a_wrong_one_for_nothing(secure, tmp_path, monkeypatch):
    server = secure()
    app = application.Application(tmp_path / "app", server)
    app.function("echo", ECHO)
    ran = _command_line(server, "functions", "deploy", str(app.write()), LANDFAST_TOKEN=TOKEN, LANDFAST_TLS_CA=CA)
    assert ran.returncode == 0, ran.stderr
    right = _lambda(server)
    options = {"LogType": "Tail", "ClientContext": "e30=", "Qualifier": "$LATEST"}
    for name in ["echo", "arn:aws:lambda:us-east-1:000000000000:function:echo"]:
        answer = right.invoke(FunctionName=name, Payload=b'{"a": "\xc3\xa4"}', **options)
        assert json.loads(answer["Payload"].read()) == {"a": "ä"}
    assert right.get_function(FunctionName="echo")["Configuration"]["FunctionName"] == "echo"
    assert [one["FunctionName"] for one in right.list_functions(MaxItems=5)["Functions"]] == ["echo"]

    def code(client, call, **named):
        refused = s3_server.refusal(getattr(client, call), **named)
        assert refused[0] == 403
        return refused[1]

    for call, named in [("invoke", {"FunctionName": "echo", "Payload": b"{}"}), ("list_functions", {})]:
        assert code(_lambda(server, secret_key="wrong"), call, **named) == "InvalidSignatureException"
        assert code(_lambda(server, access_key="wrong"), call, **named) == "UnrecognizedClientException"
    changed = _lambda(server)
    changed.meta.events.register("before-send.lambda.Invoke", _change_body)
    assert code(changed, "invoke", FunctionName="echo", Payload=b'{"a": 1}') == "InvalidSignatureException"
    # The token does as well, and nothing does not.
    path = "/2015-03-31/functions/echo/invocations"
    assert server.ask(path, method="POST", body=b"{}")[0] == 200
    status, body = server.ask(path, token=None, method="POST", body=b"{}")
    assert (status, json.loads(body)["Message"]) == (403, "Missing Authentication Token")
    # A signature for the Lambda API opens nothing else.
    status, _ = server.ask(token=None, Authorization="AWS4-HMAC-SHA256 Credential=x")
    assert status == 401


def _change_body(request, **_):
    """Changes what was signed, at the same length."""
    request.body = request.body.replace(b"1", b"2")


def a_page_of_the_server_itself_may_call_it_over_https(secure):
    server = secure()
    own = f"127.0.0.1:{server.http_port}"
    for origin, expected in [(f"https://{own}", 200), (f"http://{own}", 403), ("https://elsewhere.example", 403)]:
        assert server.ask(Origin=origin)[0] == expected, origin


def a_new_certificate_is_used_while_connections_are_open(secure, kazoo):
    server = secure()
    client = kazoo(server)
    ports = [server.http_port, server.s3_port, server.routes_port, server.secure_port]
    assert {server.presents(port) for port in ports} == {"server one"}
    server.put("server-next")
    for port in ports:
        waiting.until(lambda: server.presents(port) == "server two", "the new certificate")
    # Its key is missing from here on.
    shutil.copy(FOLDER / "server.pem", server.directory / "cert.pem")
    waiting.until(
        lambda: server.presents() and server.log_lines("the old certificate stays in use"), "the complaint"
    )
    assert server.presents() == "server two"
    assert client.get_children("/"), "the open connection goes on"


GARBAGE = {
    "nothing": b"",
    "a connect request": wire.connect_request(),
    "an http request": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "zeros": bytes(300),
    "half a hello": bytes.fromhex("16030100c8010000c40303"),
    "a hello of nonsense": bytes.fromhex("16030100c8010000c40303") + bytes(200),
    "noise": bytes(range(256)) * 16,
}


@pytest.mark.parametrize("name", GARBAGE)
def bytes_that_are_not_tls_end_their_own_connection_alone(secure, kazoo, name):
    server = secure()
    client = kazoo(server)
    for port in [server.secure_port, server.http_port, server.s3_port, server.routes_port]:
        with socket.create_connection(("127.0.0.1", port), waiting.GUARD_SECONDS) as connection:
            connection.sendall(GARBAGE[name])
            connection.shutdown(socket.SHUT_WR)
            try:
                # An alert at most.
                assert len(connection.recv(4096)) < 20
            except ConnectionResetError:
                pass
    assert client.get_children("/") and server.ask()[0] == 200


def plain_bytes_on_a_tls_port_and_the_reverse_are_logged(secure):
    server = secure()
    with socket.create_connection(("127.0.0.1", server.secure_port), waiting.GUARD_SECONDS) as connection:
        connection.sendall(GARBAGE["a connect request"])
        waiting.until(lambda: server.log_lines("the peer does not speak TLS"), "the line")
    with socket.create_connection(("127.0.0.1", server.http_port), waiting.GUARD_SECONDS) as connection:
        connection.sendall(GARBAGE["an http request"])
        waiting.until(lambda: len(server.log_lines("the peer does not speak TLS")) > 1, "the line")
    with pytest.raises((ssl.SSLError, OSError)):
        server.tls_socket(server.port)
    waiting.until(lambda: server.log_lines("the peer speaks TLS, not ZooKeeper's protocol"), "the line")


def a_silent_peer_holds_no_other_up(secure, kazoo):
    server = secure()
    silent = [
        socket.create_connection(("127.0.0.1", port), waiting.GUARD_SECONDS)
        for port in [server.secure_port, server.http_port, server.s3_port]
        for _ in range(20)
    ]
    began = time.monotonic()
    assert kazoo(server).get_children("/") and server.ask()[0] == 200
    assert time.monotonic() - began < 8, "before a handshake's time limit"
    for connection in silent:
        assert connection.recv(100) == b"", "it is closed after the time limit"
        connection.close()


class SecureBeside(Secure):
    """One of several secure servers on one Redis, which ask each other for certificates."""

    redis = None
    identity = "client"
    more = ("--tls-client-ca", CA)

    def options(self):
        mine = super().options()
        return [*mine, "--provider", "redis", "--store", self.redis.url, "--tls-ca", CA, "--memory-total-mb", "1024"]


def servers_of_one_store_reach_each_other_over_tls(tmp_path, redis):
    nodes = []
    try:
        for number in range(2):
            (tmp_path / f"node-{number}").mkdir()
            nodes.append(SecureBeside(tmp_path / f"node-{number}"))
            nodes[-1].redis = redis
            nodes[-1].start()
        one, other = nodes
        # A transaction that the other began: its calls are passed on.
        status, body = other.ask("/v1/transactions", method="POST", body=b"{}")
        assert status == 201, body
        begun = json.loads(body)
        named = {"Landfast_Attempt": str(begun["attempt"])}
        path = f"/v1/transactions/{begun['id']}"
        assert one.ask(f"{path}/keys/a", method="PUT", body=b"1", **named)[0] == 204
        assert one.ask(f"{path}/commit", method="POST", **named)[0] == 200
        # A volume that one of them serves, and objects of which each owns some.
        assert other.ask("/v1/volumes/demo", method="PUT")[0] in (200, 201, 204)
        assert one.ask("/v1/volumes/demo/files/a", method="PUT", body=b"x")[0] in (200, 201, 204)
        assert other.ask("/v1/volumes/demo/files/a")[1] == b"x"
        _s3(one).create_bucket(Bucket="bucket")
        for number in range(20):
            _s3(one).put_object(Bucket="bucket", Key=str(number), Body=b"x")
        for number in range(20):
            assert _s3(other).get_object(Bucket="bucket", Key=str(number))["Body"].read() == b"x"
        for node in nodes:
            assert not node.log_lines("does not speak TLS") and not node.log_lines("handshake failed")
    finally:
        for node in nodes:
            node.shut_down()


def files_that_cannot_be_used_end_the_start(tmp_path):
    def refused(*options):
        servers.needs_landfast()
        command = [servers.Landfast.program, "serve", "--data-dir", tmp_path / "data", *options]
        ran = subprocess.run(command, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
        assert ran.returncode == 1, ran
        return ran.stderr

    def pair(certificate, key):
        return "--tls-cert", FOLDER / certificate, "--tls-key", FOLDER / key

    assert "absent.pem: No such file" in refused(*pair("absent.pem", "server-key.pem"))
    assert "it holds no private key" in refused(*pair("server.pem", "ca.pem"))
    assert "server.pem: with the key in" in refused(*pair("server.pem", "client-key.pem"))
    everywhere = "--http", "0.0.0.0:0"
    assert "--http-token-file" in refused(*pair("server.pem", "server-key.pem"), *everywhere)
    assert "--tls-cert" in refused(*everywhere)
