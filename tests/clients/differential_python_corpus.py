"""Handlers that need an instance of their own: they end it, replace parts of it, or fail at its start.

The folder `differential_python` has those that do not.
"""

import json
import textwrap
from dataclasses import dataclass, field


@dataclass
class Case:
    """A module and its calls."""

    text: str
    calls: int = 1
    """How often it is called, if there are no events."""
    events: tuple = ()
    """The events of its calls, as JSON."""
    handler: str = ""
    files: dict = field(default_factory=dict)
    environment: dict = field(default_factory=dict)


def each_call(*lines, result="'done'", before="", calls=2, **options):
    """A case whose every call runs these lines."""
    code = textwrap.indent("\n".join(lines), "    ")
    return Case(f"{before}\ndef handler(event, context):\n{code}\n    return {result}\n", calls, **options)


def first_call(*lines, before="", **options):
    """A case in which the first call of each instance runs these lines."""
    lines = ["global called", "called += 1", "if called == 1:", *("    " + line for line in lines)]
    return each_call(*lines, result="called", before=f"{before}\ncalled = 0", **options)


def at_import(*lines, **options):
    """A case whose module runs these lines when it is imported."""
    return Case("\n".join([*lines, "def handler(event, context):", "    return 'imported'"]) + "\n", **options)


ENDS = {
    "exits": first_call("sys.exit()", before="import sys"),
    "exits-with-zero": first_call("sys.exit(0)", before="import sys"),
    "exits-with-three": first_call("sys.exit(3)", before="import sys"),
    "exits-with-a-text": first_call("sys.exit('the reason')", before="import sys"),
    "exits-at-once": first_call("os._exit(7)", before="import os"),
    "exits-with-work-at-exit": first_call(
        "sys.exit(4)", before="import atexit, sys, threading\natexit.register(print, 'at exit')"
        "\nthreading.Thread(target=print, args=('of a thread',)).start()",
    ),
    "is-killed": first_call("os.kill(os.getpid(), 9)", before="import os"),
    "is-terminated": first_call("os.kill(os.getpid(), 15)", before="import os"),
    "is-interrupted": first_call("raise KeyboardInterrupt"),
    "raises-no-exception": first_call("raise Own('own')", before="class Own(BaseException):\n    pass"),
    "is-cancelled": first_call("raise asyncio.CancelledError", before="import asyncio"),
    "interrupts-a-run": first_call("raise landfast.RunInterrupted('the reason')", before="import landfast"),
    "interrupts-a-run-in-a-group": first_call(
        "raise BaseExceptionGroup('all', [ValueError('other'), BaseExceptionGroup('inner', [landfast.RunInterrupted('the reason')])])",
        before="import landfast",
    ),
    "ends-in-a-group": first_call(
        "sys.excepthook = lambda *seen: print('ended')", "raise BaseExceptionGroup('all', [KeyboardInterrupt()])", before="import sys",
    ),
    "raises-the-end-of-a-generator": first_call("raise GeneratorExit from ValueError('why')"),
}

