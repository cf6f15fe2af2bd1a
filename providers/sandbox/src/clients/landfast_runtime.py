"""Runs a handler against the AWS Lambda Runtime API, with the standard library alone.

Usage: `landfast_runtime.main()` with the handler, `MODULE.FUNCTION`, as the one argument of the program. It is imported, not run, so
that its code is compiled once and not at each start; for the same reason modules that few invocations need are imported late.

Where the code brings awslambdaric, that is used instead: it is what the cloud runs. Otherwise this client does the same, answer by
answer and line by line; tests/clients/differential_python_test.py lists the differences and their reasons.

Code may replace any function of the standard library, and any stream. Nothing here may notice. The client therefore binds all that it
needs before it loads the code: functions of C modules, a socket without the class of the `socket` module, and its own built-ins.
"""

import builtins
import importlib
import importlib.machinery
import json
import os
import sys
import time

import _socket

# The functions below read this copy, so code that replaces a built-in changes nothing here.
__builtins__ = vars(builtins).copy()

_PREFIX = "/2018-06-01/runtime/"
_ERROR_BYTES_MAX = 256 * 1024
_MESSAGE_MAX = 32 * 1024
"""The characters that are kept of the message of a longer error."""
_FRAMES_ALIKE_MAX = 3
_GROUP = getattr(builtins, "BaseExceptionGroup", ())
"""Since Python 3.11."""

_fstat, _getpid, _putenv, _write = os.fstat, os.getpid, os.putenv, os.write
_Socket, _STREAM = _socket.socket, (_socket.AF_INET, _socket.SOCK_STREAM)
_NO_DELAY = (_socket.IPPROTO_TCP, _socket.TCP_NODELAY, 1)
_gmtime, _now, _strftime = time.gmtime, time.time, time.strftime
_variables = os.environ._data
"""The content of `os.environ`, in bytes. The methods of that object use built-ins that code may replace."""
_encoder, _escape = json.encoder.c_make_encoder, json.encoder.encode_basestring
_scan = json.JSONDecoder().scan_once

LOG_FORMAT, LOG_LEVEL = "TEXT", ""
REQUEST_ID = ""
"""The id of the present request, for libraries that derive names from it."""
PROCESS = 0
"""The process that handles it. A process forked from it inherits this number, and handles no request."""


class Ended(Exception):
    """The server is gone."""


class Connection:
    """HTTP/1.1 to the Runtime API, one request after the other.

    One connection stays open. `http.client` costs more than many a handler, so the few lines of HTTP are written here.

    The code may close the descriptor, as a daemon closes all that it inherits, and its own file may then get the number. So each
    request first looks whose descriptor it is, and goes over a new connection if it is no longer this one's.
    """

    def __init__(self, address):
        host, _, port = address.rpartition(":")
        self._host, self._address = address, (host, int(port))
        self._connect()
        self._next = ("GET %sinvocation/next HTTP/1.1\r\nHost: %s\r\n\r\n" % (_PREFIX, address)).encode()

    def next(self):
        """The next invocation: its headers by lower-case name, and its body."""
        headers, body = self._exchange(self._next)
        if "lambda-runtime-aws-request-id" not in headers:
            raise Ended()
        return headers, body

    def post(self, path, body):
        head = "POST %s%s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n" % (_PREFIX, path, self._host, len(body))
        self._exchange(head.encode() + body)

    def _connect(self):
        connected = _Socket(*_STREAM)
        # The code may have set a default.
        connected.settimeout(None)
        connected.connect(self._address)
        connected.setsockopt(*_NO_DELAY)
        self._connected, self._identity = connected, _identity(connected.fileno())
        self._send, self._receive = connected.sendall, connected.recv

    def _exchange(self, request):
        if _identity(self._connected.fileno()) != self._identity:
            # Its end must not close a file of the code.
            self._connected.detach()
            self._connect()
        self._send(request)
        head = self._more()
        while b"\r\n\r\n" not in head:
            head += self._more()
        head, _, body = head.partition(b"\r\n\r\n")
        headers = {}
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            headers[name.decode("latin-1").lower()] = value.strip().decode("utf-8", "replace")
        parts, missing = [body], int(headers.get("content-length", 0)) - len(body)
        while missing > 0:
            parts.append(self._more(min(missing, 1 << 20)))
            missing -= len(parts[-1])
        return headers, b"".join(parts)

    def _more(self, bytes_max=65536):
        received = self._receive(bytes_max)
        if not received:
            raise Ended()
        return received


def _identity(descriptor):
    """The file behind a descriptor. The kernel numbers sockets without repetition."""
    try:
        status = _fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


