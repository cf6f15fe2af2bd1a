"""The corpus of the differential test for Node: its cases, and how they run.

Each handler runs under both clients in one application. A case of a `SHARED` file is an export that the
file's own `handler` runs, so that one instance serves them all. The other cases are functions of their own.
"""

import base64
import concurrent.futures
import http.client
import json
import os
import pathlib
import re
import shutil
import signal

import application
import differential_node_transcript as transcripts
import http_api
import waiting

CORPUS = pathlib.Path(__file__).parent / "differential_node"
CLIENTS = {"bundled": {"LANDFAST_RUNTIME_CLIENT": "landfast"}, "cloud": {}}
AT_ONCE = 4

SHARED = ("contexts", "errors", "logs", "streams", "values")
APART = ("own", "patches")
EXPORT = re.compile(r"^(?:exports|patches)\.(\w+) = ", re.MULTILINE)
FRAME_OF_A_CALL = re.compile(r"(START|END|REPORT) RequestId: |INIT_REPORT ")
NOT_CASES = {"handler", "alone", "marked", "isFunction"}

LOADED = (
    "lib/index.handler", "lib/index.api.handler", "lib/index.api.v1.get", "lib/index.api.nothing", "lib.handler",
    "api.api.handler", "api.api.nothing", "api.api.text", "api.api.handler.name", "api.text", "api.nothing", "api.api.self",
    "top.handler", "top.api.v1.get", "top.text", "top.nothing", "top.fails", "top.strict", "top.awaits", "top.whole",
    "common.handler", "bare.handler", "modules/index.handler", "modules/index.api.handler", "modules/common.handler",
    "broken/index.handler", "packaged.handler", "syntax.handler", "syntaxModule.handler", "raises.handler",
    "raisesString.handler", "raisesNull.handler", "requires.handler", "requiresFile.handler", "imports.handler",
    "importsName.handler", "rejects.handler", "untyped.handler", "exits.handler", "neverLoads.handler", "uncaught.handler",
    "unhandled.handler", "itself.handler", "classes.handler", "transpiled.handler", "getter.handler", "circularA.handler",
    "requiresJson.handler", "api..handler", "../task/api.api.handler", "lib/../api.api.handler", "./common.handler",
    "shop.handler", "logging.handler", "streams.alone", "streams.marked", "streams.isFunction", "nowhere.handler",
    "lib/nowhere.handler", "typed.handler",
)
"""Handlers by name, each a function of its own."""

EVENTS = {
    "own-raw": [None, 0, -1.5, "text", "", [], [1, None], {}, {"a": {"b": [True]}}, "ä 😀 \u2028"],
    "own-iterator": [None],
    "own-exitAfterAnswer": [None],
    "own-exitAfterLongAnswer": [None],
    "values-echo": [None, 1, "text", {"a": 1}],
}
"""The events of a case, one call each; by default one for an export, two for a function of `own`."""
PATCHED = [1, {"fail": True}, 2, "uncaught"]

CONTEXTS = {
    "contexts-clientContext": {"client": {"appTitle": "shop"}, "custom": {"a": "ä"}, "env": {"b": "2"}},
}
"""Client contexts of calls."""

VARIABLES = {
    "own-jsonLog": {"AWS_LAMBDA_LOG_FORMAT": "JSON"},
    "own-leveled": {"AWS_LAMBDA_LOG_LEVEL": "warn"},
}
ELSEWHERE = {"NODE_PATH": "/var/task/more"}
"""With modules elsewhere, a missing one is not refused at the deployment."""


class Case:
    """A handler, the function that runs it, and its calls."""

    def __init__(self, name, function, handler, events, wrapped=None):
        self.name = name
        self.function = function
        self.handler = handler
        self.payloads = [{"case": wrapped, "event": event} for event in events] if wrapped else events
        self.context = CONTEXTS.get(name)


def exports_of(file):
    return [name for name in EXPORT.findall((CORPUS / f"{file}.js").read_text()) if name not in NOT_CASES]


def cases():
    """Every case, in the order in which its function runs it."""
    found = []
    for file in SHARED:
        for export in exports_of(file):
            name = f"{file}-{export}"
            found.append(Case(name, file, f"{file}.handler", EVENTS.get(name, [None]), wrapped=export))
    for file in APART:
        for export in exports_of(file):
            name = f"{file}-{export}"
            calls = PATCHED if file == "patches" else EVENTS.get(name, [None, None])
            found.append(Case(name, name, f"{file}.{export}", calls))
    for handler in LOADED:
        readable = handler.removesuffix(".handler").replace("../", "up-").replace("./", "here-")
        name = "load-" + re.sub(r"\W+", "-", readable).strip("-")
        found.append(Case(name, name, handler, EVENTS.get(name, [None])))
    assert len({case.name for case in found}) == len(found)
    return found


