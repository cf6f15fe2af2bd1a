"""The context: an object with attributes, as on Lambda."""

import copy
import os
import pickle
import re
import subprocess
import weakref

import dispatch


def variables(event, context):
    return sorted(vars(context))


def values(event, context):
    return {name: str(value) for name, value in vars(context).items() if name != "_epoch_deadline_time_in_ms"}


def kinds(event, context):
    return {name: type(value).__name__ for name, value in vars(context).items()}


def public_names(event, context):
    return sorted(name for name in dir(context) if not name.startswith("_"))


def its_class(event, context):
    return [each.__name__ for each in type(context).__mro__]


def its_text(event, context):
    return [repr(context), str(context)]


def a_new_attribute(event, context):
    context.tenant = "x"
    return [context.tenant, "tenant" in vars(context)]


def another_value(event, context):
    context.function_name = "other"
    del context.tenant_id
    return [context.function_name, hasattr(context, "tenant_id")]


def a_weak_reference(event, context):
    return weakref.ref(context)() is context


def a_copy(event, context):
    return repr(copy.deepcopy(context)) == repr(context)


def as_bytes(event, context):
    return pickle.loads(pickle.dumps(context)).aws_request_id == context.aws_request_id


def as_a_key(event, context):
    return {context: 1}[context]


def as_a_result(event, context):
    return context


def time_left(event, context):
    left = context.get_remaining_time_in_millis()
    return [type(left).__name__, 0 < left <= 30_000]


def no_time_left(event, context):
    context._epoch_deadline_time_in_ms = 0
    return context.get_remaining_time_in_millis()


def the_identity(event, context):
    identity = context.identity
    try:
        vars(identity)
    except TypeError as error:
        told = str(error)
    identity.cognito_identity_id = "x"
    return [repr(identity), told, type(identity).__name__]


def an_attribute_of_the_identity(event, context):
    context.identity.other = 1


def the_client(event, context):
    said = context.client_context
    return repr(said) if said is None else [repr(said), repr(said.client), said.custom, said.env, type(said).__name__]


def a_trace_of_the_caller(event, context):
    return context.w3c()


def a_log_line(event, context):
    context.log("one\n")
    context.log("two\n")
    context.log(5)


def log_lines_without_ends(event, context):
    context.log("one")
    context.log("two")


def the_trace(event, context):
    in_process = subprocess.run(["/usr/bin/env"], capture_output=True, text=True).stdout
    assert "_X_AMZN_TRACE_ID=" + os.environ["_X_AMZN_TRACE_ID"] in in_process.splitlines()
    shape = r"Root=1-[0-9a-f]{8}-[0-9a-f]{24};Parent=[0-9a-f]{16};Sampled=0"
    return bool(re.fullmatch(shape, os.environ["_X_AMZN_TRACE_ID"]))


handler = dispatch.handler_of(globals())
