"""Lines in the log, and streams that are replaced for the time of a call."""

import contextlib
import io
import logging
import os
import subprocess
import sys
import threading
import warnings

import dispatch

LEFT = threading.Event()
LEFT_BEHIND = []
log = logging.getLogger("shop")


def a_line(event, context):
    print("a line")


def several_lines(event, context):
    print("one", "two", sep="\n", end="\n\nthree\n")


def no_line_end(event, context):
    print("no line end", end="")


def other_line_ends(event, context):
    print("one\rtwo\x0bthree\x85four\u2028five")


def another_language(event, context):
    print("é ☃ 😀 \x1b[1m \x00")


def half_a_character(event, context):
    print("\udc80")


def the_other_stream(event, context):
    print("an error", file=sys.stderr)
    print("another error", file=sys.__stderr__)


def bytes_of_a_stream(event, context):
    sys.stdout.buffer.write(b"bytes \xff\n")
    os.write(1, b"more bytes\n")
    sys.stdout.writelines(["one\n", "two\n"])


def a_long_line(event, context):
    print("x" * 50_000)


def many_lines(event, context):
    for number in range(500):
        print("line", number)


def a_redirected_stream(event, context):
    held = io.StringIO()
    with contextlib.redirect_stdout(held):
        print("redirected")
        logging.warning("redirected too")
    return held.getvalue().count("redirected")


def a_redirected_stream_of_a_failure(event, context):
    with contextlib.redirect_stdout(io.StringIO()):
        raise ValueError("redirected")


def a_program(event, context):
    return subprocess.run(["/bin/echo", "from a program"]).returncode


def a_warning(event, context):
    warnings.warn("a warning")


def every_level(event, context):
    for level in ("debug", "info", "warning", "error", "critical"):
        getattr(logging, level)("a record of level %s", level)
    log.warning("of another logger")
    log.log(35, "of no named level")


def a_record_with_an_exception(event, context):
    try:
        raise ValueError("logged")
    except ValueError:
        logging.exception("an exception")


def a_record_with_a_stack(event, context):
    logging.getLogger("shop.cart").error("a stack", stack_info=False, extra={"order": 17})


def a_record_of_lines(event, context):
    logging.error("one\ntwo")


def a_record_that_is_no_text(event, context):
    logging.error({"a": 1})
    logging.error(None)


def a_record_with_wrong_arguments(event, context):
    logging.error("%d", "text")


def a_record_at_a_lower_level(event, context):
    log.setLevel(logging.INFO)
    log.info("now of the level")
    log.setLevel(logging.NOTSET)


def a_record_of_a_thread(event, context):
    thread = threading.Thread(target=lambda: logging.error("of a thread"))
    thread.start()
    thread.join()


def a_thread_that_is_left_behind(event, context):
    def wait():
        LEFT.wait()
        print("left behind")
        logging.error("left behind")

    LEFT_BEHIND.append(threading.Thread(target=wait, daemon=True))
    LEFT_BEHIND[0].start()


def a_thread_that_is_met_again(event, context):
    if not LEFT_BEHIND:  # Another instance took this call, since the first one was not back in time.
        a_thread_that_is_left_behind(event, context)
    LEFT.set()
    LEFT_BEHIND[0].join()


def a_thread_that_fails(event, context):
    def fail():
        raise ValueError("in a thread")

    thread = threading.Thread(target=fail, name="failing")
    thread.start()
    thread.join()


def a_thread_that_exits(event, context):
    thread = threading.Thread(target=sys.exit, args=(3,))
    thread.start()
    thread.join()
    return "it goes on"


handler = dispatch.handler_of(globals())
