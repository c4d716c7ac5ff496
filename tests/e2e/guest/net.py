"""Tries what its argument says, a JSON list of attempts, and prints a JSON list of what came of them.

Each outcome has the time in milliseconds that the attempt took, Python's own included, and
"error": null, or the name of the error. Run by root: some make frames of their own.
"""

import errno
import json
import os
import select
import socket
import struct
import sys
import time

# Far above what any answer takes: who waits that long was not refused, but forgotten.
LIMIT = 15

# How long a frame's answer is waited for, in seconds.
FRAME_LIMIT = 0.4

# Frames to it reach the gateway.
GATEWAY = "10.0.2.2"


def family(address):
    return socket.AF_INET6 if ":" in address else socket.AF_INET


def opened(address, port, kind=socket.SOCK_STREAM, protocol=0):
    end = socket.socket(family(address), kind, protocol)
    end.settimeout(LIMIT)
    end.connect((address, port))
    return end


def tcp(address, port):
    """A connection."""
    opened(address, port).close()


def say(address, port, text):
    """A connection, a text and the first piece of the answer."""
    with opened(address, port) as end:
        end.sendall(text.encode())
        return {"reply": end.recv(65536).decode(errors="replace")}


def udp(address, port, text="hello"):
    """A datagram, and the answer."""
    with opened(address, port, socket.SOCK_DGRAM) as end:
        end.send(text.encode())
        return {"reply": end.recv(65536).decode(errors="replace")}


def throw(address, port):
    """A datagram, and nobody waits for the answer."""
    with socket.socket(family(address), socket.SOCK_DGRAM) as end:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST, 1)
        end.sendto(b"hello", (address, port))


def ping(address):
    """An echo request, and the reply."""
    with open("/proc/sys/net/ipv4/ping_group_range", "w") as allowed:
        allowed.write("0 2147483647")
    six = ":" in address
    protocol = socket.IPPROTO_ICMPV6 if six else socket.IPPROTO_ICMP
    with opened(address, 0, socket.SOCK_DGRAM, protocol) as end:
        end.send(struct.pack("!BBHHH", 128 if six else 8, 0, 0, 0, 1) + b"pando")
        reply = end.recv(1500)
        return {"reply": f"type {reply[0]}, {reply[8:].decode()}"}


def name(wanted, version=0):
    """The C library's resolver."""
    kind = {0: 0, 4: socket.AF_INET, 6: socket.AF_INET6}[version]
    found = socket.getaddrinfo(wanted, None, kind, socket.SOCK_STREAM)
    return {"addresses": sorted({entry[4][0] for entry in found})}


def query(wanted, kind):
    labels = b"".join(bytes([len(label)]) + label.encode() for label in wanted.split("."))
    return struct.pack("!HHHHHH", 0x1234, 0x0100, 1, 0, 0, 0) + labels + struct.pack("!BHH", 0, kind, 1)


def read_exactly(end, count):
    data = b""
    while len(data) < count:
        piece = end.recv(count - len(data))
        if not piece:
            raise ConnectionResetError(errno.ECONNRESET, "it ended")
        data += piece
    return data


def dns(server, transport, wanted, kind):
    """One question in a message of its own, without extensions."""
    asked = query(wanted, kind)
    if transport == "udp":
        with opened(server, 53, socket.SOCK_DGRAM) as end:
            end.send(asked)
            answer = end.recv(65536)
    else:
        with opened(server, 53) as end:
            end.sendall(struct.pack("!H", len(asked)) + asked)
            (length,) = struct.unpack("!H", read_exactly(end, 2))
            answer = read_exactly(end, length)
    number, flags, _, answers, _, _ = struct.unpack("!HHHHHH", answer[:12])
    return {
        "rcode": flags & 15,
        "truncated": bool(flags & 0x0200),
        "answers": answers,
        "bytes": len(answer),
        "same": number == 0x1234,
    }


