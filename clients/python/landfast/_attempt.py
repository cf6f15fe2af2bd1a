"""One attempt of a transaction, without I/O: what may be asked when, and what an answer does to it.

Beginning again starts the next one, under the same id (`_attempts.py`). What comes back of a call changes the attempt that it was sent
for, and none that was begun since: that one has its own state.

The blocking and the asyncio transaction are thin shells over this. Each method is a generator of steps
(`_repeat.py`); whoever drives it gets the result, or the exception.

Invariants
- Nothing is sent for an attempt that has not begun or has ended; the error says which.
- A write that may still be on its way is never followed by another write of the same key in this attempt: the
  late copy would undo it. The attempt is given up instead, and its body may run again.
- An attempt one of whose writes may or may not have arrived never commits, whatever its body does with the error.
- An attempt belongs to the process that began it: in one that was forked since, nothing is sent for it.
- A begin that is interrupted ends nobody else's attempt: one of an id that others may know is left to its time-out. Where nothing of
  it was sent there is nothing to end; and once the id is begun anew nothing more is sent for it.
- What a commit of a random id came to is kept for minutes. Once it may have gone its status names the attempt, so that the server does
  not take it for one that never was, and its id is not begun again.
- What an interruption has left open is ended, whether a commit that was broken off had been sent or not: an abort undoes no commit.
"""

from __future__ import annotations

import enum
import itertools
import os
import time
from typing import NoReturn, Optional, Set

from . import _requests
from ._after import After
from ._ids import Name
from ._nodes import Route
from ._problems import (
    AlreadyCommitted,
    Error,
    Expired,
    NoSuchTransaction,
    TransactionFinished,
    Unavailable,
    UnexpectedAnswer,
    document,
)
from ._repeat import Answer, Limits, Pause, Steps, exchange
from ._requests import AFTER_HEADER, Call, Key, Request, Response, Value


UNHEARD_S = 1.0
"""How long an interrupted program is held up, at the most, for the answer to begin that ends what it may have left open."""
_UNHEARD_PAUSES_S = (0.02, 0.1)
"""Before that is tried again: the begin may still be on its way."""

RANDOM_KEPT_S = 600.0
"""A server knows for longer, if not by much, what a commit of a random id came to."""


