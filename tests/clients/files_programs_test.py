"""Programs of every day on a mount of a volume: rsync, pip, cargo."""

import hashlib
import os
import shutil
import sys
import zipfile

import pytest

import files_mount

WHEEL = "small-1.0-py3-none-any.whl"


@pytest.fixture
def mounts(server, tmp_path):
    yield from files_mount.mounts_of(server, tmp_path)


def _program(name):
    if shutil.which(name) is None:
        pytest.skip(f"{name} is not installed")


def _tree(root):
    """The checksum of each file below `root`."""
    found = {}
    for directory, _, files in os.walk(root):
        for name in files:
            path = os.path.join(directory, name)
            with open(path, "rb") as file:
                found[os.path.relpath(path, root)] = hashlib.sha256(file.read()).hexdigest()
    return found


def rsync_copies_and_then_finds_no_difference(mounts, tmp_path):
    _program("rsync")
    at, _ = mounts.start("a")
    source = tmp_path / "source"
    shutil.copytree(os.path.dirname(__file__), source, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    (source / "link").symlink_to("server.py")
    files_mount.sh(at, f"rsync -a --checksum {source}/ copy/")
    assert _tree(at / "copy") == _tree(source)
    (source / "server.py").write_text("changed")
    (source / "oracle_test.py").unlink()
    told = files_mount.sh(at, f"rsync -ai --checksum --delete {source}/ copy/").splitlines()
    names = sorted(line.split(maxsplit=1)[1] for line in told if not line.startswith(".d"))
    assert names == ["oracle_test.py", "server.py"], told
    assert files_mount.sh(at, f"rsync -ai --checksum --delete {source}/ copy/") == ""
    files_mount.sh(at, f"rsync -a copy/ {tmp_path}/back/")
    assert _tree(tmp_path / "back") == _tree(source)


def pip_installs_into_a_virtual_environment(mounts, tmp_path):
    at, _ = mounts.start("a")
    with zipfile.ZipFile(tmp_path / WHEEL, "w") as wheel:
        wheel.writestr("small/__init__.py", "def answer():\n    print('from the volume')\n")
        wheel.writestr("small-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n")
        wheel.writestr("small-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr("small-1.0.dist-info/entry_points.txt", "[console_scripts]\nsmall = small:answer\n")
        wheel.writestr("small-1.0.dist-info/RECORD", "")
    files_mount.sh(at, f"{sys.executable} -m venv environment")
    files_mount.sh(at, f"environment/bin/python -m pip install -q --no-index {tmp_path / WHEEL}")
    assert files_mount.sh(at, "environment/bin/small") == "from the volume\n"
    assert files_mount.sh(at, "environment/bin/python -m pip check") == "No broken requirements found.\n"
    files_mount.sh(at, "environment/bin/python -m pip uninstall -q -y small")
    assert not (at / "environment/bin/small").exists()


def cargo_builds_and_runs_a_crate(mounts):
    _program("cargo")
    at, _ = mounts.start("a")
    (at / "small/src").mkdir(parents=True)
    (at / "small/Cargo.toml").write_text('[package]\nname = "small"\nversion = "1.0.0"\nedition = "2021"\n\n[workspace]\n')
    (at / "small/src/main.rs").write_text('fn main() {\n    println!("{}", small::answer());\n}\n')
    (at / "small/src/lib.rs").write_text('pub fn answer() -> u8 {\n    42\n}\n')
    run = "cd small; env -u CARGO_TARGET_DIR cargo run --offline --quiet"
    assert files_mount.sh(at, run) == "42\n"
    (at / "small/src/lib.rs").write_text('pub fn answer() -> u8 {\n    43\n}\n')
    assert files_mount.sh(at, run) == "43\n", "a changed file is built again"
