"""Ports for servers that cannot choose one themselves."""

import random
import socket
from pathlib import Path


def free():
    """A free port of this machine's loopback. It is none of those that the kernel gives to outgoing connections, which
    another test may make before the server listens."""
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(first_of_kernel // 2, first_of_kernel)
        try:
            with socket.create_server(("", port)):
                return port
        except OSError:
            continue
