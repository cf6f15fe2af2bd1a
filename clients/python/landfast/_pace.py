"""How long a response may take: until it begins, and from then on for as long as it keeps its pace.

A bound on the total time would be a bound on the length: a value has up to 64 MiB, and lines
differ. A client requires of a response the pace that a server requires of a request, 64 KiB in 10
s. This module only decides: each client checks at `ends_at`, with its own clock.
"""

from __future__ import annotations

WINDOW_S = 10.0
WINDOW_BYTES = 64 * 1024


class Pace:
    """Whether one response is still arriving."""

    def __init__(self, reply_s: float, now: float) -> None:
        self.ends_at = now + reply_s
        """The time of the next check."""
        self._bytes_min = 1
        self._bytes = 0

    def heard(self, count: int) -> None:
        """This many bytes of the response have arrived."""
        self._bytes += count

    def is_over(self, now: float) -> bool:
        """Whether to stop waiting."""
        if now < self.ends_at:
            return False
        if self._bytes < self._bytes_min:
            return True
        # A whole window, however little time was left for the response to begin. Otherwise a repeat
        # near the end of that time would be cut short.
        self.ends_at = now + WINDOW_S
        self._bytes_min = WINDOW_BYTES
        self._bytes = 0
        return False
