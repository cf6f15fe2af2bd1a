"""The errors, and the caller's next step for each.

The server refuses with problem documents (RFC 9457) whose `type` is a bare name. This module holds
the one table from those names to exception classes and to the permitted repeats, so that the
decision is never made twice. Every exception states the operation, its object, the cause and the
next step.

Three different things may be repeated, and they must not be confused:

- a *request*: the same bytes again, because the first copy may or may not have arrived. Every
  request of a transaction is safe to send twice, except effects;
- a *body*: the code between begin and commit, because its attempt is known to have ended without
  effect;
- nothing: the caller has to change something first.
"""

from __future__ import annotations

import enum
import json
import sys
from dataclasses import dataclass
from typing import Any, ClassVar, Dict, Mapping, Optional, Type


class Error(Exception):
    """Any error of Landfast.

    `transaction` is the id of the failed transaction, if there is one; `problem` is the `type` of
    the server's problem document; `retry_after` is the number of seconds that the server asked the
    client to wait. `run` is the id of a run with an unknown outcome: one that has or may have
    begun, or that is being cancelled.
    """

    advice: ClassVar[str] = ""
    """The caller's next step, in one sentence."""
    ends_attempt: ClassVar[bool] = False
    """Whether the attempt is over once one of its calls received this error."""

    def __init__(
        self,
        what: str,
        detail: str = "",
        *,
        problem: Optional[str] = None,
        status: Optional[int] = None,
        retry_after: Optional[float] = None,
        transaction: Optional[str] = None,
        outcome: Optional[str] = None,
        run: Optional[str] = None,
        code: Optional[str] = None,
    ) -> None:
        # Pickle passes only `args` to a copy; the other fields travel as attributes.
        super().__init__(what, detail)
        self.what = what
        self.detail = detail
        self.problem = problem
        self.status = status
        self.retry_after = retry_after
        self.transaction = transaction
        self.outcome = outcome
        self.run = run
        self.code = code
        """Of a call on files: the error in POSIX's terms, such as `ENOENT`."""
        self.may_have_happened = False
        """Whether the call may have taken effect despite the error, now or a moment later."""
        self.body_may_run_again = self._lets_the_body_run_again()
        """Whether the attempt ended without effect, so that its body may be run again under the same id."""

    def _lets_the_body_run_again(self) -> bool:
        return False

    def __str__(self) -> str:
        said = self.problem or ""
        if self.detail:
            said = f"{said}: {self.detail}" if said else self.detail
        text = f"{self.what}: {said}" if said else self.what
        return f"{text.rstrip('.')}. {self.advice}" if self.advice else text


class _BodyAgain(Error):
    def _lets_the_body_run_again(self) -> bool:
        return True


class Conflict(_BodyAgain):
    """Another transaction committed a write of a key that this one had read. Nothing was written."""

    advice = "Nothing was written; run the body again, as landfast.transact does."
    ends_attempt = True


class NoValidVersion(_BodyAgain):
    """No version of the key is compatible with the transaction's earlier reads. This differs from
    an absent key.
    """

    advice = "This does not mean that the key is absent; run the body again, as landfast.transact does."


class SnapshotTooOld(_BodyAgain):
    """The server no longer keeps the versions of the transaction's snapshot."""

    advice = "Run the body again, as landfast.transact does; read what you need sooner after the begin."


class NoSuchTransaction(_BodyAgain):
    """The server knows no transaction of this id: it never began, or was aborted and forgotten."""

    advice = "Nothing of it was written; begin again."
    ends_attempt = True


class TransactionFinished(Error):
    """The attempt has ended: `outcome` is aborted, expired, begun-anew or committed."""

    ends_attempt = True
    _ADVICE: ClassVar[Mapping[str, str]] = {
        "aborted": "Nothing was written; run the body again, as landfast.transact does.",
        "expired": "A transaction ends after 60 s without a call and after 15 min in all; do less in one.",
        "begun-anew": "Another caller began the same id again, and this attempt was dropped; leave it to them.",
        "committed": "What it wrote is there; begin another transaction.",
    }

    def _lets_the_body_run_again(self) -> bool:
        return self.outcome == "aborted"

    def __str__(self) -> str:
        text = super().__str__()
        if self.outcome is None:
            return text
        return f"{text} (outcome: {self.outcome}). {self._ADVICE.get(self.outcome, '')}".rstrip()


