"""Functions on the runtime clients that people have: lambda_runtime for Rust, aws-lambda-ric for Node.

awslambdaric for Python is in functions_test.py.
"""

import shutil
import subprocess

import pytest

import server as servers

RUST = servers.REPOSITORY / "tests/clients/rust_function"
RIC = servers.REPOSITORY / "target/peers/node/node_modules/aws-lambda-ric"
BUILD_SECONDS = 3600


@pytest.fixture(scope="session")
def rust_function():
    """The binary of a function on crates.io's lambda_runtime."""
    target = servers.REPOSITORY / "target/rust_function"
    command = ["cargo", "build", "--quiet", "--locked", "--target-dir", str(target)]
    subprocess.run(command, cwd=RUST, check=True, timeout=BUILD_SECONDS)
    return target / "debug/rust-function"


def a_rust_function_of_lambda_runtime_runs(apps, rust_function):
    """U1: the binary exactly as `cargo build` produces it."""
    shutil.copy(rust_function, apps.folder / "code/bootstrap")
    apps.function("rust", runtime="executable", handler="bootstrap", memory_mb=64, retries=1)
    apps.deploy()
    answer = apps.call("rust", {"n": 7, "text": "ä"})
    assert answer["event"] == {"n": 7, "text": "ä"} and (answer["name"], answer["memory"]) == ("rust", 64)
    again = apps.call("rust", {"n": 8})
    assert again["event"] == {"n": 8} and again["id"] != answer["id"]
    assert again["process"] == answer["process"], "one warm instance"
    failed = apps.call("rust", {"what": "fail"})
    assert "on purpose" in failed.message
    failed = apps.call("rust", {"what": "panic"})
    assert "on purpose" in failed.message
    assert apps.call("rust", {"n": 9})["event"] == {"n": 9}, "it goes on"
    assert any(line.startswith("printed 9") for line in apps.lines("rust"))


def the_clouds_own_node_client_runs_the_same_function(apps):
    """U1: npm's aws-lambda-ric where the code brings it; its native part speaks to the server, not our bootstrap."""
    if not (RIC / "dist/rapid-client.node").exists():
        pytest.skip("aws-lambda-ric is not built: scripts/install-node-runtime")
    brought = apps.folder / "code/node_modules/aws-lambda-ric"
    # Its build tools are not needed to run it.
    shutil.copytree(RIC, brought, ignore=shutil.ignore_patterns("deps", "build", "src", "node-addon-api", "scripts"))
    apps.file("app.mjs", """
        import { readFileSync } from "node:fs";
        export const handler = async (event, context) => {
          console.log("printed", event.n);
          if (event.fail) throw new TypeError("on purpose");
          const native = readFileSync("/proc/self/maps", "utf8").includes("rapid-client.node");
          return { event, native, id: context.awsRequestId, name: context.functionName, left: context.getRemainingTimeInMillis() };
        };
    """)
    apps.file("old.js", "exports.handler = (event, context, callback) => callback(null, { doubled: event.n * 2 });\n")
    apps.function("modern", runtime="node", handler="app.handler", memory_mb=256)
    apps.function("old", runtime="node", handler="old.handler", memory_mb=256)
    apps.deploy()
    answer = apps.call("modern", {"n": 1})
    assert answer["native"] and answer["event"] == {"n": 1} and answer["name"] == "modern"
    assert 0 < answer["left"] <= 30_000
    failed = apps.call("modern", {"fail": True})
    assert (failed.type, failed.message) == ("TypeError", "on purpose")
    again = apps.call("modern", {"n": 2})
    assert again["event"] == {"n": 2} and again["id"] != answer["id"]
    assert apps.call("old", {"n": 21}) == {"doubled": 42}
    assert any("printed 2" in line for line in apps.lines("modern"))
