"""The commands that a user types: their inputs, what they print, and what they say of an error."""

import json
import re

import waiting

INSTANT = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"
ECHO = "def handler(event, context):\n    return event\n"


def inputs_are_text_files_or_stdin(apps, tmp_path):
    apps.function("echo", ECHO)
    apps.workflow("echo", 'steps = ["echo"]')
    apps.deploy()
    file = tmp_path / "input.json"
    file.write_text('{"from": "file"}')
    for command, flag in ((["functions", "invoke"], "--payload"), (["workflows", "run"], "--input")):
        def answer(*input, **options):
            said = apps.command(*command, "echo", *input, **options)
            assert said.returncode == 0, said.stderr
            return json.loads(said.stdout)

        assert answer(flag, '{"from": "text"}') == {"from": "text"}
        assert answer(flag, f"@{file}") == {"from": "file"}
        assert answer(flag, f"file://{file}") == {"from": "file"}
        assert answer(flag, "@input.json", cwd=tmp_path) == {"from": "file"}
        assert answer(flag, "-", input='{"from": "stdin"}') == {"from": "stdin"}
        assert answer() == {}, "no input is an empty object"
        missing = apps.command(*command, "echo", flag, "@nowhere.json")
        assert missing.returncode == 1 and "nowhere.json cannot be read" in missing.stderr


def an_error_is_a_message_and_not_json(apps):
    apps.function("fails", "def handler(event, context):\n    raise KeyError('x')\n")
    apps.workflow("fails", 'steps = ["fails"]')
    apps.tables["fails"]["retries"] = 0
    apps.deploy()
    failed = apps.command("functions", "invoke", "fails")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr.startswith("landfast: the function failed: KeyError: 'x'\n")
    assert "fails.py" in failed.stderr and "{" not in failed.stderr, "with the place where it arose"
    whole = apps.command("functions", "invoke", "fails", "--json")
    assert whole.returncode == 1 and json.loads(whole.stdout)["errorType"] == "KeyError"

    for arguments, said in (
        (["functions", "invoke", "nobody"], "(ResourceNotFoundException)"),
        (["functions", "invoke", "fails", "--payload", "{no"], "(InvalidRequestContentException)"),
        (["functions", "logs", "nobody"], "(no-such-function)"),
        (["functions", "remove", "nobody"], "(no-such-application)"),
        (["workflows", "run", "nobody"], "(no-such-workflow)"),
        (["workflows", "run", "fails"], "fails failed: KeyError: 'x'"),
        (["state", "get", "nothing"], "(no-such-key)"),
        (["queues", "send", "nothing", "x"], "(no-such-queue)"),
        (["queues", "peek", "nothing"], "(no-such-queue)"),
        (["queues", "purge", "nothing"], "(no-such-queue)"),
    ):
        refused = apps.command(*arguments)
        assert (refused.returncode, refused.stdout) == (1, ""), arguments
        assert refused.stderr.startswith("landfast: ") and said in refused.stderr, (arguments, refused.stderr)
        assert "{" not in refused.stderr and len(refused.stderr.splitlines()) == 1, (arguments, refused.stderr)


