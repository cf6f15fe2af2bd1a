"""A program for the contract of instances: it serves each channel in a thread, one message after the other."""

import mmap
import os
import socket
import subprocess
import threading
import uuid

control = socket.socket(fileno=int(os.environ["LANDFAST_CONTROL"]))
memory = os.environ.get("LANDFAST_MEMORY")
region = mmap.mmap(int(memory), 0) if memory else None
number = uuid.uuid4().hex
held = []


def obey(what, rest):
    """The answer to a command."""
    match what:
        case "echo":
            return rest.encode()
        case "long":
            return b"x" * int(rest)
        case "instance":
            return number.encode()
        case "variable":
            return os.environ[rest].encode()
        case "read":
            offset, length = map(int, rest.split(" "))
            return region[offset : offset + length]
        case "write":
            offset, text = rest.split(" ", 1)
            region[int(offset) : int(offset) + len(text)] = text.encode()
            return b"written"
        case "hold":
            held.append(b"x" * (int(rest) << 20))
            return b"held"
        case "children":
            held.extend(subprocess.Popen(["sleep", "600"]) for _ in range(int(rest)))
            return b"started"
        case "exit":
            os._exit(int(rest))


def read(channel, length):
    """So many bytes; none if the channel is closed before."""
    parts = bytearray()
    while len(parts) < length:
        part = channel.recv(length - len(parts))
        if not part:
            return None
        parts += part
    return bytes(parts)


def serve(channel):
    """Answers the messages of a channel until it is closed."""
    while head := read(channel, 4):
        message = read(channel, int.from_bytes(head, "little")).decode()
        what, _, rest = message.partition(" ")
        answer = obey(what, rest)
        channel.sendall(len(answer).to_bytes(4, "little") + answer)
    channel.close()


while True:
    _, descriptors, _, _ = socket.recv_fds(control, 1, 1)
    if not descriptors:
        break
    channel = socket.socket(fileno=descriptors[0])
    threading.Thread(target=serve, args=(channel,), daemon=True).start()