class AlreadyCommitted(Error):
    """The id has committed before: its effects are there, and the body need not run.

    `result` is the result that `landfast.transact` kept with that commit, as JSON gives it back.
    """

    advice = "Its effects are there once; skip the body, as landfast.transact does."
    ends_attempt = True
    result: Any = None
    is_result_known = False
    """Whether the server's answer said what was kept, if anything was."""


class Expired(Error):
    """The id is older than the server's record: it may have committed, or not."""

    advice = "It can no longer be said whether it committed; read the keys to find out."
    ends_attempt = True


class OutcomeUnknown(Error):
    """The client did not learn in time whether the change took effect. For a transaction, ask again
    by its id.
    """

    advice = "It may have taken effect; repeat it with the same id, which does no harm (within ten minutes, unless you chose the id), or read."


class Unavailable(Error):
    """No node responded in time, or none could serve."""

    advice = "Try again later; is `landfast serve` running where LANDFAST_URL says?"

    def _lets_the_body_run_again(self) -> bool:
        return True


class ClockAhead(Unavailable):
    """The node's clock is too far ahead to assign timestamps."""

    advice = "Set the clock of that node; others can serve meanwhile."


class TooManyTransactions(Error):
    """The node has reached its bound on open transactions."""

    advice = "Try again later; commit or abort transactions that are not needed."


class TooMuchBuffered(Error):
    """The node has no capacity for more bytes in flight."""

    advice = "Try again later, or write less at once."


class NoRoom(Error):
    """The store is full."""

    advice = "Free or add storage."


class Corrupt(Error):
    """Stored data does not decode."""

    advice = "Stop using this key, look into the server's log, and report it."


class TooLarge(Error):
    """The value is over 64 MiB, the transaction writes too many keys or bytes, or an input is too long. Nothing changed."""

    advice = "Make it smaller, or split it."


class InvalidRequest(Error):
    """The key, the id or another argument is not acceptable. Nothing changed, with one exception:
    writes of a step that its far store refuses permanently. `externalize`, `invoke` and a commit
    order the writes near before they ask the far store.
    """

    advice = "The same will be refused again; correct what was asked for, or the far store that refuses it."


class ConditionNotMet(Error):
    """The key has another value than the condition of the write says, or none. Nothing changed."""

    advice = "Nothing was written; read the key, and decide anew."


class NoSuchQueue(Error):
    """There is no queue of this name to send to. Nothing changed."""

    advice = "Check the name; queues are made before they are sent to."


class NoSuchFunction(Error):
    """There is no function of this name to run. Nothing changed."""

    advice = "Check the name; functions are deployed before they are invoked."


class SeveralSequencers(Error):
    """A serializable transaction stays within the keyspaces of one sequencer."""

    advice = "Use one transaction per group of keyspaces."


class NoSuchVolume(Error):
    """There is no volume of this name."""

    advice = "`landfast files list` shows the volumes."


class VolumeExists(Error):
    """There is a volume of this name already. Nothing changed."""

    advice = "Choose another name, or use the volume that is there."


class VolumeInUse(Error):
    """A clone still reads from the volume. Nothing changed."""

    advice = "Delete its clones first."


class NoSuchSnapshot(Error):
    """The volume has no snapshot of this name."""

    advice = "`landfast files snapshot list` shows the snapshots of a volume."


class NoSuchFile(Error):
    """There is no file or directory at this path. Nothing changed."""

    advice = "Check the path and the directories in it."


class FileConflict(Error):
    """The files at the path do not allow this; `code` is POSIX's error, such as EEXIST or EISDIR.
    Nothing changed.
    """

    advice = "Look at what is there; the same will be refused until that changes."


class QuotaExceeded(Error):
    """The volume has used up its quota. Nothing was written."""

    advice = "Remove files, or raise the quota with `landfast files quota`."


class Refused(Error):
    """The server does not accept this request from here: token, host, origin or path."""

    advice = "Check LANDFAST_URL and LANDFAST_TOKEN, and that server and client are of the same version."


class UnexpectedAnswer(Error):
    """The response is not one of Landfast's. Is another program listening there?"""

    advice = "Check that LANDFAST_URL names a Landfast server."


class Repeat(enum.Enum):
    """Whether the same request may be sent again after this refusal."""

    NEVER = "never"
    HERE = "here, after a pause"
    ELSEWHERE = "at another node at once, or here after a pause"


@dataclass(frozen=True)
class Meaning:
    """The meaning of one problem `type` for the client."""

    error: Type[Error]
    repeat: Repeat = Repeat.NEVER
    is_certain: bool = True
    """Whether it is certain that this copy of the request had no effect."""


