"""S3 by boto3: buckets, objects, conditions, lists, copies, tags and uploads in parts."""

import datetime
import hashlib
import unicodedata

import pytest

import s3_server
import waiting
from s3_server import MIB

MISSING = "0" * 32


# Buckets


def a_bucket_is_listed_from_its_creation_to_its_deletion(s3):
    s3.create_bucket(Bucket="comes-and-goes")
    names = [one["Name"] for one in s3.list_buckets()["Buckets"]]
    assert "comes-and-goes" in names
    assert s3.head_bucket(Bucket="comes-and-goes")["BucketRegion"] == "us-east-1"
    s3.delete_bucket(Bucket="comes-and-goes")
    assert s3_server.refusal(s3.head_bucket, Bucket="comes-and-goes") == (404, "404")
    assert "comes-and-goes" not in [one["Name"] for one in s3.list_buckets()["Buckets"]]


def a_bucket_cannot_be_created_again(s3, bucket):
    assert s3_server.refusal(s3.create_bucket, Bucket=bucket) == (409, "BucketAlreadyOwnedByYou")


def a_bucket_with_an_object_or_an_upload_is_not_deleted(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    assert s3_server.refusal(s3.delete_bucket, Bucket=bucket) == (409, "BucketNotEmpty")
    s3.delete_object(Bucket=bucket, Key="k")
    s3.delete_bucket(Bucket=bucket)


@pytest.mark.parametrize("name", ["ab", "Upper", "under_score", "192.168.1.1", "xn--a", "a..b"])
def a_bucket_name_outside_of_the_rules_is_refused(wire, name):
    assert wire.ask("PUT", f"/{name}").refusal == (400, "InvalidBucketName")


def a_bucket_has_the_default_region_and_no_versions(s3, bucket):
    assert s3.get_bucket_location(Bucket=bucket)["LocationConstraint"] is None
    assert "Status" not in s3.get_bucket_versioning(Bucket=bucket)


def buckets_and_objects_are_their_owners_alone(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ACL="private")
    for answer in (s3.get_bucket_acl(Bucket=bucket), s3.get_object_acl(Bucket=bucket, Key="k")):
        (grant,) = answer["Grants"]
        assert grant["Permission"] == "FULL_CONTROL"
        assert grant["Grantee"]["ID"] == answer["Owner"]["ID"]
    s3.put_object_acl(Bucket=bucket, Key="k", ACL="private")
    shared = (501, "NotImplemented")
    assert s3_server.refusal(s3.put_object_acl, Bucket=bucket, Key="k", ACL="public-read") == shared
    assert s3_server.refusal(s3.put_bucket_acl, Bucket=bucket, ACL="public-read") == shared
    assert s3_server.refusal(s3.put_object, Bucket=bucket, Key="k", ACL="public-read") == shared


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        ("list_objects_v2", {}),
        ("list_multipart_uploads", {}),
        ("get_bucket_location", {}),
        ("delete_bucket", {}),
        ("get_object", {"Key": "k"}),
        ("put_object", {"Key": "k", "Body": b"x"}),
        ("delete_object", {"Key": "k"}),
        ("create_multipart_upload", {"Key": "k"}),
        ("delete_objects", {"Delete": {"Objects": [{"Key": "k"}]}}),
    ],
)
def operations_on_a_missing_bucket_say_so(s3, operation, named):
    assert s3_server.refusal(getattr(s3, operation), Bucket="no-such-bucket", **named) == (404, "NoSuchBucket")


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        ("put_bucket_versioning", {"VersioningConfiguration": {"Status": "Enabled"}}),
        ("get_bucket_policy", {}),
        ("get_bucket_lifecycle_configuration", {}),
        ("get_bucket_encryption", {}),
        ("get_bucket_replication", {}),
        ("get_object_torrent", {"Key": "k"}),
        ("put_object", {"Key": "k", "ServerSideEncryption": "AES256"}),
        ("put_object", {"Key": "k", "StorageClass": "GLACIER"}),
    ],
)
def what_the_server_does_not_have_is_not_implemented(s3, bucket, operation, named):
    assert s3_server.refusal(getattr(s3, operation), Bucket=bucket, **named) == (501, "NotImplemented")


# Objects


