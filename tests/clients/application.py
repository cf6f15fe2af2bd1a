"""An application of functions for the tests: written to a folder, deployed by the real program, called by boto3."""

import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import subprocess
import textwrap
import threading

import boto3
import botocore.config

import http_api
import waiting


class Application:
    """Functions in a folder of their own, and a server to deploy them to."""

    def __init__(self, folder, server, name="shop"):
        self.folder = pathlib.Path(folder)
        self.server = server
        self.name = name
        self.tables = {}
        self.workflows = {}
        self.cors = None
        (self.folder / "code").mkdir(parents=True, exist_ok=True)

    @property
    def address(self):
        return re.search(r"http=(\S+)", self.server.ready_line()).group(1)

    def file(self, name, text, mode=0o644):
        """A file of the code."""
        path = self.folder / "code" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
        path.chmod(mode)

    def function(self, name, text=None, **table):
        """A function; `text` is the body of the module of its name, whose `handler` it is."""
        if text is not None:
            self.file(f"{name}.py", text)
        self.tables[name] = {"runtime": "python3", "code": "code", "handler": f"{name}.handler", **table}

    def workflow(self, name, table):
        """A workflow; `table` is its table in the manifest."""
        self.workflows[name] = table

    def write(self):
        """Writes the manifest and returns its path."""
        lines = [f'name = "{self.name}"']
        for name, table in self.tables.items():
            lines.append(f"[functions.{name}]")
            lines += [f"{key} = {toml(value)}" for key, value in table.items()]
        for name, table in self.workflows.items():
            lines += [f"[workflows.{name}]", table]
        if self.cors:
            lines += ["[cors]", *(f"{key} = {toml(value)}" for key, value in self.cors.items())]
        path = self.folder / "app.toml"
        path.write_text("\n".join(lines) + "\n")
        return path

    def deploy(self):
        """Deploys it; fails as the command does."""
        answer = self.command("functions", "deploy", str(self.write()))
        assert answer.returncode == 0, answer.stderr
        return answer.stdout

    def command(self, *arguments, **options):
        """Runs the program as a client of the server."""
        environment = {**os.environ, "LANDFAST_URL": f"http://{self.address}"}
        command = [self.server.program, *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS, **options
        )

    def ask(self, method, path, body=b""):
        """The server's response."""
        connection = http.client.HTTPConnection(self.address, timeout=waiting.GUARD_SECONDS)
        try:
            connection.request(method, path, body)
            return http_api.Answer(connection.getresponse())
        finally:
            connection.close()

    def run(self, workflow, input=None, query="?wait=100"):
        """The status and the document of a newly begun run."""
        answer = self.ask("POST", f"/v1/workflows/{workflow}/runs{query}", json.dumps(input).encode())
        return answer.status, answer.document

    def value(self, key):
        """The text at a key of plain state; None if there is none."""
        answer = self.ask("GET", f"/v1/state/{key}")
        return answer.body.decode() if answer.status == 200 else None

    def stored(self, workflow, key):
        """The same of a workflow's state."""
        answer = self.ask("GET", f"/v1/workflows/{workflow}/state/{key}")
        return answer.body.decode() if answer.status == 200 else None

    def client(self, read_seconds=waiting.GUARD_SECONDS):
        """A boto3 client that repeats nothing. The keys matter once a server has some in its environment."""
        keys = self.server.variables
        config = botocore.config.Config(retries={"total_max_attempts": 1}, read_timeout=read_seconds)
        return boto3.client(
            "lambda", endpoint_url=f"http://{self.address}", region_name="us-east-1",
            aws_access_key_id=keys.get("LANDFAST_S3_ACCESS_KEY", "none"),
            aws_secret_access_key=keys.get("LANDFAST_S3_SECRET_KEY", "none"), config=config,
        )

    def call(self, name, event=None, read_seconds=waiting.GUARD_SECONDS, **options):
        """The response of a function: its result, or its failure."""
        answer = self.client(read_seconds).invoke(FunctionName=name, Payload=json.dumps(event or {}), **options)
        result = json.loads(answer["Payload"].read())
        return Failed(result) if "FunctionError" in answer else result

    def lines(self, name):
        """The output of a function."""
        answer = self.command("functions", "logs", name, "--json")
        assert answer.returncode == 0, answer.stderr
        return [json.loads(line)["text"] for line in answer.stdout.splitlines()]


class Failed:
    """A function's failure."""

    def __init__(self, result):
        self.type = result["errorType"]
        self.message = result["errorMessage"]
        self.trace = result.get("trace")

    def __repr__(self):
        return f"{self.type}: {self.message}"


def at_once(*asked):
    """The results of several concurrent requests."""
    with concurrent.futures.ThreadPoolExecutor(len(asked)) as threads:
        return [asked.result() for asked in [threads.submit(ask) for ask in asked]]


def toml(value):
    """A value in TOML: tables inline, the rest as JSON."""
    if isinstance(value, dict):
        return "{ %s }" % ", ".join(f"{json.dumps(key)} = {toml(inner)}" for key, inner in value.items())
    if isinstance(value, list):
        return "[%s]" % ", ".join(toml(inner) for inner in value)
    return json.dumps(value)


def code_of(failure):
    """The status and the code of a refusal."""
    response = failure.value.response
    return response["ResponseMetadata"]["HTTPStatusCode"], response["Error"]["Code"]


def processes(words):
    """The processes of the machine whose command line has these words."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if words in (entry / "cmdline").read_text():
                    found.append(int(entry.name))
            except OSError:
                pass
    return found


def has_stood_still(process, seconds=0.2):
    """Whether none of a process's threads has run for a while."""
    def ran():
        return [(task / "schedstat").read_text().split()[0] for task in pathlib.Path(f"/proc/{process}/task").iterdir()]

    before = ran()
    threading.Event().wait(seconds)
    return before == ran()