def requests(address, port, hosts, pipelined):
    """HTTP requests to these hosts on one connection, and how far it came."""
    texts = [f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() for host in hosts]
    data, ended = b"", None
    with opened(address, port) as end:
        try:
            if pipelined:
                end.sendall(b"".join(texts))
            for count, text in enumerate(texts, 1):
                if not pipelined:
                    end.sendall(text)
                while data.count(b"hello from") < count or not data.endswith(b"\n"):
                    piece = end.recv(65536)
                    if not piece:
                        raise ConnectionResetError(errno.ECONNRESET, "it ended")
                    data += piece
        except OSError as error:
            ended = error_name(error)
    lines = data.decode().splitlines()
    return {"replies": [line for line in lines if line.startswith("hello from")], "ended": ended}


def checksum(data):
    if len(data) % 2:
        data += b"\0"
    total = sum(struct.unpack(f"!{len(data) // 2}H", data))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def hardware():
    """The card's address and the gateway's."""
    with open("/sys/class/net/eth0/address") as file:
        ours = file.read().strip()
    throw(GATEWAY, 9)
    limit = time.monotonic() + LIMIT
    while time.monotonic() < limit:
        with open("/proc/net/arp") as file:
            for line in file:
                words = line.split()
                if words[0] == GATEWAY and words[3] != "00:00:00:00:00:00":
                    return [bytes.fromhex(text.replace(":", "")) for text in (ours, words[3])]
        time.sleep(0.01)
    raise OSError(errno.EHOSTUNREACH, "no gateway")


def syn_frame(address, port, from_port):
    """What a guest whose own kernel is in the way would send: the first segment of a connection."""
    ours, gateway = hardware()
    six = ":" in address
    kind = family(address)
    source = socket.inet_pton(kind, "fd70:616e:646f::15" if six else "10.0.2.15")
    target = socket.inet_pton(kind, address)
    segment = struct.pack("!HHIIBBHHH", from_port, port, 1, 0, 5 << 4, 2, 64240, 0, 0)
    if six:
        pseudo = source + target + struct.pack("!II", len(segment), 6)
    else:
        pseudo = source + target + struct.pack("!BBH", 0, 6, len(segment))
    segment = segment[:16] + struct.pack("!H", checksum(pseudo + segment)) + segment[18:]
    if six:
        header = struct.pack("!IHBB", 6 << 28, len(segment), 6, 64) + source + target
        return gateway + ours + b"\x86\xdd" + header + segment
    header = struct.pack("!BBHHHBBH", 0x45, 0, 40, 1, 0x4000, 64, 6, 0) + source + target
    header = header[:10] + struct.pack("!H", checksum(header)) + header[12:]
    return gateway + ours + b"\x08\x00" + header + segment


def frame(address, port):
    """The first segment of a connection, past the guest's kernel: reset, accepted or nothing."""
    from_port = 40000 + os.getpid() % 10000
    with socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)) as card:
        card.bind(("eth0", 0))
        sent = syn_frame(address, port, from_port)
        card.send(sent)
        limit = time.monotonic() + FRAME_LIMIT
        while select.select([card], [], [], max(0, limit - time.monotonic()))[0]:
            got = card.recv(2048)
            at = {b"\x08\x00": 34, b"\x86\xdd": 54}.get(got[12:14])
            # The guest's own frames are seen too.
            if got[6:12] == sent[6:12] or at is None or len(got) < at + 14:
                continue
            protocol = got[23] if at == 34 else got[20]
            if protocol == 6 and struct.unpack("!HH", got[at : at + 4]) == (port, from_port):
                return {"answer": "reset" if got[at + 13] & 4 else "accepted"}
    return {"answer": "nothing"}


TRIES = {f.__name__: f for f in (tcp, say, udp, throw, ping, name, dns, requests, frame)}


def error_name(error):
    if isinstance(error, socket.gaierror):
        names = {value: name for name, value in vars(socket).items() if name.startswith("EAI_")}
        return names.get(error.errno, str(error.errno))
    if isinstance(error, TimeoutError) and error.errno is None:
        return "TIMEOUT"
    return errno.errorcode.get(error.errno, str(error))


def attempt(what, *arguments):
    start = time.monotonic()
    try:
        outcome = {"error": None, **(TRIES[what](*arguments) or {})}
    except OSError as error:
        outcome = {"error": error_name(error)}
    outcome["ms"] = (time.monotonic() - start) * 1000
    return outcome


print(json.dumps([attempt(*words) for words in json.loads(sys.argv[1])]))
