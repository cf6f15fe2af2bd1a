"""The same conversations get the same responses, field by field, as from ZooKeeper 3.9.5.

`testdata/*.txt` hold the responses of a real ZooKeeper. `make test-oracle` plays them against one
again; with UPDATE=1 it rewrites them. `drawn_conversation.py` drew those called `drawn-*`.
"""

import difflib
import os
import pathlib
import re

import pytest

import server as servers
import transcript

TESTDATA = pathlib.Path(__file__).parent / "testdata"
# The permitted differences of this server, by name; each is a function that makes both sides equal
# there.
ALLOWED = {
    "in which order the ephemerals of a session go that is closed, ZooKeeper does not say": lambda lines: (
        transcript.with_events_sorted(lines, transcript.zxids_of_closes(lines))
    ),
}
REQUEST = re.compile(r"^\w+: \w+")


@pytest.mark.parametrize("conversation", sorted(path.stem for path in TESTDATA.glob("*.txt")))
def a_conversation_goes_as_it_goes_with_zookeeper(own_server, conversation):
    recorded = (TESTDATA / f"{conversation}.txt").read_text().splitlines()
    comments = [line for line in recorded if line.startswith("#")]
    turns = [line for line in recorded if line and not line.startswith((" ", "#"))]
    names = list(dict.fromkeys(turn.split(":")[0] for turn in turns))
    playing = transcript.Transcript(own_server.port, names)
    for turn in turns:
        if REQUEST.match(turn):
            playing.play(turn)
        else:
            playing.expect_event(turn.rstrip(":"))
    playing.close()
    if os.environ.get("UPDATE") == "1":
        assert isinstance(own_server, servers.ZooKeeper), "only ZooKeeper itself may say what ZooKeeper answers"
        (TESTDATA / f"{conversation}.txt").write_text("\n".join([*comments, *playing.lines]) + "\n")
        return
    answered = [*comments, *playing.lines]
    for equal in ALLOWED.values():
        recorded, answered = equal(recorded), equal(answered)
    difference = "\n".join(difflib.unified_diff(recorded, answered, "ZooKeeper", "this server", lineterm=""))
    assert not difference, f"\n{difference}"
