"""The HTTP API by hand: one connection, raw bytes, no hidden repeats."""

import http.client
import json
import re
import urllib.parse

import waiting


class Answer:
    """The server's response."""

    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def document(self):
        return json.loads(self.body)

    @property
    def problem(self):
        """The status and the `type` of a problem document."""
        assert self.headers["Content-Type"] == "application/problem+json", self
        assert self.document["status"] == self.status
        return self.status, self.document["type"]

    def __repr__(self):
        return f"{self.status} {dict(self.headers)} {self.body[:500]!r}"


class Api:
    """One client of a server's HTTP listener."""

    def __init__(self, server):
        address = re.search(r"http=127\.0\.0\.1:(\d+)", server.ready_line())
        self.connection = http.client.HTTPConnection("127.0.0.1", int(address.group(1)), timeout=waiting.GUARD_SECONDS)

    def ask(self, method, path, body=None, **headers):
        """One request; `landfast_after=...` becomes the header Landfast-After."""
        named = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        self.connection.request(method, path, body=body, headers=named)
        return Answer(self.connection.getresponse())

    def begin(self, after=None, **asked):
        answer = self.ask("POST", "/v1/transactions", json.dumps(asked), landfast_after=after)
        assert answer.status == 201, answer
        return Transaction(self, **answer.document)

    def state(self, key):
        """The key's newest committed value; None if there is none."""
        answer = self.ask("GET", f"/v1/state/{segment(key)}")
        return value_of(answer)

    def put_state(self, key, value):
        answer = self.ask("PUT", f"/v1/state/{segment(key)}", value)
        assert answer.status == 204, answer
        return answer.headers["Landfast-After"]

    def close(self):
        self.connection.close()


class Transaction:
    """One attempt of a transaction."""

    def __init__(self, api, id, attempt):
        self.api, self.id, self.attempt = api, id, attempt
        self.path = f"/v1/transactions/{segment(id)}"

    def ask(self, method, below="", body=None):
        return self.api.ask(method, self.path + below, body, landfast_attempt=self.attempt)

    def put(self, key, value):
        answer = self.ask("PUT", f"/keys/{segment(key)}", value)
        assert answer.status == 204, answer

    def delete(self, key):
        answer = self.ask("DELETE", f"/keys/{segment(key)}")
        assert answer.status == 204, answer

    def get(self, key):
        return value_of(self.ask("GET", f"/keys/{segment(key)}"))

    def commit(self):
        """The commit's document."""
        answer = self.ask("POST", "/commit")
        assert answer.status == 200, answer
        assert answer.document["status"] == "committed"
        return answer.document

    def abort(self):
        answer = self.ask("DELETE")
        assert answer.status == 204, answer

    def status(self):
        return self.ask("GET").document["status"]


def segment(name):
    return urllib.parse.quote(name, safe="")


def value_of(answer):
    if answer.status == 404:
        assert answer.problem == (404, "no-such-key")
        return None
    assert answer.status == 200, answer
    return answer.body
