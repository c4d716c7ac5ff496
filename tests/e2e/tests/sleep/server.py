# A server inside a sandbox, for the tests of sleep: HTTP on 8080, bytes on 5901. What it
# knows is in its memory and behind a file that it holds open.
import http.server, os, socket, threading

TOKEN = os.urandom(8).hex()
LOG = open("/home/user/log", "a", buffering=1)
LOCK = threading.Lock()
SERVED = 0


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *args):
        pass

    def do_GET(self):
        global SERVED
        with LOCK:
            SERVED += 1
            LOG.write(f"{SERVED}\n")
            body = f"{TOKEN} {SERVED}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def echo(connection):
    with connection:
        while piece := connection.recv(1 << 16):
            connection.sendall(piece)


def serve_bytes():
    listener = socket.create_server(("127.0.0.1", 5901), backlog=64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=echo, args=(connection,), daemon=True).start()


threading.Thread(target=serve_bytes, daemon=True).start()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler)
server.request_queue_size = 64
open("/dev/shm/up", "w").close()
server.serve_forever()
