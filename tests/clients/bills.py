"""The output of `landfast cost`."""

import json

import s3_server


def cost(running, *options):
    done = s3_server.command(running, "cost", *options)
    assert done.returncode == 0, done.stderr
    return done.stdout


def bill(running, *options):
    return json.loads(cost(running, "--json", *options))


def amounts(bill, service="memory"):
    charges = [charge for charge in bill["charges"] if charge["service"] == service]
    return {(charge["category"], charge["unit"]): charge["amount"] for charge in charges}