def deploy(apps, ric):
    """Deploys the corpus once, for both clients."""
    code = apps.folder / "code"
    shutil.copytree(CORPUS, code, dirs_exist_ok=True)
    # Its build tools are not needed to run it.
    shutil.copytree(ric / "dist", code / "node_modules/aws-lambda-ric/dist")
    shutil.copy(ric / "package.json", code / "node_modules/aws-lambda-ric")
    apps.file("node_modules/shop/package.json", "{}\n")
    apps.file("node_modules/shop/index.js", "exports.handler = async () => __filename;\n")
    apps.file("typed.ts", "export const handler = async () => 1;\n")
    for case in cases():
        for client, selecting in CLIENTS.items():
            variables = {**selecting, **VARIABLES.get(case.name, ELSEWHERE if case.handler in LOADED else {})}
            table = {"handler": case.handler, "environment": variables, "memory_mb": 256}
            apps.function(f"{case.function}-{client}", runtime="node", **table)
    apps.deploy()


def run(apps, alone):
    """What each case came to: `{case: {client: outcome}}`. The cases in `alone` run under the bundled client alone."""
    functions = {}
    for case in cases():
        functions.setdefault(case.function, []).append(case)
    with concurrent.futures.ThreadPoolExecutor(AT_ONCE) as threads:
        done = threads.map(lambda item: run_function(apps, *item, alone), functions.items())
        return {name: outcome for outcomes in done for name, outcome in outcomes.items()}


def run_function(apps, function, its_cases, alone):
    """The outcomes of a function's cases, run one after the other."""
    found = {case.name: {} for case in its_cases}
    for client in CLIENTS:
        mine = [case for case in its_cases if client == "bundled" or case.name not in alone]
        connection = http.client.HTTPConnection(apps.address, timeout=waiting.GUARD_SECONDS)
        try:
            calls = [[call(connection, f"{function}-{client}", case, payload) for payload in case.payloads] for case in mine]
            texts = log_of(connection, f"{function}-{client}") if mine else {}
        finally:
            connection.close()
        for case, answers in zip(mine, calls):
            said = [{"failed": failed, "payload": payload, "log": texts.get(id, "")} for id, failed, payload in answers]
            found[case.name][client] = [transcripts.normal(part) for part in said]
    # All instances together would take gigabytes.
    for process in application.processes(f"/landfast_runtime.mjs\0{its_cases[0].handler}\0"):
        if apps.server.process.pid in ancestors(process):
            os.kill(process, signal.SIGKILL)
    return found


def ancestors(process):
    """The processes that a process comes from, while it lives."""
    found = []
    while process > 1:
        try:
            status = pathlib.Path(f"/proc/{process}/status").read_text()
        except OSError:
            break
        process = int(re.search(r"^PPid:\s+(\d+)", status, re.MULTILINE).group(1))
        found.append(process)
    return found


def call(connection, function, case, payload):
    """The request id, whether the function failed, and the payload."""
    headers = {}
    if case.context:
        headers["X-Amz-Client-Context"] = base64.b64encode(json.dumps(case.context).encode()).decode()
    connection.request("POST", f"/2015-03-31/functions/{function}/invocations", json.dumps(payload), headers)
    answer = http_api.Answer(connection.getresponse())
    assert answer.status == 200, (function, case.name, answer)
    text = answer.body.decode(errors="backslashreplace")
    return answer.headers["x-amzn-RequestId"], "X-Amz-Function-Error" in answer.headers, text


def log_of(connection, function):
    """The text that a function printed, by the id of its call. What it printed between calls belongs to the next one."""
    lines, start = [], 0
    while True:
        connection.request("GET", f"/v1/functions/{function}/logs?from={start}")
        page = json.loads(connection.getresponse().read())
        if not page["lines"]:
            break
        lines += page["lines"]
        start = page["next"]
    found, between = {}, []
    for line in lines:
        said = [] if FRAME_OF_A_CALL.match(line["text"]) else [line["text"]]
        if line["id"]:
            found.setdefault(line["id"], []).extend(between + said)
            between = []
        else:
            between += said
    return {id: "\n".join(texts) for id, texts in found.items()}


def payloads(outcome):
    """The results of a case's calls; a failure as its type and its message."""
    def result(part):
        payload = part["payload"]
        return f"{payload['errorType']}: {payload['errorMessage']}" if part["failed"] else payload

    return [result(part) for part in outcome]
