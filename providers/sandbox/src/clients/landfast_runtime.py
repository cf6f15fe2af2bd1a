"""Runs a handler against the AWS Lambda Runtime API, with the standard library alone.

Usage: `landfast_runtime.main()` with the handler, `MODULE.FUNCTION`, as the one argument of the program. It is imported, not run, so
that its code is compiled once and not at each start; for the same reason what few invocations need is imported where they need it.

Where the code brings awslambdaric, that is used instead: it is what the cloud runs. Otherwise this speaks the same protocol
over one connection that stays open: http.client costs more than many a handler, so the few lines of HTTP are written here.
"""

import importlib
import importlib.machinery
import json
import os
import socket
import sys
import time

_PREFIX = "/2018-06-01/runtime/"

REQUEST_ID = ""
"""The request that is being handled, for libraries that derive names from it."""


class Ended(Exception):
    """Nobody is there any more."""


class Connection:
    """HTTP/1.1 to the Runtime API, one request after the other."""

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self._host = address
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rb", 65536)
        self._next = ("GET %sinvocation/next HTTP/1.1\r\nHost: %s\r\n\r\n" % (_PREFIX, address)).encode()

    def next(self):
        """The next invocation: its headers by lower-case name, and its body."""
        return self._exchange(self._next)

    def post(self, path, body, headers=()):
        head = ["POST %s%s HTTP/1.1" % (_PREFIX, path), "Host: " + self._host, "Content-Length: %d" % len(body)]
        head += ["%s: %s" % header for header in headers]
        self._exchange(("\r\n".join(head) + "\r\n\r\n").encode() + body)

    def _exchange(self, request):
        self._socket.sendall(request)
        line = self._file.readline()
        if not line:
            raise Ended()
        headers = {}
        while True:
            line = self._file.readline()
            if line in (b"\r\n", b""):
                break
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1").lower()] = value.strip().decode("utf-8", "replace")
        return headers, self._file.read(int(headers.get("content-length", 0)))


class CognitoIdentity:
    """Who called through a mobile client, if anybody did."""

    cognito_identity_id = None
    cognito_identity_pool_id = None


class Context:
    """What a handler is told about its invocation."""

    __slots__ = (
        "aws_request_id", "invoked_function_arn", "function_name", "function_version", "memory_limit_in_mb",
        "log_group_name", "log_stream_name", "identity", "client_context", "tenant_id", "_deadline_ms",
    )

    def __init__(self, headers):
        variables = os.environ
        self.aws_request_id = headers.get("lambda-runtime-aws-request-id", "")
        self.invoked_function_arn = headers.get("lambda-runtime-invoked-function-arn", "")
        self.function_name = variables.get("AWS_LAMBDA_FUNCTION_NAME", "")
        self.function_version = variables.get("AWS_LAMBDA_FUNCTION_VERSION", "")
        self.memory_limit_in_mb = variables.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "")
        self.log_group_name = variables.get("AWS_LAMBDA_LOG_GROUP_NAME", "")
        self.log_stream_name = variables.get("AWS_LAMBDA_LOG_STREAM_NAME", "")
        self.identity = CognitoIdentity
        self.tenant_id = None
        context = headers.get("lambda-runtime-client-context")
        self.client_context = json.loads(context) if context else None
        self._deadline_ms = int(headers.get("lambda-runtime-deadline-ms", 0))

    def get_remaining_time_in_millis(self):
        """How long the invocation may still take."""
        return max(0, self._deadline_ms - int(time.time() * 1000))

    def log(self, message):
        """Prints a line."""
        print(message)


def failure(error):
    """An exception as the Runtime API has it."""
    import traceback

    frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[1:])
    try:
        message = str(error)
    except Exception:
        message = "it does not say"
    frames = [_sendable(frame) for frame in frames]
    said = {"errorMessage": _sendable(message), "errorType": _sendable(type(error).__name__), "requestId": "", "stackTrace": frames}
    return said


