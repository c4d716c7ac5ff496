"""Programs in the middle of something: each waits, serves or writes when the snapshot is taken.

What they see later is in /dev/shm/told, in files that appear whole.
"""

import http.server
import io
import json
import os
import select
import sqlite3
import subprocess
import sys
import time
import zipfile

HOME = "/tmp/busy"
TOLD = "/dev/shm/told"
WHEEL = "tiny-1.0-py3-none-any.whl"
ROWS_AT_ONCE = 20


def tell(name, content):
    with open(f"{TOLD}/.{name}", "w") as file:
        file.write(str(content))
    os.rename(f"{TOLD}/.{name}", f"{TOLD}/{name}")


def pipe(name):
    """A named pipe, held open from both ends so that a read of it waits."""
    os.mkfifo(f"{HOME}/{name}")
    return os.open(f"{HOME}/{name}", os.O_RDWR)


def read():
    end = pipe("read")
    tell("ready-read", "")
    tell("read", os.read(end, 100).decode())


def wait_by_epoll():
    end = pipe("epoll")
    poll = select.epoll()
    poll.register(end, select.EPOLLIN)
    tell("ready-epoll", "")
    assert poll.poll() == [(end, select.EPOLLIN)]
    tell("epoll", os.read(end, 100).decode())


def wait_by_select():
    end = pipe("select")
    tell("ready-select", "")
    assert select.select([end], [], []) == ([end], [], [])
    tell("select", os.read(end, 100).decode())


def read_eval_print():
    end = pipe("repl")
    os.write(end, b"kept = {'answer': 41}\nopen('/dev/shm/told/ready-repl', 'w').close()\n")
    os.dup2(end, 0)
    output = os.open(f"{TOLD}/repl", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(output, 1)
    os.execv(sys.executable, [sys.executable, "-u", "-i"])


class Server(http.server.ThreadingHTTPServer):
    def server_bind(self):
        # Without a look at names, which would wait for a network.
        self.socket.bind(self.server_address)
        self.server_name, self.server_port = "localhost", self.server_address[1]


def serve_files():
    os.makedirs(f"{HOME}/www")
    with open(f"{HOME}/www/page", "w") as file:
        file.write("served")
    os.chdir(f"{HOME}/www")
    command = [sys.executable, "-m", "http.server", "8000", "--bind", "127.0.0.1"]
    os.execv(sys.executable, command)


def write_rows():
    # The processor is the others' until they wait.
    while not os.path.exists(f"{TOLD}/ready-pip"):
        time.sleep(0.1)
    database = sqlite3.connect(f"{HOME}/rows.db", isolation_level=None)
    database.execute("create table rows (number integer primary key, square integer)")
    number = 0
    while True:
        database.execute("begin")
        for number in range(number, number + ROWS_AT_ONCE):
            database.execute("insert into rows values (?, ?)", (number, number * number))
        number += 1
        database.execute("commit")
        tell("committed", number)


def wheel():
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        about = "tiny-1.0.dist-info"
        archive.writestr("tiny.py", "ANSWER = 42\n" + "# padding\n" * 20000)
        archive.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{about}/RECORD", "")
    return content.getvalue()


class Index(http.server.BaseHTTPRequestHandler):
    """A package index that sends half of the package, and the rest when it is told to."""

    def do_GET(self):
        is_wheel = self.path.endswith(".whl")
        body = self.server.wheel if is_wheel else f'<a href="/{WHEEL}">{WHEEL}</a>'.encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.send_header("content-type", "application/zip" if is_wheel else "text/html")
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if is_wheel:
            self.wfile.flush()
            tell("ready-pip", "")
            while not os.path.exists(f"{HOME}/go-on"):
                time.sleep(0.02)
        self.wfile.write(body[half:])


def serve_index():
    server = Server(("127.0.0.1", 8001), Index)
    server.wheel = wheel()
    tell("ready-index", "")
    server.serve_forever()


def install():
    while not os.path.exists(f"{TOLD}/ready-index"):
        time.sleep(0.02)
    command = [sys.executable, "-m", "pip", "install", "--target", f"{HOME}/site", "--no-cache-dir", "--timeout", "600"]
    command += ["--disable-pip-version-check", "--index-url", "http://127.0.0.1:8001/simple", "tiny"]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    sys.path.insert(0, f"{HOME}/site")
    answer = __import__("tiny").ANSWER if done.returncode == 0 else None
    tell("pip", json.dumps([done.returncode, answer, done.stderr]))


def main():
    for folder in (HOME, TOLD):
        os.makedirs(folder)
    programs = (install, serve_index, read, wait_by_epoll, wait_by_select, read_eval_print, serve_files, write_rows)
    for program in programs:
        if os.fork() == 0:
            with open("/proc/self/comm", "w") as file:
                file.write(program.__name__)
            program()
            os._exit(0)
    for _ in programs:
        os.wait()


if __name__ == "__main__":
    main()
