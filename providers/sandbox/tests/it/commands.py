"""Does what it is told: the functions of the tests, and of the runtime's contract."""

import os
import subprocess
import sys
import time

INSTANCE = os.urandom(8).hex()
CALLS = 0
MEMORY = []


def _leave_a_child():
    """A process in a session of its own, whose parent has ended."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.setsid()
        child = os.fork()
        if child == 0:
            os.close(1)
            os.close(2)
            while True:
                time.sleep(100)
        os.write(write, b"%d" % child)
        os._exit(0)
    os.wait()
    return int(os.read(read, 20))


def _spin():
    """A process that never stands still by itself, and starts others."""
    if os.fork() == 0:
        while True:
            if os.fork() == 0:
                os._exit(0)
            os.wait()


def handler(event, context):
    global CALLS
    CALLS += 1
    what = event.get("do", "echo")
    if "print" in event:
        print(event["print"], flush=True)
    if "sleep" in event:
        time.sleep(event["sleep"])
    if what == "echo":
        return event.get("value")
    if what == "count":
        return CALLS
    if what == "id":
        return context.aws_request_id
    if what == "instance":
        return INSTANCE
    if what == "fail":
        raise ValueError(event.get("value"))
    if what == "exit":
        os._exit(event.get("value", 1))
    if what == "allocate":
        MEMORY.append(b"x" * event["value"])
        return "allocated"
    if what == "long":
        return "x" * event["value"]
    if what == "fork":
        return _leave_a_child()
    if what == "fork and exit":
        print("left", _leave_a_child(), flush=True)
        os._exit(0)
    if what == "spin":
        _spin()
        return os.getpid()
    if what == "child allocates":
        code = "x = b'x' * %d" % event["value"]
        return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode
    raise LookupError(what)