def trace(error):
    """An exception as the interpreter prints it."""
    import traceback

    return _sendable("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def _sendable(text):
    """Half of a surrogate pair, which a string may hold, is in no UTF-8."""
    return text.encode("utf-8", "replace").decode()


def load(name):
    """The handler of this name. Errors: those of its import."""
    module, _, function = name.rpartition(".")
    if not module:
        raise ValueError("the handler %r is not of the form module.function" % name)
    return getattr(importlib.import_module(module.replace("/", ".")), function)


def serve(connection, handler):
    """Runs the handler for one invocation after the other, for ever."""
    global REQUEST_ID
    while True:
        headers, body = connection.next()
        REQUEST_ID = headers.get("lambda-runtime-aws-request-id", "")
        invocation = "invocation/%s/" % REQUEST_ID
        try:
            event = json.loads(body) if body else None
            result = handler(event, Context(headers))
            answer = json.dumps(result, ensure_ascii=False, separators=(",", ":"), default=_encode).encode()
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            said = failure(error)
            said["requestId"] = REQUEST_ID
            sys.stdout.write("[ERROR] %s\n" % trace(error))
            sys.stdout.flush()
            kind = (("Lambda-Runtime-Function-Error-Type", said["errorType"]),)
            connection.post(invocation + "error", json.dumps(said).encode(), kind)
            continue
        sys.stdout.flush()
        sys.stderr.flush()
        connection.post(invocation + "response", answer)


def _encode(value):
    """As awslambdaric does: numbers of decimal are numbers."""
    if type(value).__name__ == "Decimal":
        return float(value)
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


def _use_ric(name):
    """Hands over to the cloud's own client where the code or its interpreter brings it."""
    if importlib.machinery.PathFinder.find_spec("awslambdaric") is None:
        return
    import runpy

    sys.argv[:] = ["awslambdaric", name]
    runpy.run_module("awslambdaric", run_name="__main__", alter_sys=True)


def _adopted(descriptor):
    """Has imported what most handlers import, and waits to be told the program's last argument, its environment and its code."""
    usual = set(sys.modules)
    try:
        import landfast  # noqa: F401
    except Exception:  # An older Python cannot read it; the code may never ask for it.
        pass
    early = {name.partition(".")[0] for name in set(sys.modules) - usual}
    os.write(descriptor, b"R")
    told = b"".join(iter(lambda: os.read(descriptor, 65536), b""))
    if not told:
        os._exit(0)
    os.close(descriptor)
    command, _, variables = told.partition(b"\0\0")
    command = command.split(b"\0")
    os.environ.clear()
    for variable in variables.split(b"\0")[:-1]:
        name, _, value = variable.partition(b"=")
        os.environb[name] = value
    os.chdir(os.environ["LAMBDA_TASK_ROOT"])
    # What the code brings under the name of something that is imported already comes before that: an interpreter that has not is needed.
    if not early.isdisjoint(name.partition(".")[0] for name in os.listdir(".")):
        os.execv(command[0], command)
    handler = os.fsdecode(command[-1])
    sys.argv.append(handler)
    if hasattr(sys, "orig_argv"):  # Since 3.10.
        sys.orig_argv.append(handler)


def main():
    """Loads the handler, and serves. Without one it waits for it first."""
    if len(sys.argv) == 1:
        _adopted(int(os.environ["LANDFAST_SPARE"]))
    name = sys.argv[1]
    # The code first, what is carried along behind it.
    sys.path[:] = [os.environ["LAMBDA_TASK_ROOT"]] + [path for path in sys.path if path != sys.path[0]] + [sys.path[0]]
    if os.environ.get("LANDFAST_RUNTIME_CLIENT") != "landfast":
        _use_ric(name)
    connection = Connection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    try:
        handler = load(name)
    except BaseException as error:
        sys.stderr.write(trace(error))
        kind = "Runtime.ImportModuleError" if isinstance(error, ImportError) else "Runtime.HandlerNotFound"
        said = failure(error)
        said["errorType"] = kind
        connection.post("init/error", json.dumps(said).encode(), (("Lambda-Runtime-Function-Error-Type", kind),))
        sys.exit(1)
    try:
        serve(connection, handler)
    except (Ended, ConnectionError):
        pass
