"""Everything around a handler: its modules, arguments, variables, folder and streams."""

import logging
import os
import signal
import sys
import threading
import warnings

import dispatch

BEFORE = os.environ.get("_X_AMZN_TRACE_ID")


def arguments(event, context):
    return [os.path.isabs(sys.argv[0]) and os.path.isfile(sys.argv[0]), len(sys.argv), sys.argv[1]]


def the_main_module(event, context):
    main = sys.modules["__main__"]
    return [main.__name__, os.path.isfile(main.__file__)]


def paths(event, context):
    return sys.path


def names(event, context):
    return [__name__, __file__, __package__, __spec__.name, sys.modules[__name__].handler is handler]


def variables(event, context):
    others = ("_X_AMZN_TRACE_ID", "AWS_LAMBDA_RUNTIME_API", "LANDFAST_URL", "LANDFAST_RUNTIME_CLIENT")
    return [sorted(set(os.environ) - {"LANDFAST_RUNTIME_CLIENT"}), {name: value for name, value in os.environ.items() if name not in others}]


def no_trace_before_the_first_call(event, context):
    return BEFORE


def the_folder(event, context):
    return [os.getcwd(), sorted(os.listdir("."))[:3]]


def the_interpreter(event, context):
    return [sys.executable, sys.prefix, sys.flags[:], sys.getrecursionlimit(), sys.getswitchinterval(), sys.dont_write_bytecode]


def hooks(event, context):
    return [sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.gettrace(), sys.getprofile()]


def signals(event, context):
    return {str(number): str(signal.getsignal(number)) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)}


def streams(event, context):
    told = [[stream.encoding, stream.errors, stream.isatty(), stream.fileno(), stream.writable()] for stream in (sys.stdout, sys.stderr)]
    return [told, sys.stdin.read()]


def threads(event, context):
    return [threading.current_thread() is threading.main_thread(), [each.name for each in threading.enumerate()]]


def filters(event, context):
    return [str(each) for each in warnings.filters]


def the_root_logger(event, context):
    root = logging.getLogger()
    (handler,) = root.handlers
    told = [type(handler).__name__, handler.level, hasattr(handler, "log_sink"), [type(each).__name__ for each in handler.filters]]
    return [told, root.level, root.name, logging.root is root, handler.formatter._fmt, handler.formatter.datefmt]


def a_child(event, context):
    child = os.fork()
    if child == 0:
        print("from the child")
        os._exit(3)
    return os.waitpid(child, 0)[1]


handler = dispatch.handler_of(globals())
