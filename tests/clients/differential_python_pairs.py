"""The application of the differential test: each handler as two functions, and the transcripts of both."""

import ast
import concurrent.futures
import json
import pathlib
import shutil
import sys

import differential_python_corpus as corpus
from application import Application
from differential_python_transcript import CLIENTS, OURS, THEIRS, Function, with_context

SHARED = pathlib.Path(__file__).parent / "differential_python"
"""Modules whose functions are handlers that may share an instance."""
MODULES = ("returns", "raises", "contexts", "surroundings", "prints")
AT_ONCE = 4
CLIENT_CONTEXTS = (
    {"custom": {"a": 1.0}, "env": {"b": "é"}, "client": {"app_title": "shop"}, "other": 1},
    {"custom": None, "client": {}, "w3c": {"traceparent": "00-1", "baggage": 5, "other": "x"}},
    {}, None, [1],
)
"""What callers say of themselves, for the handlers that look at it."""


def shared_cases():
    """The handlers of the shared modules, as (module, function)."""
    for module in MODULES:
        tree = ast.parse((SHARED / f"{module}.py").read_text())
        functions = [each.name for each in tree.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
        yield from ((module, name) for name in functions)


NAMES = [f"{module}.{name}" for module, name in shared_cases()] + list(corpus.CASES)


def transcripts(folder, server):
    """Deploys all handlers and calls them. The transcripts by case and client."""
    apps = Application(folder, server)
    write(apps)
    apps.deploy()
    told = {name: {} for name in NAMES}

    def alone(name, client):
        told[name][client] = of_case(Function(apps, name, client), corpus.CASES[name])

    def shared(module, client):
        for name, lines in of_module(Function(apps, module, client), module).items():
            told[f"{module}.{name}"][client] = lines

    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        work = [threads.submit(shared, module, client) for module in MODULES for client in CLIENTS]
        work += [threads.submit(alone, name, client) for name in corpus.CASES for client in CLIENTS]
        for each in work:
            each.result()
    return told


def write(apps):
    """The code of all handlers, and two functions for each."""
    shutil.copytree(SHARED, apps.folder / "code", dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    for module in MODULES:
        add(apps, module, f"{module}.handler", {})
    for name, case in corpus.CASES.items():
        module = name.replace("-", "_")
        for path, text in {f"{module}.py": case.text, **case.files}.items():
            (apps.folder / "code" / path).parent.mkdir(parents=True, exist_ok=True)
            (apps.folder / "code" / path).write_text(text)
        add(apps, name, case.handler or f"{module}.handler", case.environment)


def add(apps, name, handler, environment):
    """Two functions for one handler. Both have the interpreter of the tests, which has awslambdaric."""
    clients = {OURS: {"LANDFAST_RUNTIME_CLIENT": "landfast"}, THEIRS: {}}
    for client, chosen in clients.items():
        apps.function(
            f"{name}-{client}", handler=handler, python=sys.executable, concurrency=1, environment={**chosen, **environment}
        )


def of_case(function, case):
    events = case.events or ("{}",) * case.calls
    calls = [function.call(event) for event in events]
    return function.transcript(calls, function.log())


def of_module(function, module):
    """The transcripts of all handlers of a shared module."""
    calls = {}
    for name in [name for other, name in shared_cases() if other == module]:
        event = json.dumps({"case": name})
        calls[name] = [function.call(event)]
        if name in ("the_client", "a_trace_of_the_caller"):
            calls[name] += [function.call(event, **with_context(context)) for context in CLIENT_CONTEXTS]
    log = function.log()
    told = {}
    for name, made in calls.items():
        requests = {call.request for call in made}
        told[name] = function.transcript(made, [line for line in log if line["id"] in requests])
    return told
