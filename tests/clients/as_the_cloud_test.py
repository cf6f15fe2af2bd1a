"""The bundled runtime clients do what the cloud's own do: logs, contexts, failures.

If the cloud's client is installed, in Python, the same function runs on both, and both must pass
the same checks.
"""

import base64
import json
import re
import shutil
import sys

import pytest

CARRIED = {"environment": {"LANDFAST_RUNTIME_CLIENT": "landfast"}}
CLOUDS = {"python": sys.executable}
"""The tests' own interpreter has awslambdaric."""


@pytest.fixture(params=[CARRIED, CLOUDS], ids=["carried", "the-clouds"])
def runner(request):
    """The entries of a function's table that select one client or the other."""
    return request.param


def what_a_handler_logs_is_in_its_log_with_its_time_and_its_request(apps, runner):
    """U5: also its log output during the import; its own format is the second one, which Python
    does not take.
    """
    apps.function("logs", """
        import logging
        logger = logging.getLogger()
        logger.setLevel(logging.INFO)
        logger.info("at import")
        logging.basicConfig(format="own %(message)s")
        def handler(event, context):
            logger.info("an info line")
            logging.getLogger("shop").warning("a warning line")
            logger.debug("a line below its level")
            return context.aws_request_id
    """, **runner)
    apps.deploy()
    id = apps.call("logs")
    time = re.compile(r"\t\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{1,3}Z\t")
    lines = [time.sub("\tTIME\t", line) for line in apps.lines("logs") if " line" in line or "import" in line]
    assert lines == ["[INFO]\tTIME\t\tat import", f"[INFO]\tTIME\t{id}\tan info line", f"[WARNING]\tTIME\t{id}\ta warning line"]


def a_handler_that_imports_logging_late_is_heard_and_one_that_does_not_has_it_not(apps):
    apps.function("late", """
        import sys
        def handler(event, context):
            before = "logging" in sys.modules
            import logging
            logging.warning("late")
            return before
    """, **CARRIED)
    apps.deploy()
    assert apps.call("late") is False, "importing it takes longer than all the rest of the client"
    assert apps.call("late") is True
    assert sum(line.endswith("\tlate") for line in apps.lines("late")) == 2


def what_a_caller_says_of_itself_is_an_object_of_the_context(apps, runner):
    apps.function("told", """
        def handler(event, context):
            said = context.client_context
            if said is None:
                return [context.identity.cognito_identity_id, context.identity.cognito_identity_pool_id]
            return [said.custom, said.env, said.client and [said.client.app_title, said.client.installation_id]]
    """, **runner)
    apps.deploy()

    def call(context):
        return apps.call("told", ClientContext=base64.b64encode(json.dumps(context).encode()).decode())

    assert call({"custom": {"a": 1}, "env": {"b": "2"}, "client": {"app_title": "shop"}}) == [{"a": 1}, {"b": "2"}, ["shop", None]]
    assert call({"custom": {"a": 1}}) == [{"a": 1}, None, None]
    assert apps.call("told") == [None, None]


def failures_have_the_names_that_lambda_gives_them(apps, runner):
    apps.file("syntax.py", "def handler(:\n")
    apps.file("raises.py", "raise KeyError('at import')\n")
    apps.file("works.py", "def handler(event, context):\n    return {1}\n")
    failures = {
        "syntax.handler": ("Runtime.UserCodeSyntaxError", "Syntax error in module 'syntax'"),
        "raises.handler": ("KeyError", "'at import'"),
        "works.nothing": ("Runtime.HandlerNotFound", "Handler 'nothing' missing on module 'works'"),
        "works.handler": ("Runtime.MarshalError", "Unable to marshal response: "),
        "nowhere.handler": ("Runtime.ImportModuleError", "Unable to import module 'nowhere'"),
    }
    for handler in failures:
        # With modules elsewhere, a missing one is not refused at the deployment.
        environment = {"PYTHONPATH": "/var/task/more", **runner.get("environment", {})}
        apps.function(handler.replace(".", "-"), handler=handler, **{**runner, "environment": environment})
    apps.deploy()
    for handler, (type, message) in failures.items():
        failed = apps.call(handler.replace(".", "-"))
        assert failed.type == type and failed.message.startswith(message), (handler, failed)


def a_result_that_utf_8_cannot_say_is_json_all_the_same(apps):
    apps.function("half", r'''
        def handler(event, context):
            return {"half": "\ud800", "whole": "\u00e9"}
    ''', **CARRIED)
    apps.deploy()
    assert apps.call("half") == {"half": "\ud800", "whole": "\u00e9"}


