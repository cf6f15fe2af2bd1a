"""A blog (Mezzanine on Django, unmodified) whose SQLite database lies on a volume, as functions.

Clients load pages of the blog, and some post comments through its form. Each request is one
transaction on the volume. The run is repeated with one instance of the function, and with two. With
`--alone`, as many processes of the same application load pages themselves, from the local disk. It
prints a JSON object for each number of instances; `..._ms` is CPU time for each request.
"""

import argparse
import html.parser
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import threading
import time
import urllib.parse

HERE = pathlib.Path(__file__).parent
POSTS = 20
SETTINGS = """
import os
DEBUG = False
SECRET_KEY = NEVERCACHE_KEY = "not a secret of anything"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": os.environ["BLOG_DATABASE"], "OPTIONS": {"timeout": 60}}}
# Each page reads the database.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.dummy.DummyCache"}}
ALLOWED_HOSTS = ["*"]
COMMENTS_DEFAULT_APPROVED = True
"""
HANDLER = """
import os
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "blog.settings")
from apig_wsgi import make_lambda_handler
from django.core.wsgi import get_wsgi_application
from django.db.backends.signals import connection_created

def without_journal(connection, **_):
    # The transaction of the invocation is the journal. In memory it still undoes Django's own transactions.
    connection.cursor().execute("pragma journal_mode = memory")
    connection.cursor().execute("pragma synchronous = off")

if os.environ["BLOG_DATABASE"].startswith("/mnt/"):
    connection_created.connect(without_journal)
handler = make_lambda_handler(get_wsgi_application(), binary_support=True)
"""
CONTENT = """
import os, random
os.environ.setdefault("DJANGO_SETTINGS_MODULE", "blog.settings")
import django
django.setup()
from django.contrib.auth import get_user_model
from mezzanine.blog.models import BlogPost
random.seed(1)
user = get_user_model().objects.first() or get_user_model().objects.create_superuser("admin", "admin@example.com", "none")
words = "volume slot commit reader writer cache lease block inode".split()
for number in range({posts}):
    text = "".join("<p>" + " ".join(random.choices(words, k=80)) + "</p>" for _ in range(6))
    BlogPost.objects.create(title=f"Post {{number}}", slug=f"post-{{number}}", user=user, content=text, allow_comments=True,
                            short_url=f"/blog/post-{{number}}/")  # else the first view of a page writes it
"""
# Runs the handler in this process, and prints requests a second and CPU time for each.
ALONE = """
import json, os, sys, time
import app
paths, seconds = json.loads(sys.argv[1]), float(sys.argv[2])
def event(path):
    return {"version": "2.0", "rawPath": path, "rawQueryString": "", "headers": {"host": "localhost"}, "isBase64Encoded": False,
            "requestContext": {"http": {"method": "GET", "path": path, "sourceIp": "127.0.0.1", "protocol": "HTTP/1.1", "userAgent": ""}, "stage": "$default"}}
for path in paths:
    assert app.handler(event(path), None)["statusCode"] == 200, path
count, begun, cpu = 0, time.monotonic(), time.process_time()
while time.monotonic() - begun < seconds:
    app.handler(event(paths[count % len(paths)]), None)
    count += 1
print(json.dumps({"rate": count / (time.monotonic() - begun), "cpu_ms": (time.process_time() - cpu) / count * 1000}))
"""


class Form(html.parser.HTMLParser):
    """The fields of the form for a comment."""

    def __init__(self, page):
        super().__init__()
        self.fields, self.is_inside = {}, False
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag == "form":
            self.is_inside = attributes.get("id") == "comment"
        elif tag == "input" and self.is_inside and attributes.get("name"):
            self.fields[attributes["name"]] = attributes.get("value") or ""


class Client(threading.Thread):
    """Sends one request after the other."""

    def __init__(self, address, until, comments):
        super().__init__(daemon=True)
        self.until, self.comments = until, comments
        self.random = random.Random()
        self.connection = http.client.HTTPConnection(*address, timeout=60)
        self.took = {"page": [], "comment": []}
        self.failed, self.posted, self.waits = [], 0, 0

    def ask(self, kind, method, path, body=None, headers={}):
        begun = time.monotonic()
        while True:
            self.connection.request(method, path, body, headers)
            response = self.connection.getresponse()
            text = response.read().decode()
            # All instances are at work, or one is not ready for its next invocation yet.
            if response.status != 503 or time.monotonic() > self.until + 30:
                break
            self.waits += 1
            time.sleep(0.01)
        if response.status >= 400:
            self.failed.append((kind, response.status, text[:200]))
        else:
            self.took[kind].append(time.monotonic() - begun)
        return response, text

    def run(self):
        while time.monotonic() < self.until:
            post = f"/blog/post-{self.random.randrange(POSTS)}/"
            if self.random.random() < self.comments:
                self.comment(post)
            else:
                self.ask("page", "GET", "/blog/" if self.random.random() < 0.5 else post)

    def comment(self, post):
        response, page = self.ask("page", "GET", post)
        fields = Form(page).fields
        token = re.search(r"csrftoken=([^;]+)", response.headers.get("Set-Cookie", ""))
        if response.status != 200 or "security_hash" not in fields or not token:
            self.failed.append(("page", response.status, "it has no form for a comment"))
            return
        fields.update(name="reader", email="reader@example.com", url="", comment=f"comment {time.time_ns()}")
        headers = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": f"csrftoken={token.group(1)}"}
        response, _ = self.ask("comment", "POST", "/comment/", urllib.parse.urlencode(fields), headers)
        self.posted += response.status == 302


