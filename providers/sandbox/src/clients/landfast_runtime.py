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
"""The id of the present request, for libraries that derive names from it."""
PROCESS = 0
"""The process that handles it. A process forked from it inherits this number, and handles no request."""


class Ended(Exception):
    """The server is gone."""


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


class Fault(Exception):
    """A failure with a name in Lambda, unlike an exception of the code."""

    def __init__(self, kind, message):
        super().__init__(message)
        self.kind = kind


class Given:
    """A JSON object from a client: the fields of its class, None for those that are absent."""

    __slots__ = ()

    def __init__(self, said):
        for field in self.__slots__:
            setattr(self, field, said.get(field))


class CognitoIdentity(Given):
    """The identity of a mobile client's caller, if there is one."""

    __slots__ = ("cognito_identity_id", "cognito_identity_pool_id")


class Client(Given):
    """The application that called."""

    __slots__ = ("installation_id", "app_title", "app_version_name", "app_version_code", "app_package_name")


class ClientContext(Given):
    """The caller's own description."""

    __slots__ = ("custom", "env", "client")

    def __init__(self, said):
        super().__init__(said)
        self.client = None if self.client is None else Client(self.client)


class Context:
    """The facts of an invocation, for its handler."""

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
        self.identity = CognitoIdentity({})
        self.tenant_id = None
        context = headers.get("lambda-runtime-client-context")
        self.client_context = ClientContext(json.loads(context)) if context else None
        self._deadline_ms = int(headers.get("lambda-runtime-deadline-ms", 0))

    def get_remaining_time_in_millis(self):
        """The time that is left to the invocation, in milliseconds."""
        return max(0, self._deadline_ms - int(time.time() * 1000))

    def log(self, message):
        """Prints a line."""
        print(message)


class LoggingFinder:
    """Sets up `logging` as Lambda does when the code has imported it, and before the code uses it. An import here would
    cost each cold start the milliseconds that `logging` takes."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "logging":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def exec_module(module):
                execute(module)
                set_up_logging(module)

            spec.loader.exec_module = exec_module
        return spec


def set_up_logging(logging):
    """Lets the root logger write its records with the time and the request, unless the code has its own module of this
    name."""
    if not hasattr(logging, "StreamHandler"):
        return
    # In Lambda too, this is the format of all formatters.
    logging.Formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stdout)
    line = "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s"
    handler.setFormatter(logging.Formatter(line, "%Y-%m-%dT%H:%M:%S"))
    handler.addFilter(_name_request)
    logging.getLogger().addHandler(handler)


def _name_request(record):
    record.aws_request_id = REQUEST_ID
    return True


def failure(error):
    """An exception in the Runtime API's format."""
    import traceback

    kind, frames = type(error).__name__, []
    if isinstance(error, Fault):
        kind = error.kind
    else:
        frames = traceback.format_list(traceback.extract_tb(error.__traceback__)[1:])
    return {
        "errorMessage": _message(error), "errorType": kind, "requestId": REQUEST_ID,
        "stackTrace": [_printable(frame) for frame in frames],
    }


def _message(error):
    try:
        return _printable(str(error))
    except Exception:  # As the interpreter prints it: the code may define this too.
        return "<exception str() failed>"


def trace(error):
    """An exception as the interpreter prints it."""
    import traceback

    return _printable("".join(traceback.format_exception(type(error), error, error.__traceback__)))