def an_exception_that_utf_8_cannot_say_is_told_and_the_instance_goes_on(apps):
    apps.function("fails", r"""
        import os
        class Silent(Exception):
            def __str__(self):
                raise ValueError("it has no text")
        def handler(event, context):
            if "what" in event:
                raise Silent() if event["what"] == "silent" else Exception("\ud800 x")
            return os.getpid()
    """, **CARRIED)
    apps.deploy()
    process = apps.call("fails")
    failed = apps.call("fails", {"what": "half"})
    assert (failed.type, failed.message) == ("Exception", r"\ud800 x")
    failed = apps.call("fails", {"what": "silent"})
    assert (failed.type, failed.message) == ("Silent", "<exception str() failed>")
    assert apps.call("fails") == process
    assert r"[ERROR] Exception: \ud800 x" in apps.lines("fails")


NODE = """
    exports.nothing = (event) => { console.log("printed"); };
    exports.timer = (event, context) => { setTimeout(() => console.log("timer"), 50); };
    exports.early = (event, context, callback) => {
      let ran = false;
      callback(null, { get ran() { return ran; } });
      setTimeout(() => { ran = true; }, 50);
    };
    exports.hasty = (event, context, callback) => {
      context.callbackWaitsForEmptyEventLoop = false;
      callback(null, "early");
      setTimeout(() => {}, 60_000);
    };
    exports.both = async (event, context, callback) => { callback(null, "called"); return "returned"; };
    exports.never = () => new Promise(() => {});
    exports.throws = () => { setTimeout(() => { throw new RangeError("on purpose"); }, 1); };
    exports.rejects = async () => {
      Promise.reject(new Error("on purpose"));
      await new Promise((resolve) => setTimeout(resolve, 60_000));
    };
    exports.named = async () => { throw Object.assign(new Error("on purpose"), { name: "N\\u00e4me\\n" }); };
    exports.runtime = async () => [process.env.AWS_EXECUTION_ENV, `AWS_Lambda_nodejs${process.versions.node.split(".")[0]}.x`];
"""


