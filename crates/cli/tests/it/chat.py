"""Plays a terminal: chat.py SCRIPT PROGRAM ARGUMENTS…

Lines of the script: `wait "text"` until the program shows it, `type "line"` at the next prompt, `send "keys"`
at once, `exit CODE`.
Prints all that was shown; fails when something does not come within a minute.
"""

import ast
import os
import pty
import select
import sys
import time


def main():
    script, program = sys.argv[1], sys.argv[2:]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(program[0], program)
    shown = b""
    seen = 0  # What was waited for before is not waited for again.

    def fail(why):
        sys.stdout.buffer.write(shown)
        sys.stdout.flush()
        sys.exit(f"{why}; after {shown[seen:]!r}")

    def more(deadline):
        nonlocal shown
        left = deadline - time.monotonic()
        ready, _, _ = select.select([terminal], [], [], max(left, 0))
        if not ready:
            return False
        try:
            data = os.read(terminal, 65536)
        except OSError:  # Linux says so when the other side is closed.
            data = b""
        shown += data
        return bool(data)

    def wait(text, deadline):
        nonlocal seen
        wanted = text.encode()
        while (at := shown.find(wanted, seen)) < 0:
            if not more(deadline):
                fail(f"{text!r} did not come")
        seen = at + len(wanted)

    for line in script.strip().splitlines():
        verb, _, value = line.strip().partition(" ")
        value = ast.literal_eval(value)
        deadline = time.monotonic() + 60
        if verb == "wait":
            wait(value, deadline)
        elif verb == "type":
            # What is typed before the prompt is there may get lost between two states of the terminal.
            wait(">>> ", deadline)
            os.write(terminal, value.encode() + b"\r")
        elif verb == "send":
            os.write(terminal, value.encode())
        elif verb == "exit":
            while more(deadline):
                pass
            _, status = os.waitpid(pid, 0)
            code = os.waitstatus_to_exitcode(status)
            if code != value:
                fail(f"exit code {code}, expected {value}")
    sys.stdout.buffer.write(shown)


main()
