"""A page that several people edit at once: runs in the sandbox, on the standard library alone.

GET /        the page, as the file `look.html` has it now
GET /events  what happens, as server-sent events: {"text", "version", "look"}
POST /text   the whole text as somebody left it; answers with its version
"""

import hashlib
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

LOOK = Path(__file__).with_name("look.html")
listeners, state, lock = set(), {"text": "", "version": 0}, threading.Lock()


def now():
    look = hashlib.sha256(LOOK.read_bytes()).hexdigest()[:12]
    return json.dumps({**state, "look": look})


class Handler(BaseHTTPRequestHandler):
    def answer(self, body, kind):
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path != "/events":
            look = json.loads(now())["look"]
            self.answer(LOOK.read_bytes().replace(b"LOOK", look.encode()), "text/html")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        mine = queue.Queue()
        with lock:
            listeners.add(mine)
        try:
            while True:
                self.wfile.write(f"data: {now()}\n\n".encode())
                self.wfile.flush()
                try:
                    mine.get(timeout=0.5)
                except queue.Empty:
                    pass
        except OSError:
            pass  # The page was left.
        finally:
            with lock:
                listeners.discard(mine)

    def do_POST(self):
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with lock:
            state.update(text=text, version=state["version"] + 1)
            written = json.dumps({"version": state["version"]})
            for listener in listeners:
                listener.put(None)
        self.answer(written.encode(), "application/json")

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 8000), Handler)
server.daemon_threads = True
print("serving", flush=True)
server.serve_forever()
