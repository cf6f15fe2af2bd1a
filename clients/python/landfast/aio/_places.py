"""Permits for concurrent requests to one node, granted in the order of the requests.

This is not a semaphore under `asyncio.wait_for`: up to Python 3.11 `wait_for` returns its result to
a task that was cancelled in the same turn of the event loop, and the cancellation is lost. Here a
wait ends by a future of its own, which a timer or a returned permit settles. A cancellation belongs
to the task alone and is never mistaken for either.

Invariants
- A permit is free, taken, or handed to a waiting task; no task waits while one is free.
- A task that is cancelled in the turn in which it is handed a permit gives it back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Deque


class Places:
    """A number of permits; they belong to the event loop that first waits for one."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: Deque[asyncio.Future[bool]] = deque()

    async def take(self, seconds: float) -> bool:
        """Whether a permit was granted within this many seconds."""
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
        """Hands a permit to the task that has waited longest."""
        while self._waiting:
            if _settle(self._waiting.popleft(), True):
                return
        self._free += 1


def _settle(handed: asyncio.Future[bool], is_had: bool) -> bool:
    """Whether a task had still been waiting for `handed`."""
    if handed.done():
        return False
    handed.set_result(is_had)
    return True
