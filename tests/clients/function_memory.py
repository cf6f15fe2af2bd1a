"""The instances of function memory, as processes of this machine and in the metrics."""

import pathlib

import s3_server


def parents():
    """Each process with its parent and its command line."""
    found = {}
    for folder in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            status = (folder / "status").read_text()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parent = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("PPid:"))
        found[int(folder.name)] = (parent, command)
    return found


def instances(running):
    """The processes of function memory that this server has started."""
    processes = parents()

    def is_below(process):
        while process in processes:
            if process == running.process.pid:
                return True
            process = processes[process][0]
        return False

    programs = [number for number, (_, command) in processes.items() if b"\0memory-function" in command]
    return {number for number in programs if is_below(number)}


def metrics(running):
    """The metrics of function memory."""
    _, body = s3_server.fetch(f"http://127.0.0.1:{running.http_port}/metrics")
    rows = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if not line.startswith("#"))
    return {name.removeprefix("landfast_memory_"): float(rows[name]) for name in rows if "_memory_" in name}


def in_memory(running):
    """The instances and fragments that the status shows."""
    found = metrics(running)
    return [found[what] for what in ("instances", "fragments")]


def groups_released(running):
    """The groups of instances that were released since the start."""
    return metrics(running)["groups_released_total"]
