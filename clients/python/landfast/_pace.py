"""How long an answer may take: until it begins, and from then on for as long as it goes on coming.

A bound on the whole would be one on its length: a value has up to 64 MiB, and lines differ. A client asks of an answer
what a server asks of a request, 64 KiB in 10 s. Decisions only: each client asks at `ends_at`, with its own clock.
"""

from __future__ import annotations

WINDOW_S = 10.0
WINDOW_BYTES = 64 * 1024


class Pace:
    """Whether one answer is still coming."""

    def __init__(self, reply_s: float, now: float) -> None:
        self.ends_at = now + reply_s
        """When to ask next."""
        self._bytes_min = 1
        self._bytes = 0

    def heard(self, count: int) -> None:
        """So many bytes of the answer have come."""
        self._bytes += count

    def is_over(self, now: float) -> bool:
        """Whether nothing more is to be waited for."""
        if now < self.ends_at:
            return False
        if self._bytes < self._bytes_min:
            return True
        # A window of its own, however little time was left for it to begin: else a repeat at the end of that would be cut short.
        self.ends_at = now + WINDOW_S
        self._bytes_min = WINDOW_BYTES
        self._bytes = 0
        return False