STARTS = {
    "raises-at-import": at_import("import os", "def fail():", "    raise KeyError('at import')", "fail()"),
    "is-no-python": at_import("x = (1", "y = 2", calls=2),
    "has-a-null": Case("x = '\x00'\n"),
    "is-indented-wrongly": at_import("if True:", "x = 1"),
    "misses-a-module": at_import("import no_such_module"),
    "misses-a-name": at_import("from os import no_such_name"),
    "misses-a-module-deeper": at_import("import deeper", files={"deeper.py": "import no_such_module\n"}),
    "has-no-python-deeper": at_import("import wrong", files={"wrong.py": "x = = 1\n"}),
    "imports-itself-half": at_import("from half import b", files={"half.py": "import misses_b\nfrom other_half import b\n",
                                                                 "other_half.py": "from half import b\n", "misses_b.py": ""}),
    "raises-import-error": at_import("raise ImportError('own text')"),
    "exits-at-import": at_import("import sys", "sys.exit(5)"),
    "exits-at-import-with-zero": at_import("import sys", "print('printed')", "sys.exit(0)"),
    "is-interrupted-at-import": at_import("raise KeyboardInterrupt"),
    "logs-and-fails-at-import": at_import("import logging", "logging.warning('logged')", "print('printed')", "1 / 0"),
    "has-no-such-function": Case("x = 1\n"),
    "is-nowhere": Case("", handler="nowhere.handler"),
    "is-nowhere-deeper": Case("", handler="nowhere/deeper.handler"),
    "is-a-built-in-module": Case("", handler="sys.exit"),
    "is-in-a-package": Case("", handler="a/b/c.handler", files={
        "a/__init__.py": "", "a/b/__init__.py": "WORD = 'relative'\n",
        "a/b/c.py": "from . import WORD\nfrom ..b import WORD as again\ndef handler(event, context):\n    return [WORD, again, __name__]\n",
    }),
    "is-in-a-package-with-dots": Case("", handler="d.e.f.handler", files={
        "d/e/f.py": "def handler(event, context):\n    return [__name__, __package__, __file__]\n",
    }),
    "is-a-package": Case("", handler="g.handler", files={
        "g/__init__.py": "from .h import *\n", "g/h.py": "def handler(event, context):\n    return __name__\n",
    }),
    "imports-beyond-its-package": Case("", handler="i/j.handler", files={"i/j.py": "from ... import x\n"}),
    "is-a-number": Case("handler = 5\n", calls=2),
    "is-a-class": Case("class handler:\n    def __init__(self, event, context):\n        pass\n"),
    "is-a-callable-object": Case(
        "class Handler:\n    def __call__(self, event, context):\n        return 'called'\nhandler = Handler()\n"),
    "is-partial": Case("import functools\nhandler = functools.partial(lambda a, event, context: [a, event], 1)\n"),
    "takes-one-argument": Case("def handler(event):\n    return 1\n"),
    "is-given-late": Case("def __getattr__(name):\n    if name == 'handler':\n        return lambda event, context: 'late'\n"
                          "    raise AttributeError(name)\n"),
    "fails-to-be-given": Case("def __getattr__(name):\n    raise LookupError(name)\n"),
    "imports-by-name": at_import("import importlib", "importlib.import_module('imported_by_name')",
                                 "from imported_by_name import *", "assert value == 1", files={"imported_by_name.py": "value = 1\n"}),
    "imports-late": each_call("import imported_late", result="imported_late.value", files={"imported_late.py": "value = [__name__, __file__]\n"}),
    "logs-late": each_call("import logging", "logging.warning('late')"),
}

STREAMS = {
    "no-flush-of-stdout": each_call(
        "sys.stdout = Stream()", "print('written')", result="len(written)",
        before="import sys\nwritten = []\nclass Stream:\n    def write(self, text):\n        written.append(text)"),
    "no-stdout": each_call("sys.stdout = None", "print('lost')", before="import sys"),
    "closed-stdout": each_call("sys.stdout.close()", before="import sys"),
    "closed-stdout-printed-to": each_call("sys.stdout.close()", "print('lost')", before="import sys", calls=1),
    "failing-flush-of-stdout": each_call(
        "sys.stdout = Stream()", before="import io, sys\nclass Stream(io.StringIO):\n    def flush(self):\n        raise OSError('no flush')"),
    "failing-write-of-stdout": each_call(
        "sys.stdout = Stream()", before="import io, sys\nclass Stream(io.StringIO):\n    def write(self, text):\n        raise OSError('no write')"),
    "replaced-stdout": each_call("sys.stdout = io.StringIO()", "print('kept')", result="sys.stdout.getvalue()", before="import io, sys"),
    "detached-stdout": each_call(
        "if called == []:", "    sys.stdout = io.TextIOWrapper(sys.stdout.detach(), write_through=True)", "called.append(1)", "print('printed')",
        before="import io, sys\ncalled = []"),
    "no-descriptor-of-stdout": each_call("os.closerange(1, 2)", before="import os"),
    "closed-descriptors": each_call("os.closerange(3, 256)", before="import os", calls=3),
    "closed-descriptors-at-import": at_import("import os", "os.closerange(3, 256)", calls=2),
    "closed-descriptors-of-a-failure": each_call("os.closerange(3, 256)", "raise ValueError('on purpose')", before="import os"),
    "no-flush-of-stderr": each_call("sys.stderr = object()", before="import sys"),
    "no-stderr": each_call("sys.stderr = None", before="import sys"),
    "closed-stderr": each_call("sys.stderr.close()", before="import sys"),
    "failing-flush-of-stderr": each_call(
        "sys.stderr = Stream()", before="import io, sys\nclass Stream(io.StringIO):\n    def flush(self):\n        raise OSError('no flush')"),
    "no-stdout-of-a-failure": each_call("sys.stdout = None", "raise ValueError('without a stream')", before="import sys", calls=2),
    "replaced-stdout-of-a-failure": each_call("sys.stdout = io.StringIO()", "raise ValueError('in a text')", before="import io, sys"),
}