def a_node_handler_ends_as_it_does_in_lambda(apps):
    """Without a response it gets null, once it waits for nothing any more."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    apps.file("app.js", NODE)
    names = ["nothing", "timer", "early", "hasty", "both", "never", "throws", "rejects", "named", "runtime"]
    for name in names:
        apps.function(name, runtime="node", handler=f"app.{name}", memory_mb=256)
    apps.deploy()
    for _ in range(2):
        assert apps.call("nothing") is None and apps.call("timer") is None
        assert apps.call("early") == {"ran": True}, "it is answered once the timer has run"
        assert apps.call("hasty") == "early"
        assert apps.call("both") == "called", "who says something first is heard"
        assert apps.call("never").type == "Runtime.NodeJsExit"
        failed = apps.call("throws")
        assert (failed.type, failed.message) == ("RangeError", "on purpose")
        failed = apps.call("rejects")
        assert (failed.type, failed.message) == ("Runtime.UnhandledPromiseRejection", "Error: on purpose")
        failed = apps.call("named")
        assert (failed.type, failed.message) == ("Näme\n", "on purpose")
    assert sum(line.endswith("\tINFO\ttimer") for line in apps.lines("timer")) == 2
    said, expected = apps.call("runtime")
    assert said == expected


def what_a_node_handler_throws_is_its_failure_whatever_that_is(apps):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    ways = {
        "throws": "() => { throw thrown(); }",
        "rejects": "() => Promise.reject(thrown())",
        "awaits": "async () => { throw thrown(); }",
    }
    thrown = {
        "null": ("null", "string", "handled"),
        "undefined": ("undefined", "string", "handled"),
        "text": ("'on purpose'", "string", "on purpose"),
        "object": ("Object.create(null)", "TypeError", "Cannot convert object to primitive value"),
    }
    for what, (expression, _, _) in thrown.items():
        exports = [f"exports.{way} = {code};" for way, code in ways.items()]
        apps.file(f"{what}.js", f"const thrown = () => ({expression});\n" + "\n".join(exports))
        for way in ways:
            apps.function(f"{what}-{way}", runtime="node", handler=f"{what}.{way}", memory_mb=256)
    apps.file("fail.js", "exports.handler = (event, context) => context.fail();\n")
    apps.function("fail", runtime="node", handler="fail.handler", memory_mb=256)
    apps.deploy()
    for what, (_, type, message) in thrown.items():
        for way in ways:
            failed = apps.call(f"{what}-{way}")
            assert (failed.type, failed.message) == (type, message), (what, way)
            assert type == "TypeError" or failed.trace == [], "nothing of it lies in the client's own file"
    failed = apps.call("fail")
    assert (failed.type, failed.message, failed.trace) == ("string", "handled", [])


def node_failures_have_the_names_that_lambda_gives_them(apps):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    apps.file("syntax.js", "exports.handler = (;\n")
    apps.file("raises.js", "throw new RangeError('at import');\n")
    apps.file("imports.js", "require('no-such-module');\n")
    apps.file("works.js", "exports.handler = async () => 1;\n")
    failures = {
        "syntax.handler": "Runtime.UserCodeSyntaxError",
        "raises.handler": "RangeError",
        "imports.handler": "Runtime.ImportModuleError",
        "works.nothing": "Runtime.HandlerNotFound",
        "nowhere.handler": "Runtime.ImportModuleError",
    }
    for handler in failures:
        # With modules elsewhere, a missing one is not refused at the deployment.
        elsewhere = {"NODE_PATH": "/var/task/more"}
        apps.function(handler.replace(".", "-"), runtime="node", handler=handler, memory_mb=256, environment=elsewhere)
    apps.deploy()
    assert {handler: apps.call(handler.replace(".", "-")).type for handler in failures} == failures


def the_module_of_a_node_handler_ends_at_the_first_dot_of_its_last_segment(apps):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    apps.file("index.js", "exports.api = { handler: async () => 1 };\n")
    apps.file("lib.v1/index.js", "exports.api = { v2: { get: async () => 2 } };\n")
    apps.function("root", runtime="node", handler="index.api.handler", memory_mb=256)
    apps.function("folder", runtime="node", handler="lib.v1/index.api.v2.get", memory_mb=256)
    apps.deploy()
    assert (apps.call("root"), apps.call("folder")) == (1, 2)


def a_node_handler_streams_its_response_which_is_returned_whole(apps):
    """A6: over a route too, where the stream sets status and headers."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    apps.file("page.mjs", """
        export const text = awslambda.streamifyResponse(async (event, stream) => {
          stream.write('{"parts":');
          stream.end("2}");
        });
        export const page = awslambda.streamifyResponse(async (event, stream) => {
          stream = awslambda.HttpResponseStream.from(stream, { statusCode: 201, headers: { "Content-Type": "text/html" } });
          stream.write(`<p>${event.rawPath}`);
          stream.end("</p>");
        });
        export const fails = awslambda.streamifyResponse(async (event, stream) => {
          stream.write("begun");
          throw new RangeError("on purpose");
        });
    """)
    for name in ["text", "page", "fails"]:
        triggers = [{"http": "/page", "methods": ["GET"]}] if name == "page" else []
        apps.function(name, runtime="node", handler=f"page.{name}", memory_mb=256, triggers=triggers)
    apps.deploy()
    assert apps.call("text") == {"parts": 2}
    failed = apps.call("fails")
    assert (failed.type, failed.message) == ("RangeError", "on purpose")
    answer = apps.ask("GET", "/http/page")
    assert (answer.status, answer.headers["Content-Type"], answer.body) == (201, "text/html", b"<p>/http/page</p>")


def a_long_error_of_node_keeps_its_type_and_the_beginning_of_its_message(apps):
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    apps.file("long.js", """
        const long = (length) => Object.assign(new Error("begin" + "x".repeat(length)), { name: "LongError" });
        exports.handler = async (event) => { throw long(event.length); };
        exports.uncaught = () => { setTimeout(() => { throw long(300_000); }, 1); };
    """)
    for name in ["handler", "uncaught"]:
        apps.function(name, runtime="node", handler=f"long.{name}", memory_mb=256)
    apps.deploy()
    calls = [("handler", {"length": 300_000}), ("handler", {"length": 7_000_000}), ("uncaught", None)]
    for name, event in calls:
        failed = apps.call(name, event)
        assert failed.type == "LongError" and failed.message.startswith("beginxxx"), failed
        assert 30_000 < len(failed.message) < 40_000


def a_function_knows_what_it_runs_on(apps):
    apps.function("runtime", """
        import os, sys
        def handler(event, context):
            return [os.environ["AWS_EXECUTION_ENV"], "AWS_Lambda_python%d.%d" % sys.version_info[:2]]
    """)
    apps.function("own", "import os\ndef handler(event, context):\n    return os.environ['AWS_EXECUTION_ENV']\n",
                  environment={"AWS_EXECUTION_ENV": "own"})
    apps.deploy()
    said, expected = apps.call("runtime")
    assert said == expected
    assert apps.call("own") == "own"


def long_output_of_a_node_handler_belongs_to_its_invocation(apps):
    """U5: a pipe takes 64 KiB at once."""
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    apps.file("app.js", """
        exports.handler = async () => {
          for (let number = 0; number < 300; number++) console.log(String(number).padStart(1000));
          console.log("the last line");
        };
        exports.exits = async () => {
          for (let number = 0; number < 300; number++) console.log(String(number).padStart(1000));
          console.log("the last line");
          process.exit(3);
        };
    """)
    for name in ("handler", "exits"):
        apps.function(name, runtime="node", handler=f"app.{name}", memory_mb=256, environment={"LANDFAST_RUNTIME_CLIENT": "landfast"})
    apps.deploy()
    apps.call("handler")
    assert apps.call("exits").type == "Runtime.ExitError"
    for name in ("handler", "exits"):
        lines = apps.lines(name)
        last = [number for number, line in enumerate(lines) if line.endswith("the last line")]
        ends = [number for number, line in enumerate(lines) if line.startswith("END RequestId")]
        assert len(last) == 1 and last[0] < ends[0], (name, last, ends)
