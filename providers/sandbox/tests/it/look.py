"""Says what it sees of its isolation, without what no two instances have in common; and that."""

import locale
import os
import random
import re
import resource
import signal
import socket
import subprocess
import sys
import time
import warnings

STATUS = (
    "Umask", "Pid", "PPid", "TracerPid", "Groups", "NStgid", "NSpid", "NSpgid", "NSsid", "SigBlk", "SigIgn", "SigCgt", "CapInh", "CapPrm",
    "CapEff", "CapBnd", "CapAmb", "NoNewPrivs", "Seccomp", "Seccomp_filters", "Speculation_Store_Bypass",
    "SpeculationIndirectBranch", "Cpus_allowed_list", "Mems_allowed_list", "SigPnd", "ShdPnd", "CoreDumping", "THP_enabled", "Name", "Threads",
)

OF_THE_KERNEL = ("attr/current", "coredump_filter", "loginuid", "oom_score_adj", "personality", "sessionid", "setgroups", "timerslack_ns", "uid_map")
"""What else it says of a process, each a file."""


def status(process):
    with open("/proc/%s/status" % process) as file:
        fields = dict(line.rstrip("\n").split(":\t", 1) for line in file)
    users = set((fields["Uid"] + "\t" + fields["Gid"]).split())
    return {name: fields.get(name) for name in STATUS}, users


def numberless(text):
    return re.sub("[0-9]+", "N", text)


def mounts():
    with open("/proc/self/mountinfo") as file:
        # Without their numbers, and those of the devices that lie in memory.
        return sorted(" ".join(line.split()[3:]) for line in file)


def descriptors():
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[name] = numberless(os.readlink("/proc/self/fd/" + name))
        except FileNotFoundError:
            pass  # That of the listing.
    return found


def of_the_kernel():
    said = {}
    for name in OF_THE_KERNEL:
        try:
            with open("/proc/self/" + name) as file:
                # The user's number is its own.
                said[name] = numberless(file.read()) if name == "uid_map" else file.read()
        except OSError as error:
            said[name] = type(error).__name__
    return said


def interpreter():
    """What an interpreter knows of its surroundings since it was started."""
    return {
        "arguments": (sys.argv, getattr(sys, "orig_argv", None)),
        "path": sys.path,
        "flags": list(sys.flags),
        "modules": sorted(sys.modules),
        "finders": (len(sys.meta_path), len(sys.path_hooks), sorted(sys.path_importer_cache)),
        "place": (sys.executable, sys.prefix, sys.base_prefix, sys.exec_prefix),
        "locale": (locale.setlocale(locale.LC_ALL), sys.getfilesystemencoding(), sys.stdout.encoding, sys.stderr.encoding, sys.stdin.encoding),
        "zone": (time.tzname, time.timezone),
        "home": os.path.expanduser("~"),
        "signals": [str(signal.getsignal(number)) for number in sorted(signal.valid_signals())],
        "warnings": [repr(one) for one in warnings.filters],
        "hooks": (repr(sys.gettrace()), repr(sys.getprofile()), sys.excepthook is sys.__excepthook__),
    }


def refused(what):
    try:
        what()
        return "allowed"
    except OSError as error:
        return type(error).__name__


def handler(event, context):
    import landfast

    if "files" in event:
        return {path: sorted(os.listdir(path)) for path in event["files"]}
    if "fork" in event:
        return forks()
    (own, users), (init, of_init) = status("self"), status(1)
    space = os.statvfs("/tmp")
    environment = dict(line.split("=", 1) for line in subprocess.check_output(["env"], text=True).splitlines())
    alike = {
        "own": own,
        "init": init,
        "is one user": len(users) == 1 and users == of_init,
        "mounts": mounts(),
        "descriptors": descriptors(),
        "limits": [resource.getrlimit(limit) for limit in range(16)],
        "folder": os.getcwd(),
        "root": sorted(os.listdir("/")),
        "files": [sorted(os.listdir(path)) for path in ("/var", "/var/task", "/var/runtime", "/tmp", "/dev", "/etc")],
        "space": (space.f_blocks, space.f_files),
        "environment": {name: numberless(value) if "API" in name or "URL" in name else value for name, value in os.environ.items()},
        "of its children": sorted(set(environment) - set(os.environ)),
        "interpreter": interpreter(),
        "kernel": of_the_kernel(),
        "sockets": numberless(open("/proc/net/unix").read()),
        "scheduled": (os.sched_getscheduler(0), sorted(os.sched_getaffinity(0))),
        "host": socket.gethostname(),
        "session": (os.getsid(0), os.getpgid(0)),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "groups": numberless(open("/proc/self/cgroup").read()),
        "of init": [refused(lambda: os.listdir("/proc/1/" + what)) for what in ("fd", "root", "cwd")],
        "writes": [refused(lambda: open(path + "/x", "w")) for path in ("", "/var/task", "/var/runtime", "/etc", "/usr")],
        "root again": refused(lambda: os.setuid(0)),
        "another root": refused(lambda: os.chroot("/tmp")),
        "whose": landfast.WHOSE,
    }
    spaces = {name: os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")}
    seeds = {"hash": hash("text"), "random": random.random(), "at": id(object()), "bytes": os.urandom(8).hex()}
    return {"alike": alike, "spaces": spaces, "seeds": seeds}


def forks():
    """How many processes it may have beside itself."""
    children = []
    read, write = os.pipe()
    try:
        while len(children) < 1000:
            child = os.fork()
            if child == 0:
                os.close(write)
                os.read(read, 1)
                os._exit(0)
            children.append(child)
    except BlockingIOError:
        pass
    os.close(write)
    for child in children:
        os.waitpid(child, 0)
    return len(children)
