"""Transcripts of functions: their answers and their logs as lines of text, in which only real differences remain."""

import base64
import json
import re
from dataclasses import dataclass

OURS, THEIRS = "ours", "theirs"
CLIENTS = (OURS, THEIRS)

OF_CLIENT = re.compile(r'^\s*File "([^"]*/landfast_runtime\.py|[^"]*/awslambdaric/[^"]*|[^"]*/simplejson/[^"]*|<string>|<frozen runpy>)", line ')
"""The beginning of a frame of a client, or of its start."""
REQUEST = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}")
DEPTH = re.compile(r"repeated \d{3,} more")
"""The depth at which the stack was full. Each client has frames of its own below."""
SERVERS_OWN = re.compile(r"(START|END) RequestId: ")
REPORT = re.compile(r"REPORT RequestId: .*?(\tStatus: .*)?$")


@dataclass
class Call:
    """An answered call."""

    request: str
    has_failed: bool
    payload: bytes


class Function:
    """One function under one client."""

    def __init__(self, apps, case, client):
        self.apps = apps
        self.name = f"{case}-{client}"
        self.client = apps.client()

    def call(self, event, **options):
        answer = self.client.invoke(FunctionName=self.name, Payload=event, **options)
        request = answer["ResponseMetadata"]["HTTPHeaders"]["x-amzn-requestid"]
        return Call(request, "FunctionError" in answer, answer["Payload"].read())

    def log(self):
        """All lines of its log."""
        lines, first = [], 0
        while True:
            page = self.apps.ask("GET", f"/v1/functions/{self.name}/logs?from={first}").document
            if not page["lines"]:
                return lines
            lines += page["lines"]
            first = page["next"]

    def transcript(self, calls, lines):
        """The calls and the lines of the log as text."""
        lines = printed("\n".join(line["text"] for line in lines))
        # The two streams of a process have no order between them.
        return [self.alike(line) for call in calls for line in answered(call)] + sorted(map(self.alike, lines))

    def alike(self, line):
        """A line without the names of the function and of requests, and the depth of the stack."""
        line = DEPTH.sub("repeated MANY more", REQUEST.sub("REQUEST", line))
        return line.replace(self.name, "NAME")


def with_context(context):
    """The option of a call that sends a client's context."""
    return {"ClientContext": base64.b64encode(json.dumps(context).encode()).decode()}


def answered(call):
    """An answer: JSON with its numbers digit by digit, or bytes."""
    try:
        document = json.loads(call.payload, parse_float=Digits, parse_int=Digits, parse_constant=Digits, object_pairs_hook=Members)
    except ValueError:
        return [f"{'failed' if call.has_failed else 'answered'}: {call.payload!r}"]
    if not call.has_failed:
        return [f"answered: {written(document)}"]
    document = Members((name, value if name != "stackTrace" else without_clients(value)) for name, value in document)
    return [f"failed: {written(document)}"]


class Digits(str):
    """A number as it was sent."""


class Members(list):
    """The members of an object in their order."""


def written(value):
    """JSON without white space, in ASCII."""
    if isinstance(value, Digits):
        return str(value)
    if isinstance(value, Members):
        return "{%s}" % ",".join(f"{json.dumps(name)}:{written(inner)}" for name, inner in value)
    if isinstance(value, list):
        return "[%s]" % ",".join(map(written, value))
    return json.dumps(value)


def printed(text):
    """The lines of a log, but for those of the server and the frames of clients."""
    lines = [line for line in text.split("\n") if not SERVERS_OWN.match(line)]
    lines = [REPORT.sub(r"REPORT\1", line) for line in lines]
    lines = [part.replace("\u00a0", " ") for line in lines for part in line.removesuffix("\r").split("\r")]
    return [unlike(line) for line in without_clients(lines) if "LAMBDA_WARNING: Unhandled exception" not in line]


def without_clients(lines):
    """Lines without the frames of clients: each has a first line, and further lines with a deeper indentation."""
    kept, is_of_client = [], False
    for line in lines:
        is_of_client = bool(OF_CLIENT.match(line)) or is_of_client and line.startswith("    ")
        if not is_of_client:
            kept.append(line)
    return kept


def unlike(line):
    """A line without times and addresses."""
    line = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,3})?Z", "TIME", line)
    line = json_of_log(line)
    return re.sub(r"0x[0-9a-f]{6,}", "ADDRESS", line)


def json_of_log(line):
    """A line that is an object, with the characters of its texts in one form."""
    if line.startswith("{"):
        try:
            return written(json.loads(line, object_pairs_hook=Members, parse_int=Digits, parse_float=Digits))
        except ValueError:
            pass
    return line