LOGS = {
    "logs-with-basic-config": each_call(
        "logging.info('info')", "logging.warning('warning')",
        before="import logging\nlogging.basicConfig(format='own %(message)s', level=logging.INFO)"),
    "logs-with-basic-config-forced": each_call(
        "logging.info('info')", before="import logging\nlogging.basicConfig(format='own %(message)s', level=logging.INFO, force=True)"),
    "logs-with-a-config": each_call(
        "logging.getLogger('shop').info('info')", "logging.warning('warning')", before=textwrap.dedent("""
            import logging.config
            logging.config.dictConfig({
                "version": 1, "disable_existing_loggers": False,
                "formatters": {"own": {"format": "%(name)s %(message)s"}},
                "handlers": {"own": {"class": "logging.StreamHandler", "formatter": "own", "stream": "ext://sys.stdout"}},
                "loggers": {"shop": {"handlers": ["own"], "level": "INFO", "propagate": False}},
            })
        """)),
    "logs-with-a-handler": each_call(
        "log.error('error')", before="import logging, sys\nlog = logging.getLogger('shop')\nlog.addHandler(logging.StreamHandler(sys.stdout))"),
    "logs-with-a-formatter": each_call(
        "logging.error('one')", "logging.error('two')", before="import logging\nfor each in logging.getLogger().handlers:\n"
        "    each.setFormatter(logging.Formatter('%(levelname)s %(aws_request_id)s %(message)s'))"),
    "logs-without-handlers": each_call("logging.getLogger('shop').error('error')", before="import logging\nlogging.getLogger().handlers.clear()"),
    "logs-at-a-level": each_call(
        "logging.debug('debug')", "logging.getLogger('shop').info('info')", before="import logging\nlogging.getLogger().setLevel('DEBUG')"),
    "logs-at-a-level-of-its-environment": each_call(
        "logging.info('info')", "logging.debug('debug')", before="import logging", environment={"AWS_LAMBDA_LOG_LEVEL": "INFO"}),
    "logs-json": each_call(
        "logging.info({'a': 1})", "logging.getLogger('shop').warning('é %s', 5, extra={'order': 17})", "try:", "    1 / 0",
        "except Exception:", "    logging.exception('failed')", "raise ValueError('on purpose')",
        before="import logging\nlogging.getLogger().setLevel('INFO')", environment={"AWS_LAMBDA_LOG_FORMAT": "JSON"}),
    "captures-warnings": each_call(
        "warnings.warn('captured')", before="import logging, warnings\nlogging.captureWarnings(True)", calls=1),
    "logs-times": each_call(
        "record = logging.makeLogRecord({'created': 0.0, 'msecs': 0.0, 'msg': 'm'})",
        result="logging.Formatter('%(asctime)s').format(record)", before="import logging"),
}

