"""Objects in function memory whose durable copies go to a distant store: another server's S3."""

import os

import pytest

import function_memory
import s3_server
import waiting
from s3_server import MIB

FAR = "far"
BUCKET = "near"


class OnDistantStore(s3_server.Landfast):
    """A server whose objects go to a bucket of another one."""

    far = None
    variables = {
        **s3_server.Landfast.variables,
        "AWS_ACCESS_KEY_ID": s3_server.ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": s3_server.SECRET_KEY,
    }

    def options(self):
        objects = f"s3://{FAR}/of/near?endpoint={self.far.s3_url}&region={s3_server.REGION}"
        return [*super().options(), "--objects", objects]

    def buffered(self):
        return function_memory.metrics(self)["buffered_fragments"]

    def is_drained(self):
        return self.buffered() == 0 and not list((self.directory / "data/memory-buffer").rglob("*-0"))

    def copies(self):
        pages = s3_server.client(self.far.s3_url).get_paginator("list_objects_v2")
        return [key for page in pages.paginate(Bucket=FAR, Prefix="of/near/memory/") for key in s3_server.keys(page)]


@pytest.fixture
def far(tmp_path):
    folder = tmp_path / "far"
    folder.mkdir()
    server = s3_server.Landfast(folder).start()
    s3_server.client(server.s3_url).create_bucket(Bucket=FAR)
    yield server
    server.shut_down()


@pytest.fixture
def near(far, tmp_path):
    folder = tmp_path / "near"
    folder.mkdir()
    server = OnDistantStore(folder)
    server.far = far
    server.start()
    s3_server.client(server.s3_url).create_bucket(Bucket=BUCKET)
    yield server
    server.shut_down()


def an_object_survives_the_server_before_and_after_its_copy(far, near):
    body = os.urandom(20 * MIB)
    s3_server.client(near.s3_url).put_object(Bucket=BUCKET, Key="k", Body=body)
    near.kill()
    near.start()
    assert s3_server.content(s3_server.client(near.s3_url), BUCKET, "k") == body
    waiting.until(near.is_drained, "an empty buffer")
    assert len(near.copies()) == 1
    near.kill()
    near.start()
    s3 = s3_server.client(near.s3_url)
    assert s3_server.content(s3, BUCKET, "k") == body
    s3.delete_object(Bucket=BUCKET, Key="k")
    waiting.until(lambda: not near.copies(), "the deletion behind")
    for server in far, near:
        assert not server.log_lines(s3_server.SECRET_KEY)


def puts_and_gets_go_on_while_the_distant_store_is_away(far, near):
    s3 = s3_server.client(near.s3_url)
    before, during = os.urandom(20 * MIB), os.urandom(20 * MIB)
    s3.put_object(Bucket=BUCKET, Key="before", Body=before)
    waiting.until(near.is_drained, "an empty buffer")
    far.kill()
    s3.put_object(Bucket=BUCKET, Key="during", Body=during)
    assert s3_server.content(s3, BUCKET, "before") == before
    assert s3_server.content(s3, BUCKET, "during") == during
    waiting.until(lambda: near.log_lines("the object store does not take fragments"), "a warning")
    assert near.buffered() == 1
    far.start()
    waiting.until(near.is_drained, "an empty buffer")
    assert len(near.copies()) == 2
    assert near.log_lines("the object store takes fragments again")
    near.kill()
    near.start()
    assert s3_server.content(s3_server.client(near.s3_url), BUCKET, "during") == during
