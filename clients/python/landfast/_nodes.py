"""The addresses of the servers, and the choice of the next one.

Any node takes any call. A client therefore stays with one node as long as it responds, and moves on
at the first sign that it does not. A transaction stays with the node that began it, because every
other node would have to forward its calls.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Optional, Sequence, Tuple, Union
from urllib.parse import urlsplit

URL_DEFAULT = "http://127.0.0.1:7600"
NODES_MAX = 64


@dataclass(frozen=True)
class Node:
    """The address of one server."""

    host: str
    port: int
    is_tls: bool

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def nodes_from(urls: Union[str, Sequence[str], None]) -> Tuple[Node, ...]:
    """The nodes that `urls` names, or LANDFAST_URL where it is None; several are separated by commas."""
    if urls is None:
        urls = os.environ.get("LANDFAST_URL") or URL_DEFAULT
    if isinstance(urls, str):
        urls = urls.split(",")
    nodes = tuple(_node_from(url.strip()) for url in urls if url.strip())
    if not 1 <= len(nodes) <= NODES_MAX:
        raise ValueError(f"between 1 and {NODES_MAX} server URLs are needed, such as {URL_DEFAULT}; got {len(nodes)}")
    return nodes


def _node_from(url: str) -> Node:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.path not in ("", "/"):
        raise ValueError(f"{url!r} is not the URL of a server; write it like {URL_DEFAULT}")
    is_tls = parts.scheme == "https"
    return Node(parts.hostname, parts.port or (443 if is_tls else 80), is_tls)


class Route:
    """The node for the next request. Moving on is idempotent: two threads that lose one node move
    one step.
    """

    def __init__(self, nodes: Tuple[Node, ...], index: int = 0, origin: Optional[Route] = None) -> None:
        self.nodes = nodes
        self._index = index
        self._origin = origin

    @property
    def node(self) -> Node:
        return self.nodes[self._index]

    def branch(self) -> Route:
        """A route of its own that begins at this one's node, and moves this one along when it
        leaves a node.
        """
        return Route(self.nodes, self._index, self)

    def leave(self, node: Node) -> None:
        """Moves on, if `node` is still the current one."""
        index = self._index
        if self.nodes[index] == node:
            self._index = (index + 1) % len(self.nodes)
        if self._origin is not None:
            self._origin.leave(node)