class NoSuchWorkflow(Error):
    """No workflow of this name is deployed."""

    advice = "`landfast workflows list` shows what is deployed."


class NoSuchRun(Error):
    """The workflow has no run of this id."""

    advice = "Check the id; runs are kept for a week after their end."


class OutsideOfRun(Error):
    """Only the code of a workflow's step may send this request, but other code sent it."""

    advice = "Do it in a function that a workflow runs; `landfast.runs` begins runs from anywhere."


class AttemptEnded(Error):
    """The attempt of the step that sent the request has ended: it ran out of time, or its run was
    cancelled.
    """

    advice = "Nothing that it asks for counts any more."


class TooManyRuns(Error):
    """The server has reached its bound on runs in progress."""

    advice = "Try again later."


class FunctionFailed(Error):
    """A called function has failed; `error` is its own report."""

    error: Dict[str, Any]

    @classmethod
    def of(cls, function: str, said: Any) -> FunctionFailed:
        error = said if isinstance(said, dict) else {"errorMessage": said}
        failure = cls(f"the function {function!r} failed", f"{error.get('errorType')}: {error.get('errorMessage')}")
        failure.error = error
        return failure


class StepFailed(Error):
    """A step that the code of a workflow called has failed; `error` is its exception's report:
    `errorType`, `errorMessage`.

    The client raises it in place of the step's own exception, which is its cause the first time.
    When the code runs again, it gets the same error.
    """

    error: Dict[str, Any]

    @classmethod
    def of(cls, step: str, error: Dict[str, Any]) -> StepFailed:
        failure = cls(f"the step {step!r} failed", f"{error.get('errorType')}: {error.get('errorMessage')}")
        failure.error = error
        return failure


class RunInterrupted(BaseException):
    """The client did not learn the outcome of a step, so the workflow's code cannot go on. It runs
    again from the steps that have taken effect.

    It is not an `Exception`, so that code which handles the failures of its steps does not mistake
    it for one.
    """


def interruption_in(error: BaseException) -> Optional[RunInterrupted]:
    """The interruption that `error` is or, if it is a group of exceptions, contains; None: there is
    none. A task group wraps the exceptions of its tasks.
    """
    if isinstance(error, RunInterrupted):
        return error
    if sys.version_info >= (3, 11) and isinstance(error, BaseExceptionGroup):
        found = (interruption_in(inner) for inner in error.exceptions)
        return next((inner for inner in found if inner is not None), None)
    return None


# The table of the HTTP interface: the problems of transactions first, then those of the front end
# itself.
MEANINGS: Mapping[str, Meaning] = {
    "invalid-request": Meaning(InvalidRequest),
    "reserved-name": Meaning(InvalidRequest),
    "request-timed-out": Meaning(Unavailable, Repeat.HERE),
    "too-large": Meaning(TooLarge),
    "too-many-transactions": Meaning(TooManyTransactions, Repeat.HERE),
    "too-much-buffered": Meaning(TooMuchBuffered, Repeat.HERE),
    "no-such-transaction": Meaning(NoSuchTransaction),
    "no-such-queue": Meaning(NoSuchQueue),
    "no-such-function": Meaning(NoSuchFunction),
    "no-such-workflow": Meaning(NoSuchWorkflow),
    "no-such-run": Meaning(NoSuchRun),
    "outside-of-run": Meaning(OutsideOfRun),
    "attempt-ended": Meaning(AttemptEnded),
    "run-input-differs": Meaning(InvalidRequest),
    "too-many-runs": Meaning(TooManyRuns, Repeat.HERE),
    "expired": Meaning(Expired),
    "several-sequencers": Meaning(SeveralSequencers),
    "clock-ahead": Meaning(ClockAhead, Repeat.ELSEWHERE),
    "conflict": Meaning(Conflict),
    "no-valid-version": Meaning(NoValidVersion),
    "snapshot-too-old": Meaning(SnapshotTooOld),
    "transaction-finished": Meaning(TransactionFinished),
    "outcome-unknown": Meaning(OutcomeUnknown, Repeat.ELSEWHERE, is_certain=False),
    "unavailable": Meaning(Unavailable, Repeat.ELSEWHERE, is_certain=False),
    "server-stopped": Meaning(Unavailable, is_certain=False),
    "condition-not-met": Meaning(ConditionNotMet),
    "no-room": Meaning(NoRoom),
    "corrupt": Meaning(Corrupt, is_certain=False),
    "not-ready": Meaning(Unavailable, Repeat.ELSEWHERE),
    "unauthorized": Meaning(Refused),
    "unknown-host": Meaning(Refused),
    "foreign-origin": Meaning(Refused),
    "no-such-path": Meaning(Refused),
    "method-not-allowed": Meaning(Refused),
}

