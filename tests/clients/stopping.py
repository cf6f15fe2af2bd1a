"""Requests under way while a server stops."""

import signal
import threading

import botocore.exceptions

import waiting


class Asked:
    """A request in a thread of its own."""

    def __init__(self, ask):
        self.result = self.error = None
        self.thread = threading.Thread(target=self.run, args=(ask,), daemon=True)
        self.thread.start()

    def run(self, ask):
        try:
            self.result = ask()
        except Exception as error:
            self.error = error

    def answer(self):
        self.thread.join(waiting.GUARD_SECONDS)
        assert not self.thread.is_alive(), "there is no answer"
        return self.error or self.result


def begun(apps, name, times=1):
    waiting.until(lambda: apps.lines(name).count("begun") == times, f"{name} to be at work")


def begin_to_stop(apps):
    """Sends SIGTERM, and returns once the server has begun to stop."""
    apps.server.process.send_signal(signal.SIGTERM)
    waiting.until(lambda: apps.ask("GET", "/health/ready").status == 503, "the server to stop")


def refusal(error):
    """The status and the code of an error of boto3, and whether it is the function's."""
    assert isinstance(error, botocore.exceptions.ClientError), error
    metadata = error.response["ResponseMetadata"]
    is_of_function = "x-amz-function-error" in metadata["HTTPHeaders"]
    return metadata["HTTPStatusCode"], error.response["Error"]["Code"], is_of_function