class Server:
    """`landfast serve`, with the database on a volume."""

    def __init__(self, arguments, scratch):
        self.arguments, self.data = arguments, scratch / "data"
        command = [arguments.program, "serve", "--data-dir", self.data, "--zookeeper", "off", "--s3", "off"]
        command += ["--http", "127.0.0.1:0", "--routes", "127.0.0.1:0"]
        self.log = open(scratch / "server.log", "w")
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.log, text=True)
        line = self.process.stdout.readline()
        self.http, self.routes = (re.search(rf"{name}=([\d.:]+)", line).group(1) for name in ["http", "routes"])

    def command(self, *words):
        environment = {**os.environ, "LANDFAST_URL": f"http://{self.http}", "LANDFAST_DATA_DIR": str(self.data)}
        done = subprocess.run([self.arguments.program, *words], env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"landfast {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def cpu(self):
        """Seconds of CPU of the server, and of the processes of its functions."""
        ticks, parents = {}, {}
        for entry in pathlib.Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    fields = (entry / "stat").read_text().rpartition(")")[2].split()
                except OSError:
                    continue
                parents[int(entry.name)] = int(fields[1])
                ticks[int(entry.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        functions = 0.0
        for process in ticks:
            above = parents[process]
            while above not in (0, self.process.pid):
                above = parents.get(above, 0)
            if above:
                functions += ticks[process]
        return {"server": ticks[self.process.pid], "application": functions}

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def prepare(arguments):
    """Installs and fills the blog once. Returns its folder and its interpreter."""
    folder = arguments.directory / "blog"
    python = folder / "venv/bin/python"
    if not (folder / "ready").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        run = lambda *words, **more: subprocess.run(list(map(str, words)), check=True, stdout=subprocess.DEVNULL, **more)
        run(arguments.python, "-m", "venv", folder / "venv")
        run(python, "-m", "pip", "install", "-q", "-r", HERE / "web-requirements.txt", stderr=subprocess.DEVNULL)
        run(folder / "venv/bin/mezzanine-project", "blog", cwd=folder)
        (folder / "blog").rename(folder / "code")
        (folder / "code/blog/local_settings.py").write_text(SETTINGS)
        # It leaves out the settings, and what a .gitignore names is not deployed.
        (folder / "code/.gitignore").unlink()
        (folder / "code/app.py").write_text(HANDLER)
        (folder / "database").mkdir()
        environment = {**os.environ, "BLOG_DATABASE": str(folder / "database/blog.db")}
        run(python, "manage.py", "createdb", "--noinput", "--nodata", cwd=folder / "code", env=environment)
        run(python, "-c", CONTENT.format(posts=POSTS), cwd=folder / "code", env=environment)
        (folder / "ready").touch()
    return folder, python


def deploy(server, folder, python, instances, is_split):
    common = f"""runtime = "python3"
code = "code"
handler = "app.handler"
python = {json.dumps(str(python))}
timeout_s = 60
memory_mb = 256
environment = {{ BLOG_DATABASE = "/mnt/data/blog.db" }}
concurrency = {instances}
"""
    functions = {"blog": ('"blog"', '["GET", "HEAD", "POST"]')}
    if is_split:
        functions = {"pages": ('{ volume = "blog", read_only = true }', '["GET", "HEAD"]'), "comments": ('"blog"', '["POST"]')}
    manifest = 'name = "blog"\n' + "".join(
        f"[functions.{name}]\n{common}volumes = {{ '/mnt/data' = {volume} }}\n"
        f"triggers = [{{ http = '/{{path+}}', methods = {methods} }}]\n"
        for name, (volume, methods) in functions.items()
    )
    (folder / "app.toml").write_text(manifest)
    server.command("functions", "deploy", folder / "app.toml")
    return functions


def load(server, arguments, seconds, clients):
    host, port = server.routes.split(":")
    until = time.monotonic() + seconds
    threads = [Client((host, int(port)), until, arguments.comments) for _ in range(clients)]
    [thread.start() for thread in threads]
    [thread.join(seconds + 120) for thread in threads]
    return threads


def measure(server, arguments, instances):
    clients = arguments.clients or instances
    warmed = load(server, arguments, arguments.seconds / 2, clients)
    before, own, begun = server.cpu(), time.process_time(), time.monotonic()
    threads = load(server, arguments, arguments.seconds, clients)
    took, after = time.monotonic() - begun, server.cpu()
    all_took = {kind: sorted(sum((thread.took[kind] for thread in threads), [])) for kind in ["page", "comment"]}
    failed = sum((thread.failed for thread in threads), [])
    requests = sum(map(len, all_took.values()))
    figures = {"instances": instances, "rate": requests / took, "failed": len(failed), "requests": requests}
    figures["comments"] = len(all_took["comment"])
    for kind, times in all_took.items():
        for name, share in [("p50", 0.5), ("p95", 0.95)]:
            figures[f"{kind}_{name}_ms"] = times[int(len(times) * share)] * 1000 if times else None
    for part in before:
        figures[f"{part}_ms"] = (after[part] - before[part]) / max(requests, 1) * 1000
    figures["client_ms"] = (time.process_time() - own) / max(requests, 1) * 1000
    figures["waits"] = sum(thread.waits for thread in threads)
    figures["failures"] = failed[:3]
    return figures, sum(thread.posted for thread in warmed + threads)


def alone(arguments, folder, python, instances):
    """The application by itself, in as many processes, on the local disk."""
    environment = {**os.environ, "BLOG_DATABASE": str(folder / "database/blog.db")}
    paths = json.dumps(["/blog/", "/blog/post-0/", "/blog/", "/blog/post-7/"])
    command = [str(python), "-c", ALONE, paths, str(arguments.seconds)]
    run = lambda: subprocess.Popen(command, cwd=folder / "code", env=environment, stdout=subprocess.PIPE, text=True)
    done = [json.loads(process.communicate()[0]) for process in [run() for _ in range(instances)]]
    cpu = sum(one["cpu_ms"] for one in done) / instances
    rate = sum(one["rate"] for one in done)
    return {"instances": instances, "rate": rate, "application_ms": cpu, "server_ms": 0, "failed": 0}


def check(server, folder, python):
    """SQLite's own check, and the number of comments, on the volume."""
    target = folder / "exported"
    shutil.rmtree(target, ignore_errors=True)
    server.command("files", "export", "blog", target)
    script = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); print(c.execute('pragma integrity_check').fetchone()[0], " \
        "c.execute('select count(*) from django_comments').fetchone()[0])"
    return subprocess.check_output([str(python), "-c", script, str(target / "blog.db")], text=True).split()


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=pathlib.Path, default=pathlib.Path("target/release/landfast"))
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--directory", type=pathlib.Path, default=pathlib.Path("target/bench/web"))
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--clients", type=int, help="default: as many as instances")
    parser.add_argument("--instances", type=lambda text: [int(part) for part in text.split(",")], default=[1, 2])
    parser.add_argument("--comments", type=float, default=0.05, help="the share of requests that are comments")
    parser.add_argument("--split", action="store_true", help="pages by a function of their own, which only reads")
    parser.add_argument("--alone", action="store_true", help="without functions, on the local disk")
    arguments = parser.parse_args()
    arguments.directory = arguments.directory.absolute()
    arguments.program = arguments.program.absolute()
    folder, python = prepare(arguments)
    if arguments.alone:
        for instances in arguments.instances:
            print(json.dumps(alone(arguments, folder, python, instances)), flush=True)
        return
    scratch = arguments.directory / "run"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    server, posted, functions = Server(arguments, scratch), 0, []
    try:
        server.command("files", "create", "blog")
        server.command("files", "import", folder / "database", "blog")
        for instances in arguments.instances:
            functions = deploy(server, folder, python, instances, arguments.split)
            figures, more = measure(server, arguments, instances)
            posted += more
            print(json.dumps(figures), flush=True)
        integrity, comments = check(server, folder, python)
        print(f"integrity: {integrity}; {comments} comments, {posted} acknowledged", file=sys.stderr)
        if integrity != "ok" or int(comments) != posted:
            sys.exit("the database is not what the clients were told")
    finally:
        for function in functions:
            (scratch / f"{function}.log").write_text(server.command("functions", "logs", function))
        server.stop()


if __name__ == "__main__":
    main()