@pytest.mark.parametrize("size", [0, 1, 9, 16 * 1024, 16 * 1024 + 1, 128 * 1024 * 10 + 7, 12 * MIB + 3])
def an_object_comes_back_as_it_was_put(s3, bucket, size):
    body = s3_server.random_bytes(size)
    put = s3.put_object(Bucket=bucket, Key="k", Body=body)
    assert put["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == body
    assert got["ETag"] == put["ETag"]
    assert got["ContentLength"] == size
    assert got["AcceptRanges"] == "bytes"
    head = s3.head_object(Bucket=bucket, Key="k")
    assert (head["ContentLength"], head["ETag"]) == (size, put["ETag"])
    assert head["LastModified"] == got["LastModified"]


KEYS = [
    "a//b",
    "//",
    "/leading",
    "../up",
    "a/./b",
    "trailing/",
    " space ",
    "plus+and%41",
    "question?hash#and&",
    "ünïcödé",
    unicodedata.normalize("NFD", "ünïcödé"),
    "😀",
    "\uff5e",
    "quote\"'<>",
    "back\\slash",
    "new\nline",
    "k" * 1024,
]


@pytest.mark.parametrize("key", KEYS)
def a_key_is_any_text(s3, bucket, key):
    s3.put_object(Bucket=bucket, Key=key, Body=key.encode())
    assert s3_server.content(s3, bucket, key) == key.encode()
    assert s3_server.keys(s3.list_objects_v2(Bucket=bucket)) == [key]
    s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": key}]})
    assert s3_server.keys(s3.list_objects_v2(Bucket=bucket)) == []


def keys_are_listed_in_the_order_of_their_bytes(s3, bucket):
    for key in KEYS:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    assert s3_server.keys(s3.list_objects_v2(Bucket=bucket)) == sorted(KEYS, key=lambda key: key.encode())
    assert s3_server.keys(s3.list_objects(Bucket=bucket)) == sorted(KEYS, key=lambda key: key.encode())


def a_key_of_more_than_1024_bytes_is_too_long(s3, bucket):
    assert s3_server.refusal(s3.put_object, Bucket=bucket, Key="k" * 1025, Body=b"x") == (400, "KeyTooLongError")
    assert s3_server.refusal(s3.create_multipart_upload, Bucket=bucket, Key="é" * 513) == (400, "KeyTooLongError")


def a_key_that_is_not_utf8_is_an_invalid_uri(wire, bucket):
    assert wire.ask("PUT", f"/{bucket}/%ff", b"x").refusal == (400, "InvalidURI")


def headers_and_metadata_come_back_and_an_overwrite_clears_them(s3, bucket):
    expires = datetime.datetime(2030, 1, 2, 3, 4, 5, tzinfo=datetime.timezone.utc)
    headers = {
        "CacheControl": "max-age=5",
        "ContentDisposition": "attachment",
        "ContentEncoding": "gzip",
        "ContentLanguage": "de",
        "ContentType": "text/x-test",
    }
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"one": "1"}, Expires=expires, **headers)
    for answer in (s3.get_object(Bucket=bucket, Key="k"), s3.head_object(Bucket=bucket, Key="k")):
        assert {name: answer[name] for name in headers} == headers
        assert answer["Metadata"] == {"one": "1"}
        assert answer["ExpiresString"] == "Wed, 02 Jan 2030 03:04:05 GMT"
    s3.put_object(Bucket=bucket, Key="k", Body=b"y")
    head = s3.head_object(Bucket=bucket, Key="k")
    assert head["Metadata"] == {}
    assert "CacheControl" not in head
    assert head["ContentType"] == "binary/octet-stream"


def metadata_of_more_than_two_kilobytes_is_refused(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"name": "v" * 2044})
    wrong = {"Bucket": bucket, "Key": "l", "Metadata": {"name": "v" * 2045}}
    assert s3_server.refusal(s3.put_object, Body=b"x", **wrong) == (400, "MetadataTooLarge")
    assert s3_server.refusal(s3.head_object, Bucket=bucket, Key="l") == (404, "404")


def a_missing_object_says_so_and_its_deletion_is_no_error(s3, bucket):
    assert s3_server.refusal(s3.get_object, Bucket=bucket, Key="k") == (404, "NoSuchKey")
    assert s3_server.refusal(s3.head_object, Bucket=bucket, Key="k") == (404, "404")
    s3.delete_object(Bucket=bucket, Key="k")


