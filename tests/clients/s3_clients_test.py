"""S3 by the command-line clients that people use, by many clients at once, and after a crash."""

import concurrent.futures
import os
import shutil
import subprocess

import pytest

import s3_server
from s3_server import MIB

BUCKET = "bucket"


def the_aws_command_line_works_unmodified(objects_server, tmp_path):
    def aws(*arguments):
        return s3_server.run("aws", objects_server, "s3", *arguments, home=tmp_path)

    body = s3_server.random_bytes(20 * MIB)
    (tmp_path / "large").write_bytes(body)
    aws("mb", "s3://aws-cli")
    aws("cp", "large", "s3://aws-cli/dir/large")
    assert "20971520 large" in aws("ls", "s3://aws-cli/dir/")
    aws("cp", "s3://aws-cli/dir/large", "back")
    assert (tmp_path / "back").read_bytes() == body
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    for name in ("one", "sub/two ü"):
        (tmp_path / "tree" / name).write_text(name)
    aws("sync", "tree", "s3://aws-cli/tree")
    assert aws("sync", "tree", "s3://aws-cli/tree") == ""
    aws("sync", "s3://aws-cli/tree", "copy")
    assert (tmp_path / "copy" / "sub" / "two ü").read_text() == "sub/two ü"
    aws("mv", "s3://aws-cli/tree/one", "s3://aws-cli/moved")
    assert aws("presign", "s3://aws-cli/moved").startswith(objects_server.s3_url)
    aws("rm", "s3://aws-cli", "--recursive")
    assert aws("ls", "s3://aws-cli", "--recursive") == ""
    aws("rb", "s3://aws-cli")


def s3cmd_works_unmodified(objects_server, tmp_path):
    host = f"127.0.0.1:{objects_server.s3_port}"
    (tmp_path / "config").write_text(
        f"[default]\naccess_key = {s3_server.ACCESS_KEY}\nsecret_key = {s3_server.SECRET_KEY}\n"
        f"host_base = {host}\nhost_bucket = {host}\nuse_https = False\n"
    )

    def s3cmd(*arguments):
        return s3_server.run("s3cmd", objects_server, "-c", tmp_path / "config", "--no-progress", *arguments, home=tmp_path)

    body = s3_server.random_bytes(17 * MIB)
    (tmp_path / "large").write_bytes(body)
    s3cmd("mb", "s3://s3cmd-bucket")
    s3cmd("put", "large", "s3://s3cmd-bucket/dir/large ü")
    assert "s3://s3cmd-bucket/dir/" in s3cmd("ls", "s3://s3cmd-bucket")
    assert "17825792" in s3cmd("ls", "s3://s3cmd-bucket/dir/")
    s3cmd("get", "s3://s3cmd-bucket/dir/large ü", "back")
    assert (tmp_path / "back").read_bytes() == body
    assert "17825792" in s3cmd("info", "s3://s3cmd-bucket/dir/large ü")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "one").write_text("one")
    s3cmd("sync", "tree", "s3://s3cmd-bucket/")
    s3cmd("cp", "s3://s3cmd-bucket/tree/one", "s3://s3cmd-bucket/two")
    s3cmd("del", "--recursive", "--force", "s3://s3cmd-bucket")
    s3cmd("rb", "s3://s3cmd-bucket")


def rclone_works_unmodified(objects_server, tmp_path):
    if shutil.which("rclone") is None:
        pytest.skip("rclone is not installed")
    settings = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": objects_server.s3_url,
        "REGION": s3_server.REGION,
        "ACCESS_KEY_ID": s3_server.ACCESS_KEY,
        "SECRET_ACCESS_KEY": s3_server.SECRET_KEY,
        "UPLOAD_CUTOFF": "5M",
        "CHUNK_SIZE": "5M",
    }
    # rclone's SDK reads settings of the AWS command line, too.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    environment |= {f"RCLONE_CONFIG_LF_{name}": value for name, value in settings.items()}

    def rclone(*arguments):
        command = ["rclone", "--config", "", "--retries", "1", "--low-level-retries", "1", *arguments]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
        assert done.returncode == 0, done
        return done.stdout

    body = s3_server.random_bytes(17 * MIB)
    (tmp_path / "large").write_bytes(body)
    rclone("mkdir", "lf:rclone-bucket")
    rclone("copyto", "large", "lf:rclone-bucket/dir/large ü")
    assert "17825792 dir/large ü" in rclone("ls", "lf:rclone-bucket")
    rclone("copyto", "lf:rclone-bucket/dir/large ü", "back")
    assert (tmp_path / "back").read_bytes() == body
    (tmp_path / "tree" / "sub").mkdir(parents=True)
    for name in ("one", "sub/two"):
        (tmp_path / "tree" / name).write_text(name)
    rclone("sync", "tree", "lf:rclone-bucket/tree")
    # A new time of an unchanged file is set by a copy onto itself.
    os.utime(tmp_path / "tree" / "one", (1_000_000_000, 1_000_000_000))
    rclone("sync", "tree", "lf:rclone-bucket/tree")
    assert "2001-09-09" in rclone("lsl", "lf:rclone-bucket/tree/one")
    rclone("check", "tree", "lf:rclone-bucket/tree", "--download")
    (tmp_path / "tree" / "sub" / "two").unlink()
    rclone("sync", "tree", "lf:rclone-bucket/tree")
    rclone("moveto", "lf:rclone-bucket/tree/one", "lf:rclone-bucket/moved")
    assert rclone("cat", "lf:rclone-bucket/moved") == "one"
    assert rclone("lsf", "-R", "--files-only", "lf:rclone-bucket").split("\n") == ["dir/large ü", "moved", ""]
    rclone("purge", "lf:rclone-bucket")
    assert "rclone-bucket" not in rclone("lsd", "lf:")


def many_clients_at_once_read_what_they_wrote(objects_server, s3, bucket):
    def round_trip(number):
        own = s3_server.client(objects_server.s3_url)
        body = bytes([number]) * (200_000 + number)
        own.put_object(Bucket=bucket, Key=str(number), Body=body)
        return s3_server.content(own, bucket, str(number)) == body

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(round_trip, range(24)))


def an_object_is_there_after_the_server_was_killed(tmp_path):
    server = s3_server.Landfast(tmp_path).start()
    try:
        s3 = s3_server.client(server.s3_url)
        body = s3_server.random_bytes(2 * MIB + 1)
        s3.create_bucket(Bucket=BUCKET)
        s3.put_object(Bucket=BUCKET, Key="k", Body=body, Metadata={"m": "1"})
        upload_id, done = s3_server.upload(s3, BUCKET, "upload", [b"part"])
        server.kill()
        server.start()
        s3 = s3_server.client(server.s3_url)
        got = s3.get_object(Bucket=BUCKET, Key="k")
        assert (got["Body"].read(), got["Metadata"]) == (body, {"m": "1"})
        s3_server.complete(s3, BUCKET, "upload", upload_id, done)
        assert s3_server.content(s3, BUCKET, "upload") == b"part"
    finally:
        server.shut_down()
