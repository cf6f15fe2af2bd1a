"""Objects in function memory, through an unmodified S3 client, while instances are killed.

    objects.py --server PID --s3 http://127.0.0.1:7601 --status http://127.0.0.1:7600 \
        --keys landfast-data/s3-credentials --landfast landfast

200 objects go in. While they are read, three instances are killed at once, one more than the parity units can replace.
Every object is compared meanwhile, and again after the recovery. Without requests the memory is released after some
steps of its window, and the bill shows the cost of it all.
"""

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any, Callable, Dict, List, Set

import boto3

OBJECTS = 200
KIB = 1024
VICTIMS = 3


def main() -> None:
    options = arguments()
    os.environ.setdefault("AWS_SHARED_CREDENTIALS_FILE", options.keys)
    s3 = boto3.client("s3", endpoint_url=options.s3, region_name="us-east-1")
    bucket = f"tour-{uuid.uuid4().hex[:12]}"
    s3.create_bucket(Bucket=bucket)
    stored = put(s3, bucket)
    memory = status(options.status)
    print(f"function memory holds {memory['fragments']} fragments on {memory['instances']} instances")
    before = instances(options.server)
    victims = random.sample(sorted(before), min(VICTIMS, len(before)))

    def kill() -> None:
        for victim in victims:
            os.kill(victim, signal.SIGKILL)
        print(f"killed {len(victims)} of {len(before)} instances")

    compare(s3, bucket, stored, "while they were killed", kill)
    assert until(lambda: len(instances(options.server) - before) >= len(victims)), "no new instances were started"
    compare(s3, bucket, stored, "after new instances took their places")
    began = time.monotonic()
    if until(lambda: status(options.status)["instances"] == 0):
        print(f"nothing is read for {time.monotonic() - began:.0f} s: all memory is released, all objects are durable")
    compare(s3, bucket, dict(random.sample(sorted(stored.items()), 20)), "in the object store, and come back to memory")
    subprocess.run([options.landfast, "cost", "--url", options.status], check=True)
    for key in stored:
        s3.delete_object(Bucket=bucket, Key=key)
    s3.delete_bucket(Bucket=bucket)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Objects in function memory, while instances are killed.")
    parser.add_argument("--s3", default="http://127.0.0.1:7601", help="the S3 endpoint")
    parser.add_argument("--status", default="http://127.0.0.1:7600", help="the HTTP endpoint")
    parser.add_argument("--keys", default="landfast-data/s3-credentials", help="the file with the keys")
    parser.add_argument("--landfast", default="landfast", help="the program")
    parser.add_argument("--server", type=int, required=True, help="the process id of the server")
    return parser.parse_args()


def put(s3: Any, bucket: str) -> Dict[str, str]:
    """Stores objects of 10 KiB to 2 MiB. Their MD5s by key."""
    stored, total, began = {}, 0, time.monotonic()
    for number in range(OBJECTS):
        body = os.urandom(random.choice([10, 100, 1000, 2048]) * KIB)
        key = f"object-{number:03}"
        s3.put_object(Bucket=bucket, Key=key, Body=body)
        stored[key] = hashlib.md5(body).hexdigest()
        total += len(body)
        if sys.stdout.isatty():
            print(f"\r{number + 1:>4} of {OBJECTS} objects", end="", flush=True)
    if sys.stdout.isatty():
        print("\r", end="")
    print(f"{OBJECTS} objects of {total / 1e6:.0f} MB in all, stored in {time.monotonic() - began:.1f} s")
    return stored


def compare(s3: Any, bucket: str, stored: Dict[str, str], when: str, midway: Callable[[], None] = lambda: None) -> None:
    """Reads every object, and fails if one differs. Calls `midway` after a quarter of them."""
    began = time.monotonic()
    for number, (key, expected) in enumerate(stored.items()):
        if number == len(stored) // 4:
            midway()
        body = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
        assert hashlib.md5(body).hexdigest() == expected, f"{key} is not what was stored"
    print(f"all {len(stored)} objects are intact {when}, read in {time.monotonic() - began:.1f} s")


def status(url: str) -> Dict[str, int]:
    with urllib.request.urlopen(f"{url}/v1/status") as answer:
        return dict(json.load(answer)["memory"])


def instances(server: int) -> Set[int]:
    """The processes of function memory below the server."""
    parents: Dict[int, int] = {}
    programs: List[int] = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            lines = (folder / "status").read_text().splitlines()
            command = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        parents[int(folder.name)] = next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))
        if b"\0memory-function" in command:
            programs.append(int(folder.name))
    found = set()
    for program in programs:
        above = program
        while above in parents and above != server:
            above = parents[above]
        if above == server:
            found.add(program)
    return found


def until(condition: Callable[[], bool]) -> bool:
    """Whether the condition holds within a minute."""
    deadline = time.monotonic() + 60
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


if __name__ == "__main__":
    main()
