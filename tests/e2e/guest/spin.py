"""Processes that draw random values, read clocks or wait for a signal, without a pause.

Each tells in /dev/shm/told what it saw, in a file that appears whole: a clone's processes
at once after the thaw, the original's when SIGUSR2 asks them; values since SIGHUP.
"""

import ctypes
import json
import os
import secrets
import signal
import sys
import time
import uuid

TOLD = "/dev/shm/told"
NOTIFY = "/run/pando/notify"
# A clone's wall clock goes on later than it stood still; that is how it is noticed. So does
# the original's, but for less, and its epoch stays.
JUMP = 0.02
VALUES = 200
KEPT = 30000
GETRANDOM = 318


def tell(name, content):
    with open(f"{TOLD}/.{name}", "w") as file:
        json.dump(content, file)
    os.rename(f"{TOLD}/.{name}", f"{TOLD}/{name}")


def sample():
    """The monotonic clock, and how far the wall clock is from it."""
    while True:
        first, wall, last = time.monotonic(), time.time(), time.monotonic()
        # Not where another process, or the freeze, came between.
        if last - first < 0.0005:
            return first, wall - first


def by_system_call():
    libc = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(16)

    def draw():
        assert libc.syscall(GETRANDOM, buffer, 16, 0) == 16
        return buffer.raw

    return draw


def by_device():
    device = os.open("/dev/urandom", os.O_RDONLY)
    return lambda: os.read(device, 16)


def by_file():
    def draw():
        with open("/proc/sys/kernel/random/uuid") as file:
            return uuid.UUID(file.read().strip()).bytes

    return draw


SOURCES = {
    "getrandom": lambda: lambda: os.getrandom(16),
    "system-call": by_system_call,
    "urandom": by_device,
    "kernel-uuid": by_file,
    "secrets": lambda: lambda: secrets.token_bytes(16),
    "uuid4": lambda: lambda: uuid.uuid4().bytes,
}


def spin(name, draw):
    """A value counts for the clone if it was asked for after the thaw."""
    drawn, keep, until = [], False, 0.0

    def remember(*_):
        nonlocal keep
        keep = True

    def tell_original(*_):
        tell(name, {"until": until, "values": [value.hex() for value in drawn]})
        os._exit(0)

    signal.signal(signal.SIGHUP, remember)
    signal.signal(signal.SIGUSR2, tell_original)
    known = epoch()
    _, before = sample()
    tell(f"ready-{name}", {})
    while True:
        asked = time.time()
        # Too little where another process came between, never too much.
        offset = asked - time.monotonic()
        value = draw()
        if offset - before > JUMP:
            if epoch() != known:
                if time.time() - time.monotonic() - offset > JUMP:
                    # The original's pause was seen, and the thaw came after that.
                    value = draw()
                break
            # What was seen before the epoch was: the next freeze may come right here.
            before = offset
        if keep:
            drawn.append(value)
            keep = len(drawn) < KEPT
            until = asked
    values = [value] + [draw() for _ in range(VALUES - 1)]
    tell(name, {"values": [value.hex() for value in values]})


def watch_clocks():
    """The clocks at the first instant after the thaw, and how the wall clock was set since."""
    known = epoch()
    latest, before = sample()
    backwards, after = 0.0, None
    tell("ready-clock", {})
    while after is None or latest - thawed < 1:
        ticks, now = sample()
        backwards = max(backwards, latest - ticks)
        latest = ticks
        if after is None and now - before > JUMP:
            if epoch() != known:
                again, later = sample()
                # As in `spin`.
                after, thawed = (later, again) if later - now > JUMP else (now, ticks)
            else:
                before = now
    tell("clock", {"before": before, "after": after, "latest": now, "backwards": backwards})


def register():
    with open(f"{NOTIFY}/{os.getpid()}", "w") as file:
        file.write("USR1\n")


def epoch():
    with open("/run/pando/epoch") as file:
        return file.read()


def wait_blocked():
    """Looks whether the signal is there, at once after the thaw."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    register()

    def pending():
        return signal.SIGUSR1 in signal.sigpending()

    def tell_original(*_):
        tell("blocked", {"pending": pending()})
        os._exit(0)

    signal.signal(signal.SIGUSR2, tell_original)
    known = epoch()
    _, before = sample()
    tell("ready-blocked", {})
    while True:
        offset = time.time() - time.monotonic()
        if offset - before >= JUMP:
            now = epoch()
            if now != known:
                return tell("blocked", {"pending": pending(), "epoch": now})
            # As in `spin`.
            before = offset


def wait_caught():
    signal.signal(signal.SIGUSR1, lambda *_: tell("caught", {"epoch": epoch()}))
    register()
    tell("ready-caught", {})
    # Not pause(), which would wait for the next signal where one came just before it.
    while True:
        time.sleep(0.05)


def main():
    os.makedirs(TOLD, exist_ok=True)
    work = {name: (lambda name=name, make=make: spin(name, make())) for name, make in SOURCES.items()}
    work |= {"clock": watch_clocks, "blocked": wait_blocked, "caught": wait_caught}
    for name, run in work.items():
        if os.fork() == 0:
            # Its name, for who is to send it a signal.
            with open("/proc/self/comm", "w") as file:
                file.write(("draw-" if name in SOURCES else "wait-") + name[:10])
            run()
            os._exit(0)
    for _ in work:
        os.wait()


if __name__ == "__main__":
    sys.exit(main())
