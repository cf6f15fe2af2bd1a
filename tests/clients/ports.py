"""Ports for servers that cannot choose one themselves."""

import random
import socket
from pathlib import Path

LOWEST = 1024
"""Those below are for the system's own services."""

ATTEMPTS_MAX = 1000


def free():
    """A free port of this machine's loopback. It is none of those that the kernel gives to outgoing connections, which
    another test may make before the server listens. If these leave no room, the kernel chooses."""
    first_of_kernel = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    lowest = max(first_of_kernel // 2, LOWEST)
    if lowest >= first_of_kernel:
        return _bound(0)
    for _ in range(ATTEMPTS_MAX):
        try:
            return _bound(random.randrange(lowest, first_of_kernel))
        except OSError:
            continue
    raise OSError(f"no free port among {ATTEMPTS_MAX} of {lowest} to {first_of_kernel - 1}; end servers on them")


def _bound(port):
    with socket.create_server(("", port)) as server:
        return server.getsockname()[1]