class Fault(Exception):
    """A failure with a name in Lambda, unlike an exception of the code."""

    def __init__(self, kind, message, trace=()):
        super().__init__(message)
        self.kind = kind
        self.trace = trace


class Given:
    """A JSON object from a client: the fields of its class, None for those that are absent."""

    __slots__ = ()

    def __init__(self, said):
        for field in self.__slots__:
            setattr(self, field, said.get(field))

    def __repr__(self):
        return _shown(self, self.__slots__)


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


class LambdaContext:
    """The facts of an invocation, for its handler: an ordinary object, which code may extend."""

    def __init__(self, headers):
        self.aws_request_id = headers.get("lambda-runtime-aws-request-id", "")
        self.log_group_name = _variable(b"AWS_LAMBDA_LOG_GROUP_NAME")
        self.log_stream_name = _variable(b"AWS_LAMBDA_LOG_STREAM_NAME")
        self.function_name = _variable(b"AWS_LAMBDA_FUNCTION_NAME")
        self.memory_limit_in_mb = _variable(b"AWS_LAMBDA_FUNCTION_MEMORY_SIZE")
        self.function_version = _variable(b"AWS_LAMBDA_FUNCTION_VERSION")
        self.invoked_function_arn = headers.get("lambda-runtime-invoked-function-arn", "")
        self.tenant_id = None
        said = headers.get("lambda-runtime-client-context")
        said = _parsed(said) if said else None
        self._w3c_fields = _tracing_fields(said)
        self.client_context = None if said is None else ClientContext(said)
        self.identity = CognitoIdentity({})
        self._epoch_deadline_time_in_ms = int(headers.get("lambda-runtime-deadline-ms", 0))

    def get_remaining_time_in_millis(self):
        """The time that is left to the invocation, in milliseconds."""
        return max(0, self._epoch_deadline_time_in_ms - int(_now() * 1000))

    def w3c(self):
        """The caller's trace context of the W3C."""
        return dict(self._w3c_fields)

    def log(self, msg):
        """Prints a line."""
        LogSink.log(str(msg))

    def __repr__(self):
        return _shown(self, (
            "aws_request_id", "log_group_name", "log_stream_name", "function_name", "memory_limit_in_mb",
            "function_version", "invoked_function_arn", "client_context", "identity", "tenant_id",
        ))


def _variable(name):
    value = _variables.get(name)
    return None if value is None else value.decode("utf-8", "surrogateescape")


def _shown(value, fields):
    return "%s([%s])" % (type(value).__name__, ",".join(["%s=%s" % (field, getattr(value, field)) for field in fields]))


def _tracing_fields(said):
    """Takes the trace context out of a client's context."""
    if not isinstance(said, dict):
        return {}
    given = said.pop("w3c", None)
    names = ("traceparent", "tracestate", "baggage") if isinstance(given, dict) else ()
    return {name: given[name] for name in names if isinstance(given.get(name), str)}


class LogSink:
    """The log of the function, under the names that libraries know from Lambda."""

    @staticmethod
    def log(msg, frame_type=None):
        """Writes a line, as Lambda's log has an entry for each call."""
        sys.stdout.write(msg if msg.endswith("\n") else msg + "\n")

    @staticmethod
    def log_error(message_lines):
        LogSink.log("\n".join(message_lines))


class LoggingFinder:
    """Sets up `logging` as Lambda does when the code has imported it, and before the code uses it. An import here would
    cost each cold start the milliseconds that `logging` takes."""

    _find_spec = importlib.machinery.PathFinder.find_spec

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        if name != "logging":
            return None
        spec = cls._find_spec(name, path, target)
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

    class LambdaLoggerHandler(logging.Handler):
        """As in Lambda, the present `sys.stdout` gets the records, and a record that cannot be formatted is the
        caller's error."""

        log_sink = LogSink

        def emit(self, record):
            self.log_sink.log(self.format(record))

    class LambdaLoggerFilter(logging.Filter):
        def filter(self, record):
            record.aws_request_id, record.tenant_id = REQUEST_ID, None
            return True

    # In Lambda too, this is the format of all formatters.
    logging.Formatter.converter = _gmtime
    handler, root = LambdaLoggerHandler(), logging.getLogger()
    if LOG_FORMAT == "JSON":
        handler.setFormatter(_json_formatter(logging)())
    else:
        line = "[%(levelname)s]\t%(asctime)s.%(msecs)03dZ\t%(aws_request_id)s\t%(message)s\n"
        handler.setFormatter(logging.Formatter(line, "%Y-%m-%dT%H:%M:%S"))
    if LOG_LEVEL in logging._nameToLevel:
        root.setLevel(LOG_LEVEL)
    handler.addFilter(LambdaLoggerFilter())
    root.addHandler(handler)


