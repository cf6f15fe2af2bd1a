"""Functions that reach objects over S3: boto3 inside, unchanged and without a network."""

import json
import sys
import urllib.parse

import pytest

import application
import s3_server
import server as servers
import waiting

OBJECTS = """
    import os
    import boto3
    import botocore.exceptions

    def handler(event, context):
        s3 = boto3.client("s3")
        try:
            return getattr(Calls, event["call"])(s3, *event.get("with", []))
        except botocore.exceptions.ClientError as error:
            return [error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]]

    class Calls:
        def keys(s3):
            return [os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"], os.environ["AWS_ENDPOINT_URL_S3"]]
        def buckets(s3):
            return [bucket["Name"] for bucket in s3.list_buckets()["Buckets"]]
        def put(s3, bucket, key, text):
            return s3.put_object(Bucket=bucket, Key=key, Body=text.encode())["ETag"]
        def get(s3, bucket, key):
            return s3.get_object(Bucket=bucket, Key=key)["Body"].read().decode()
        def list(s3, bucket):
            return [item["Key"] for item in s3.list_objects_v2(Bucket=bucket).get("Contents", [])]
        def copy(s3, source, bucket, key):
            s3.copy_object(Bucket=bucket, Key=key, CopySource={"Bucket": source, "Key": key})
        def malformed(s3, bucket, key):
            return s3.get_object(Bucket=bucket, Key=key, Range="bytes=b-a")["ContentLength"]
        def presigned(s3, bucket, key):
            import urllib.request
            url = s3.generate_presigned_url("get_object", Params={"Bucket": bucket, "Key": key})
            with urllib.request.urlopen(url) as response:
                return response.read().decode()
        def large(s3, bucket, key, bytes):
            s3.put_object(Bucket=bucket, Key=key, Body=bytearray(bytes))
            body = s3.get_object(Bucket=bucket, Key=key)["Body"]
            return sum(len(chunk) for chunk in body.iter_chunks(1 << 20))
"""
DENIED = [403, "AccessDenied"]


@pytest.fixture
def objects(tmp_path):
    """A deployed function with the bucket `photos`, beside a bucket `private` with an object."""
    running = s3_server.Landfast(tmp_path).start()
    apps = application.Application(tmp_path / "app", running)
    apps.function("files", OBJECTS, objects=["photos"], python=sys.executable, memory_mb=1024, timeout_s=120)
    apps.deploy()
    owner = s3_server.client(running.s3_url)
    for bucket in ("photos", "private"):
        owner.create_bucket(Bucket=bucket)
        owner.put_object(Bucket=bucket, Key="theirs", Body=b"of the owner")
    yield apps
    running.shut_down()


def _call(apps, name, *arguments):
    return apps.call("files", {"call": name, "with": arguments})


def a_function_puts_reads_and_lists_objects_of_its_bucket(objects):
    assert _call(objects, "put", "photos", "in/a b.txt", "text").strip('"') == "1cb251ec0d568de6a929b520c4aed8d1"
    assert _call(objects, "get", "photos", "in/a b.txt") == "text"
    assert _call(objects, "get", "photos", "theirs") == "of the owner"
    assert _call(objects, "list", "photos") == ["in/a b.txt", "theirs"]
    assert _call(objects, "presigned", "photos", "theirs") == "of the owner"


def an_object_larger_than_all_bodies_of_a_function_together_goes_both_ways(objects):
    assert _call(objects, "large", "photos", "large", 200 << 20) == 200 << 20


def a_function_reaches_no_other_bucket(objects):
    assert _call(objects, "buckets") == ["photos"]
    assert _call(objects, "get", "private", "theirs") == DENIED
    assert _call(objects, "put", "private", "mine", "x") == DENIED
    assert _call(objects, "list", "private") == DENIED
    assert _call(objects, "copy", "private", "photos", "theirs") == DENIED
    assert _call(objects, "copy", "photos", "private", "theirs") == DENIED
    assert _call(objects, "malformed", "private", "theirs")[0] >= 400


def the_keys_end_with_the_function(objects):
    access_key, secret_key, _ = _call(objects, "keys")

    def listed():
        client = s3_server.client(objects.server.s3_url, secret_key, access_key)
        return [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]

    objects.deploy()
    assert listed() == ["photos"], "a new version has the same keys"
    objects.command("functions", "remove", objects.name)
    unknown = (403, "InvalidAccessKeyId")
    assert s3_server.refusal(listed) == unknown
    objects.deploy()
    assert s3_server.refusal(listed) == unknown
    assert _call(objects, "buckets") == ["photos"]


def a_function_without_objects_has_no_keys(objects):
    objects.function("plain", "import os\ndef handler(event, context): return sorted(os.environ)\n")
    objects.deploy()
    names = objects.call("plain")
    assert "LANDFAST_URL" in names
    assert not {"AWS_ENDPOINT_URL_S3", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} & set(names)


def a_stopped_and_restarted_server_gives_the_same_keys(objects):
    before = _call(objects, "keys")
    objects.server.kill()
    objects.server.start()
    assert _call(objects, "keys")[:2] == before[:2]
    assert _call(objects, "get", "photos", "theirs") == "of the owner"


