"""Problem documents: the table of the HTTP interface, line by line."""

import pickle

import pytest

import landfast
from landfast import _problems
from landfast._problems import ERRORS_OF_VOLUMES, MEANINGS, Repeat

# type, status, exception, repeat of the request, whether the body may run again.
TABLE = [
    ("invalid-request", 400, landfast.InvalidRequest, Repeat.NEVER, False),
    ("reserved-name", 400, landfast.InvalidRequest, Repeat.NEVER, False),
    ("request-timed-out", 408, landfast.Unavailable, Repeat.HERE, True),
    ("too-large", 413, landfast.TooLarge, Repeat.NEVER, False),
    ("too-many-transactions", 429, landfast.TooManyTransactions, Repeat.HERE, False),
    ("too-much-buffered", 429, landfast.TooMuchBuffered, Repeat.HERE, False),
    ("no-such-transaction", 404, landfast.NoSuchTransaction, Repeat.NEVER, True),
    ("no-such-queue", 404, landfast.NoSuchQueue, Repeat.NEVER, False),
    ("no-such-function", 404, landfast.NoSuchFunction, Repeat.NEVER, False),
    ("expired", 409, landfast.Expired, Repeat.NEVER, False),
    ("several-sequencers", 400, landfast.SeveralSequencers, Repeat.NEVER, False),
    ("clock-ahead", 503, landfast.ClockAhead, Repeat.ELSEWHERE, True),
    ("conflict", 409, landfast.Conflict, Repeat.NEVER, True),
    ("no-valid-version", 409, landfast.NoValidVersion, Repeat.NEVER, True),
    ("snapshot-too-old", 409, landfast.SnapshotTooOld, Repeat.NEVER, True),
    ("outcome-unknown", 503, landfast.OutcomeUnknown, Repeat.ELSEWHERE, False),
    ("unavailable", 503, landfast.Unavailable, Repeat.ELSEWHERE, True),
    ("no-such-workflow", 404, landfast.NoSuchWorkflow, Repeat.NEVER, False),
    ("server-stopped", 503, landfast.Unavailable, Repeat.NEVER, True),
    ("run-input-differs", 409, landfast.InvalidRequest, Repeat.NEVER, False),
    ("no-such-run", 404, landfast.NoSuchRun, Repeat.NEVER, False),
    ("outside-of-run", 400, landfast.OutsideOfRun, Repeat.NEVER, False),
    ("attempt-ended", 409, landfast.AttemptEnded, Repeat.NEVER, False),
    ("too-many-runs", 429, landfast.TooManyRuns, Repeat.HERE, False),
    ("condition-not-met", 412, landfast.ConditionNotMet, Repeat.NEVER, False),
    ("no-room", 507, landfast.NoRoom, Repeat.NEVER, False),
    ("corrupt", 500, landfast.Corrupt, Repeat.NEVER, False),
    ("not-ready", 503, landfast.Unavailable, Repeat.ELSEWHERE, True),
    ("unauthorized", 401, landfast.Refused, Repeat.NEVER, False),
    ("unknown-host", 403, landfast.Refused, Repeat.NEVER, False),
    ("foreign-origin", 403, landfast.Refused, Repeat.NEVER, False),
    ("no-such-volume", 404, landfast.NoSuchVolume, Repeat.NEVER, False),
    ("volume-exists", 409, landfast.VolumeExists, Repeat.NEVER, False),
    ("volume-in-use", 409, landfast.VolumeInUse, Repeat.NEVER, False),
    ("no-such-snapshot", 404, landfast.NoSuchSnapshot, Repeat.NEVER, False),
    ("no-such-file", 404, landfast.NoSuchFile, Repeat.NEVER, False),
    ("file-conflict", 409, landfast.FileConflict, Repeat.NEVER, False),
    ("range-not-satisfiable", 416, landfast.InvalidRequest, Repeat.NEVER, False),
    ("quota-exceeded", 507, landfast.QuotaExceeded, Repeat.NEVER, False),
    ("no-such-path", 404, landfast.Refused, Repeat.NEVER, False),
    ("method-not-allowed", 405, landfast.Refused, Repeat.NEVER, False),
]


@pytest.mark.parametrize("type, status, error, repeat, runs_again", TABLE)
def every_problem_has_its_exception_and_its_repeats(
    type: str, status: int, error: "type[landfast.Error]", repeat: Repeat, runs_again: bool
) -> None:
    """T15."""
    found = _problems.error_from("get key 'a'", status, b'{"type":"%s","detail":"why"}' % type.encode(), None, "x")
    assert found.__class__ is error
    assert _problems.meaning_of(type, status).repeat is repeat
    assert found.body_may_run_again is runs_again
    text = str(found)
    assert text.startswith(f"get key 'a': {type}: why. ") and text.endswith((".", "?")), text


def the_table_above_is_complete() -> None:
    finished = {"transaction-finished"}
    assert {line[0] for line in TABLE} | finished == {*MEANINGS, *ERRORS_OF_VOLUMES}


@pytest.mark.parametrize("outcome, runs_again", [("aborted", True), ("expired", False), ("begun-anew", False)])
def a_finished_transaction_says_how_it_ended(outcome: str, runs_again: bool) -> None:
    body = b'{"type":"transaction-finished","outcome":"%s"}' % outcome.encode()
    found = _problems.error_from("put key 'a'", 409, body, None, "x")
    assert isinstance(found, landfast.TransactionFinished)
    assert found.outcome == outcome and found.body_may_run_again is runs_again
    assert f"(outcome: {outcome})" in str(found)


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[]", b'{"type":7,"detail":[],"outcome":{}}', b"\xff", b"[" * 100_000]
)
def an_answer_that_is_no_problem_document_is_judged_by_its_status(body: bytes) -> None:
    for status, error, repeat in [
        (400, landfast.UnexpectedAnswer, Repeat.NEVER),
        (429, landfast.Unavailable, Repeat.HERE),
        (500, landfast.UnexpectedAnswer, Repeat.HERE),
        (502, landfast.Unavailable, Repeat.ELSEWHERE),
        (503, landfast.Unavailable, Repeat.ELSEWHERE),
    ]:
        found = _problems.error_from("get key 'a'", status, body, None, None)
        assert found.__class__ is error and found.status == status
        assert _problems.meaning_of(None, status).repeat is repeat
        assert str(status) in str(found)


def an_exception_survives_the_way_to_another_process() -> None:
    sent = _problems.error_from("put key 'a'", 429, b'{"type":"too-much-buffered","detail":"why"}', 2.0, "x")
    received = pickle.loads(pickle.dumps(sent))
    assert isinstance(received, landfast.TooMuchBuffered)
    assert (str(received), received.retry_after, received.transaction) == (str(sent), 2.0, "x")


def exceptions_are_named_as_they_are_imported() -> None:
    assert landfast.Conflict.__module__ == "landfast"


def a_run_whose_end_is_not_known_is_named() -> None:
    """W1: a caller that chose no id could otherwise find the run's id only in the message text."""
    body = b'{"type": "outcome-unknown", "title": "t", "status": 503, "detail": "d", "id": "r 1"}'
    error = _problems.error_from("begin a run", 503, body, None, None)
    assert isinstance(error, landfast.OutcomeUnknown) and error.run == "r 1"
    assert _problems.error_from("begin a run", 503, b"{}", None, None).run is None