# The problems of volumes, none of which passes by itself. They have a table of their own, because the Rust client has no
# calls for volumes.
ERRORS_OF_VOLUMES: Mapping[str, Type[Error]] = {
    "no-such-volume": NoSuchVolume,
    "volume-exists": VolumeExists,
    "volume-in-use": VolumeInUse,
    "no-such-snapshot": NoSuchSnapshot,
    "no-such-file": NoSuchFile,
    "file-conflict": FileConflict,
    "range-not-satisfiable": InvalidRequest,
    "quota-exceeded": QuotaExceeded,
}

# The codes of the Lambda Invoke API, which has its own error format. Except for the last, no
# function ran.
MEANINGS_OF_LAMBDA: Mapping[str, Meaning] = {
    "ResourceNotFoundException": Meaning(NoSuchFunction),
    "InvalidParameterValueException": Meaning(InvalidRequest),
    "InvalidRequestContentException": Meaning(InvalidRequest),
    "RequestTooLargeException": Meaning(TooLarge),
    "ResourceConflictException": Meaning(AttemptEnded),
    "TooManyRequestsException": Meaning(Unavailable, Repeat.HERE),
    "ServiceUnavailableException": Meaning(Unavailable, Repeat.ELSEWHERE),
    "InvalidRuntimeException": Meaning(Unavailable),
    "ServiceException": Meaning(Unavailable, is_certain=False),
}

# A proxy or load balancer between client and server responds without a problem document.
_MEANINGS_BY_STATUS: Mapping[int, Meaning] = {
    401: Meaning(Refused),
    403: Meaning(Refused),
    413: Meaning(TooLarge),
    429: Meaning(Unavailable, Repeat.HERE),
    502: Meaning(Unavailable, Repeat.ELSEWHERE, is_certain=False),
    503: Meaning(Unavailable, Repeat.ELSEWHERE, is_certain=False),
    504: Meaning(Unavailable, Repeat.ELSEWHERE, is_certain=False),
}
_OTHER_REFUSAL = Meaning(UnexpectedAnswer)
_OTHER_FAILURE = Meaning(UnexpectedAnswer, Repeat.HERE, is_certain=False)

NO_SUCH_KEY = "no-such-key"
"""Not an error: a read reports an absent value with it."""

_DETAIL_CHARACTERS_MAX = 500


def document(body: bytes) -> Dict[str, Any]:
    """The JSON object in `body`, or an empty one if there is none."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def meaning_of(problem: Optional[str], status: int) -> Meaning:
    """The meaning of a refusal: by its `type`, or else by its status."""
    known = MEANINGS.get(problem or "") or MEANINGS_OF_LAMBDA.get(problem or "")
    if known is not None:
        return known
    of_volume = ERRORS_OF_VOLUMES.get(problem or "")
    if of_volume is not None:
        return Meaning(of_volume)
    return _MEANINGS_BY_STATUS.get(status, _OTHER_FAILURE if status >= 500 else _OTHER_REFUSAL)


def problem_type(body: bytes, code: Optional[str] = None) -> Optional[str]:
    """The `type` of a problem document, or else the `code` of a refusal without one."""
    found = document(body).get("type")
    return found if isinstance(found, str) else code


def error_from(
    what: str,
    status: int,
    body: bytes,
    retry_after: Optional[float],
    transaction: Optional[str],
    code: Optional[str] = None,
) -> Error:
    """The exception for a refusal; `code` is Lambda's, which replaces a problem document there."""
    found = document(body)
    problem = problem_type(body, code)
    detail = found.get("detail") or found.get("title") or found.get("Message")
    outcome, run, errno = found.get("outcome"), found.get("id"), found.get("code")
    return meaning_of(problem, status).error(
        what,
        detail[:_DETAIL_CHARACTERS_MAX] if isinstance(detail, str) else f"the server answered {status}",
        problem=problem,
        status=status,
        retry_after=retry_after,
        transaction=transaction,
        outcome=outcome if isinstance(outcome, str) else None,
        run=run if isinstance(run, str) else None,
        code=errno if isinstance(errno, str) else None,
    )
