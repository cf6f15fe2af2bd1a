"""Workflows whose runs are one transaction each, as real processes."""

import contextlib
import socket
import threading

import application


def an_atomic_run_lets_nothing_out_before_its_end(apps):
    """W3, W5: a call that would take effect elsewhere at once is refused, whatever the run's
    outcome.
    """
    apps.function("leaks", """
        import landfast

        def commits():
            with landfast.transaction() as transaction:
                transaction.put("leaked", b"1")

        LEAKS = {
            "commit": commits,
            "begin": lambda: landfast.runs("writes").run("leaked", id="leaked", wait=10),
            "cancel": lambda: landfast.runs("waits").cancel("w"),
            "externalize": landfast.externalize,
        }

        def handler(event, context):
            said = {}
            for name, leak in LEAKS.items():
                try:
                    leak()
                except landfast.Error as error:
                    said[name] = str(error)
            landfast.state().put("said", ",".join(said).encode())
            return said
    """, retries=0)
    apps.function("writes", """
        import landfast
        def handler(event, context):
            landfast.state().put(event, b"1")
    """, retries=0)
    apps.function("waits", "import time\ndef handler(event, context):\n    time.sleep(600)\n", timeout_s=900)
    apps.workflow("whole", 'steps = ["leaks"]\natomic = true')
    apps.workflow("writes", 'steps = ["writes"]')
    apps.workflow("waits", 'steps = ["waits"]')
    apps.deploy()
    assert apps.run("waits", None, "?id=w")[0] == 202
    answer = apps.run("whole")[1]
    assert answer["status"] == "succeeded", answer
    refused = answer["output"]
    assert sorted(refused) == ["begin", "cancel", "commit", "externalize"]
    assert all("an atomic run lets nothing out before its end" in said for said in refused.values()), refused
    assert (apps.value("leaked"), apps.value("said")) == (None, "commit,begin,cancel,externalize")
    assert apps.ask("GET", "/v1/workflows/writes/runs/leaked").status == 404
    assert apps.ask("DELETE", "/v1/workflows/waits/runs/w").document["status"] == "cancelled"


def an_atomic_run_whose_commit_is_refused_for_good_fails_once_and_says_why(apps):
    """W5: its steps do not run again in vain. In parallel they send more than a commit takes, which
    neither step can know.
    """
    with socket.create_server(("127.0.0.1", 0)) as meeting:
        threading.Thread(target=_let_two_go, args=(meeting,), daemon=True).start()
        for name in ("sends", "more"):
            apps.function(name, f"""
                import landfast, socket
                def meet():
                    with socket.create_connection(("127.0.0.1", {meeting.getsockname()[1]})) as met:
                        met.recv(1)
                def handler(event, context):
                    print("sent")
                    meet()
                    for _ in range(51):
                        landfast.send("takes", b"x")
                    meet()
            """, retries=0, network=True)
        apps.function("takes", "def handler(event, context):\n    raise ValueError('nothing leaves')\n", triggers=[{"queue": "takes"}])
        apps.workflow("whole", 'steps = [{ parallel = [["sends"], ["more"]] }]\natomic = true')
        apps.deploy()
        failed = apps.run("whole")[1]
    assert (failed["status"], failed["error"]["errorType"]) == ("failed", "Workflow.NotWritten"), failed
    assert [apps.lines(name).count("sent") for name in ("sends", "more")] == [1, 1]


def _let_two_go(meeting):
    """Makes each connection wait for a second one, as long as the socket is there."""
    with contextlib.suppress(OSError):
        while True:
            with meeting.accept()[0] as one, meeting.accept()[0] as another:
                one.sendall(b".")
                another.sendall(b".")


def atomic_runs_that_are_serializable_count_one_after_the_other(apps):
    """W10: a run is made anew after another client has written a key that the run has read."""
    apps.function("adds", """
        import landfast
        def handler(event, context):
            state = landfast.state()
            state.put("count", str(int(state.get("count") or b"0") + 1).encode())
    """, retries=0, concurrency=4)
    apps.workflow("counts", 'steps = ["adds"]\natomic = true\nisolation = "serializable"')
    apps.deploy()
    ended = application.at_once(*16 * [lambda: apps.run("counts", None, "?wait=60")[1]])
    assert [run["status"] for run in ended] == 16 * ["succeeded"], ended
    assert apps.value("count") == "16"
