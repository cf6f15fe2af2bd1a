"""A6: routes of functions over their own listener, and below `/http`, as the clients of users see them."""

import http.client
import sys
import time
import urllib.parse

import pytest

import application
import http_api
import server as servers
import waiting

ECHO = """
    def handler(event, context):
        return event
"""
WITH_FASTAPI = {"python": sys.executable, "memory_mb": 256}
"""The tests' own interpreter has FastAPI and Mangum."""
FASTAPI = """
    from fastapi import FastAPI, Request
    from mangum import Mangum

    app = FastAPI()

    @app.get("/items/")
    def items(request: Request):
        return [str(request.url_for("items")), str(request.url_for("item", number=7))]

    @app.get("/items/{number}")
    def item(number: int):
        return {"item": number}
"""
AT_STAGE = """
    def at_stage(app):
        async def call(scope, receive, send):
            stage = scope["aws.event"]["requestContext"]["stage"] if "aws.event" in scope else "$default"
            await app(scope if stage == "$default" else {**scope, "root_path": f"/{stage}"}, receive, send)
        return call
"""
EXECUTABLE = """\
    #!/usr/bin/env python3
    import http.client, os
    api = http.client.HTTPConnection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    while True:
        api.request("GET", "/2018-06-01/runtime/invocation/next")
        asked = api.getresponse()
        asked.read()
        id = asked.headers["Lambda-Runtime-Aws-Request-Id"]
        api.request("POST", f"/2018-06-01/runtime/invocation/{id}/response", b"<p>no JSON</p>")
        api.getresponse().read()
"""


class Client:
    """A client of one listener, which every URL must lead back to."""

    def __init__(self, port):
        self.port = port

    def ask(self, method, target, body=None, **headers):
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=waiting.GUARD_SECONDS)
        try:
            connection.request(method, target, body, named)
            return http_api.Answer(connection.getresponse())
        finally:
            connection.close()

    def get(self, target):
        """The response at a path or a URL, after redirects."""
        for _ in range(3):
            url = urllib.parse.urlsplit(target)
            assert url.netloc in ("", f"127.0.0.1:{self.port}"), target
            answer = self.ask("GET", url.path)
            if answer.status != 307:
                return answer
            target = answer.headers["location"]
        raise AssertionError(f"redirected in a circle: {target}")


@pytest.fixture
def routes(apps):
    """A client of the listener of routes."""
    return Client(apps.server.routes_port)


def the_listener_of_routes_serves_functions_and_nothing_else(apps, routes):
    apps.function("all", ECHO, triggers=[{"http": "/{path+}"}, {"http": "/"}])
    apps.deploy()
    for target in ("/", "/v1/status", "/health/live", "/http/orders", "/orders/a%2Fb"):
        event = routes.ask("GET", target).document
        assert (event["rawPath"], event["requestContext"]["stage"]) == (target, "$default")
    below = apps.ask("GET", "/http/orders/7").document
    assert (below["rawPath"], below["requestContext"]["stage"]) == ("/http/orders/7", "http")
    assert below["pathParameters"] == {"path": "orders/7"}, "the route has no prefix"
    own = routes.ask("POST", "/own", b"a=b", authorization="Bearer own", cookie="c=d").document
    assert (own["headers"]["authorization"], own["cookies"]) == ("Bearer own", ["c=d"])
    apps.server.kill()
    apps.server.start()
    assert routes.ask("GET", "/again").document["rawPath"] == "/again", "it keeps its port here"