def a_step_that_puts_an_object_has_committed_its_writes_before(objects):
    """P5. The step fails after its PUT; its write was durable before, and the object is there."""
    objects.function(
        "step",
        """
        import boto3
        import landfast
        def handler(event, context):
            landfast.state().put("written", b"before")
            boto3.client("s3").put_object(Bucket="photos", Key="output", Body=b"x")
            raise SystemExit(1)
        """,
        objects=["photos"], python=sys.executable, retries=0, memory_mb=512,
    )
    objects.workflow("puts", 'steps = ["step"]\n')
    objects.deploy()
    status, run = objects.run("puts")
    assert (status, run["status"]) == (200, "failed"), run
    assert _call(objects, "get", "photos", "output") == "x"
    assert objects.value("written") == "before"


class WithoutS3(servers.Landfast):
    serves_s3 = False

    def options(self):
        return [*super().options(), "--s3", "off"]


def a_manifest_with_objects_is_refused_where_s3_is_not_served(tmp_path):
    running = WithoutS3(tmp_path).start()
    apps = application.Application(tmp_path / "app", running)
    apps.function("files", OBJECTS, objects=["photos"])
    refused = apps.command("functions", "deploy", str(apps.write()))
    assert refused.returncode != 0 and "serves no S3" in refused.stderr, refused.stderr
    running.shut_down()


RECORDS = """
    import json
    import landfast

    def handler(event, context):
        (record,) = event["Records"]
        landfast.state().put("event/" + record["eventName"] + "/" + record["s3"]["object"]["key"], json.dumps(record).encode())
"""


@pytest.fixture
def following(tmp_path):
    """A function that keeps the events of `photos/in/*.jpg`, and the owner's client."""
    running = s3_server.Landfast(tmp_path).start()
    apps = application.Application(tmp_path / "app", running)
    rule = {"bucket": "photos", "prefix": "in/", "suffix": ".jpg", "events": ["created", "removed"]}
    apps.function("keeps", RECORDS, on_object=rule)
    apps.deploy()
    owner = s3_server.client(running.s3_url)
    owner.create_bucket(Bucket="photos")
    yield apps, owner
    running.shut_down()


def _event(apps, name, key):
    """The record of an event, once the function has it."""
    path = urllib.parse.quote(f"event/{name}/{key}", safe="")
    return json.loads(waiting.until(lambda: apps.value(path), f"{name} of {key}"))


def objects_that_come_and_go_start_a_function_with_s3s_event(following):
    apps, owner = following
    etag = owner.put_object(Bucket="photos", Key="in/a b+c.jpg", Body=b"picture")["ETag"].strip('"')
    record = _event(apps, "ObjectCreated:Put", "in/a+b%2Bc.jpg")
    assert (record["eventSource"], record["awsRegion"], record["s3"]["bucket"]["name"]) == ("aws:s3", "us-east-1", "photos")
    assert (record["s3"]["object"]["size"], record["s3"]["object"]["eTag"]) == (7, etag)
    owner.copy_object(Bucket="photos", Key="in/copy.jpg", CopySource={"Bucket": "photos", "Key": "in/a b+c.jpg"})
    assert _event(apps, "ObjectCreated:Copy", "in/copy.jpg")["s3"]["object"]["eTag"] == etag
    upload = owner.create_multipart_upload(Bucket="photos", Key="in/parts.jpg")["UploadId"]
    part = owner.upload_part(Bucket="photos", Key="in/parts.jpg", UploadId=upload, PartNumber=1, Body=b"x")
    parts = {"Parts": [{"PartNumber": 1, "ETag": part["ETag"]}]}
    owner.complete_multipart_upload(Bucket="photos", Key="in/parts.jpg", UploadId=upload, MultipartUpload=parts)
    assert _event(apps, "ObjectCreated:CompleteMultipartUpload", "in/parts.jpg")["s3"]["object"]["size"] == 1
    owner.delete_object(Bucket="photos", Key="in/copy.jpg")
    removed = _event(apps, "ObjectRemoved:Delete", "in/copy.jpg")["s3"]["object"]
    assert removed["sequencer"] > record["s3"]["object"]["sequencer"] and "size" not in removed


def objects_outside_of_the_rule_start_nothing(following):
    apps, owner = following
    owner.create_bucket(Bucket="other")
    for bucket, key in (("photos", "out/a.jpg"), ("photos", "in/a.png"), ("other", "in/a.jpg")):
        owner.put_object(Bucket=bucket, Key=key, Body=b"x")
    owner.put_object(Bucket="photos", Key="in/last.jpg", Body=b"x")
    _event(apps, "ObjectCreated:Put", "in/last.jpg")
    assert apps.ask("GET", "/v1/status").document["functions"]["invocations"] == 1


def an_event_survives_a_kill_between_the_put_and_its_delivery(following):
    apps, owner = following
    for number in range(5):
        owner.put_object(Bucket="photos", Key=f"in/{number}.jpg", Body=b"x")
        apps.server.kill()
        apps.server.start()
        _event(apps, "ObjectCreated:Put", f"in/{number}.jpg")
