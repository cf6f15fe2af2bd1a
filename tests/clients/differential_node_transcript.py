"""What is compared of an outcome of the differential test for Node."""

import json
import re

CLIENT_FILES = re.compile(
    r"(file://)?(/var/task/node_modules/aws-lambda-ric/dist/index\.mjs|/var/runtime/landfast_runtime\.mjs)"
)
VARYING = (
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "ID"),
    (re.compile(r"\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"), "TIME"),
    (re.compile(r"-(bundled|cloud)\b"), ""),
    (re.compile(r"Root=[-\w]+;Parent=\w+;Sampled=\d[^\"]*"), "TRACE"),
    (re.compile(r"\(node:\d+\)"), "(node)"),
    (CLIENT_FILES, "CLIENT"),
)
FRAME = r"at (?:[^\n]*(?:CLIENT|node:|<anonymous>)[^\n]*|async Promise\.\w+ \(index \d+\))"
"""A frame of a client, of Node or of the language itself."""
ONE_FRAME = re.compile(r"\s*" + FRAME)
FRAMES = re.compile(r"\n\s+" + FRAME.replace("[^\\n]*", "[^\\n]*?") + r"( \{)?(?=\n|$)")


def normal(part):
    """An outcome without what differs from call to call, and without frames of the clients and of Node itself."""
    part = {key: varying_left_out(value) if isinstance(value, str) else value for key, value in part.items()}
    part["payload"] = with_code_frames(parsed(part["payload"]))
    part["log"] = [line_without_frames(line) for line in text_without_frames(part["log"]).split("\n")]
    return part


def varying_left_out(text):
    for pattern, word in VARYING:
        text = pattern.sub(word, text)
    return text


def parsed(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def text_without_frames(text):
    """A line end within a message: the cloud's client outside of the cloud writes `\\r` for it."""
    return FRAMES.sub(lambda frame: frame.group(1) or "", text.replace("\r", "\n"))


def line_without_frames(line):
    """The same for a line that is JSON, or ends with it."""
    before, tab, after = line.rpartition("\t")
    document = parsed(after)
    if not isinstance(document, dict):
        return line
    return before + tab + json.dumps(with_code_frames(document), ensure_ascii=False)


def with_code_frames(value):
    """JSON whose traces keep the frames of the code."""
    if isinstance(value, dict):
        return {
            key: [line for line in inner if not ONE_FRAME.fullmatch(str(line))]
            if key in ("trace", "stack", "stackTrace") and isinstance(inner, list)
            else with_code_frames(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [with_code_frames(inner) for inner in value]
    return text_without_frames(value) if isinstance(value, str) and "\n    at " in value else value
