"""What the client scripts share: checks with names, groups of them, and questions to the server.

A script is called with the server's address and the name of one group; it prints `ok - NAME` for each
check of the group and ends with 1 and a trace at the first that fails.
"""

import sys
import time
import traceback
import urllib.request

GROUPS = {}

COLD = "What's the opposite of cold?"
HOT = "The opposite of cold is hot."
# Pebble's tokens that end an answer. A bias against them makes answers as long as the limit.
ENDLESS = {"4080": -100, "4082": -100}

STOCK = {
    "name": "stock_price",
    "description": "Get the price of a stock.",
    "parameters": {
        "type": "object",
        "properties": {"stock": {"type": "string", "description": "Stock symbol"}},
        "required": ["stock"],
    },
}
HEATING = {
    "name": "heating",
    "description": "Set the heating of a room.",
    "parameters": {
        "type": "object",
        "properties": {
            "room": {"type": "string", "description": "Room"},
            "degrees": {"type": "integer", "description": "Temperature"},
        },
        "required": ["room", "degrees"],
    },
}
TIMER = {
    "name": "start_timer",
    "description": "Start a timer.",
    "parameters": {
        "type": "object",
        "properties": {"minutes": {"type": "integer", "description": "Length in minutes"}},
        "required": ["minutes"],
    },
}


def check(group):
    """Puts a function into a group; what it is called says what it checks."""
    def add(function):
        GROUPS.setdefault(group, []).append(function)
        return function
    return add


def url():
    return sys.argv[1]


def main():
    for function in GROUPS[sys.argv[2]]:
        name = function.__name__.replace("_", " ")
        try:
            function()
        except Exception:
            traceback.print_exc()
            sys.exit(f"not ok - {name}")
        print(f"ok - {name}", flush=True)


def equal(got, expect):
    assert got == expect, f"got {got!r}, expected {expect!r}"


def raises(kind, function, *words):
    """The error of this kind that a call ends with; its text has all these words."""
    try:
        answer = function()
    except kind as error:
        for word in words:
            assert word in str(error), f"no {word!r} in {error}"
        return error
    raise AssertionError(f"expected {kind.__name__}, got {answer!r}")


def metric(name):
    """One number of /metrics."""
    with urllib.request.urlopen(url() + "/metrics") as answer:
        for line in answer.read().decode().splitlines():
            words = line.split()
            if words[0] == f"millstream_{name}":
                return float(words[1])
    raise AssertionError(f"/metrics has no {name}")


def falls_to(name, expect, seconds):
    """Waits until a number of /metrics is what it should become."""
    deadline = time.monotonic() + seconds
    while (value := metric(name)) != expect:
        assert time.monotonic() < deadline, f"{name} is {value} after {seconds} s, expected {expect}"
        time.sleep(0.02)