def every_form_of_a_result_is_the_response_that_api_gateway_makes_of_it(apps, routes):
    results = {
        "text": ("'Hello'", "Hello", "application/json"),
        "number": ("42", "42", "application/json"),
        "nothing": ("None", "null", "application/json"),
        "list": ("[1]", "[1]", "application/json"),
        "object": ("{}", "{}", "application/json"),
        "status": ("{'statusCode': 200.0, 'body': 'x'}", "x", "text/plain; charset=utf-8"),
        "digits": ("{'statusCode': '200', 'body': '<p>', 'headers': {'Content-Type': 'text/html'}}", "<p>", "text/html"),
    }
    for name, (result, _, _) in results.items():
        text = f"def handler(event, context):\n    return {result}\n"
        apps.function(name, text, triggers=[{"http": f"/{name}"}])
    apps.file("bootstrap", EXECUTABLE, mode=0o755)
    apps.function("executable", runtime="executable", handler="bootstrap", triggers=[{"http": "/executable"}])
    apps.function("wrong", "def handler(event, context):\n    return {'statusCode': 200.5}\n", triggers=[{"http": "/wrong"}])
    apps.function("fails", "def handler(event, context):\n    raise ValueError('secret')\n", triggers=[{"http": "/fails"}])
    apps.deploy()
    results["executable"] = (None, "<p>no JSON</p>", "application/json")
    for name, (_, body, kind) in results.items():
        answer = routes.ask("GET", f"/{name}")
        assert (answer.status, answer.body.decode(), answer.headers["content-type"]) == (200, body, kind), name
    for name in ("wrong", "fails"):
        answer = routes.ask("GET", f"/{name}")
        assert answer.problem == (500, "function-failed")
        assert answer.document["message"] == "Internal Server Error"
        assert answer.headers["apigw-requestid"] in "".join(apps.lines(name)), "the id leads to its log"


def fastapi_behind_mangum_works_unchanged_on_the_listener_of_routes(apps, routes):
    apps.file("app.py", FASTAPI)
    with open(apps.folder / "code/app.py", "a") as module:
        module.write("handler = Mangum(app)\n")
    apps.function("api", handler="app.handler", triggers=[{"http": "/{path+}"}], **WITH_FASTAPI)
    apps.deploy()
    _leads_back(routes, "")


def fastapi_behind_mangum_knows_its_prefix_by_its_stage(apps, routes):
    """Below `/http` a function is behind a stage of that name: as on API Gateway, Mangum removes the path of the
    stage, and the application puts it before its links.
    """
    apps.file("app.py", FASTAPI)
    apps.file("stage.py", AT_STAGE)
    with open(apps.folder / "code/app.py", "a") as module:
        module.write("from stage import at_stage\nhandler = Mangum(at_stage(app))\n")
    apps.function("api", handler="app.handler", triggers=[{"http": "/{path+}"}], **WITH_FASTAPI)
    apps.deploy()
    _leads_back(routes, "")
    _leads_back(Client(apps.server.http_port), "/http")


def _leads_back(client, prefix):
    """Whether redirects, links and the page of the API lead to the function again."""
    redirect = client.ask("GET", f"{prefix}/items")
    assert redirect.status == 307, redirect
    links = client.get(f"{prefix}/items").document
    base = f"http://127.0.0.1:{client.port}{prefix}"
    assert links == [f"{base}/items/", f"{base}/items/7"]
    assert client.get(links[1]).document == {"item": 7}
    page = client.get(f"{prefix}/docs")
    assert f"url: '{prefix}/openapi.json'" in page.body.decode(), page
    assert "/items/{number}" in client.get(f"{prefix}/openapi.json").document["paths"]


def pages_of_other_sites_and_forms_reach_the_function(apps, routes):
    apps.function("answers", """
        def handler(event, context):
            headers = {"access-control-allow-origin": event["headers"].get("origin", "none")}
            return {"statusCode": 200, "headers": headers, "body": event["requestContext"]["http"]["method"]}
    """, triggers=[{"http": "/answers"}])
    apps.deploy()
    for origin in ("null", "http://localhost:3000", "https://shop.example"):
        for method in ("GET", "POST", "OPTIONS"):
            answer = routes.ask(method, "/answers", origin=origin, access_control_request_method="PUT")
            assert (answer.status, answer.body.decode()) == (200, method)
            assert answer.headers["access-control-allow-origin"] == origin
    refused = Client(apps.server.http_port).ask("POST", "/http/answers", b"a=b", origin="null")
    assert refused.problem == (403, "foreign-origin")
    assert routes.ask("GET", "/answers", host="attacker.example").problem == (403, "unknown-host")


