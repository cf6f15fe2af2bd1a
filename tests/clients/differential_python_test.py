"""Python handlers run under the bundled client as under awslambdaric, the client that the cloud runs.

Each handler is deployed twice, once per client. The answers to its calls and the lines of its log are equal, but for DIFFERENCES.
"""

import dataclasses

import pytest

import differential_python_corpus as corpus
import differential_python_pairs as pairs
import server as servers
import waiting
from differential_python_transcript import OURS, THEIRS


@dataclasses.dataclass
class Difference:
    """A difference between the clients that stays."""

    what: str
    reason: str
    cases: dict = dataclasses.field(default_factory=dict)
    """The handlers that show it. Each has lines of the bundled client's transcript that the other one has not. None:
    `differential_python_transcript` removes the difference from the transcripts of all handlers.
    """


OWN_REFERENCES = "the client keeps its own references, so it can report an error whatever the code has replaced"
DIFFERENCES = [
    Difference("request ids, times, addresses, names of functions", "they differ from call to call, and from deployment to deployment"),
    Difference("frames of the client in traces, and the depth of a full stack", "each client has its own files and calls"),
    Difference(
        "no white space between the tokens of an answer, and no escapes of characters that UTF-8 has",
        "the JSON is equal, and shorter answers fit within the limits of workflows and events",
    ),
    Difference(
        "the trace of an error in the log has ordinary line ends and spaces, not carriage returns and no-break spaces",
        "those keep a trace together in CloudWatch; here each line is a line, and can be searched for and copied",
    ),
    Difference("no LAMBDA_WARNING after a failed start", "it speaks of updates of AWS's own runtimes"),
    Difference(
        "each call of `context.log`, and each record of a formatter without a line end, is a line of its own",
        "in the cloud a frame separates them, which awslambdaric sends over a descriptor that only the cloud gives it",
        {"contexts.log_lines_without_ends": "one\ntwo", "logs-with-a-formatter": "ERROR REQUEST one\nERROR REQUEST one"},
    ),
    Difference(
        "an exception whose text fails, or has half a character, is reported", "awslambdaric ends, and the type is lost",
        {"raises.half_a_character": "[ERROR] ValueError: \\ud800 x", "raises.a_text_that_fails": "[ERROR] Silent: <exception str() failed>"},
    ),
    Difference(
        "`landfast.RunInterrupted`, which is no `Exception`, is reported", "a run that fails shows its message",
        {
            "interrupts-a-run": "[ERROR] RunInterrupted: the reason",
            "interrupts-a-run-in-a-group": "[ERROR] RunInterrupted: the reason",
        },
    ),
    Difference(
        "an error is reported and logged without a usable `sys.stdout`", OWN_REFERENCES,
        {
            "closed-stdout-printed-to": "[ERROR] ValueError: I/O operation on closed file.",
            "no-stdout-of-a-failure": "[ERROR] ValueError: without a stream",
            "replaced-stdout-of-a-failure": "[ERROR] ValueError: in a text",
        },
    ),
    Difference(
        "calls work with other built-ins, another `traceback` and without `os.environ`", OWN_REFERENCES,
        {
            "patches-built-ins": "[ERROR] ValueError: on purpose",
            "patches-traceback": "[ERROR] ValueError: on purpose",
            "replaces-the-environment": "answered: 1",
        },
    ),
]
"""All differences that are allowed. Modules that the clients import themselves are not compared."""

LATE = {
    "returns.a_result_that_is_too_long": "awslambdaric ends itself once its answer is refused, and prints a traceback",
    "returns.a_coroutine": "Python warns of a coroutine that never ran once the client drops it, after its answer",
}
"""Handlers whose answers alone are compared, and the reasons: a client prints more once the server has its answer. Such a line
is of the call or of none, by the speed of both.
"""


@pytest.fixture(scope="module")
def transcripts(tmp_path_factory):
    """The transcripts of all handlers, by case and client."""
    running = servers.new(tmp_path_factory.mktemp("server"))
    if type(running).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    try:
        yield pairs.transcripts(tmp_path_factory.mktemp("app"), running.start())
    finally:
        running.shut_down()


@pytest.mark.parametrize("case", pairs.NAMES)
def a_handler_is_answered_and_logged_as_in_the_cloud(transcripts, case):
    ours, theirs = transcripts[case][OURS], transcripts[case][THEIRS]
    if case in LATE:
        assert _answers(ours) == _answers(theirs) != []
        return
    for difference in DIFFERENCES:
        if case in difference.cases:
            shown = difference.cases[case]
            assert shown in "\n".join(ours), f"{difference.what}: {ours}"
            assert shown not in "\n".join(theirs), f"{difference.what} no longer: {theirs}"
            return
    assert ours == theirs