def a_batch_is_deleted_and_missing_keys_count_as_deleted(s3, bucket):
    for key in "abc":
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    named = [{"Key": "a"}, {"Key": "missing"}, {"Key": "b", "ETag": '"wrong"'}]
    answer = s3.delete_objects(Bucket=bucket, Delete={"Objects": named})
    assert [one["Key"] for one in answer["Deleted"]] == ["a", "missing"]
    (error,) = answer["Errors"]
    assert (error["Key"], error["Code"]) == ("b", "PreconditionFailed")
    assert s3_server.keys(s3.list_objects_v2(Bucket=bucket)) == ["b", "c"]
    quiet = s3.delete_objects(Bucket=bucket, Delete={"Objects": [{"Key": "b"}], "Quiet": True})
    assert "Deleted" not in quiet


def a_batch_names_at_most_a_thousand_keys(s3, bucket):
    named = [{"Key": str(number)} for number in range(1001)]
    assert s3_server.refusal(s3.delete_objects, Bucket=bucket, Delete={"Objects": named}) == (400, "MalformedXML")


def every_answer_has_a_request_id_and_errors_name_it(wire, bucket):
    answer = wire.ask("GET", f"/{bucket}/none")
    assert answer.refusal == (404, "NoSuchKey")
    number = answer.headers["x-amz-request-id"]
    assert f"<RequestId>{number}</RequestId>".encode() in answer.body
    assert f"<Resource>/{bucket}/none</Resource>".encode() in answer.body
    again = wire.ask("HEAD", f"/{bucket}")
    assert again.status == 200
    assert again.headers["x-amz-request-id"] != number


def a_connection_serves_on_after_an_error_and_a_head_has_no_body(wire, bucket):
    assert wire.ask("HEAD", f"/{bucket}/none").body == b""
    assert wire.ask("PUT", f"/{bucket}/k", b"content").status == 200
    head = wire.ask("HEAD", f"/{bucket}/k")
    assert (head.status, head.headers["content-length"], head.body) == (200, "7", b"")
    assert wire.ask("GET", f"/{bucket}/k").body == b"content"


# Reads of a part, and under conditions


@pytest.mark.parametrize(
    ("asked", "first", "last"),
    [("bytes=0-0", 0, 0), ("bytes=5-", 5, 99), ("bytes=90-1000", 90, 99), ("bytes=-10", 90, 99), ("bytes=-1000", 0, 99)],
)
def a_range_of_an_object_is_sent(s3, bucket, asked, first, last):
    body = bytes(range(100))
    s3.put_object(Bucket=bucket, Key="k", Body=body)
    got = s3.get_object(Bucket=bucket, Key="k", Range=asked)
    assert got["Body"].read() == body[first : last + 1]
    assert got["ContentRange"] == f"bytes {first}-{last}/100"
    assert got["ResponseMetadata"]["HTTPStatusCode"] == 206
    head = s3.head_object(Bucket=bucket, Key="k", Range=asked)
    assert head["ResponseMetadata"]["HTTPStatusCode"] == 206
    assert head["ContentLength"] == last - first + 1


@pytest.mark.parametrize(("size", "asked"), [(100, "bytes=100-"), (100, "bytes=-0"), (0, "bytes=0-0"), (0, "bytes=-1")])
def a_range_without_a_byte_of_the_object_is_refused(s3, bucket, size, asked):
    s3.put_object(Bucket=bucket, Key="k", Body=bytes(size))
    assert s3_server.refusal(s3.get_object, Bucket=bucket, Key="k", Range=asked) == (416, "InvalidRange")


@pytest.mark.parametrize("asked", ["bytes=5-2", "bytes=x-", "lines=1-2", "bytes=0-1,3-4"])
def a_range_that_cannot_be_read_is_ignored(wire, bucket, asked):
    assert wire.ask("PUT", f"/{bucket}/k", b"content").status == 200
    answer = wire.ask("GET", f"/{bucket}/k", range=asked)
    assert (answer.status, answer.body) == (200, b"content")


