"""S3 requests by hand: signatures, chunks, and the errors that no client library makes."""

import datetime
import hashlib
import hmac
import http.client
import re
import socket
import urllib.parse

import waiting
from s3_server import ACCESS_KEY, REGION, SECRET_KEY, fetch

ALGORITHM = "AWS4-HMAC-SHA256"
EMPTY = hashlib.sha256(b"").hexdigest()
SIGNED = "STREAMING-AWS4-HMAC-SHA256-PAYLOAD"
SIGNED_TRAILER = SIGNED + "-TRAILER"
UNSIGNED_TRAILER = "STREAMING-UNSIGNED-PAYLOAD-TRAILER"


class Answer:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.body = response.read()

    @property
    def code(self):
        """The code of an error in XML."""
        found = re.search(rb"<Code>(\w+)</Code>", self.body)
        return found and found.group(1).decode()

    @property
    def refusal(self):
        return self.status, self.code

    def __repr__(self):
        return f"{self.status} {dict(self.headers)} {self.body[:500]!r}"


def mac(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Signer:
    """Signs one request, and then its chunks."""

    def __init__(self, port, secret_key=SECRET_KEY, access_key=ACCESS_KEY, service="s3", at=None):
        self.host = f"127.0.0.1:{port}"
        at = at or datetime.datetime.now(datetime.timezone.utc)
        self.date = at.strftime("%Y%m%dT%H%M%SZ")
        self.scope = f"{self.date[:8]}/{REGION}/{service}/aws4_request"
        self.access_key = access_key
        key = mac(f"AWS4{secret_key}".encode(), self.date[:8])
        for part in (REGION, service, "aws4_request"):
            key = mac(key, part)
        self.key = key

    def signature(self, *lines):
        text = "\n".join([*lines])
        return mac(self.key, text).hex()

    def sign(self, method, path, payload_hash, headers):
        """The headers of a request, with its signature."""
        path, _, query = path.partition("?")
        headers = {**headers, "host": self.host, "x-amz-date": self.date, "x-amz-content-sha256": payload_hash}
        named = {name.lower(): value for name, value in headers.items()}
        signed = sorted(name for name in named if name == "host" or name.startswith(("x-amz-", "content-md5")))
        pairs = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
        query = "&".join(f"{quoted(name)}={quoted(value)}" for name, value in pairs)
        lines = [f"{name}:{named[name].strip()}" for name in signed]
        canonical = "\n".join([method, path, query, *lines, "", ";".join(signed), payload_hash])
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        self.previous = self.signature(ALGORITHM, self.date, self.scope, digest)
        named["authorization"] = (
            f"{ALGORITHM} Credential={self.access_key}/{self.scope}, "
            f"SignedHeaders={';'.join(signed)}, Signature={self.previous}"
        )
        return named

    def chunk(self, data, spoil=False):
        """A signed chunk; the last is empty."""
        digest = hashlib.sha256(data).hexdigest()
        lines = (f"{ALGORITHM}-PAYLOAD", self.date, self.scope, self.previous, EMPTY, digest)
        self.previous = self.signature(*lines)
        sent = "0" * 64 if spoil else self.previous
        end = b"\r\n" if data else b""
        return f"{len(data):x};chunk-signature={sent}\r\n".encode() + data + end

    def trailer(self, name, value, spoil=False):
        digest = hashlib.sha256(f"{name}:{value}\n".encode()).hexdigest()
        signature = self.signature(f"{ALGORITHM}-TRAILER", self.date, self.scope, self.previous, digest)
        sent = "0" * 64 if spoil else signature
        return f"{name}:{value}\r\nx-amz-trailer-signature:{sent}\r\n\r\n".encode()


def quoted(text):
    return urllib.parse.quote(text, safe="-_.~")


class Wire:
    """One connection."""

    def __init__(self, server):
        self.port = server.s3_port
        self.connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=waiting.GUARD_SECONDS)

    def send(self, method, path, headers, body=b""):
        self.connection.request(method, path, body=body, headers=headers)
        return Answer(self.connection.getresponse())

    def ask(self, method, path, body=b"", payload_hash=None, signer=None, unsigned=None, **headers):
        """A signed request; `x_amz_acl=...` becomes the header x-amz-acl."""
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        signer = signer or Signer(self.port)
        digest = payload_hash or hashlib.sha256(body).hexdigest()
        signed = signer.sign(method, path, digest, named)
        return self.send(method, path, {**signed, **(unsigned or {})}, body)

    def put_chunks(self, path, kind, length, chunks, **headers):
        """A PUT in the aws-chunked encoding; `chunks(signer)` is its body."""
        signer = Signer(self.port)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        named |= {"x-amz-decoded-content-length": str(length), "content-encoding": "aws-chunked"}
        signed = signer.sign("PUT", path, kind, named)
        body = chunks(signer)
        return self.send("PUT", path, {**signed, "content-length": str(len(body))}, body)

    def cut_off(self, path, length, sent):
        """A PUT whose client hangs up after `sent`."""
        signed = Signer(self.port).sign("PUT", path, "UNSIGNED-PAYLOAD", {"content-length": str(length)})
        head = "".join(f"{name}: {value}\r\n" for name, value in signed.items())
        with socket.create_connection(("127.0.0.1", self.port)) as raw:
            raw.sendall(f"PUT {path} HTTP/1.1\r\n{head}\r\n".encode() + sent)


def presigned(running, path, at, seconds):
    """A read with a URL that was made earlier."""
    signer = Signer(running.s3_port, at=at)
    fields = {
        "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
        "X-Amz-Credential": f"{ACCESS_KEY}/{signer.scope}",
        "X-Amz-Date": signer.date,
        "X-Amz-Expires": str(seconds),
        "X-Amz-SignedHeaders": "host",
    }
    query = "&".join(f"{name}={urllib.parse.quote(value, safe='')}" for name, value in sorted(fields.items()))
    canonical = "\n".join(["GET", path, query, f"host:{signer.host}", "", "host", "UNSIGNED-PAYLOAD"])
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    signature = signer.signature("AWS4-HMAC-SHA256", signer.date, signer.scope, digest)
    return fetch(f"http://{signer.host}{path}?{query}&X-Amz-Signature={signature}")