def _answers(transcript):
    return [line for line in transcript if line.startswith(("answered: ", "failed: "))]


def each_difference_is_of_a_handler():
    assert {*LATE, *(case for difference in DIFFERENCES for case in difference.cases)} <= set(pairs.NAMES)


RIGHT = {
    "returns.exact_decimals": 'answered: {"id":9007199254740993,"n":5,"p":1.10}',
    "returns.named_tuples_inside": 'answered: {"a":[{"b":{"x":{"x":1,"y":"x"},"y":null}}]}',
    "returns.bytes_that_are_json": 'answered: {"a":1.10}',
    "no-flush-of-stdout": 'answered: 4',
    "no-stdout": 'answered: "done"',
    "closed-stdout": 'answered: "done"',
    "failing-flush-of-stdout": 'answered: "done"',
    "no-stderr": 'answered: "done"',
    "closed-stderr": 'answered: "done"',
    "contexts.a_new_attribute": 'answered: ["x",true]',
    "contexts.a_weak_reference": "answered: true",
    "contexts.the_trace": "answered: true",
    "patches-json-and-answers": 'answered: {"a":[1,{}]}',
    "patches-sockets": 'answered: "done"',
    "patches-time": 'answered: "done"',
    "closed-descriptors": 'answered: "done"',
}


@pytest.mark.parametrize("case", RIGHT)
def the_bundled_client_gives_the_right_answer(transcripts, case):
    given = _answers(transcripts[case][OURS])
    assert RIGHT[case] in given and not any(answer.startswith("failed") for answer in given), given


@pytest.mark.parametrize("client", [OURS, THEIRS])
def a_long_error_keeps_its_type_and_the_beginning_of_its_message(apps, client):
    text = "def handler(event, context):\n    raise LookupError('\u2603' + 'm' * event)\n"
    pairs.add(apps, "long", "long.handler", {})
    apps.file("long.py", text)
    apps.deploy()
    for length in (300_000, 900_000, 2_000_000):
        failed = apps.call(f"long-{client}", length)
        assert failed.type == "LookupError"
        assert failed.message.startswith("\u2603" + "m" * 30_000) and len(failed.message) < 40_000
        assert f"{length + 3} bytes" in failed.message


def a_file_or_a_socket_that_gets_the_descriptor_of_the_client_gets_no_byte_of_it(apps):
    apps.function("reuses", """
        import os, socket
        kept = []
        def handler(event, context):
            if event == "files":
                os.closerange(3, 64)
                kept.extend(os.open("/tmp/own", os.O_RDWR | os.O_CREAT | os.O_APPEND) for _ in range(60))
            if event == "sockets":
                os.closerange(3, 64)
                socket.setdefaulttimeout(0.001)
                for _ in range(31):
                    kept.extend(end.detach() for end in socket.socketpair())
            if event == "look":
                for descriptor in kept:
                    os.set_blocking(descriptor, False)
                    try:
                        assert os.read(descriptor, 1) == b"", descriptor
                    except BlockingIOError:
                        pass
            return [os.getpid(), len(kept)]
    """, concurrency=1, environment={"LANDFAST_RUNTIME_CLIENT": "landfast"})
    apps.deploy()
    process = apps.call("reuses")[0]
    for event, kept in (("files", 60), ("look", 60), (None, 60), ("look", 60)):
        assert apps.call("reuses", event) == [process, kept], event
    for event in ("sockets", "look", None, "look"):
        assert apps.call("reuses", event) == [process, 122], event


def a_spare_keeps_its_own_references_too(apps):
    cases = ("patches-json-and-answers", "patches-sockets", "patches-built-ins")
    apps.function("first", "def handler(event, context):\n    return 1\n")
    for name in cases:
        apps.function(name, corpus.CASES[name].text, environment={"LANDFAST_RUNTIME_CLIENT": "landfast"})
    apps.deploy()

    def figures():
        return apps.ask("GET", "/v1/status").document["functions"]

    apps.call("first")
    if "own processes, files and network: " in apps.command("doctor").stdout:
        pytest.skip("this machine gives no namespaces")
    for adopted, name in enumerate(cases, 1):
        waiting.until(lambda: figures()["spares"] == 1, "a spare")
        given = [apps.call(name) for _ in range(2)]
        assert figures()["adopted"] == adopted
        assert given[0] == given[1] or given[1].message == "on purpose", given