def a_range_over_stripes_and_fragments_is_exact(s3, bucket):
    body = s3_server.random_bytes(3 * MIB + 11)
    s3.put_object(Bucket=bucket, Key="k", Body=body)
    unit, stripe = 128 * 1024, 1280 * 1024
    for first, last in [(unit - 1, unit), (stripe - 1, stripe), (stripe, 2 * stripe), (3 * MIB, 3 * MIB + 10)]:
        assert s3_server.content(s3, bucket, "k", Range=f"bytes={first}-{last}") == body[first : last + 1]


def conditions_of_a_read_are_decided_as_in_http(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    past = datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc)
    future = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=1)
    cases = [
        ({"IfMatch": etag}, 200),
        ({"IfMatch": '"other"'}, 412),
        ({"IfMatch": f'"other", {etag}'}, 200),
        ({"IfNoneMatch": '"other"'}, 200),
        ({"IfNoneMatch": etag}, 304),
        ({"IfNoneMatch": "*"}, 304),
        ({"IfModifiedSince": past}, 200),
        ({"IfModifiedSince": future}, 304),
        ({"IfUnmodifiedSince": past}, 412),
        ({"IfUnmodifiedSince": future}, 200),
        ({"IfMatch": etag, "IfUnmodifiedSince": past}, 200),
        ({"IfNoneMatch": '"other"', "IfModifiedSince": future}, 200),
    ]
    for named, expected in cases:
        for read in (s3.get_object, s3.head_object):
            if expected == 200:
                assert read(Bucket=bucket, Key="k", **named)["ETag"] == etag, named
            else:
                assert s3_server.refusal(read, Bucket=bucket, Key="k", **named)[0] == expected, named


def a_304_has_the_etag_and_no_body(wire, bucket):
    etag = wire.ask("PUT", f"/{bucket}/k", b"x").headers["etag"]
    answer = wire.ask("GET", f"/{bucket}/k", if_none_match=etag)
    assert (answer.status, answer.headers["etag"], answer.body) == (304, etag, b"")
    assert wire.ask("GET", f"/{bucket}/k", if_modified_since="yesterday").status == 200


def a_signed_read_may_override_headers(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", ContentType="a/b")
    got = s3.get_object(
        Bucket=bucket, Key="k", ResponseContentType="c/d", ResponseContentDisposition="inline", ResponseCacheControl="no-store"
    )
    assert (got["ContentType"], got["ContentDisposition"], got["CacheControl"]) == ("c/d", "inline", "no-store")


# Writes under conditions


def a_put_that_must_create_fails_on_an_object(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"first", IfNoneMatch="*")
    again = s3_server.refusal(s3.put_object, Bucket=bucket, Key="k", Body=b"second", IfNoneMatch="*")
    assert again == (412, "PreconditionFailed")
    assert s3_server.content(s3, bucket, "k") == b"first"


def a_put_that_must_replace_a_version_fails_on_another(s3, bucket):
    missing = s3_server.refusal(s3.put_object, Bucket=bucket, Key="k", Body=b"x", IfMatch='"a"')
    assert missing == (404, "NoSuchKey")
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"one")["ETag"]
    s3.put_object(Bucket=bucket, Key="k", Body=b"two", IfMatch=etag)
    assert s3_server.refusal(s3.put_object, Bucket=bucket, Key="k", Body=b"three", IfMatch=etag) == (412, "PreconditionFailed")
    assert s3_server.content(s3, bucket, "k") == b"two"