class Phase(enum.Enum):
    NEW = "not begun"
    BEGINNING = "beginning"
    OPEN = "open"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Attempt:
    """The state of one attempt."""

    def __init__(self, name: Name, route: Route, limits: Limits, after: After) -> None:
        self.phase = Phase.NEW
        self.committed_token: Optional[str] = None
        self.is_begun_anew = False
        """Whether its id is: that ends it, if it is open."""
        self._name = name
        self._route = route
        self._limits = limits
        self._after = after
        self._token = ""
        self._beginning: Optional[Request] = None
        self._doubled: Set[bytes] = set()
        self._is_torn = False
        self._is_end_broken_off = False
        self._ended: Optional[Error] = None
        self._is_begin_doubled = False
        self._commit_sent: Optional[float] = None
        """Since when a commit of its id has, or may have, taken effect; None: it has not."""
        self._places = itertools.count()
        """Of effects. Each takes the next before its request is made, and it is not given again: threads may share the attempt."""
        self._process = os.getpid()

    @property
    def id(self) -> str:
        """Under it, it takes effect at most once."""
        return self._name.id

    @property
    def is_of_parent(self) -> bool:
        """Whether this process is forked from the one that began: the attempt is the parent's, and still at work there."""
        return self._process != os.getpid()

    @property
    def may_be_open(self) -> bool:
        """Whether it is left to its time-out unless it is ended: nobody has, or what was to end it was broken off."""
        return self.phase is Phase.OPEN or (self._is_end_broken_off and self.phase is not Phase.COMMITTED)

    @property
    def may_be_forgotten(self) -> bool:
        """Whether it has, or may have, committed so long ago that the server may have forgotten it, and would begin its id again."""
        if not self._name.is_random or self._commit_sent is None:
            return False
        return time.monotonic() - self._commit_sent >= RANDOM_KEPT_S

    def follows(self, before: Attempt) -> None:
        """Until it has begun, what its id may have committed is what `before` may have: a begin may be interrupted, and say nothing."""
        self._commit_sent = before._commit_sent

    def begin(self, isolation: Optional[str], after_token: Optional[str]) -> Steps[None]:
        """Steps that begin it: once."""
        call = _requests.begin(self.id, isolation, after_token or self._after.token)
        self.phase, self._beginning = Phase.BEGINNING, call.request
        try:
            answer = yield from exchange(call, self._route, self._limits)
        except Error as error:
            # Nothing of the body has run, and what a begin cannot do now it has tried for long enough.
            error.body_may_run_again = False
            raise
        found = document(answer.response.body)
        if found.get("status") == "committed":
            self.phase = Phase.COMMITTED
            self.committed_token = self._after.heard(found.get("after"))
            raise AlreadyCommitted(call.what, "its id has committed before", transaction=self.id)
        token = found.get("attempt")
        if isinstance(token, bool) or not isinstance(token, (str, int)):
            raise UnexpectedAnswer(call.what, "no attempt in the answer", transaction=self.id)
        self._token = str(token)
        self._commit_sent = None
        self._is_begin_doubled = answer.is_doubled
        self.phase = Phase.OPEN

    def end(self, seconds: float) -> Steps[None]:
        """Steps that end, within so many seconds, what this attempt may have left open."""
        before = self.phase
        # Of a commit that was broken off the server alone knows what it came to, and says so to who asks again.
        if before in (Phase.BEGINNING, Phase.OPEN):
            self.phase = Phase.ABORTED
        self._is_end_broken_off = False
        if self.is_of_parent or before is Phase.NEW:
            return _nothing()
        if before is not Phase.BEGINNING:
            return self._abort_within(seconds, self._token)
        if self._beginning is None or not self._beginning.may_have_arrived:
            # Begins that are given up while they wait for a connection would each add aborts to the load that made them wait.
            return _nothing()
        # The answer may be lost, and with it the attempt. An abort that names none ends the latest of its id, whoever has begun that.
        return self._until_begun_anew(self._abort_unheard(seconds)) if self._name.is_random else _nothing()

    def _until_begun_anew(self, steps: Steps[None]) -> Steps[None]:
        """The same, but for what would be sent once that has ended this attempt: it would end the next one."""
        try:
            action = next(steps)
            while not self.is_begun_anew:
                action = steps.send((yield action))
        except StopIteration:
            pass
        finally:
            steps.close()

    def _abort_unheard(self, seconds: float) -> Steps[None]:
        deadline = time.monotonic() + seconds
        for pause in _UNHEARD_PAUSES_S:
            try:
                yield from self._abort_within(deadline - time.monotonic(), None)
                return
            except NoSuchTransaction:
                yield Pause(pause)
        yield from self._abort_within(deadline - time.monotonic(), None)

    def _abort_within(self, seconds: float, attempt: Optional[str]) -> Steps[None]:
        left = max(seconds, 0.001)
        # Connecting and waiting for the answer may both take all that they are given.
        limits = Limits(call_s=left, connect_s=left / 2, reply_s=left / 2)
        yield from exchange(_requests.abort(self.id, attempt), self._route, limits)

    def get(self, key: Key) -> Steps[Optional[bytes]]:
        answer = yield from self._call(_requests.get(self.id, self._token, key))
        return value_in(answer.response)

    def put(self, key: Key, value: Value) -> Steps[None]:
        yield from self._write(key, _requests.put(self.id, self._token, key, value))

    def delete(self, key: Key) -> Steps[None]:
        yield from self._write(key, _requests.delete(self.id, self._token, key))

    def send(self, queue: str, body: Value, group: Optional[str]) -> Steps[None]:
        call = _requests.send(self.id, self._token, next(self._places), queue, body, group)
        yield from self._call(call, is_write=True)

    def invoke(self, function: str, payload: Value) -> Steps[None]:
        call = _requests.invoke(self.id, self._token, next(self._places), function, payload)
        yield from self._call(call, is_write=True)

    def commit(self) -> Steps[None]:
        """May be called again after `OutcomeUnknown`, and after it has succeeded."""
        call = _requests.commit(self.id, self._token)
        self.refuse_in_child(call.what)
        if self.phase is Phase.COMMITTED:
            return
        if self.phase in (Phase.NEW, Phase.BEGINNING, Phase.ABORTED):
            self._refuse(call)
        if self._is_torn:
            raise self._torn(call)
        self.phase, self._is_end_broken_off = Phase.COMMITTING, False
        sent_before = self._commit_sent
        self._commit_sent = sent_before or time.monotonic()
        try:
            answer = yield from exchange(call, self._route, self._limits)
        except Error as error:
            if not error.ends_attempt and not error.may_have_happened:
                self.phase, self._commit_sent = Phase.OPEN, sent_before
            self._ended_by(call, error)
            raise
        except BaseException:
            # Whoever interrupts or cancels may raise anything.
            self._is_end_broken_off = True
            raise
        found = document(answer.response.body).get("after") or answer.response.headers.get(AFTER_HEADER.lower())
        self.phase, self._ended, self.committed_token = Phase.COMMITTED, None, self._after.heard(found)

    def abort(self) -> Steps[None]:
        """Ends the attempt without effect; nothing happens if it is over already and did not commit."""
        call = _requests.abort(self.id, self._token)
        self.refuse_in_child(call.what)
        if self.phase in (Phase.NEW, Phase.BEGINNING, Phase.ABORTED):
            return
        if self.phase is Phase.COMMITTED:
            self._refuse(call)
        limits = Limits(self._limits.abort_s, self._limits.abort_s, self._limits.abort_s)
        try:
            yield from exchange(call, self._route, limits)
            self._commit_sent = None
        except NoSuchTransaction:
            self._commit_sent = None
        except TransactionFinished as error:
            if error.outcome == "committed":
                self.phase = Phase.COMMITTED
                raise
            self._commit_sent = None
        except BaseException as error:
            is_answered = isinstance(error, Error) and not isinstance(error, Unavailable)
            self._is_end_broken_off |= not is_answered
            raise
        finally:
            self._abort_is_over()

    def _abort_is_over(self) -> None:
        # It may have committed meanwhile.
        if self.phase is not Phase.COMMITTED:
            self.phase = Phase.ABORTED

    def left(self) -> None:
        """The block has ended in order: raises what the server ended the attempt with, if it took no notice."""
        if self.phase is Phase.ABORTED and self._ended is not None:
            raise self._ended

    def status(self) -> Steps[str]:
        """What the server knows of the id: open, committing, committed, aborted or expired."""
        call = _requests.status(self.id, (self._token or None) if self._name.is_random else None)
        answer = yield from exchange(call, self._route, self._limits)
        found = document(answer.response.body).get("status")
        if not isinstance(found, str):
            raise UnexpectedAnswer(call.what, "no status in the answer", transaction=self.id)
        return found

    def _write(self, key: Key, call: Call) -> Steps[None]:
        name = key.encode() if isinstance(key, str) else key
        if name in self._doubled and self.phase is Phase.OPEN:
            self._is_torn = True
        answer = yield from self._call(call, is_write=True)
        if answer.is_doubled:
            self._doubled.add(name)

    def _call(self, call: Call, is_write: bool = False) -> Steps[Answer]:
        self.refuse_in_child(call.what)
        if self.phase is not Phase.OPEN:
            self._refuse(call)
        if self._is_torn:
            raise self._torn(call)
        try:
            return (yield from exchange(call, self._route, self._limits))
        except Error as error:
            self._is_torn |= is_write and error.may_have_happened
            self._ended_by(call, error)
            raise
        except BaseException:
            # Interrupted or cancelled before the answer came.
            self._is_torn |= is_write
            raise

    def _ended_by(self, call: Call, error: Error) -> None:
        """Notes that `error` ended the attempt, if it did; it had committed if another attempt of the id had."""
        if isinstance(self._ended, AlreadyCommitted):
            raise self._committed_meanwhile(call) from error
        if self.phase is Phase.COMMITTED:
            # By its own commit: the call was on its way when that was answered.
            return
        if isinstance(error, TransactionFinished) and error.outcome == "committed":
            self.phase = Phase.COMMITTED
            self._ended = self._committed_meanwhile(call)
            raise self._ended from error
        if error.outcome == "begun-anew" and self._is_begin_doubled:
            # Perhaps by nobody else: a copy of this attempt's own begin may have come late.
            error.body_may_run_again = True
        if error.ends_attempt and not isinstance(error, Expired):
            self.phase = Phase.ABORTED
            self._ended = error
            self._commit_sent = None

    def _torn(self, call: Call) -> Unavailable:
        detail = "an earlier write of this attempt was sent more than once and a copy may still arrive, or not"
        return Unavailable(call.what, detail, transaction=self.id)

    def _committed_meanwhile(self, call: Call) -> AlreadyCommitted:
        return AlreadyCommitted(call.what, "its id has committed meanwhile", transaction=self.id)

    def refuse_in_child(self, what: str) -> None:
        """Raises where it is another process's."""
        if self.is_of_parent:
            raise RuntimeError(f"{what}: it is of the process that this one is forked from; begin one of its own here")

    def _refuse(self, call: Call) -> NoReturn:
        if isinstance(self._ended, AlreadyCommitted):
            raise self._committed_meanwhile(call) from self._ended
        if self.phase in (Phase.COMMITTED, Phase.ABORTED):
            # As the server said it first, where it did: a body may have taken no notice.
            outcome = (self._ended and self._ended.outcome) or self.phase.value
            refusal = TransactionFinished(call.what, "it has ended", transaction=self.id, outcome=outcome)
            refusal.body_may_run_again = self._ended is not None and self._ended.body_may_run_again
            raise refusal from self._ended
        raise RuntimeError(f"{call.what}: it is {self.phase.value}; use `with landfast.transaction() as t:`")


def _nothing() -> Steps[None]:
    yield from ()


def value_in(response: Response) -> Optional[bytes]:
    """The value that a get answered."""
    return None if response.status == 404 else response.body
