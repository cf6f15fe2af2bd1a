"""Every example in README.md and docs/ runs as it is printed.

The fenced blocks of a page run in order, in one folder. The language of the fence says how:

- `sh` runs in bash. A block `landfast serve ...` starts the server of the page, which then stays.
- `python` runs, and `python` or `toml` with a first line `# FILE` is written to that file instead.
- `output` is the output of the blocks since the last `output`; `…` stands for any text.
- `text` is only shown.

Ports are replaced: the page names the defaults, the test uses free ones.
"""

import os
import re
import shlex
import subprocess
import sys

import pytest

import files_exec
import redis_server
import server as servers

PAGES = ["README.md", *sorted(str(page.relative_to(servers.REPOSITORY)) for page in servers.REPOSITORY.glob("docs/*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# ([\w./-]+\.(?:py|toml))\n")
# What a page has that mounts volumes.
MOUNTS = re.compile(r"^(landfast files exec|volumes = \{)", re.MULTILINE)
BLOCK_SECONDS = 600


class Documented(servers.Landfast):
    """A server that a page starts, with the options of the page. Its data lies where that of a reader does."""

    arguments = ()

    def options(self):
        return [*self.arguments, "--data-dir", str(self.directory / "page/landfast-data")]


class Page:
    """A page while its examples run."""

    def __init__(self, name, folder):
        self.text = (servers.REPOSITORY / name).read_text()
        self.folder = folder / "page"
        self.programs = folder / "bin"
        self.server = Documented(folder)
        self.server.working_directory = self.folder
        self.redis = redis_server.Redis(folder / "redis") if ":6379" in self.text else None
        self.printed = ""
        self.folder.mkdir()
        self.programs.mkdir()
        (self.programs / "landfast").symlink_to(self.server.program)

    def run(self):
        if self.redis:
            self.redis.start()
        for language, block in FENCE.findall(self.text):
            assert language in ["sh", "python", "toml", "output", "text"], f"a fence of the unknown language '{language}'"
            getattr(self, f"run_{language}")(self.with_free_ports(block))

    def with_free_ports(self, block):
        listeners = {7600: self.server.http_port, 7601: self.server.s3_port, 7602: self.server.routes_port, 2181: self.server.port}
        used = {**listeners, 6379: self.redis and self.redis.port}
        return re.sub(r"(?<=127\.0\.0\.1:)\d+", lambda port: str(used.get(int(port[0])) or port[0]), block)

    def run_sh(self, block):
        if block.startswith("landfast serve"):
            self.server.arguments = shlex.split(block)[2:]
            self.server.start()
        else:
            self.print(["bash", "-euo", "pipefail", "-c", block])

    def run_python(self, block):
        file = FILE.match(block)
        if file:
            path = self.folder / file[1]
            path.parent.mkdir(exist_ok=True)
            path.write_text(block)
        else:
            self.print([sys.executable, "-c", block])

    def run_toml(self, block):
        assert FILE.match(block), f"no file name in the first line:\n{block}"
        self.run_python(block)

    def run_output(self, block):
        wanted = "".join(".*" if part == "…" else re.escape(part) for part in re.split("(…)", block.strip()))
        assert re.fullmatch(wanted, self.printed.strip(), re.DOTALL), f"{self.printed}\ninstead of\n{block}"
        self.printed = ""

    def run_text(self, block):
        pass

    def print(self, command):
        environment = {
            **os.environ,
            "LANDFAST_URL": f"http://127.0.0.1:{self.server.http_port}",
            "PATH": os.pathsep.join([str(self.programs), os.path.dirname(sys.executable), os.environ["PATH"]]),
            "PYTHONPATH": str(servers.REPOSITORY / "clients/python"),
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            command, cwd=self.folder, env=environment, capture_output=True, text=True, timeout=BLOCK_SECONDS
        )
        assert done.returncode == 0, f"{command[-1]}\n{done.stdout}\n{done.stderr}"
        self.printed += done.stdout

    def close(self):
        self.server.shut_down()
        if self.redis:
            self.redis.stop()


@pytest.fixture
def page(tmp_path, request):
    """The page of the test's parameter."""
    if os.environ.get("LANDFAST_TEST_ZOOKEEPER") or os.environ.get("LANDFAST_TEST_PROVIDER"):
        pytest.skip("a page says itself on what its server stands")
    if MOUNTS.search((servers.REPOSITORY / request.param).read_text()):
        files_exec.needs_mounts()
    opened = Page(request.param, tmp_path)
    yield opened
    opened.close()


@pytest.mark.parametrize("page", PAGES, indirect=True)
def the_examples_of_a_page_run(page):
    page.run()
