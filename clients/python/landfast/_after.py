"""The caller's last commit, carried to its next transaction.

A commit returns a token. The next begin sends it, and the node that takes that begin waits until it
knows the commit. So a client that changes nodes sees its own writes (rule T-1). The token is
opaque, and the client cannot compare two of them. Each thread and each asyncio task therefore
carries its own last token; one without a token carries the client's last. A program can pass a
token to other threads and processes: `transaction(after=...)`.
"""

from __future__ import annotations

import itertools
import weakref
from contextvars import ContextVar
from types import MappingProxyType
from typing import Mapping, Optional

_TOKEN_CHARACTERS_MAX = 1024

# One variable for all clients, since context variables are never freed.
_tokens: ContextVar[Mapping[int, str]] = ContextVar("landfast_after", default=MappingProxyType({}))
_numbers = itertools.count()
_living: weakref.WeakValueDictionary[int, After] = weakref.WeakValueDictionary()


class After:
    """The tokens of one client."""

    def __init__(self) -> None:
        self._number = next(_numbers)
        _living[self._number] = self
        self._last: Optional[str] = None

    @property
    def token(self) -> Optional[str]:
        return _tokens.get().get(self._number, self._last)

    def heard(self, token: object) -> Optional[str]:
        """Keeps the token of a commit's response. A string that cannot go into a header is no
        token.
        """
        if not isinstance(token, str) or not 0 < len(token) <= _TOKEN_CHARACTERS_MAX:
            return None
        if not all("!" <= character <= "~" for character in token):
            return None
        self._last = token
        # Tokens of clients that no longer exist are left out: a program may make a client for each
        # request that it handles.
        kept = {number: kept for number, kept in _tokens.get().items() if number in _living}
        _tokens.set({**kept, self._number: token})
        return token
