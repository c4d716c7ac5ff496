"""Holds connections and tells what becomes of each.

Arguments: "NAME talk|wait ADDRESS PORT". Who talks says a number every 20 ms and reads it
back; who waits says nothing after the first byte, as a program that waits for news. What
they see is in /dev/shm/held/NAME: "open COUNT", or "cut ERROR MILLISECONDS" with the time from
the begin of this life of the sandbox (its epoch) to the error; -1000000 where no new life began. It is
below zero where the error was seen first.
"""

import errno
import os
import socket
import sys
import threading
import time

TOLD = "/dev/shm/held"
EPOCH = "/run/pando/epoch"

began = None


def tell(name, text):
    with open(f"{TOLD}/.{name}", "w") as file:
        file.write(text)
    os.rename(f"{TOLD}/.{name}", f"{TOLD}/{name}")


def epoch():
    with open(EPOCH) as file:
        return file.read()


def watch_epoch():
    """Notes when another life begins; looks every 5 ms, so errs by as much, too late."""
    global began
    known = epoch()
    while True:
        now = epoch()
        if now != known:
            began, known = time.monotonic(), now
        time.sleep(0.005)


def hold(name, how, address, port):
    end = socket.create_connection((address, int(port)), 15)
    end.settimeout(None)
    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    count = 0
    try:
        while True:
            count += 1
            text = b"%09d" % count
            end.sendall(text)
            back = b""
            while len(back) < len(text):
                piece = end.recv(len(text) - len(back))
                if not piece:
                    raise OSError(errno.EPIPE, "it ended")
                back += piece
            assert back == text, (back, text)
            tell(name, f"open {count}")
            if how == "wait":
                end.recv(1)
                raise OSError(errno.EPIPE, "it ended")
            time.sleep(0.02)
    except OSError as error:
        now = time.monotonic()
        # The watcher may be asleep at this very moment.
        time.sleep(0.05)
        after = (now - began) * 1000 if began else -1000000
        tell(name, f"cut {errno.errorcode.get(error.errno, error)} {after:.0f}")


os.makedirs(TOLD, exist_ok=True)
threading.Thread(target=watch_epoch, daemon=True).start()
threads = [threading.Thread(target=hold, args=words.split()) for words in sys.argv[1:]]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