PATCHES = {
    "patches-json": each_call(
        "raise ValueError('on purpose')", before="import json, json.decoder, json.encoder\n"
        "json.dumps = json.loads = json.JSONEncoder.encode = json.JSONDecoder.decode = json.JSONEncoder.iterencode = None"),
    "patches-json-and-answers": each_call(
        result="{'a': [1, event]}", before="import json, json.decoder, json.encoder\n"
        "json.dumps = json.loads = json.JSONEncoder.encode = json.JSONDecoder.decode = json.encoder.c_make_encoder = None\n"
        "json.JSONDecoder.raw_decode = json.JSONEncoder.default = json.encoder.encode_basestring = None"),
    "patches-sockets": each_call(
        before="import socket\nfor name in ('send', 'sendall', 'recv', 'recv_into', 'close', 'makefile'):\n"
        "    setattr(socket.socket, name, None)\nsocket.socket = socket.create_connection = socket.SocketIO = None\nsocket.setdefaulttimeout(0.001)"),
    "patches-time": each_call(
        before="import time\ntime.time = lambda: 0\ntime.gmtime = time.strftime = time.time_ns = time.sleep = None"),
    "patches-os": each_call(
        "raise ValueError('on purpose')", before="import os\nos.getpid = os.write = os.read = os.getenv = None", calls=2),
    "patches-writing": first_call(
        "sys.stdout.write = lambda text: written.append(text)", "print('kept')", before="import sys\nwritten = []"),
    "patches-traceback": each_call(
        "raise ValueError('on purpose')", before="import linecache, traceback\nfor name in ('extract_tb', 'format_list', 'format_exception', "
        "'StackSummary', 'FrameSummary'):\n    setattr(traceback, name, None)\nlinecache.getline = linecache.checkcache = None"),
    "patches-built-ins": each_call(
        "raise ValueError('on purpose')", before="import builtins\nbuiltins.len = builtins.isinstance = builtins.open = builtins.max = None\n"
        "builtins.str = builtins.type = builtins.getattr = builtins.int = builtins.__import__ = None"),
    "patches-imports": each_call(
        "if called:", "    raise ValueError('on purpose')", "called.append(1)",
        before="import importlib, importlib.machinery, sys\ncalled = []\nimportlib.import_module = importlib.machinery.PathFinder = None\n"
        "sys.path[:] = []\nsys.meta_path[:] = []"),
    "clears-modules": first_call("sys.modules.clear()", before="import sys"),
    "clears-the-environment": each_call(
        result="[context.function_name, 'LAMBDA_TASK_ROOT' in os.environ]", before="import os\nos.environ.clear()"),
    "replaces-the-environment": each_call(result="1", before="import os\nos.environ = None"),
    "patches-logging": each_call(
        "logging.error('error')", before="import logging\nlogging.StreamHandler.emit = logging.Handler.handleError = None"),
    "handles-signals": each_call(
        "os.kill(os.getpid(), signal.SIGUSR1)", before="import os, signal\nsignal.signal(signal.SIGUSR1, lambda *_: print('signal'))"),
    "replaces-the-hook": first_call(
        "raise KeyboardInterrupt", before="import sys\nsys.excepthook = lambda kind, value, trace: print('hook', kind.__name__)"),
    "limits-recursion": each_call(result="[[[1]]]", before="import sys\nsys.setrecursionlimit(80)"),
    "disables-collection": each_call("gc.disable()", before="import gc"),
    "traces": each_call(before="import sys\nsys.setprofile(lambda *_: None)"),
    "changes-its-folder": each_call("os.chdir('/tmp')", "import imported_elsewhere", result="imported_elsewhere.value",
                                    before="import os", files={"imported_elsewhere.py": "value = 1\n"}),
    "forks": each_call(
        "with multiprocessing.get_context('fork').Pool(1) as pool:", "    return pool.map(abs, [-1])",
        before="import multiprocessing", calls=1),
    "runs-a-loop": each_call(
        "async def work():", "    await asyncio.sleep(0)", "    return 'worked'", result="asyncio.run(work())", before="import asyncio"),
}

EVENTS = {
    "gets-events": Case(
        "def handler(event, context):\n    return [type(event).__name__, repr(event)[:500], event]\n",
        events=(
            "null", "1", "-0", "1.0", "1e400", "12345678901234567890", '"text"', "true", "[]", "{}", ' \t\n{ "a" : [ 1 , 2.50 ] }\n ',
            '"é \u2028 \\u00e9 \\ud83d\\ude00 \\u0000"', '{"a": 1, "a": 2}', '{"": {"": null}}', "[" * 100 + "]" * 100, "9" * 4000,
            json.dumps({"long": "x" * 200_000}), json.dumps(list(range(20_000))), '"\\ud800"', "0.1000", "-1E-2", "",
        )),
    "adds-numbers": Case("def handler(event, context):\n    return event + 1\n", events=("1", "0.1", "9007199254740993", '"text"')),
}

CASES = {**EVENTS, **ENDS, **STARTS, **STREAMS, **LOGS, **PATCHES}