_JSON_TIME = "%Y-%m-%dT%H:%M:%SZ"
_RECORD_FIELDS = frozenset((
    "name", "msg", "args", "levelname", "levelno", "pathname", "filename", "module", "exc_info", "exc_text", "stack_info", "lineno",
    "funcName", "created", "msecs", "relativeCreated", "thread", "threadName", "processName", "process", "aws_request_id", "tenant_id",
    "_frame_type",
))
"""The fields of a record that are not the code's own."""


def _json_formatter(logging):
    """The class of the formatter of Lambda's JSON log format."""
    encode = json.JSONEncoder(ensure_ascii=False, default=str).encode

    class JsonFormatter(logging.Formatter):
        def __init__(self):
            super().__init__(datefmt=_JSON_TIME)

        def format(self, record):
            record.levelno = min(50, max(0, record.levelno)) // 10 * 10
            record.levelname = logging.getLevelName(record.levelno)
            error = record.exc_info
            said = {
                "timestamp": self.formatTime(record, self.datefmt),
                "level": record.levelname,
                "message": record.msg if isinstance(record.msg, dict) and not record.args else record.getMessage(),
                "logger": record.name,
                "stackTrace": logging.traceback.format_tb(error[2]) if error else None,
                "errorType": error[0].__name__ if error else None,
                "errorMessage": str(error[1]) if error else None,
                "requestId": getattr(record, "aws_request_id", None),
                "location": "%s:%s:%s" % (record.pathname, record.funcName, record.lineno) if error else None,
            }
            own = {name: value for name, value in vars(record).items() if name not in _RECORD_FIELDS and name not in said}
            said.update(own)
            return encode({name: value for name, value in said.items() if value is not None}) + "\n"

    return JsonFormatter


def failure(error):
    """An exception in the Runtime API's format."""
    if isinstance(error, Fault):
        kind, trace = error.kind, list(error.trace)
    else:
        kind, trace = type(error).__name__, _frames(error.__traceback__)
    return {
        "errorMessage": _message(error), "errorType": _printable(kind), "requestId": REQUEST_ID,
        "stackTrace": [_printable(frame) for frame in trace],
    }


def _message(error):
    try:
        return _printable(str(error))
    except Exception:  # As the interpreter prints it: the code may define this too.
        return "<exception str() failed>"


def _printable(text):
    """A text with lone surrogates escaped, which UTF-8 cannot encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def _frames(trace):
    """The frames of a traceback without those of this client, as `traceback.format_list` writes them. Code may replace
    that module, and few invocations need it."""
    own, sources = failure.__code__.co_filename, {}
    frames, last, alike = [], None, 0
    while trace is not None:
        frame, line = trace.tb_frame, trace.tb_lineno
        code, trace = frame.f_code, trace.tb_next
        if code.co_filename == own:
            continue
        present = (code.co_filename, line, code.co_name)
        if present != last:
            frames += _repeated(alike)
            last, alike = present, 0
        alike += 1
        if alike <= _FRAMES_ALIKE_MAX:
            source = _source_line(sources, frame, line)
            frames.append('  File "%s", line %s, in %s\n' % present + ("    %s\n" % source if source else ""))
    return frames + _repeated(alike)


def _repeated(alike):
    """Stands for the frames of a recursion that are left out."""
    more = alike - _FRAMES_ALIKE_MAX
    return ["  [Previous line repeated %d more time%s]\n" % (more, "s" if more > 1 else "")] if more > 0 else []


def _source_line(sources, frame, number):
    """A line of a frame's module; none: it cannot be read."""
    name = frame.f_code.co_filename
    if name not in sources:
        try:
            with open(name, "rb") as file:
                sources[name] = file.read().decode("utf-8", "replace").splitlines()
        except (OSError, ValueError):
            sources[name] = _source_of_loader(frame.f_globals)
    # As `<string>`: a file of that name is not its source.
    lines = () if name.startswith("<") else sources[name]
    return lines[number - 1].strip() if number and number <= len(lines) else ""


def _source_of_loader(module):
    """The lines of a module that is not a file, as in an archive."""
    try:
        return module["__loader__"].get_source(module["__name__"]).splitlines()
    except Exception:
        return []


