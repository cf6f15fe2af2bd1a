"""Code folders as people have them: what of them is deployed, what is installed, what is refused."""

import io
import shutil
import sys
import tarfile
import zipfile

import pytest

SAYS = "def handler(event, context):\n    return {!r}\n".format


def _wheel(path, module, text, version="1.0"):
    """A wheel of one module, which pip installs without a network."""
    path.parent.mkdir(parents=True, exist_ok=True)
    info = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}.py", text)
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {module}\nVersion: {version}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{module}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")


def _deployed(apps, *arguments, **options):
    """Deploys from any working directory; fails as the command does."""
    said = apps.command("functions", "deploy", str(apps.write()), *arguments, **options)
    assert said.returncode == 0, said.stderr
    return said.stdout


def _refused(apps):
    said = apps.command("functions", "deploy", str(apps.write()))
    assert said.returncode == 1 and said.stdout == "", said.stdout
    return said.stderr


def a_folder_that_pip_has_filled_is_deployed_and_its_own_files_win(apps):
    code = apps.folder / "code"
    _wheel(apps.folder / "libs/mine-1.0-py3-none-any.whl", "mine", "VALUE = 'installed'\n")
    _wheel(apps.folder / "libs/more-1.0-py3-none-any.whl", "more", "VALUE = 'installed'\n")
    apps.file("requirements.txt", "../libs/mine-1.0-py3-none-any.whl\n../libs/more-1.0-py3-none-any.whl\n")
    apps.file("mine.py", "VALUE = 'own'\n")
    apps.file("mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    apps.function("uses", "import mine, more\ndef handler(event, context):\n    return [mine.VALUE, more.VALUE]\n")
    _deployed(apps)
    assert apps.call("uses") == ["own", "installed"]
    assert not (code / "more.py").exists(), "the folder stays as it was"


def two_versions_of_one_distribution_are_not_mixed(apps):
    _wheel(apps.folder / "libs/mine-2.0-py3-none-any.whl", "mine", "VALUE = 2\n", version="2.0")
    apps.file("requirements.txt", "../libs/mine-2.0-py3-none-any.whl\n")
    apps.file("mine.py", "VALUE = 1\n")
    apps.file("mine-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    apps.function("uses", "import mine\ndef handler(event, context):\n    return mine.VALUE\n")
    said = _refused(apps)
    assert 'the code folder "code" has mine 1.0, and its requirements.txt installs mine 2.0' in said, said
    assert "Remove mine from the folder, or write mine==1.0" in said, said
    shutil.rmtree(apps.folder / "code/mine-1.0.dist-info")
    (apps.folder / "code/mine.py").unlink()
    _deployed(apps)
    assert apps.call("uses") == 2


def a_relative_requirement_lies_beside_its_file_from_any_working_directory(apps, tmp_path):
    _wheel(apps.folder / "code/libs/mine-1.0-py3-none-any.whl", "mine", "VALUE = 1\n")
    apps.file("requirements.txt", "./libs/mine-1.0-py3-none-any.whl\n")
    apps.function("uses", "import mine\ndef handler(event, context):\n    return mine.VALUE\n")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    _deployed(apps, cwd=elsewhere)
    assert apps.call("uses") == 1


def secrets_caches_and_ignored_files_stay_at_home(apps):
    for name in (".env", ".env.local", ".npmrc", "venv/x.py", ".venv/x.py", "__pycache__/a.pyc", ".pytest_cache/x", "node_modules/.cache/x",
                 "notes.md", "data/big", "data/small", "app.log"):
        apps.file(name, "x")
    apps.file(".gitignore", "*.log\ndata/\n")
    (apps.folder / ".landfastignore").write_text("*.md\n!data/\ncode/data/big\n")
    apps.function("lists", """
        import os
        def handler(event, context):
            return sorted(os.path.relpath(os.path.join(at, name)) for at, _, names in os.walk(".") for name in names)
    """)
    sent = [".gitignore", "data/small", "lists.py"]
    listed = _deployed(apps, "--dry-run").splitlines()
    assert [line.split()[-1] for line in listed[:-1]] == ["landfast-application.toml", *(f"code/{name}" for name in sent)]
    assert listed[-1].startswith("shop: 4 files") and listed[-1].endswith("nothing was sent")
    assert apps.ask("GET", "/v1/functions").document == []
    _deployed(apps)
    assert apps.call("lists") == sent


def a_folder_without_the_handler_is_refused_with_the_file_that_was_expected(apps):
    apps.function("says", handler="app.handler")
    said = _refused(apps)
    assert "functions.says" in said and "the code folder \"code\" has no files to deploy" in said, said
    apps.file("other.py", SAYS(1))
    assert "has neither app.py nor app/__init__.py" in _refused(apps)
    apps.tables["says"]["code"] = "cod"
    assert "cod: the folder with code" in _refused(apps)
    apps.tables["says"]["code"] = "code"
    apps.file("app.py", SAYS(1))
    apps.file(".landfastignore", "# generated\napp.*\n")
    said = _refused(apps)
    assert "has neither app.py" in said and "code/app.py is left out by line 2 of code/.landfastignore, `app.*`" in said, said
    apps.tables["says"].update(handler="venv/deep.handler")
    apps.file("venv/__init__.py", "")
    apps.file("venv/deep.py", SAYS(2))
    assert "a line `!/venv/` in code/.landfastignore brings it back" in _refused(apps)
    apps.file(".landfastignore", "!/venv/\n")
    _deployed(apps)
    assert apps.call("says") == 2
    apps.function("node", runtime="node", handler="src/index.handler", memory_mb=256)
    assert "has neither src/index.js nor src/index.mjs nor src/index.cjs" in _refused(apps)


def the_handler_of_an_installed_package_of_node_is_deployed(apps):
    apps.function("packaged", runtime="node", handler="dep.handler", memory_mb=256)
    apps.file("other.js", "")
    apps.file("node_modules/dep/main.js", "exports.handler = async () => 'installed';\n")
    assert "has neither dep.js nor dep.mjs nor dep.cjs" in _refused(apps)
    apps.file("node_modules/dep/index.js", "module.exports = require('./main.js');\n")
    apps.file(".gitignore", "node_modules/\n")
    _deployed(apps)
    assert apps.call("packaged") == "installed"


def a_built_handler_that_git_leaves_out_is_deployed(apps):
    apps.file(".gitignore", "/bootstrap*\n/dist/\n[z-a]\nfoo{\n")
    apps.file("bootstrap", """\
        #!/usr/bin/env python3
        import os, urllib.request
        api = "http://" + os.environ["AWS_LAMBDA_RUNTIME_API"] + "/2018-06-01/runtime/invocation/"
        while True:
            id = urllib.request.urlopen(api + "next").headers["Lambda-Runtime-Aws-Request-Id"]
            said = ",".join(sorted(os.listdir())).encode()
            urllib.request.urlopen(api + id + "/response", b'"' + said + b'"')
    """, mode=0o755)
    apps.file("bootstrap.debug", "x")
    apps.file("dist/app.py", "import dist.more\ndef handler(event, context):\n    return dist.more.VALUE\n")
    apps.file("dist/more.py", "VALUE = 7\n")
    apps.function("built", runtime="executable", handler="bootstrap")
    apps.function("compiled", handler="dist.app.handler")
    _deployed(apps)
    assert apps.call("built") == ".gitignore,bootstrap,dist"
    assert apps.call("compiled") == 7, "a module brings its folder"
    apps.file(".landfastignore", "bootstrap\n")
    said = _refused(apps)
    assert "functions.built: " in said and "code/bootstrap is left out by line 1 of code/.landfastignore, `bootstrap`" in said, said


def a_handler_may_lie_below_a_link(apps):
    apps.file("src/app.py", SAYS(3))
    (apps.folder / "code/lib").symlink_to("src")
    apps.function("linked", handler="lib.app.handler")
    _deployed(apps)
    assert apps.call("linked") == 3


def a_compiled_package_is_a_handler(apps):
    """One of C would need a compiler: what the import says shows that it was deployed and found."""
    apps.file("app/__init__.cpython-311-x86_64-linux-gnu.so", "no library\n")
    apps.file("app/__init__.abi3.so", "no library\n")
    apps.function("native", handler="app.handler")
    _deployed(apps)
    failed = apps.call("native")
    assert failed.type == "Runtime.ImportModuleError" and "app/__init__." in failed.message, failed


def the_server_refuses_such_an_archive_too_and_does_not_show_its_own_paths(apps):
    def answer(handler, files, runtime="python3"):
        content = io.BytesIO()
        manifest = f'[functions.f]\nruntime = "{runtime}"\ncode = "code"\nhandler = "{handler}"\n'
        with tarfile.open(fileobj=content, mode="w:gz") as archive:
            for name, text in {"landfast-application.toml": manifest, **files}.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(text), 0o644
                archive.addfile(entry, io.BytesIO(text.encode()))
        return apps.ask("PUT", "/v1/applications/by-hand", content.getvalue())

    for handler, files, why in (
        ("app.f", {}, "has no files"),
        ("app.f", {"code/other.py": "x"}, "has neither app.py nor app/__init__.py"),
        ("../../../../etc/passwd.f", {"code/other.py": "x"}, "has neither"),
        ("../other/app.f", {"code/x.py": "x", "other/app.py": "x"}, "has neither"),
    ):
        refusal = answer(handler, files)
        assert refusal.problem == (400, "invalid-request"), refusal
        assert "functions.f: " in refusal.document["detail"] and why in refusal.document["detail"], refusal.document
        assert str(apps.server.directory) not in refusal.document["detail"]
    assert apps.ask("GET", "/v1/functions").document == []
    assert answer("app.f", {"code/app.py": SAYS(1)}).status == 200


def a_version_of_a_runtime_is_accepted_where_it_fits(apps):
    own = "{}.{}".format(*sys.version_info[:2])
    apps.function("says", "import sys\ndef handler(event, context):\n    return '%d.%d' % sys.version_info[:2]\n", python=sys.executable)
    apps.tables["says"]["runtime"] = f"python{own}"
    _deployed(apps)
    assert apps.call("says") == own
    apps.tables["says"]["runtime"] = "python3.2"
    said = _refused(apps)
    assert f'is of version {own}: write runtime = "python3" or "python{own}"' in said and 'python = "/PATH"' in said, said
    for word in ("ruby3.2", "python", "nodejs20"):
        apps.tables["says"]["runtime"] = word
        assert '"python3.11" or "nodejs20.x"' in _refused(apps)
    apps.tables["says"]["runtime"] = "provided.al2023"
    assert 'write "executable"' in _refused(apps)
    if shutil.which("node") is not None:
        del apps.tables["says"]
        apps.file("index.js", "exports.handler = async () => process.versions.node;\n")
        apps.function("node", runtime="nodejs1.x", handler="index.handler", memory_mb=256)
        assert 'write runtime = "node" or "nodejs' in _refused(apps)


def a_package_json_is_installed_as_requirements_are(apps):
    if shutil.which("npm") is None:
        pytest.skip("npm is not installed")
    scripts = '{"prepare": "false", "postinstall": "false"}'
    apps.file("package.json", '{"name": "shop", "version": "1.0.0", "scripts": %s, "dependencies": {"ms": "2.1.3"}}\n' % scripts)
    apps.file("index.js", "const ms = require('ms');\nexports.handler = async () => ms('2h');\n")
    apps.function("uses", runtime="node", handler="index.handler", memory_mb=256)
    _deployed(apps)
    assert apps.call("uses") == 7_200_000
    assert not (apps.folder / "code/node_modules").exists(), "the folder stays as it was"
    apps.file("node_modules/ms/index.js", "module.exports = () => 'own';\n")
    apps.file(".gitignore", "node_modules/\n")
    _deployed(apps)
    assert apps.call("uses") == "own", "modules that are there are deployed, though git ignores them"
    apps.file(".landfastignore", "node_modules/\n")
    _deployed(apps)
    assert apps.call("uses") == 7_200_000, "modules that are left out are installed"
    for lock in ("yarn.lock", "pnpm-lock.yaml", "bun.lockb"):
        apps.file(lock, "")
        said = _refused(apps)
        assert f"does not read their versions in {lock}" in said and "`npm install --package-lock-only`" in said, said
        (apps.folder / "code" / lock).unlink()
    apps.file("package.json", '{"dependencies": {"mine": "file:../libs/mine"}}\n')
    shutil.rmtree(apps.folder / "code/node_modules")
    assert "npm install --install-links" in _refused(apps)
    apps.file("package.json", '{"type": "commonjs"}\n')
    apps.file("index.js", "exports.handler = async () => 1;\n")
    _deployed(apps)
    assert apps.call("uses") == 1, "without dependencies there is nothing to install"


def a_function_without_a_network_is_told_the_setting_where_it_looks_for_a_host(apps):
    apps.function("looks", """
        import socket
        def handler(event, context):
            if event.get("handles"):
                try:
                    socket.create_connection(("192.0.2.1", 80), 2)
                except OSError as error:
                    print(error)
                return "handled"
            if event.get("host"):
                socket.getaddrinfo(event["host"], 80)
            return "quiet"
    """)
    apps.deploy()
    hint = "landfast: this function has no network; `network = true` in its table of the manifest gives it the machine's"
    assert apps.call("looks") == "quiet"
    assert hint not in apps.lines("looks")
    failed = apps.call("looks", {"host": "example.com"})
    assert failed.type == "gaierror", failed
    assert apps.lines("looks").count(hint) == 1, apps.lines("looks")
    assert apps.lines("looks")[-3:-1] == [hint, apps.lines("looks")[-2]], "before the end of the invocation"
    assert apps.call("looks", {"handles": True}) == "handled"
    assert apps.lines("looks").count(hint) == 2, "also where the function has handled the error"


def a_function_of_node_without_a_network_is_told_the_setting_where_its_fetch_fails(apps):
    apps.file("index.js", "exports.handler = async (event) => { await fetch(event); };\n")
    for name in ("alone", "connected"):
        apps.function(name, runtime="node", handler="index.handler", memory_mb=256, network=name == "connected")
    apps.deploy()
    hint = "landfast: this function has no network; `network = true` in its table of the manifest gives it the machine's"
    for name, url, hints in (("alone", "http://db.invalid", 1), ("connected", "http://127.0.0.1:1", 0)):
        assert apps.call(name, url).message == "fetch failed"
        assert apps.lines(name).count(hint) == hints, apps.lines(name)


def a_cron_expression_of_a_timer_is_checked_at_the_deployment(apps):
    apps.function("ticks", SAYS(1), triggers=[{"cron": "0 9 * * MON-FRI", "timezone": "Europe/Vienna"}])
    _deployed(apps)
    for trigger, why in (
        ({"cron": "0 9 * *"}, "it does not have five fields"),
        ({"cron": "0 25 * * *"}, 'cron = "0 25 * * *"'),
        ({"cron": "0 9 30 2 *"}, "it never fires"),
        ({"cron": "0 9 * * *", "timezone": "Europe/Wien"}, 'timezone = "Europe/Wien" is no time zone'),
        ({"every_s": 60, "timezone": "UTC"}, "a trigger is"),
        ({"every_s": 0}, "every_s = 0 must be 1 to 31622400"),
        ({"every_s": 60, "cron": "0 9 * * *"}, "a trigger is"),
    ):
        apps.tables["ticks"]["triggers"] = [trigger]
        assert why in _refused(apps), trigger
    assert apps.call("ticks") == 1


def packages_of_the_machine_are_hidden_from_a_function_that_does_not_declare_them(apps):
    """What runs here by accident would fail on the next machine."""
    for name in ("first", "second"):
        apps.function(name, """
            import sys
            def handler(event, context):
                if event.get("import"):
                    __import__(event["import"])
                exit
                return [entry for entry in sys.path if "-packages" in entry]
        """)
    apps.function("early", "import pip\ndef handler(event, context):\n    return pip.__version__\n")
    apps.function("chosen", "import pip\ndef handler(event, context):\n    return pip.__version__\n", python=sys.executable)
    apps.deploy()
    hint = "add other packages, boto3 too, to requirements.txt in the code folder"
    assert apps.call("first") == [] and apps.call("second") == [], "also in an interpreter that was started before"
    failed = apps.call("first", {"import": "pip"})
    assert (failed.type, failed.message) == ("ModuleNotFoundError", "No module named 'pip'")
    assert sum(hint in line for line in apps.lines("first")) == 1
    failed = apps.call("early")
    assert failed.type == "Runtime.ImportModuleError" and "No module named 'pip'" in failed.message
    assert sum(hint in line for line in apps.lines("early")) == 1
    assert apps.call("chosen")[0].isdigit(), "an interpreter that is named brings its packages"


def a_module_of_the_code_named_site_is_that_of_the_code_alone(apps):
    apps.file("site.py", "VALUE = 7\n")
    apps.function("says", "def handler(event, context):\n    return 1\n")
    apps.deploy()
    assert apps.call("says") == 1
