"""One attempt of a transaction, without I/O: which calls it may send in which state, and the effect
of each response on it.

Beginning again starts the next attempt, under the same id (`_attempts.py`). A response changes only
the attempt that sent the call, not one begun since: that one has its own state.

The blocking and the asyncio transaction are thin shells over this. Each method is a generator of
steps (`_repeat.py`); its driver gets the result, or the exception.

Invariants
- The client sends nothing for an attempt that has not begun or has ended; the error says which.
- While a write may still be in flight, the attempt never sends another write of the same key: the
  late copy would undo it. The attempt is given up instead, and its body may run again.
- An attempt with a write that may or may not have arrived never commits, no matter how its body
  handles the error.
- An attempt belongs to the process that began it. A process forked since sends nothing for it.
- An interrupted begin ends no other client's attempt: under an id that others may know, the attempt
  is left to its time-out. If no part of the begin was sent, there is nothing to end. Once the id is
  begun anew, the client sends nothing more for the old attempt.
- The server keeps the outcome of a random id's commit for minutes. Once the commit may have been
  sent, its status call names the attempt, so that the server does not report that the id never
  began. The id is not begun again.
- After an interruption the client ends the attempt that may be open, even if its broken-off commit
  had been sent: an abort undoes no commit.
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
    InvalidRequest,
    NoSuchTransaction,
    TransactionFinished,
    Unavailable,
    UnexpectedAnswer,
    document,
)
from ._repeat import Answer, Limits, Pause, Steps, exchange
from ._requests import AFTER_HEADER, Call, Key, Request, Response, Value
from ._volumes import FileCalls, VolumeCalls


UNHEARD_S = 1.0
"""Upper bound on the delay of an interrupted program, while it waits for the response to the begin
that ends its possibly open attempt.
"""
_UNHEARD_PAUSES_S = (0.02, 0.1)
"""Pause before the next try to end it: the begin may still be in flight."""

RANDOM_KEPT_S = 600.0
"""A server keeps the outcome of a random id's commit for longer than this, if not by much."""


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
        """Whether the attempt is known to have ended."""
        self._name = name
        self._route = route
        self._limits = limits
        self._after = after
        self._token = ""
        self._result: Optional[bytes] = None
        self._beginning: Optional[Request] = None
        self._doubled: Set[bytes] = set()
        self._is_torn = False
        self._is_end_broken_off = False
        self._ended: Optional[Error] = None
        self._is_begin_doubled = False
        self._commit_sent: Optional[float] = None
        """The time since which a commit of its id has, or may have, taken effect; None if there is
        none.
        """
        self._places = itertools.count()
        """The position of the next effect. Each effect takes its position before its request is
        made, and none is reused: threads may share the attempt.
        """
        self._process = os.getpid()

    @property
    def id(self) -> str:
        """Under it, it takes effect at most once."""
        return self._name.id

    @property
    def is_of_parent(self) -> bool:
        """Whether this process was forked from the one that began the attempt: it is the parent's,
        and still in use there.
        """
        return self._process != os.getpid()

    @property
    def may_be_open(self) -> bool:
        """Whether it stays open until its time-out unless the client ends it: its end was not sent,
        or was broken off.
        """
        return self.phase is Phase.OPEN or (self._is_end_broken_off and self.phase is not Phase.COMMITTED)

    @property
    def may_be_forgotten(self) -> bool:
        """Whether it has, or may have, committed so long ago that the server may have forgotten it,
        and would begin its id again.
        """
        if not self._name.is_random or self._commit_sent is None:
            return False
        return time.monotonic() - self._commit_sent >= RANDOM_KEPT_S

    def follows(self, before: Attempt) -> None:
        """Until this attempt has begun, the id's possible commit is that of `before`: a begin may
        be interrupted and report nothing.
        """
        self._commit_sent = before._commit_sent

    def begin(
        self, isolation: Optional[str], after_token: Optional[str], volume: Optional[str] = None
    ) -> Steps[None]:
        """Steps that begin it. They run once."""
        call = _requests.begin(self.id, isolation, after_token or self._after.token, volume)
        self.phase, self._beginning = Phase.BEGINNING, call.request
        try:
            answer = yield from exchange(call, self._route, self._limits)
        except Error as error:
            # No part of the body has run, and the begin itself has been repeated for long enough.
            error.body_may_run_again = False
            raise
        found = document(answer.response.body)
        if found.get("status") == "committed":
            self.phase = Phase.COMMITTED
            self.committed_token = self._after.heard(found.get("after"))
            before = AlreadyCommitted(call.what, "its id has committed before", transaction=self.id)
            before.result, before.is_result_known = found.get("result"), True
            raise before
        token = found.get("attempt")
        if isinstance(token, bool) or not isinstance(token, (str, int)):
            raise UnexpectedAnswer(call.what, "no attempt in the answer", transaction=self.id)
        self._token = str(token)
        if found.get("block") is True and self._name.is_given:
            # The server would keep it with the invocation, and not under its id.
            self.phase = Phase.ABORTED
            why = "it is a part of the function's invocation, which takes effect as a whole: leave `id` out"
            raise InvalidRequest(call.what, why, transaction=self.id)
        self._commit_sent = None
        self._is_begin_doubled = answer.is_doubled
        self.phase = Phase.OPEN

    def end(self, seconds: float) -> Steps[None]:
        """Steps that end, within this many seconds, the attempt if it may be open."""
        before = self.phase
        # Only the server knows the outcome of a broken-off commit, and a repeated commit or status
        # call returns it.
        if before in (Phase.BEGINNING, Phase.OPEN):
            self.phase = Phase.ABORTED
        self._is_end_broken_off = False
        if self.is_of_parent or before is Phase.NEW:
            return _nothing()
        if before is not Phase.BEGINNING:
            return self._abort_within(seconds, self._token)
        if self._beginning is None or not self._beginning.may_have_arrived:
            # Begins that are dropped while they wait for a connection would each add aborts to the
            # load that made them wait.
            return _nothing()
        # The response, and with it the attempt's token, may be lost. An abort without a token ends
        # the latest attempt of its id, even another client's.
        return self._until_begun_anew(self._abort_unheard(seconds)) if self._name.is_random else _nothing()

    def _until_begun_anew(self, steps: Steps[None]) -> Steps[None]:
        """The same steps, until the id is begun anew, which ends this attempt: a later request
        would end the next one.
        """
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
        # The connection and the wait for the response may both take all of their time.
        limits = Limits(call_s=left, connect_s=left / 2, reply_s=left / 2)
        yield from exchange(_requests.abort(self.id, attempt), self._route, limits)

    def get(self, key: Key) -> Steps[Optional[bytes]]:
        answer = yield from self._call(_requests.get(self.id, self._token, key))
        return value_in(answer.response)

    def put(self, key: Key, value: Value) -> Steps[None]:
        yield from self._write(key, _requests.put(self.id, self._token, key, value))

    def delete(self, key: Key) -> Steps[None]:
        yield from self._write(key, _requests.delete(self.id, self._token, key))

    def files(self, volume: str) -> FileCalls:
        """The calls on the files of its volume that take effect with it."""
        calls = VolumeCalls(self._route, self._limits)
        return FileCalls(calls, volume, _requests.of_transaction(self.id, self._token))

    def send(self, queue: str, body: Value, group: Optional[str]) -> Steps[None]:
        call = _requests.send(self.id, self._token, next(self._places), queue, body, group)
        yield from self._call(call, is_write=True)

    def invoke(self, function: str, payload: Value) -> Steps[None]:
        call = _requests.invoke(self.id, self._token, next(self._places), function, payload)
        yield from self._call(call, is_write=True)

    @property
    def keeps_results(self) -> bool:
        """Whether another caller may begin its id, and get the result of its commit."""
        return not self._name.is_random

    def keep(self, result: Optional[bytes]) -> None:
        """Sends this result, in JSON, with the commit."""
        self._result = result

    def commit(self) -> Steps[None]:
        """May be called again after `OutcomeUnknown`, and after it has succeeded."""
        call = _requests.commit(self.id, self._token, self._result)
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
            # A signal handler or a cancellation may raise any exception.
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
        """The block has ended normally: raises the server's error that ended the attempt, if the
        block ignored it.
        """
        if self.phase is Phase.ABORTED and self._ended is not None:
            raise self._ended

    def status(self) -> Steps[str]:
        """The server's state of the id: open, committing, committed, aborted or expired."""
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
            # Interrupted or cancelled before the response.
            self._is_torn |= is_write
            raise

    def _ended_by(self, call: Call, error: Error) -> None:
        """Notes that `error` ended the attempt, if it did. The attempt had committed unless another
        attempt of the id had.
        """
        if isinstance(self._ended, AlreadyCommitted):
            raise self._committed_meanwhile(call) from error
        if self.phase is Phase.COMMITTED:
            # Its own commit ended it: the call was in flight when the commit succeeded.
            return
        if isinstance(error, TransactionFinished) and error.outcome == "committed":
            self.phase = Phase.COMMITTED
            self._ended = self._committed_meanwhile(call)
            raise self._ended from error
        if error.outcome == "begun-anew" and self._is_begin_doubled:
            # Perhaps no other client did it: a copy of this attempt's own begin may have arrived
            # late.
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
        """Raises if the attempt belongs to another process."""
        if self.is_of_parent:
            raise RuntimeError(f"{what}: it is of the process that this one is forked from; begin one of its own here")

    def _refuse(self, call: Call) -> NoReturn:
        if isinstance(self._ended, AlreadyCommitted):
            raise self._committed_meanwhile(call) from self._ended
        if self.phase in (Phase.COMMITTED, Phase.ABORTED):
            # The server's first error, if there was one: the body may have ignored it.
            outcome = (self._ended and self._ended.outcome) or self.phase.value
            refusal = TransactionFinished(call.what, "it has ended", transaction=self.id, outcome=outcome)
            refusal.body_may_run_again = self._ended is not None and self._ended.body_may_run_again
            raise refusal from self._ended
        raise RuntimeError(f"{call.what}: it is {self.phase.value}; use `with landfast.transaction() as t:`")


def _nothing() -> Steps[None]:
    yield from ()


def value_in(response: Response) -> Optional[bytes]:
    """The value in the response to a get."""
    return None if response.status == 404 else response.body
