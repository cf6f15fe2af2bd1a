"""Reads one key of the server at LANDFAST_URL over and over, interrupted once at each line that the client and `http.client` run."""

import gc
import http.client
import sys
from types import FrameType
from typing import Any, Optional

import landfast
from landfast import _connection

INTERRUPTED = (_connection.__file__, http.client.__file__)


class Interrupted(BaseException):
    """The exception of a signal's handler, between any two lines."""


class Countdown:
    """A trace function that raises at one of the lines."""

    def __init__(self, lines: int) -> None:
        self.left = lines

    def __call__(self, frame: FrameType, event: str, argument: Any) -> Optional["Countdown"]:
        # The collector, too, runs closing code, where exceptions have no effect.
        if frame.f_code.co_filename not in INTERRUPTED or frame.f_code.co_name in ("close", "flush"):
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                raise Interrupted
        return self


def read_interrupted_at(line: int) -> bool:
    """Whether there is such a line."""
    countdown = Countdown(line)
    sys.settrace(countdown)
    try:
        landfast.state().get("a")
    except Interrupted:
        pass
    finally:
        sys.settrace(None)
    gc.collect()
    return countdown.left == 0


if __name__ == "__main__":
    line = 1
    while read_interrupted_at(line):
        line += 1
    print(line)