def _printable(text):
    """A text with lone surrogates escaped, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def load(name):
    """The handler of this name. Errors: a fault, or an exception of its module."""
    module, _, function = name.rpartition(".")
    if not module:
        raise Fault("Runtime.MalformedHandlerName", "Bad handler '%s': it is to be module.function" % name)
    try:
        loaded = importlib.import_module(module.replace("/", "."))
    except ImportError as error:
        raise Fault("Runtime.ImportModuleError", "Unable to import module '%s': %s" % (module, error)) from error
    except SyntaxError as error:
        raise Fault("Runtime.UserCodeSyntaxError", "Syntax error in module '%s': %s" % (module, error)) from error
    try:
        return getattr(loaded, function)
    except AttributeError:
        raise Fault("Runtime.HandlerNotFound", "Handler '%s' missing on module '%s'" % (function, module)) from None


def serve(connection, handler):
    """Runs the handler for one invocation after the other, without end."""
    global REQUEST_ID, PROCESS
    while True:
        headers, body = connection.next()
        PROCESS = os.getpid()
        REQUEST_ID = headers.get("lambda-runtime-aws-request-id", "")
        invocation = "invocation/%s/" % REQUEST_ID
        try:
            event = json.loads(body) if body else None
            answer = marshal(handler(event, Context(headers)))
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            sys.stdout.write("[ERROR] %s\n" % trace(error))
            sys.stdout.flush()
            post_failure(connection, invocation + "error", error)
            continue
        sys.stdout.flush()
        sys.stderr.flush()
        connection.post(invocation + "response", answer)


def post_failure(connection, path, error):
    """Reports an error."""
    said = failure(error)
    connection.post(path, json.dumps(said).encode(), (("Lambda-Runtime-Function-Error-Type", said["errorType"]),))


def marshal(result):
    """The result of a handler, as JSON."""
    try:
        said = json.dumps(result, ensure_ascii=False, separators=(",", ":"), default=_encode)
        try:
            return said.encode()
        except UnicodeEncodeError:
            # A lone surrogate has no UTF-8 form, but is valid JSON when escaped.
            return json.dumps(result, separators=(",", ":"), default=_encode).encode()
    except Exception as error:
        raise Fault("Runtime.MarshalError", "Unable to marshal response: %s" % _message(error)) from error


def _encode(value):
    """As in awslambdaric, numbers of `decimal` become numbers."""
    if type(value).__name__ == "Decimal":
        return float(value)
    raise TypeError("Object of type %s is not JSON serializable" % type(value).__name__)


def _use_ric(name):
    """Uses the cloud's own client if the code or its interpreter has it."""
    if importlib.machinery.PathFinder.find_spec("awslambdaric") is None:
        return
    import runpy

    sys.argv[:] = ["awslambdaric", name]
    runpy.run_module("awslambdaric", run_name="__main__", alter_sys=True)


def _adopted(descriptor):
    """Imports the modules that most handlers need, and waits for the handler, its environment and its code."""
    usual = set(sys.modules)
    try:
        import landfast  # noqa: F401
    except Exception:  # An older Python cannot parse it, and the code may never need it.
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
    # A module of the code must come before an already imported one of the same name, so a new interpreter is needed.
    if not early.isdisjoint(name.partition(".")[0] for name in os.listdir(".")):
        os.execv(command[0], command)
    handler = os.fsdecode(command[-1])
    sys.argv.append(handler)
    if hasattr(sys, "orig_argv"):  # Since 3.10.
        sys.orig_argv.append(handler)


def main():
    """Loads the handler and serves it. Without a handler it first waits for one."""
    if len(sys.argv) == 1:
        _adopted(int(os.environ["LANDFAST_SPARE"]))
    name = sys.argv[1]
    os.environ.setdefault("AWS_EXECUTION_ENV", "AWS_Lambda_python%d.%d" % sys.version_info[:2])
    # The function's code comes first, then the bundled files.
    sys.path[:] = [os.environ["LAMBDA_TASK_ROOT"]] + [path for path in sys.path if path != sys.path[0]] + [sys.path[0]]
    if os.environ.get("LANDFAST_RUNTIME_CLIENT") != "landfast":
        _use_ric(name)
    connection = Connection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    if "logging" in sys.modules:
        set_up_logging(sys.modules["logging"])
    else:
        sys.meta_path.insert(0, LoggingFinder)
    try:
        handler = load(name)
    except BaseException as error:
        sys.stderr.write(trace(error.__cause__ if isinstance(error, Fault) and error.__cause__ else error))
        post_failure(connection, "init/error", error)
        sys.exit(1)
    try:
        serve(connection, handler)
    except (Ended, ConnectionError):
        pass