def a_delete_under_a_condition_keeps_another_version(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    assert s3_server.refusal(s3.delete_object, Bucket=bucket, Key="k", IfMatch='"other"') == (412, "PreconditionFailed")
    s3.delete_object(Bucket=bucket, Key="k", IfMatch=etag)
    assert s3_server.refusal(s3.head_object, Bucket=bucket, Key="k") == (404, "404")


def one_of_many_that_create_the_same_object_wins(objects_server, s3, bucket):
    def create(number):
        own = s3_server.client(objects_server.s3_url)
        try:
            own.put_object(Bucket=bucket, Key="k", Body=str(number).encode(), IfNoneMatch="*")
            return number
        except own.exceptions.ClientError as error:
            assert error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict")
            return None

    winners = [number for number in waiting.together(*[lambda n=n: create(n) for n in range(8)]) if number is not None]
    assert len(winners) == 1
    assert s3_server.content(s3, bucket, "k") == str(winners[0]).encode()


def increments_under_a_condition_lose_no_update(objects_server, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"0")

    def increment():
        own = s3_server.client(objects_server.s3_url)
        done = 0
        while done < 5:
            got = own.get_object(Bucket=bucket, Key="k")
            value = int(got["Body"].read()) + 1
            try:
                own.put_object(Bucket=bucket, Key="k", Body=str(value).encode(), IfMatch=got["ETag"])
                done += 1
            except own.exceptions.ClientError as error:
                assert error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict")

    waiting.together(*[increment] * 4)
    assert s3_server.content(s3, bucket, "k") == b"20"


# Lists


TREE = ["a/1", "a/2", "b", "c/d/1", "c/d/2", "c/e", "d", "z"]


@pytest.fixture
def tree(s3, bucket):
    for key in TREE:
        s3.put_object(Bucket=bucket, Key=key, Body=b"x")
    return bucket


@pytest.mark.parametrize(
    ("named", "found", "common"),
    [
        ({}, TREE, []),
        ({"Delimiter": "/"}, ["b", "d", "z"], ["a/", "c/"]),
        ({"Prefix": "c/", "Delimiter": "/"}, ["c/e"], ["c/d/"]),
        ({"Prefix": "c/d"}, ["c/d/1", "c/d/2"], []),
        ({"Prefix": "none"}, [], []),
        ({"StartAfter": "b"}, ["c/d/1", "c/d/2", "c/e", "d", "z"], []),
        ({"StartAfter": "c/d/1", "Prefix": "c/"}, ["c/d/2", "c/e"], []),
        ({"Delimiter": "/d"}, ["a/1", "a/2", "b", "c/e", "d", "z"], ["c/d"]),
    ],
)
def a_list_has_prefix_delimiter_and_start(s3, tree, named, found, common):
    page = s3.list_objects_v2(Bucket=tree, **named)
    assert (s3_server.keys(page), s3_server.prefixes(page)) == (found, common)
    assert page["KeyCount"] == len(found) + len(common)
    assert page["IsTruncated"] is False
    v1 = {("Marker" if name == "StartAfter" else name): value for name, value in named.items()}
    page = s3.list_objects(Bucket=tree, **v1)
    assert (s3_server.keys(page), s3_server.prefixes(page)) == (found, common)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("delimiter", [{}, {"Delimiter": "/"}])
def pages_of_any_size_give_each_key_and_prefix_once(s3, tree, size, delimiter):
    whole, _ = s3_server.pages(s3.list_objects_v2, Bucket=tree, **delimiter)
    found, count = s3_server.pages(s3.list_objects_v2, Bucket=tree, MaxKeys=size, **delimiter)
    assert found == whole
    assert count == -(-len(whole) // size)


def the_first_version_of_lists_continues_by_marker(s3, tree):
    first = s3.list_objects(Bucket=tree, Delimiter="/", MaxKeys=2)
    assert (s3_server.keys(first), s3_server.prefixes(first), first["NextMarker"]) == (["b"], ["a/"], "b")
    second = s3.list_objects(Bucket=tree, Delimiter="/", MaxKeys=1, Marker=first["NextMarker"])
    assert (s3_server.prefixes(second), second["NextMarker"]) == (["c/"], "c/")
    third = s3.list_objects(Bucket=tree, Delimiter="/", Marker=second["NextMarker"])
    assert (s3_server.keys(third), third["IsTruncated"]) == (["d", "z"], False)


def a_page_may_have_no_keys_and_never_more_than_a_thousand(s3, tree):
    page = s3.list_objects_v2(Bucket=tree, MaxKeys=0)
    assert (s3_server.keys(page), page["IsTruncated"], page["KeyCount"]) == ([], False, 0)
    assert s3.list_objects_v2(Bucket=tree, MaxKeys=5000)["MaxKeys"] == 1000
    assert s3_server.refusal(s3.list_objects_v2, Bucket=tree, MaxKeys=-1) == (400, "InvalidArgument")
    assert s3_server.refusal(s3.list_objects_v2, Bucket=tree, ContinuationToken="zz") == (400, "InvalidArgument")


def a_list_in_url_encoding_writes_plus_and_space_as_s3(wire, bucket):
    assert wire.ask("PUT", f"/{bucket}/a%20b%2Bc", b"x").status == 200
    answer = wire.ask("GET", f"/{bucket}?encoding-type=url&list-type=2&prefix=a%20")
    assert b"<Key>a+b%2Bc</Key>" in answer.body
    assert b"<Prefix>a+</Prefix>" in answer.body
    assert b"<EncodingType>url</EncodingType>" in answer.body


# Copies


def a_copy_has_content_metadata_and_tags_of_its_source(s3, bucket):
    body = s3_server.random_bytes(2 * MIB)
    s3.put_object(Bucket=bucket, Key="from ü", Body=body, Metadata={"m": "1"}, ContentType="a/b", Tagging="t=1")
    copied = s3.copy_object(Bucket=bucket, Key="to", CopySource={"Bucket": bucket, "Key": "from ü"})
    assert copied["CopyObjectResult"]["ETag"] == f'"{hashlib.md5(body).hexdigest()}"'
    got = s3.get_object(Bucket=bucket, Key="to")
    assert got["Body"].read() == body
    assert (got["Metadata"], got["ContentType"], got["TagCount"]) == ({"m": "1"}, "a/b", 1)


def a_copy_may_replace_metadata_also_onto_itself(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Metadata={"m": "1"})
    source = {"Bucket": bucket, "Key": "k"}
    assert s3_server.refusal(s3.copy_object, Bucket=bucket, Key="k", CopySource=source) == (400, "InvalidRequest")
    for key in ("other", "k"):
        s3.copy_object(Bucket=bucket, Key=key, CopySource=source, Metadata={"n": "2"}, MetadataDirective="REPLACE")
        assert s3.head_object(Bucket=bucket, Key=key)["Metadata"] == {"n": "2"}
        assert s3_server.content(s3, bucket, key) == b"x"


def a_copy_is_made_under_conditions_on_its_source(s3, bucket):
    etag = s3.put_object(Bucket=bucket, Key="k", Body=b"x")["ETag"]
    named = {"Bucket": bucket, "Key": "to", "CopySource": {"Bucket": bucket, "Key": "k"}}
    failed = (412, "PreconditionFailed")
    assert s3_server.refusal(s3.copy_object, CopySourceIfMatch='"other"', **named) == failed
    assert s3_server.refusal(s3.copy_object, CopySourceIfNoneMatch=etag, **named) == failed
    s3.copy_object(CopySourceIfMatch=etag, **named)
    assert s3_server.content(s3, bucket, "to") == b"x"


def a_copy_of_nothing_says_so(s3, bucket):
    named = {"Bucket": bucket, "Key": "to"}
    assert s3_server.refusal(s3.copy_object, CopySource=f"{bucket}/none", **named) == (404, "NoSuchKey")
    assert s3_server.refusal(s3.copy_object, CopySource="no-such-bucket/k", **named) == (404, "NoSuchBucket")


# Tags


def tags_are_put_read_and_deleted(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x", Tagging="one=1&two=a%20b", Metadata={"m": "1"})
    tags = s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"]
    assert tags == [{"Key": "one", "Value": "1"}, {"Key": "two", "Value": "a b"}]
    s3.put_object_tagging(Bucket=bucket, Key="k", Tagging={"TagSet": [{"Key": "three", "Value": ""}]})
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == [{"Key": "three", "Value": ""}]
    s3.delete_object_tagging(Bucket=bucket, Key="k")
    assert s3.get_object_tagging(Bucket=bucket, Key="k")["TagSet"] == []
    assert s3.head_object(Bucket=bucket, Key="k")["Metadata"] == {"m": "1"}


def tags_beyond_their_bounds_are_refused(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    tags = [{"Key": str(number), "Value": ""} for number in range(11)]
    named = {"Bucket": bucket, "Key": "k"}
    assert s3_server.refusal(s3.put_object_tagging, Tagging={"TagSet": tags}, **named) == (400, "BadRequest")
    long = [{"Key": "k" * 129, "Value": ""}]
    assert s3_server.refusal(s3.put_object_tagging, Tagging={"TagSet": long}, **named) == (400, "InvalidTag")


# Uploads in parts


def an_upload_becomes_an_object_when_it_is_completed(s3, bucket):
    parts = [s3_server.random_bytes(5 * MIB), s3_server.random_bytes(6 * MIB + 1), b"last"]
    upload_id, done = s3_server.upload(s3, bucket, "k", parts, ContentType="a/b", Metadata={"m": "1"})
    assert s3_server.refusal(s3.head_object, Bucket=bucket, Key="k") == (404, "404")
    answer = s3_server.complete(s3, bucket, "k", upload_id, done)
    digests = b"".join(hashlib.md5(part).digest() for part in parts)
    assert answer["ETag"] == f'"{hashlib.md5(digests).hexdigest()}-3"'
    got = s3.get_object(Bucket=bucket, Key="k")
    assert got["Body"].read() == b"".join(parts)
    assert (got["ContentType"], got["Metadata"]) == ("a/b", {"m": "1"})
    second = s3.get_object(Bucket=bucket, Key="k", PartNumber=2)
    assert second["Body"].read() == parts[1]
    assert second["PartsCount"] == 3
    assert s3_server.refusal(s3.get_object, Bucket=bucket, Key="k", PartNumber=4)[0] == 416
    assert s3_server.refusal(s3.list_parts, Bucket=bucket, Key="k", UploadId=upload_id) == (404, "NoSuchUpload")


def a_part_that_is_uploaded_again_replaces_the_first(s3, bucket):
    upload_id, _ = s3_server.upload(s3, bucket, "k", [b"first"])
    again = s3.upload_part(Bucket=bucket, Key="k", UploadId=upload_id, PartNumber=1, Body=b"second")
    sums = {name: value for name, value in again.items() if name.startswith("Checksum")}
    s3_server.complete(s3, bucket, "k", upload_id, [{"PartNumber": 1, "ETag": again["ETag"], **sums}])
    assert s3_server.content(s3, bucket, "k") == b"second"


def parts_may_have_gaps_and_be_left_out(s3, bucket):
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    named = {"Bucket": bucket, "Key": "k", "UploadId": upload_id}
    done = []
    for number, body in [(2, b"a" * 5 * MIB), (5, b"left out"), (10_000, b"end")]:
        answer = s3.upload_part(PartNumber=number, Body=body, **named)
        done.append({"PartNumber": number, "ETag": answer["ETag"]})
    s3_server.complete(s3, bucket, "k", upload_id, [done[0], done[2]])
    assert s3_server.content(s3, bucket, "k") == b"a" * 5 * MIB + b"end"


def a_wrong_completion_is_refused_and_the_upload_stays(s3, bucket):
    upload_id, done = s3_server.upload(s3, bucket, "k", [b"small", b"last"])
    wrong = [
        (done, "EntityTooSmall"),
        ([done[1], done[0]], "InvalidPartOrder"),
        ([{**done[0], "ETag": '"00"'}], "InvalidPart"),
        ([{"PartNumber": 7, "ETag": done[0]["ETag"]}], "InvalidPart"),
        ([], "MalformedXML"),
    ]
    for parts, code in wrong:
        assert s3_server.refusal(s3_server.complete, s3, bucket, "k", upload_id, parts) == (400, code), code
    first = s3_server.complete(s3, bucket, "k", upload_id, done[1:])
    assert s3_server.content(s3, bucket, "k") == b"last"
    # A client that lost the answer asks again.
    again = s3_server.complete(s3, bucket, "k", upload_id, done[1:])
    assert again["ETag"] == first["ETag"]


def an_unknown_upload_is_no_upload_for_every_call(s3, bucket):
    for upload_id in (MISSING, "never"):
        named = {"Bucket": bucket, "Key": "k", "UploadId": upload_id}
        gone = (404, "NoSuchUpload")
        assert s3_server.refusal(s3.upload_part, PartNumber=1, Body=b"x", **named) == gone
        assert s3_server.refusal(s3.list_parts, **named) == gone
        assert s3_server.refusal(s3.abort_multipart_upload, **named) == gone
        assert s3_server.refusal(s3_server.complete, s3, bucket, "k", upload_id, [{"PartNumber": 1, "ETag": '"a"'}]) == gone


@pytest.mark.parametrize("number", [0, 10_001, -1])
def a_part_number_outside_of_its_bounds_is_refused(s3, bucket, number):
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="k")["UploadId"]
    named = {"Bucket": bucket, "Key": "k", "UploadId": upload_id}
    assert s3_server.refusal(s3.upload_part, PartNumber=number, Body=b"x", **named) == (400, "InvalidArgument")


def an_aborted_upload_is_gone(s3, bucket):
    upload_id, done = s3_server.upload(s3, bucket, "k", [b"x"])
    s3.abort_multipart_upload(Bucket=bucket, Key="k", UploadId=upload_id)
    assert s3_server.refusal(s3_server.complete, s3, bucket, "k", upload_id, done) == (404, "NoSuchUpload")
    assert "Uploads" not in s3.list_multipart_uploads(Bucket=bucket)
    s3.delete_bucket(Bucket=bucket)


def parts_and_uploads_are_listed_in_pages(s3, bucket):
    upload_id, done = s3_server.upload(s3, bucket, "k", [b"1", b"2", b"3"])
    first = s3.list_parts(Bucket=bucket, Key="k", UploadId=upload_id, MaxParts=2)
    assert [part["PartNumber"] for part in first["Parts"]] == [1, 2]
    assert (first["IsTruncated"], first["NextPartNumberMarker"]) == (True, 2)
    rest = s3.list_parts(Bucket=bucket, Key="k", UploadId=upload_id, PartNumberMarker=2)
    assert [(part["PartNumber"], part["Size"], part["ETag"]) for part in rest["Parts"]] == [(3, 1, done[2]["ETag"])]
    others = [s3.create_multipart_upload(Bucket=bucket, Key=key)["UploadId"] for key in ("a/1", "a/2", "z")]
    found, markers = [], {}
    while True:
        page = s3.list_multipart_uploads(Bucket=bucket, MaxUploads=1, **markers)
        found += [(one["Key"], one["UploadId"]) for one in page["Uploads"]]
        if not page["IsTruncated"]:
            break
        markers = {"KeyMarker": page["NextKeyMarker"], "UploadIdMarker": page["NextUploadIdMarker"]}
    assert found == list(zip(["a/1", "a/2", "k", "z"], [others[0], others[1], upload_id, others[2]]))
    grouped = s3.list_multipart_uploads(Bucket=bucket, Delimiter="/")
    assert [one["Key"] for one in grouped["Uploads"]] == ["k", "z"]
    assert s3_server.prefixes(grouped) == ["a/"]


def a_completion_is_decided_under_its_condition(s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"there")
    upload_id, done = s3_server.upload(s3, bucket, "k", [b"part"])
    failed = (412, "PreconditionFailed")
    assert s3_server.refusal(s3_server.complete, s3, bucket, "k", upload_id, done, IfNoneMatch="*") == failed
    assert s3_server.refusal(s3_server.complete, s3, bucket, "k", upload_id, done, IfMatch='"other"') == failed
    s3_server.complete(s3, bucket, "k", upload_id, done, IfMatch=s3.head_object(Bucket=bucket, Key="k")["ETag"])
    assert s3_server.content(s3, bucket, "k") == b"part"


def parts_are_copied_from_objects(s3, bucket):
    body = s3_server.random_bytes(6 * MIB)
    s3.put_object(Bucket=bucket, Key="from", Body=body)
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key="to")["UploadId"]
    named = {"Bucket": bucket, "Key": "to", "UploadId": upload_id, "CopySource": f"{bucket}/from"}
    whole = s3.upload_part_copy(PartNumber=1, **named)["CopyPartResult"]
    part = s3.upload_part_copy(PartNumber=2, CopySourceRange="bytes=10-19", **named)["CopyPartResult"]
    wrong = s3_server.refusal(s3.upload_part_copy, PartNumber=3, CopySourceRange=f"bytes=0-{6 * MIB}", **named)
    assert wrong == (400, "InvalidArgument")
    s3_server.complete(s3, bucket, "to", upload_id, [{"PartNumber": n, "ETag": one["ETag"]} for n, one in ((1, whole), (2, part))])
    assert s3_server.content(s3, bucket, "to") == body + body[10:20]


def files_are_transferred_in_parts_by_boto3(s3, bucket, tmp_path):
    body = s3_server.random_bytes(20 * MIB + 5)
    (tmp_path / "up").write_bytes(body)
    s3.upload_file(str(tmp_path / "up"), bucket, "k")
    assert s3.head_object(Bucket=bucket, Key="k")["ETag"].endswith('-3"')
    s3.download_file(bucket, "k", str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == body
    s3.copy({"Bucket": bucket, "Key": "k"}, bucket, "copy")
    assert s3_server.content(s3, bucket, "copy") == body
