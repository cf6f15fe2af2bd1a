"""Names of transactions, and of runs that functions begin: they make a retry the same transaction
rather than another one.

An id is, in this order: given by the caller; derived from the current request and the ordinal of
the block in it; or random. With a derived id, a function that was killed after its commit and runs
again finds its id committed.

The ordinal counts the blocks of one scope. A block opens a scope of its own for the blocks inside
it, under its own id. Otherwise a body that is run twice, or skipped on a retry, would shift the
ordinals of all later blocks, and a retry would take one block's commit for another's.

The request comes from `request(id)`, or, in a Lambda function, from the runtime. The trace id
(`_X_AMZN_TRACE_ID`) is not used: two invocations that one function sends share it, so the second
would find its ids committed by the first and lose its effects.

A thread that the request did not enter has no request: the order in which threads begin blocks is
not stable, so their ids would not be either. A forked process has none either. It would continue
the parent's count, as would the parent and its other children, and all but one would find their
work done.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import os
import secrets
import sys
import threading
from contextvars import ContextVar, Token
from dataclasses import dataclass
from typing import Iterator, Optional

from ._requests import valid_id

_ID_BYTES_MAX = 128
_RANDOM_PREFIX = "random-"
"""The prefix that tells a server that no other client uses an id, so that it keeps the outcome for
minutes and not for days.
"""
_RANDOM_BYTES = 16


class Scope:
    """The source of default ids: a name, and the number of blocks and runs that have taken an id
    below it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._process = os.getpid()
        self._blocks = itertools.count(1)
        self._runs = itertools.count(1)

    @property
    def is_of_parent(self) -> bool:
        """Whether this process is forked from the one that handles the request."""
        return self._process != os.getpid()

    def next_id(self) -> str:
        return self._derived(f"{next(self._blocks)}")

    def next_run_id(self) -> str:
        return self._derived(f"run-{next(self._runs)}")

    def _derived(self, place: str) -> str:
        derived = f"{self.name}/{place}"
        if len(derived.encode()) <= _ID_BYTES_MAX:
            return derived
        return f"sha256-{hashlib.sha256(derived.encode()).hexdigest()}"


_RUNTIMES = (("landfast_runtime", "REQUEST_ID"), ("awslambdaric.bootstrap", "_GLOBAL_AWS_REQUEST_ID"))
"""Where the Python runtime clients store the current request: Landfast's own, and AWS's."""

_entered: ContextVar[Optional[Scope]] = ContextVar("landfast_scope", default=None)
_lambda_scope: Optional[Scope] = None
_parents_invocation: Optional[str] = None
"""The invocation that the parent of this process was in when it forked."""


@dataclass(frozen=True)
class Name:
    """The id of a transaction, and its origin."""

    id: str
    is_given: bool
    is_random: bool

    def in_child(self) -> Name:
        """The name of the same transaction, if it has not begun, in a process forked since: another
        name, unless it was given.
        """
        return self if self.is_given else Name(random_id(), is_given=False, is_random=True)


@contextlib.contextmanager
def request(id: str) -> Iterator[None]:
    """Names the request that is being handled, so that transactions in it get the same ids on every
    retry.

    `id` names one piece of work for one purpose, permanently: for example a message's id after the
    name of its consumer. Lambda functions need this only for batches, where each record is a
    request of its own.

    >>> with request("billing/message-4711"):
    ...     id_for(None)
    'billing/message-4711/1'
    """
    token = _entered.set(Scope(valid_id(id)))
    try:
        yield
    finally:
        _entered.reset(token)


def id_for(explicit: Optional[str]) -> str:
    """The id of a block that begins here."""
    return name_for(explicit).id


def name_for(explicit: Optional[str]) -> Name:
    """The id of a block that begins here. Unless it is random, others may know it: a retry begins
    under the same one.
    """
    if explicit is not None:
        return Name(valid_id(explicit), is_given=True, is_random=False)
    scope = _scope()
    if scope is not None:
        return Name(scope.next_id(), is_given=False, is_random=False)
    return Name(random_id(), is_given=False, is_random=True)


def random_id() -> str:
    """An id under which no other client begins."""
    return _RANDOM_PREFIX + secrets.token_hex(_RANDOM_BYTES)


def run_id_for(explicit: Optional[str]) -> Optional[str]:
    """The id of a run that begins here; None lets the server assign one."""
    if explicit is not None:
        return explicit
    scope = _scope()
    return scope.next_run_id() if scope is not None else None


def enter_block(id: str) -> Optional[Token[Optional[Scope]]]:
    """Opens the scope of the block `id`, if a request is being handled."""
    return _entered.set(Scope(id)) if _scope() is not None else None


def leave_block(token: Optional[Token[Optional[Scope]]]) -> None:
    """Closes the scope that `enter_block` opened."""
    if token is not None:
        # A block that ends in another thread or task than it began in leaves the scope of the
        # former alone.
        with contextlib.suppress(ValueError):
            _entered.reset(token)


def _scope() -> Optional[Scope]:
    entered = _entered.get()
    if entered is not None and not entered.is_of_parent:
        return entered
    return _scope_of_lambda()


def _scope_of_lambda() -> Optional[Scope]:
    """The scope of the current invocation of Lambda's Python runtime client, on the handler's
    thread.
    """
    global _lambda_scope
    if threading.current_thread() is not threading.main_thread():
        return None
    id = _invocation()
    # Each new invocation has its own string object, so a process that was forked to serve
    # invocations has a request in each.
    if id is None or id is _parents_invocation:
        return None
    # A retried event has the same id, maybe on the same instance, and its count starts anew. Each
    # invocation has its own string object, and the scope keeps the last one, so that no other
    # object gets its identity.
    if _lambda_scope is None or _lambda_scope.name is not id:
        _lambda_scope = Scope(id)
    return _lambda_scope


def _invocation() -> Optional[str]:
    """The id of the runtime client's current invocation."""
    module, name = next(((sys.modules[module], name) for module, name in _RUNTIMES if module in sys.modules), (None, ""))
    id = getattr(module, name, None)
    # Landfast's own runtime client records its process, also for a process that was forked from it
    # before this module was imported.
    is_of_parent = getattr(module, "PROCESS", os.getpid()) != os.getpid()
    return id if isinstance(id, str) and id and not is_of_parent else None


def _forked() -> None:
    global _parents_invocation
    _parents_invocation = _invocation()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
