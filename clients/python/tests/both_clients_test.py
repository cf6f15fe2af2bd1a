"""Decisions that the Python and the Rust client share: the tests of both read
`testdata/both_clients.json`.
"""

import json
from pathlib import Path
from typing import Any, Dict, Optional

import pytest

import cluster
import landfast
from landfast import _requests
from landfast._after import After

BOTH: Dict[str, Any] = json.loads((Path(__file__).parent / "testdata" / "both_clients.json").read_text())


def the_rust_client_scans_the_same() -> None:
    """T18."""
    unhex = bytes.fromhex
    for said in BOTH["calls"]:
        after: Optional[bytes] = None if said["after"] is None else unhex(said["after"])
        call = _requests.scan_state(unhex(said["prefix"]), after, said["limit"])
        assert call.request.path == said["path"]
    for limit in BOTH["refused_limits"]:
        with pytest.raises(landfast.InvalidRequest):
            _requests.scan_state("", None, limit)
    with cluster.Cluster() as servers, landfast.connect(servers.url) as client:
        for said in BOTH["pages"]:
            servers.fail("", cluster.document(said["answer"]))
            items = [(unhex(key), unhex(value)) for key, value in said["items"]]
            assert client.state().scan() == landfast.Page(items, None if said["next"] is None else unhex(said["next"]))
        for body in BOTH["no_pages"]:
            servers.fail("", cluster.reply(200, body.encode()))
            with pytest.raises(landfast.UnexpectedAnswer, match="no page of keys"):
                client.state().scan()


def the_rust_client_carries_the_same_tokens() -> None:
    """T14."""
    for token, is_one in [*BOTH["tokens"], ["t" * 1024, True], ["t" * 1025, False]]:
        after = After()
        kept = token if is_one else None
        assert after.heard(token) == kept, repr(token)
        assert after.token == kept
