"""One handler for all cases of a module: the event names the case, which gets the rest of it."""


def handler_of(cases):
    def handler(event, context):
        return cases[event["case"]](event.get("event"), context)

    return handler
