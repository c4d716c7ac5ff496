"""The server in a guest that the way to its ports is measured with.

Argument: its port. `GET /bulk` is answered with as many bytes as BULK says, every other
request with two; both from memory. One thread with epoll for small answers, since
Python does little for each that way; another for each bulk answer.
"""
import select
import socket
import sys
import threading

BULK = 32 << 20
PIECE = bytes(1 << 20)
SMALL = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % BULK


def bulk(connection):
    with connection:
        connection.setblocking(True)
        try:
            connection.sendall(HEAD)
            for _ in range(BULK // len(PIECE)):
                connection.sendall(PIECE)
        except OSError:
            pass  # It was hung up.


listener = socket.create_server(("127.0.0.1", int(sys.argv[1])), backlog=128)
epoll = select.epoll()
epoll.register(listener, select.EPOLLIN)
connections = {}
while True:
    for number, _ in epoll.poll():
        if number == listener.fileno():
            connection = listener.accept()[0]
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            epoll.register(connection, select.EPOLLIN)
            connections[connection.fileno()] = connection
            continue
        connection = connections[number]
        try:
            request = connection.recv(65536)
        except OSError:
            request = b""
        # A proxy sends a head in one piece, and the benchmark no bodies.
        if request.startswith(b"GET /bulk"):
            epoll.unregister(number)
            threading.Thread(target=bulk, args=[connections.pop(number)]).start()
        elif request:
            connection.send(SMALL)
        else:
            epoll.unregister(number)
            connections.pop(number).close()
