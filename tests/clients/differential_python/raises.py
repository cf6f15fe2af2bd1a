"""Exceptions: their types, messages, traces and lines in the log."""

import functools
import json
import sys

import dispatch
import raises_elsewhere


class Own(Exception):
    class Inner(Exception):
        pass


class Told(Exception):
    def __str__(self):
        return "told"


class Silent(Exception):
    def __str__(self):
        raise ValueError("it has no text")


class Renamed(Exception):
    pass


class Fields(Exception):
    def __init__(self, a, b):
        self.a = a


Renamed.__name__ = "Other"
Accented = type("Fehlür", (Exception,), {})


def a_message(event, context):
    raise ValueError("on purpose")


def no_message(event, context):
    raise ValueError


def an_empty_message(event, context):
    raise ValueError("")


def a_message_of_lines(event, context):
    raise ValueError("one\n  two\n\nthree\n")


def a_message_in_another_language(event, context):
    raise ValueError("é ☃ \u2028 \x00 \x1b[1m")


def a_message_that_is_no_text(event, context):
    raise ValueError(None, 1, ["two"])


def half_a_character(event, context):
    raise ValueError("\ud800 x")


def a_key(event, context):
    return {}["missing"]


def an_attribute(event, context):
    return context.missing


def a_name(event, context):
    return eval("missing")


def a_division(event, context):
    return (
        1
        / 0
    )


def a_false_assertion(event, context):
    assert event == "other"


def a_cause(event, context):
    try:
        raise KeyError("first")
    except KeyError as error:
        raise RuntimeError("second") from error


def a_context(event, context):
    try:
        raise KeyError("first")
    except KeyError:
        raise RuntimeError("second")


def no_context(event, context):
    try:
        raise KeyError("first")
    except KeyError:
        raise RuntimeError("second") from None


def an_own_type(event, context):
    raise Own("own")


def an_inner_type(event, context):
    raise Own.Inner("inner")


def an_own_text(event, context):
    raise Told("not this")


def a_text_that_fails(event, context):
    raise Silent()


def another_name(event, context):
    raise Renamed("renamed")


def a_name_with_accents(event, context):
    raise Accented("named")


def own_fields(event, context):
    raise Fields(1, 2)


def a_file(event, context):
    return open("/nowhere/file")


def a_decoding(event, context):
    return b"\xff".decode()


def the_end_of_an_iterator(event, context):
    return next(iter([]))


def a_generator(event, context):
    def generator():
        yield 1
        raise LookupError("in a generator")

    return list(generator())


def a_recursion(event, context):
    return a_recursion(event, context)


def a_recursion_of_two(event, context):
    def one(left):
        two(left - 1)

    def two(left):
        one(left - 1) if left > 0 else 1 / 0

    return one(20)


def a_short_recursion(event, context):
    def down(left):
        return down(left - 1) if left else 1 / 0

    return down(4)


def several(event, context):
    if sys.version_info < (3, 11):
        raise ValueError("there are no groups")
    raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])  # noqa: F821


def notes(event, context):
    error = ValueError("noted")
    if hasattr(error, "add_note"):
        error.add_note("a note")
    raise error


def in_the_library(event, context):
    return json.loads("{")


def in_another_module(event, context):
    return raises_elsewhere.fail()


def in_executed_code(event, context):
    exec("def inner():\n    raise ValueError('executed')\ninner()")


def in_a_lambda(event, context):
    return (lambda: functools.reduce(lambda a, b: a / b, [1, 0]))()


def in_a_comprehension(event, context):
    return [1 / each for each in [0]]


def in_a_class(event, context):
    class Failing:
        value = 1 / 0

    return Failing


def at_compilation(event, context):
    compile("def (:", "own.py", "exec")


def at_an_import(event, context):
    import no_such_module  # noqa: F401


def a_number(event, context):
    raise 5


def again(event, context):
    try:
        raise ValueError("again")
    except ValueError as error:
        kept = error
    raise kept


def at_the_end_of_a_block(event, context):
    try:
        return 1
    finally:
        raise ValueError("finally")


def a_type_error_of_the_handler(event, context):
    return dispatch.handler_of({})(1)


def out_of_memory(event, context):
    raise MemoryError


def not_implemented(event, context):
    raise NotImplementedError("later")


def a_system_error(event, context):
    raise OSError(5, "text", "file")


def a_long_trace(event, context):
    exec(compile("def f(n):\n" + "\n" * 9 + "    return f(n - 1) if n else 1 / 0", "p" * 3000, "exec"), globals())
    return f(200)  # noqa: F821


handler = dispatch.handler_of(globals())
