"""The bundled client for Node does what npm's aws-lambda-ric does.

Each handler of the corpus runs under both, on one server. The payloads, the error types, the frames of
the code in a trace and the lines of the log must be equal. `DIFFERENCES` lists the exceptions and their reasons.
"""

import pytest

import application
import differential_node_corpus as corpus
import server as servers

RIC = servers.REPOSITORY / "target/peers/node/node_modules/aws-lambda-ric"

NEVER = "Runtime.NodeJsExit: the {}'s promise was never settled, and nothing is left that could settle it"
UNFINISHED = "string: Response stream is not finished."
GOES_ON = [{"event": 1}, "RangeError: on purpose", {"event": 2}, "RangeError: uncaught"]

DIFFERENCES = [
    ("A handler that throws null has failed, also where it is not asynchronous; the cloud's client answers null.", {
        "errors-syncNull": ["string: handled"],
    }),
    ("The cloud's client calls `catch` of what `then` returns, which need not have it.", {
        "values-bareThenable": ["bare"],
    }),
    ("The result of a handler that is not asynchronous counts if nothing calls back, as in the cloud from Node 24 on;"
     " before, it is dropped.", {
        "own-syncReturn": [{"returned": None}, {"returned": None}],
        "own-syncZero": [0, 0],
        "own-syncOfTimer": [True, True],
        "own-syncCircular": ["Error: Unable to stringify response body"] * 2,
    }),
    ("Handlers are looked for in a default export too, as in the cloud from Node 24 on.", {
        "load-top-whole": ["of the default export"],
        "load-transpiled": ["of a transpiled default export"],
    }),
    ("An event whose handler never ends is not done. The cloud's client answers null, or its process just ends.", {
        "own-never": [NEVER.format("handler")] * 2,
        "own-neverAwait": [NEVER.format("handler")] * 2,
        "load-neverLoads": [NEVER.format("module")],
    }),
    ("The cloud's client fails by itself before it can report the error.", {
        "load-raisesNull": [
            "handled: callback called with Error argument, but there was a problem while retrieving one or more of its"
            " message, name, and stack"
        ],
        "load-streams-marked": ["Runtime.MalformedStreamingHandler: Only response streaming is supported."],
    }),
    ("Parts of the process that the code replaces reach the cloud's client, and not ours.", {
        f"patches-{part}": GOES_ON for part in (
            "net", "socket", "stringify", "parse", "json", "console", "consoleMethods", "immediate", "listeners",
            "stdout", "stdoutThrows", "globals", "bindings", "iterator",
        )
    }),
]
"""Reasons, and the payloads of the bundled client in their cases."""

OURS_ALONE = [
    ("The cloud's client waits for the end of the stream until its timeout; ours fails once nothing can end it.", {
        "streams-unfinished": [UNFINISHED],
        "streams-destroyed": [UNFINISHED],
    }),
    ("The cloud's client reports the error while it asks for the event, and the faster one counts.", {
        "load-unhandled": ["Runtime.UnhandledPromiseRejection: RangeError: at the import"],
    }),
    ("Ours lets a listener of the code run after it has sent the error, so its line comes before or after the answer is there.", {
        "own-ownListener": ["Error: uncaught"] * 2,
    }),
    ("The cloud's client cannot end its process, and Node complains in the log before or after the answer is there.", {
        "patches-exit": GOES_ON,
        "patches-exitListener": GOES_ON,
    }),
]
"""The same for cases that run under the bundled client alone."""

DIFFERENT = {case: payloads for _, cases in DIFFERENCES for case, payloads in cases.items()}
ALONE = {case: payloads for _, cases in OURS_ALONE for case, payloads in cases.items()}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory):
    """What each case came to under each client."""
    if not (RIC / "dist/rapid-client.node").exists():
        pytest.skip("aws-lambda-ric is not built: scripts/install-node-runtime")
    folder = tmp_path_factory.mktemp("differential")
    running = servers.new(folder)
    if type(running).__name__ != "Landfast":
        pytest.skip("functions are tested on the embedded store")
    apps = application.Application(folder / "app", running.start())
    try:
        corpus.deploy(apps, RIC)
        yield corpus.run(apps, ALONE)
    finally:
        running.shut_down()


@pytest.mark.parametrize("case", [case.name for case in corpus.cases()])
def a_handler_does_the_same_under_both_clients(outcomes, case):
    bundled = outcomes[case]["bundled"]
    if case in ALONE:
        assert corpus.payloads(bundled) == ALONE[case]
        return
    cloud = outcomes[case]["cloud"]
    if case in DIFFERENT:
        assert corpus.payloads(bundled) == DIFFERENT[case]
        assert bundled != cloud, "it is listed and does not differ"
    else:
        assert bundled == cloud


def code_that_replaces_parts_of_its_process_does_not_reach_the_client(outcomes):
    """Also where the cloud's client goes on by chance."""
    patches = {case: corpus.payloads(outcomes[case]["bundled"]) for case in outcomes if case.startswith("patches-")}
    assert len(patches) > 30
    assert [case for case, payloads in patches.items() if payloads != GOES_ON] == []


def the_trace_id_of_an_invocation_is_a_variable(outcomes):
    assert corpus.payloads(outcomes["contexts-traceId"]["bundled"]) == ["TRACE"]


def every_listed_difference_is_of_the_corpus():
    assert {*DIFFERENT, *ALONE} <= {case.name for case in corpus.cases()}