def a_folder_is_deployed_by_its_manifest(apps):
    apps.function("echo", ECHO)
    apps.write()
    (apps.folder / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    deployed = apps.command("functions", "deploy", ".", cwd=apps.folder)
    assert deployed.returncode == 0 and deployed.stdout.startswith("deployed shop "), deployed.stderr
    assert apps.call("echo", {"n": 1}) == {"n": 1}
    (apps.folder / "app.toml").rename(apps.folder / "other.toml")
    assert apps.command("functions", "deploy", str(apps.folder)).returncode == 0, "it is the only one"
    none = apps.command("functions", "deploy", str(apps.folder / "code"))
    assert none.returncode == 1 and "the folder has no manifest" in none.stderr


def to_remove_a_function_names_its_application(apps):
    apps.function("echo", ECHO)
    apps.deploy()
    refused = apps.command("functions", "remove", "echo")
    assert refused.returncode == 1
    assert "echo is a function of the application shop" in refused.stderr and "landfast functions remove shop" in refused.stderr
    assert apps.call("echo", {"n": 1}) == {"n": 1}


def lines_of_a_log_are_selected(apps):
    """U5."""
    apps.function("prints", """
        def handler(event, context):
            for n in range(event["lines"]):
                print("line", event["call"], n)
            return context.aws_request_id
    """)
    apps.deploy()
    first, second = (apps.call("prints", {"call": call, "lines": 2000}) for call in (1, 2))

    def shown(*arguments):
        said = apps.command("functions", "logs", "prints", *arguments)
        assert said.returncode == 0, said.stderr
        return said.stdout.splitlines()

    everything = shown()
    assert all(re.match(rf"{INSTANT} \S+ ", line) for line in everything), everything[:3]
    printed = [line.split("line ")[1] for line in everything if " line " in line]
    assert printed == [f"{call} {n}" for call in (1, 2) for n in range(2000)]

    assert shown("--tail", "3") == everything[-3:]
    assert shown("--tail", "100000") == everything
    of_first = shown("--request", first)
    assert [line.split("line ")[1] for line in of_first if " line " in line] == [f"1 {n}" for n in range(2000)]
    assert all(f" {first[:8]} " in line for line in of_first)
    assert shown("--request", first, "--tail", "1") == of_first[-1:]
    assert shown("--request", "nobody") == []
    assert shown("--since", "1h") == everything and shown("--since", "0s") == []
    ids = {json.loads(line)["id"] for line in shown("--request", second, "--json")}
    assert ids == {second}
    for arguments in (["--since", "5"], ["--since", "-5m"], ["--tail", "0"], ["--tail", "x"]):
        assert apps.command("functions", "logs", "prints", *arguments).returncode == 2, arguments


def a_page_of_a_log_without_selected_lines_is_not_its_end(apps):
    """U5: `next` tells the end."""
    apps.function("prints", """
        def handler(event, context):
            for n in range(event["lines"]):
                print(n)
            return context.aws_request_id
    """)
    apps.deploy()
    apps.call("prints", {"lines": 70_000})
    last = apps.call("prints", {"lines": 1})
    answer = apps.ask("GET", f"/v1/functions/prints/logs?request={last}").document
    assert answer["lines"] == [] and 0 < answer["next"] < 70_000, "so many lines are passed at once"
    said = apps.command("functions", "logs", "prints", "--request", last, "--json")
    assert [json.loads(line)["text"].split()[0] for line in said.stdout.splitlines()] == ["START", "0", "END", "REPORT"]


def the_log_of_one_invocation_is_followed(apps, stays):
    """U5."""
    apps.function("gated", """
        import landfast, time
        def handler(event, context):
            print("begun", flush=True)
            while landfast.state().get("gate") is None:
                time.sleep(0.05)
            print("over")
    """, timeout_s=600)
    apps.function("echo", ECHO)
    apps.deploy()
    request = apps.client().invoke(FunctionName="gated", InvocationType="Event", Payload=b"{}")["ResponseMetadata"]["RequestId"]
    waiting.until(lambda: "begun" in apps.lines("gated"), "the invocation to be at work")
    seen = stays("functions", "logs", "gated", "--follow", "--request", request, "--tail", "1")
    waiting.until(lambda: [line.split()[-1] for line in seen] == ["begun"], "its last line")
    assert apps.command("state", "put", "gate", "open").returncode == 0
    waiting.until(lambda: any(" REPORT " in line for line in seen), "the end of it")
    assert [line.split()[2] for line in seen] == ["begun", "over", "END", "REPORT"]


def plain_state_is_read_and_written(apps, tmp_path):
    def run(*arguments, **options):
        said = apps.command("state", *arguments, **options)
        assert said.returncode == 0, said.stderr
        return said.stdout

    assert run("put", "orders/17", "paid") == ""
    assert run("get", "orders/17") == "paid", "byte for byte"
    assert apps.value("orders%2F17") == "paid"
    file = tmp_path / "value"
    file.write_bytes(bytes(range(256)))
    run("put", "bytes", f"@{file}")
    assert apps.ask("GET", "/v1/state/bytes").body == bytes(range(256))
    run("put", "orders/18", "-", input="from stdin")
    assert run("get", "orders/18") == "from stdin"
    assert run("list") == "       256  bytes\n         4  orders/17\n        10  orders/18\n"
    assert run("list", "orders/") == "         4  orders/17\n        10  orders/18\n"
    (listed,) = [json.loads(line) for line in run("list", "by", "--json").splitlines()]
    assert (listed["key"], listed["bytes"]) == ("bytes", 256)
    run("delete", "orders/17")
    assert apps.command("state", "get", "orders/17").returncode == 1
    run("delete", "orders/17")


def any_text_is_a_value_or_a_message(apps):
    apps.function("takes", "def handler(event, context):\n    raise KeyError\n", triggers=[{"queue": "orders"}])
    apps.deploy()
    for text, raw in (("@ann", True), ("file:///etc/hostname", True), ("-", True), ("-5", False), ("--no", False), ("-5", True)):
        options = ["--raw"] if raw else []
        for command in (["state", "put", "key"], ["queues", "send", "orders", "--group", "a"]):
            for order in ([*options, text], [text, *options]):
                said = apps.command(*command, *order)
                assert said.returncode == 0, (command, order, said.stderr)
        assert apps.command("state", "get", "key").stdout == text
    shown = [json.loads(line) for line in apps.command("queues", "peek", "orders", "--json").stdout.splitlines()]
    assert {message["body"] for message in shown} <= {"@ann", "file:///etc/hostname", "-", "-5", "--no"} and shown
    missing = apps.command("state", "put", "key", "@ann")
    assert missing.returncode == 1 and "ann cannot be read" in missing.stderr
    assert apps.command("functions", "invoke", "takes", "--payload", "-5").stderr.startswith("landfast: the function failed: KeyError")
    for command in (["state", "put"], ["queues", "send"]):
        help = apps.command(*command, "--help").stdout
        assert "@FILE" in help and "--raw" in help, help
    help = apps.command("queues", "list", "--help").stdout
    assert "Once that function is removed, the queue is not listed" in " ".join(help.split()), help


def the_first_serializable_transaction_shows_in_the_status(apps):
    """T-3."""
    def sequenced():
        said = apps.command("status").stdout
        return "sequenced     yes, permanently" in said

    assert apps.command("state", "put", "a", "1").returncode == 0
    assert not sequenced()
    assert apps.ask("GET", "/v1/status").document["transactions"]["sequenced_keyspaces"] == 0
    begun = apps.ask("POST", "/v1/transactions", b'{"isolation": "serializable"}')
    assert begun.status == 201 and sequenced()
    apps.server.stop()
    apps.server.start()
    assert sequenced() and apps.ask("GET", "/v1/status").document["transactions"]["sequenced_keyspaces"] == 1
    assert "transactions_sequenced_keyspaces 1" in apps.ask("GET", "/metrics").body.decode()


def more_keys_than_a_page_are_listed(apps):
    transaction = apps.ask("POST", "/v1/transactions").document["id"]
    for number in range(1001):
        assert apps.ask("PUT", f"/v1/transactions/{transaction}/keys/k{number:04}", b"x").status == 204
    assert apps.ask("POST", f"/v1/transactions/{transaction}/commit").status == 200
    said = apps.command("state", "list", "k")
    assert [line.split()[-1] for line in said.stdout.splitlines()] == [f"k{number:04}" for number in range(1001)]


def queues_are_listed_filled_and_emptied(apps):
    """A4, A8."""
    apps.function("takes", """
        import landfast, time
        def handler(event, context):
            print("took", event["Records"][0]["body"], flush=True)
            while landfast.state().get("gate") is None:
                time.sleep(0.05)
    """, concurrency=1, timeout_s=600, triggers=[{"queue": "orders", "batch": 1}])
    apps.function("other", ECHO, triggers=[{"queue": "bills"}])
    apps.deploy()

    def run(*arguments, **options):
        said = apps.command("queues", *arguments, **options)
        assert said.returncode == 0, said.stderr
        return said.stdout

    assert run("send", "orders", "first", "--group", "a") == ""
    waiting.until(lambda: "took first" in apps.lines("takes"), "the function to have the first message")
    run("send", "orders", "-", "--group", "a", input="second")
    for number in range(30):
        run("send", "orders", f"more {number}", "--group", f"g{number % 3}")
    listed = [json.loads(line) for line in run("list", "--json").splitlines()]
    assert [(queue["queue"], queue["function"], queue["application"], queue["messages"]) for queue in listed] == [
        ("bills", "other", "shop", 0), ("orders", "takes", "shop", 32),
    ]
    assert "orders" in run("list").splitlines()[1] and "32 waiting" in run("list").splitlines()[1]
    shown = [json.loads(line) for line in run("peek", "orders", "--json").splitlines()]
    assert len(shown) == 10 and [(message["body"], message["attempts"]) for message in shown if message["group"] == "a"] == [
        ("first", 1), ("second", 0),
    ]
    assert "    second\n" in run("peek", "orders")
    assert json.loads(run("purge", "orders", "--json"))["purged"] == 30, "one is with the function, and one waits behind it"
    apps.command("state", "put", "gate", "open")
    waiting.until(lambda: "took second" in apps.lines("takes"), "what it had is done, and the next of its group")
    waiting.until(lambda: json.loads(run("list", "--json").splitlines()[1])["messages"] == 0, "the queue to be empty")
    assert not [line for line in apps.lines("takes") if "more" in line]
    assert run("purge", "orders") == "removed: 0\n"
    for method, path in (("GET", "/v1/queues?x=1"), ("DELETE", "/v1/queues/orders/messages?x=1"), ("DELETE", "/v1/queues/nothing/messages")):
        assert apps.ask(method, path).status in (400, 404), path
    longest = "x" * 262_144
    run("send", "bills", "-", input=longest)
    refused = apps.command("queues", "send", "bills", "-", input=longest + "x")
    assert refused.returncode == 1 and "262144" in refused.stderr, refused.stderr


def open_transactions_are_listed(apps):
    assert apps.command("transactions", "list").stdout == ""
    begun = json.dumps({"id": "rent/may", "isolation": "serializable"}).encode()
    assert apps.ask("POST", "/v1/transactions", begun).status == 201
    other = apps.ask("POST", "/v1/transactions").document["id"]
    apps.ask("PUT", f"/v1/transactions/{other}/keys/a", b"1")
    first, second = [json.loads(line) for line in apps.command("transactions", "list", "--json").stdout.splitlines()]
    assert (first["id"], first["status"], first["isolation"], first["writes"]) == ("rent%2Fmay", "open", "serializable", 0)
    assert (second["id"], second["isolation"], second["writes"]) == (other, "read-atomic", 1)
    assert other in apps.command("transactions", "list").stdout
    for id in ("rent%2Fmay", other):
        assert apps.ask("DELETE", f"/v1/transactions/{id}").status == 204
    assert apps.command("transactions", "list").stdout == ""


def completions_have_every_command(apps):
    script = apps.command("completions", "bash").stdout
    for words in ("landfast__state__put", "landfast__queues__purge", "landfast__transactions__list"):
        assert re.sub("subcmd__", "", script).count(words), words
    assert "--dry-run" in script and "--since" in script