def log_failure(said):
    """Writes an error to the log, whatever the code made of its streams."""
    if LOG_FORMAT == "JSON":
        record = {"timestamp": _strftime(_JSON_TIME, _gmtime(_now())), "level": "ERROR"}
        record.update(said)
        text = _encoded(record, ", ", ": ")
    else:
        parts = ["[ERROR] ", said["errorType"]]
        if said["errorMessage"]:
            parts += [": ", said["errorMessage"]]
        text = "".join(parts + ["\nTraceback (most recent call last):\n"] + said["stackTrace"])
    left = text.rstrip("\n").encode("utf-8", "backslashreplace") + b"\n"
    try:
        while left:
            left = left[_write(1, left):]
    except OSError:  # The code has closed it, or made it non-blocking.
        pass


def load(name):
    """The handler of this name. Errors: a fault, or an exception of its module."""
    try:
        module, function = name.rsplit(".", 1)
    except ValueError as error:
        raise Fault("Runtime.MalformedHandlerName", "Bad handler '%s': %s" % (name, error)) from None
    if module.partition(".")[0] in sys.builtin_module_names:
        raise Fault("Runtime.BuiltInModuleConflict", "Cannot use built-in module %s as a handler module" % module)
    try:
        loaded = importlib.import_module(module.replace("/", "."))
    except ImportError as error:
        raise Fault("Runtime.ImportModuleError", "Unable to import module '%s': %s" % (module, error)) from error
    except SyntaxError as error:
        trace = '  File "%s" Line %s\n    %s' % (error.filename, error.lineno, error.text)
        raise Fault("Runtime.UserCodeSyntaxError", "Syntax error in module '%s': %s" % (module, error), [trace]) from error
    try:
        return getattr(loaded, function)
    except AttributeError:
        raise Fault("Runtime.HandlerNotFound", "Handler '%s' missing on module '%s'" % (function, module)) from None


def serve(connection, handler):
    """Runs the handler for one invocation after the other, without end."""
    global REQUEST_ID, PROCESS
    while True:
        headers, body = connection.next()
        PROCESS = _getpid()
        REQUEST_ID = headers["lambda-runtime-aws-request-id"]
        trace = headers.get("lambda-runtime-trace-id", "").encode()
        _variables[b"_X_AMZN_TRACE_ID"] = trace
        _putenv(b"_X_AMZN_TRACE_ID", trace)
        invocation = "invocation/%s/" % REQUEST_ID
        try:
            event = unmarshal(body) if body else None
            answer = marshal(handler(event, LambdaContext(headers)))
        except Exception as error:
            report(connection, invocation + "error", error)
        except BaseException as error:
            # As in Lambda, one that is no `Exception` ends the process.
            interruption = _interruption_in(error)
            if interruption is None:
                raise
            report(connection, invocation + "error", interruption)
        else:
            connection.post(invocation + "response", answer)


def _interruption_in(error):
    """The exception of `landfast` that says why a run cannot go on: this one, or one in this group; None: there is none."""
    if isinstance(error, _GROUP):
        found = [_interruption_in(inner) for inner in error.exceptions]
        return next((inner for inner in found if inner is not None), None)
    is_one = not isinstance(error, Exception) and type(error).__module__.partition(".")[0] == "landfast"
    return error if is_one else None


def report(connection, path, error):
    """Logs an error and posts it."""
    said = failure(error)
    log_failure(said)
    body = _json_bytes(_encoded(said))
    if len(body) > _ERROR_BYTES_MAX:
        message = said["errorMessage"]
        if len(message) > _MESSAGE_MAX:
            size = len(message.encode())
            said["errorMessage"] = "%s... (the beginning of %d bytes)" % (message[:_MESSAGE_MAX], size)
        said["stackTrace"] = []
        body = _json_bytes(_encoded(said))
    connection.post(path, body)


def unmarshal(body):
    """The event in a request's body."""
    try:
        return _parsed(body.decode())
    except Exception as error:
        raise Fault("Runtime.UnmarshalError", "Unable to unmarshal input: %s" % error) from error


def _parsed(text):
    text = text.strip(" \t\r\n")
    try:
        value, end = _scan(text, 0)
    except StopIteration as stopped:
        raise ValueError("Expecting value: char %s" % stopped.value) from None
    if end != len(text):
        raise ValueError("Extra data: char %d" % end)
    return value


def marshal(result):
    """The result of a handler, as JSON. Bytes are taken for JSON."""
    if isinstance(result, bytes):
        return bytes(result)
    try:
        try:
            text = None if _encoder is None else _encoded(result)
        except TypeError:
            text = None
        if text is None or _has_record(result):
            text = _exact(result, set())
    except Exception as error:
        raise Fault("Runtime.MarshalError", "Unable to marshal response: %s" % _message(error)) from error
    return _json_bytes(text)


