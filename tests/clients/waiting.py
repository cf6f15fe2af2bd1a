"""Waiting for a condition: the only way a test here lets time pass."""

import threading
import time

POLL_SECONDS = 0.01
# Only a test that hangs reaches it. No test asserts by it that something is fast.
GUARD_SECONDS = 120


def until(condition, what, seconds=GUARD_SECONDS):
    """The first true value of `condition()`; fails naming `what` if there is none in time."""
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds} s in vain for {what}")
        pause.wait(POLL_SECONDS)


def together(*calls, seconds=GUARD_SECONDS):
    """Runs calls in threads of their own and returns their results once all have ended."""
    results = [None] * len(calls)
    failures = []

    def run(index, call):
        try:
            results[index] = call()
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(calls)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds)
        assert not thread.is_alive(), f"a call did not return within {seconds} s"
    if failures:
        raise failures[0]
    return results
