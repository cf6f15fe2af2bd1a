"""kazoo's own tests, as its package ships them, pass: all but those that programs/kazoo_excluded.txt names."""

import os
import pathlib
import subprocess
import sys

HERE = pathlib.Path(__file__).parent
SECONDS = 900


def kazoos_own_tests_pass(tmp_path):
    command = [sys.executable, "-B", "-m", "pytest", "-c", os.devnull, "--rootdir", str(tmp_path)]
    command += ["-p", "no:cacheprovider", "-p", "kazoo_cluster", "--pyargs", "kazoo.tests", "-q", "-rf", "--tb=short"]
    paths = [str(HERE), str(HERE / "programs"), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "TMPDIR": str(tmp_path)}
    ended = subprocess.run(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, timeout=SECONDS
    )
    assert ended.returncode == 0, ended.stdout.decode()[-20000:]
