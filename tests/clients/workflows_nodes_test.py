"""Workflows without a far store of several processes on one Redis: one of them works on a run at a
time.
"""

import socket

import application
import pytest
import waiting
from several_processes import process, redis  # noqa: F401


class Gate:
    """A gate where steps wait until the test releases them."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0))
        self._listening.settimeout(waiting.GUARD_SECONDS)
        self.port = self._listening.getsockname()[1]

    def meet(self):
        """The connection of the next waiting step; the step goes on when it is closed."""
        return self._listening.accept()[0]

    def is_empty(self):
        self._listening.setblocking(False)
        try:
            self._listening.accept()
            return False
        except BlockingIOError:
            return True
        finally:
            self._listening.settimeout(waiting.GUARD_SECONDS)

    def close(self):
        self._listening.close()


@pytest.fixture
def gate():
    made = Gate()
    yield made
    made.close()


@pytest.fixture
def both(tmp_path, process, gate):
    """The application at two processes, each step of which adds one and waits at the gate."""
    running = [process(number) for number in (0, 1)]
    for one in running:
        one.start()
    apps = [application.Application(tmp_path / f"app-{place}", one) for place, one in enumerate(running)]
    apps[0].function("adds", f"""
        import landfast, socket
        def handler(run, context):
            state = landfast.state()
            state.put("n-" + run, str(int(state.get("n-" + run) or 0) + 1).encode())
            with socket.create_connection(("127.0.0.1", {gate.port})) as waits:
                waits.recv(1)
            state.put("late-" + run, b"1")
            return run
    """, retries=3, network=True, timeout_s=300)
    apps[0].workflow("near", 'steps = ["adds", "adds"]')
    apps[0].workflow("whole", 'steps = ["adds", "adds"]\natomic = true')
    apps[0].deploy()
    waiting.until(lambda: "adds" in apps[1].command("functions", "list").stdout, "it to be there")
    return apps


def a_run_is_ended_at_another_process_than_the_one_that_is_at_it(both, gate):
    """W6, W7."""
    there, elsewhere = both
    assert there.run("near", "x", "?id=x")[0] == 202
    step = gate.meet()
    ended = elsewhere.ask("DELETE", "/v1/workflows/near/runs/x")
    assert ended.document["status"] == "cancelled", ended
    step.close()
    # Meanwhile it would go on.
    assert there.run("near", "y", "?id=y")[0] == 202
    for _ in range(2):
        gate.meet().close()
    assert there.ask("GET", "/v1/workflows/near/runs/y?wait=100").document["status"] == "succeeded"
    for app in both:
        assert app.ask("GET", "/v1/workflows/near/runs/x").document["status"] == "cancelled"
        assert (app.value("n-x"), app.value("late-x")) == (None, None)
        assert app.ask("GET", "/v1/workflows/near/runs/x/steps").document["steps"] == []


def a_run_is_left_to_the_process_that_is_at_it(both, gate, process):
    """W4, W5: even if another process is asked to begin it too, or starts beside it."""
    assert both[0].run("whole", "x", "?id=x")[0] == 202
    first = gate.meet()
    assert both[1].run("whole", "x", "?id=x")[0] == 202
    process(2).start()
    assert gate.is_empty(), "another process is at it"
    first.close()
    gate.meet().close()
    answer = both[1].ask("GET", "/v1/workflows/whole/runs/x?wait=100").document
    assert answer["status"] == "succeeded", answer
    assert both[1].value("n-x") == "2"
    assert gate.is_empty(), "another process was at it"


@pytest.mark.parametrize("workflow", ["near", "whole"])
def the_run_of_a_process_that_was_killed_is_taken_up_by_another(both, gate, workflow):
    """W4: without a start of a process, and without a request."""
    there, elsewhere = both
    assert there.run(workflow, "x", "?id=x")[0] == 202
    gate.meet()
    there.server.kill()
    gate.meet().close()
    gate.meet().close()

    def has_succeeded():
        # An attempt that was taken for lost may come to the gate once more: this lets it pass.
        gate.is_empty()
        answer = elsewhere.ask("GET", f"/v1/workflows/{workflow}/runs/x?wait=5").document
        return answer["status"] == "succeeded"

    waiting.until(has_succeeded, "the run to be taken up and to succeed")
    assert elsewhere.value("n-x") == "2"
