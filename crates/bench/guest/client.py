"""What a guest does to be measured: connects to the benchmark and does what it says.

Arguments: address and port. Each line on the first connection is a command and a number;
the answer is a line when it is done. The first byte of every connection says what it is for.
"""
import socket
import sys

PLACE = (sys.argv[1], int(sys.argv[2]))
BUFFER = memoryview(bytearray(1 << 20))


def connect(purpose):
    connection = socket.create_connection(PLACE)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(purpose)
    return connection


def echoed():
    connection = connect(b"E")
    if connection.recv(1) != b"E":
        sys.exit("no answer")
    return connection


def download(count):
    with connect(b"D" + count.to_bytes(8, "big")) as connection:
        while count:
            received = connection.recv_into(BUFFER)
            if not received:
                sys.exit("a download ended early")
            count -= received


def upload(count):
    with connect(b"U" + count.to_bytes(8, "big")) as connection:
        while count:
            count -= connection.send(BUFFER[:count])
        if connection.recv(1) != b"U":
            sys.exit("no answer")


def one_by_one(count):
    for _ in range(count):
        echoed().close()


held = []


def hold(count):
    held.extend(echoed() for _ in range(count))


def drop(_):
    for connection in held:
        connection.close()
    held.clear()


COMMANDS = {
    "download": download,
    "upload": upload,
    "connect": one_by_one,
    "hold": hold,
    "drop": drop,
}
control = connect(b"C")
for line in control.makefile("r"):
    command, number = line.split()
    COMMANDS[command](int(number))
    control.sendall(b"done\n")
