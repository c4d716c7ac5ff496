# A server inside a sandbox, for the tests of ports: HTTP on 8080, bytes on 5901, gRPC on 50051,
# loopback only.
import base64, hashlib, http.server, json, os, socket, struct, sys, threading

GO = threading.Event()
SERVED = []
PATTERN = bytes(range(256)) * 4096


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def say(self, body, status=200):
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        path, _, query = self.path.partition("?")
        if path == "/served":
            return self.say(json.dumps(SERVED).encode())
        SERVED.append(self.requestline)
        if path == "/events":
            self.events()
        elif path == "/bytes":
            self.bytes(int(query))
        elif path == "/socket":
            self.socket()
        elif path == "/garbage":
            self.wfile.write(b"\0\1\2 is no answer\r\n\r\n")
            self.close_connection = True
        elif path == "/endless":
            self.send_response(200)
            self.flush_headers()
            for index in range(1 << 16):
                self.wfile.write(b"X-%d: %s\r\n" % (index, b"x" * 1000))
        elif path == "/trailers":
            self.trailers()
        elif path == "/reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.send_response(200)
            self.send_header("Content-Length", "1000")
            self.end_headers()
            self.wfile.write(b"x")
            self.close_connection = True
            self.connection.close()
        else:
            heard = {"line": self.requestline, "headers": [[k, v] for k, v in self.headers.items()]}
            self.say(json.dumps(heard).encode())

    def do_POST(self):
        SERVED.append(self.requestline)
        if self.path == "/go":
            GO.set()
        self.say(self.hash().encode())

    def hash(self):
        digest, total = hashlib.sha256(), 0
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                digest.update(self.rfile.read(size))
                self.rfile.readline()
                total += size
            self.rfile.readline()
        else:
            left = int(self.headers.get("Content-Length", 0))
            while left:
                piece = self.rfile.read(min(left, 1 << 20))
                digest.update(piece)
                left -= len(piece)
                total += len(piece)
        return f"{total} {digest.hexdigest()}"

    def bytes(self, count):
        self.send_response(200)
        self.send_header("Content-Length", str(count))
        self.end_headers()
        while count:
            piece = PATTERN[:count]
            self.wfile.write(piece)
            count -= len(piece)

    def events(self):
        GO.clear()
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"data: one\n\n")
        GO.wait(60)
        self.wfile.write(b"data: two\n\n")
        self.close_connection = True

    def trailers(self):
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Trailer", "X-Sum")
        self.end_headers()
        self.wfile.write(b"2\r\nok\r\n0\r\nX-Sum: 7\r\n\r\n")

    # Says every message back, until the client closes.
    def socket(self):
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key.encode()).digest()).decode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        self.send_header("Sec-WebSocket-Accept", accept)
        self.end_headers()
        self.close_connection = True
        while True:
            first, second = self.rfile.read(2)
            length = second & 127
            if length == 126:
                (length,) = struct.unpack(">H", self.rfile.read(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self.rfile.read(8))
            mask = self.rfile.read(4)
            data = self.rfile.read(length)
            data = (int.from_bytes(data) ^ int.from_bytes((mask * (length // 4 + 1))[:length])).to_bytes(length)
            head = bytes([first, length]) if length < 126 else bytes([first, 126]) + struct.pack(">H", length)
            self.wfile.write(head + data)
            if first & 15 == 8:
                return


# Answers with what it was sent, hashed, once its client has ended its side.
def hash_all(connection):
    with connection:
        digest, total = hashlib.sha256(), 0
        while piece := connection.recv(1 << 16):
            digest.update(piece)
            total += len(piece)
        connection.sendall(f"{total} {digest.hexdigest()}\n".encode())


def serve_bytes():
    listener = socket.create_server(("127.0.0.1", 5901), backlog=64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=hash_all, args=(connection,), daemon=True).start()


# As much of HTTP/2 as one call of gRPC takes: headers, a message, trailers.
def grpc(connection):
    def frame(kind, flags, stream, payload=b""):
        return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload

    def literal(name, value):
        return b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value

    with connection, connection.makefile("rb") as reader:
        if reader.read(24) != b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n":
            return
        connection.sendall(frame(4, 0, 0))
        while head := reader.read(9):
            kind, flags, stream = head[3], head[4], int.from_bytes(head[5:])
            payload = reader.read(int.from_bytes(head[:3]))
            if kind == 4 and not flags & 1:
                connection.sendall(frame(4, 1, 0))
            if kind == 0 and payload:
                message = payload
            if kind in (0, 1) and flags & 1:
                heads = b"\x88" + literal(b"content-type", b"application/grpc")
                answer = frame(1, 4, stream, heads) + frame(0, 0, stream, message)
                connection.sendall(answer + frame(1, 5, stream, literal(b"grpc-status", b"0")))


def serve_grpc():
    listener = socket.create_server(("127.0.0.1", 50051), backlog=64)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=grpc, args=(connection,), daemon=True).start()


threading.Thread(target=serve_bytes, daemon=True).start()
threading.Thread(target=serve_grpc, daemon=True).start()
server = http.server.ThreadingHTTPServer(("127.0.0.1", 8080), Handler)
open("/dev/shm/up", "w").close()
server.serve_forever()