def _json_bytes(text):
    """JSON in UTF-8. A lone surrogate has no UTF-8 form, but is valid JSON when escaped."""
    return text.encode("utf-8", "backslashreplace")


def _encoded(value, between=",", colon=":"):
    """JSON of usual types. Errors: TypeError for any other one."""
    return "".join(_encoder({}, _refuse, _escape, None, colon, between, False, False, True)(value, 0))


def _refuse(value):
    raise TypeError("Object of type %s is not JSON serializable" % value.__class__.__name__)


_SCALARS = frozenset((str, int, float, bool, type(None)))


def _has_record(value):
    """Whether a value that has JSON holds a named tuple, whose JSON is an object: `json` makes it an array."""
    containers = [value]
    for container in containers:
        kind = type(container)
        if kind is dict:
            values = container.values()
        elif kind is list or kind is tuple:
            values = container
        elif hasattr(kind, "_asdict"):
            return True
        else:
            values = container.values() if isinstance(container, dict) else container if isinstance(container, (list, tuple)) else ()
        containers += [inner for inner in values if type(inner) not in _SCALARS]
    return False


def _exact(value, inside):
    """JSON as awslambdaric writes it: numbers of `decimal` with all their digits, bytes as text, named tuples as objects."""
    if isinstance(value, str):
        return _escape(value)
    if isinstance(value, bytes):
        return _escape(str(value, "utf-8"))
    if value is None or value is True or value is False or isinstance(value, (int, float)):
        return _scalar(value)
    if any(kind.__name__ == "Decimal" and kind.__module__ == "decimal" for kind in type(value).__mro__):
        return "NaN" if value.is_nan() else str(value)
    if id(value) in inside:
        raise ValueError("Circular reference detected")
    inside.add(id(value))
    plain = _plain(value)
    if isinstance(plain, dict):
        members = ["%s:%s" % (_escape(_key(name)), _exact(inner, inside)) for name, inner in plain.items()]
        text = "{%s}" % ",".join(members)
    elif isinstance(plain, (list, tuple)):
        text = "[%s]" % ",".join([_exact(inner, inside) for inner in plain])
    else:
        _refuse(value)
    inside.remove(id(value))
    return text


def _plain(value):
    """A record as a dict, anything else as it is."""
    as_dict = getattr(value, "_asdict", None)
    try:
        record = as_dict() if callable(as_dict) else value
    except TypeError:  # It is no method of a record, as on a class.
        return value
    if record is not value and not isinstance(record, dict):
        raise TypeError("_asdict() must return a dict, not %s" % type(record).__name__)
    return record


def _scalar(value):
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if value != value:
        return "NaN"
    return {float("inf"): "Infinity", float("-inf"): "-Infinity"}.get(value) or float.__repr__(value)


def _key(name):
    if isinstance(name, str):
        return name
    if isinstance(name, bytes):
        return str(name, "utf-8")
    if name is None or isinstance(name, (int, float)):
        return _scalar(name)
    raise TypeError("keys must be str, int, float, bool or None, not %s" % name.__class__.__name__)


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
    global LOG_FORMAT, LOG_LEVEL
    if len(sys.argv) == 1:
        _adopted(int(os.environ["LANDFAST_SPARE"]))
    name = sys.argv[1]
    os.environ.setdefault("AWS_EXECUTION_ENV", "AWS_Lambda_python%d.%d" % sys.version_info[:2])
    # The function's code comes first, then the bundled files.
    sys.path[:] = [os.environ["LAMBDA_TASK_ROOT"]] + [path for path in sys.path if path != sys.path[0]] + [sys.path[0]]
    if os.environ.get("LANDFAST_RUNTIME_CLIENT") != "landfast":
        _use_ric(name)
    # Libraries look for the program's file, and the interpreter has none for `-c`.
    sys.modules["__main__"].__file__ = sys.argv[0] = __file__
    connection = Connection(os.environ["AWS_LAMBDA_RUNTIME_API"])
    LOG_FORMAT, LOG_LEVEL = (os.environ.get("AWS_LAMBDA_LOG_" + name, "").upper() for name in ("FORMAT", "LEVEL"))
    LOG_LEVEL = "DEBUG" if LOG_LEVEL == "TRACE" else LOG_LEVEL
    if "logging" in sys.modules:
        set_up_logging(sys.modules["logging"])
    else:
        sys.meta_path.insert(0, LoggingFinder)
    failed = None
    try:
        handler = load(name)
    except Exception as error:
        failed = error
    if failed is not None:
        report(connection, "init/error", failed)
        sys.exit(1)
    try:
        serve(connection, handler)
    except (Ended, ConnectionError):
        pass
