"""Runs the tests in a folder, and writes their result into a pipe: `run_tests.py FOLDER
DESCRIPTOR`.

This process loads the program under test, which may do anything: end this process, fork, or print
the output of a test runner. So the result is written after the tests and begins with a word that is
read before that program is loaded. No result is a result, too.
"""

import json
import os
import resource
import sys
import unittest

CPU_SECONDS = 5
DATA_BYTES = 64 << 20
FILE_BYTES = 1 << 20


def main(folder, descriptor):
    word = sys.stdin.readline().strip()
    # A program under test starts no processes and no threads.
    limits = {"NPROC": 0, "CPU": CPU_SECONDS, "DATA": DATA_BYTES, "FSIZE": FILE_BYTES, "CORE": 0}
    for name, most in limits.items():
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (most, most))
    tests = unittest.defaultTestLoader.discover(folder, pattern="test_*.py")
    result = unittest.TextTestRunner(verbosity=0).run(tests)
    failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    passed = [max(result.testsRun - failed, 0), result.testsRun]
    said = "OK" if result.wasSuccessful() else f"FAILED ({failed})"
    os.write(int(descriptor), f"{word} {json.dumps({'passed': passed, 'said': said})}".encode())


if __name__ == "__main__":
    main(*sys.argv[1:])
