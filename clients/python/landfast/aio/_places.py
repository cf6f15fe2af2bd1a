"""Places for the requests that may be under way to one node, given in the order in which they are asked for.

Not a semaphore under `asyncio.wait_for`: up to Python 3.11 that returns its result to a task that was cancelled in
the same turn of the event loop, and the cancellation is lost. Here a wait ends by a future of its own, which a timer
or a place given back settles; a cancellation is the task's alone and is never mistaken for either.

Invariants
- A place is free, taken, or handed to a task that waits; nobody waits while one is free.
- A task that is cancelled in the turn in which it is handed a place gives it back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Deque


class Places:
    """A number of places; they belong to the event loop that first waits for one."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: Deque[asyncio.Future[bool]] = deque()

    async def take(self, seconds: float) -> bool:
        """Whether a place was had within so many seconds."""
        if self._free:
            self._free -= 1
            return True
        loop = asyncio.get_running_loop()
        handed: asyncio.Future[bool] = loop.create_future()
        timer = loop.call_later(seconds, _settle, handed, False)
        self._waiting.append(handed)
        try:
            return await handed
        except BaseException:
            if handed.done() and not handed.cancelled() and handed.result():
                self.give_back()
            raise
        finally:
            timer.cancel()
            if handed in self._waiting:
                self._waiting.remove(handed)

    def give_back(self) -> None:
        """Hands a place to whoever has waited longest."""
        while self._waiting:
            if _settle(self._waiting.popleft(), True):
                return
        self._free += 1


def _settle(handed: asyncio.Future[bool], is_had: bool) -> bool:
    """Whether `handed` had still been waited for."""
    if handed.done():
        return False
    handed.set_result(is_had)
    return True