def the_cors_settings_of_an_application_answer_for_its_functions(apps, routes):
    apps.cors = {
        "allow_origins": ["https://shop.example"], "allow_methods": ["PUT"], "allow_headers": ["x-own"], "max_age_s": 60,
    }
    apps.function("puts", """
        def handler(event, context):
            return {"statusCode": 200, "headers": {"access-control-allow-origin": "*"}, "body": "put"}
    """, triggers=[{"http": "/puts", "methods": ["PUT"]}])
    apps.deploy()
    asked = {"origin": "https://shop.example", "access_control_request_method": "PUT"}
    answer = routes.ask("OPTIONS", "/puts", **asked)
    named = {name: value for name, value in answer.headers.items() if name.startswith("access-control")}
    assert (answer.status, answer.body) == (204, b"")
    assert named == {
        "access-control-allow-origin": "https://shop.example", "access-control-allow-methods": "PUT",
        "access-control-allow-headers": "x-own", "access-control-max-age": "60",
    }
    assert routes.ask("PUT", "/puts", origin="https://shop.example").headers["access-control-allow-origin"] == "https://shop.example"
    assert "access-control-allow-origin" not in routes.ask("PUT", "/puts", origin="https://other.example").headers
    apps.cors["allow_origins"] = ["shop.example"]
    refused = apps.command("functions", "deploy", str(apps.write()))
    assert refused.returncode == 1 and "cors: allow_origins" in refused.stderr
    apps.cors = None
    apps.deploy()
    assert routes.ask("PUT", "/puts", origin="https://other.example").headers["access-control-allow-origin"] == "*"
    assert routes.ask("OPTIONS", "/puts", **asked).problem == (405, "method-not-allowed")


def a_proxy_with_its_own_name_reaches_functions_if_the_server_knows_it(tmp_path):
    server = servers.new(tmp_path)
    if type(server) is not servers.Landfast:
        pytest.skip("it needs options of its own")
    server.options = lambda: ["--data-dir", str(tmp_path / "data"), "--routes-hosts", "Shop.example,10.0.0.1"]
    try:
        server.start()
        apps = application.Application(tmp_path / "app", server)
        apps.function("echo", ECHO, triggers=[{"http": "/echo"}])
        apps.deploy()
        routes = Client(server.routes_port)
        for host in ("shop.example", "SHOP.EXAMPLE:8443", "10.0.0.1", "localhost"):
            proxied = {"x_forwarded_for": "203.0.113.7", "x_forwarded_proto": "https"}
            event = routes.ask("GET", "/echo", host=host, **proxied).document
            headers = event["headers"]
            assert (headers["host"], event["requestContext"]["domainName"]) == (host, host)
            assert (headers["x-forwarded-for"], headers["x-forwarded-proto"]) == ("203.0.113.7, 127.0.0.1", "https")
        for host in ("other.example", "10.0.0.2", "shop.example.attacker.example"):
            refused = routes.ask("GET", "/echo", host=host)
            assert refused.problem == (403, "unknown-host") and "--routes-hosts" in refused.document["detail"]
        assert Client(server.http_port).ask("GET", "/http/echo", host="shop.example").problem == (403, "unknown-host")
    finally:
        server.shut_down()


def times_in_events_have_the_formats_of_aws(apps):
    """EventBridge gives whole seconds, Lambda's destinations milliseconds with all three digits."""
    apps.function("ticks", """
        import time
        def handler(event, context):
            print("tick", time.strptime(event["time"], "%Y-%m-%dT%H:%M:%SZ").tm_year, flush=True)
            raise ValueError("to be told")
    """, triggers=[{"every_s": 1}], retries=0, on_failure="told")
    apps.function("told", """
        def handler(event, context):
            print("told", event["timestamp"], flush=True)
    """)
    apps.deploy()
    found = waiting.until(lambda: [line for line in apps.lines("told") if line.startswith("told ")], "a failure to be told")
    _, timestamp = found[0].split()
    seconds, _, rest = timestamp.partition(".")
    time.strptime(seconds, "%Y-%m-%dT%H:%M:%S")
    assert len(rest) == 4 and rest[:3].isdigit() and rest[3] == "Z", timestamp
    assert any(line.startswith("tick 2") for line in apps.lines("ticks"))
