"""S3 by hand: checksums, signatures, forms, and input that no client library sends."""

import datetime
import hashlib
import zlib

import pytest

import s3_server
import s3_wire
from s3_server import MIB
from s3_wire import SIGNED, SIGNED_TRAILER, UNSIGNED_TRAILER, Signer


# Checksums

SUMS = {
    "CRC32": "y/Q5Jg==",
    "CRC32C": "4waSgw==",
    "CRC64NVME": "rosUhgp5mIg=",
    "SHA1": "98O8HYCOBHMq32eZZczDTKeuNEE=",
    "SHA256": "FeKw08M4keuw8e9gnsQZQgwg4yDOlMZfvIwzEkSOsiU=",
}


@pytest.mark.parametrize("algorithm", list(SUMS))
def a_checksum_is_verified_stored_and_returned(wire, s3, bucket, algorithm):
    header = f"x-amz-checksum-{algorithm.lower()}"
    put = wire.ask("PUT", f"/{bucket}/k", b"123456789", **{header: SUMS[algorithm]})
    assert (put.status, put.headers[header]) == (200, SUMS[algorithm])
    wrong = wire.ask("PUT", f"/{bucket}/wrong", b"12345678x", **{header: SUMS[algorithm]})
    assert wrong.refusal == (400, "BadDigest")
    assert wire.ask("GET", f"/{bucket}/wrong").refusal == (404, "NoSuchKey")
    assert wire.ask("PUT", f"/{bucket}/wrong", b"x", **{header: "AA=="}).refusal == (400, "InvalidRequest")
    assert header not in wire.ask("GET", f"/{bucket}/k").headers
    got = wire.ask("GET", f"/{bucket}/k", x_amz_checksum_mode="ENABLED")
    assert (got.headers[header], got.headers["x-amz-checksum-type"]) == (SUMS[algorithm], "FULL_OBJECT")
    asked = s3.get_object_attributes(Bucket=bucket, Key="k", ObjectAttributes=["ETag", "Checksum", "ObjectSize"])
    assert asked["Checksum"][f"Checksum{algorithm}"] == SUMS[algorithm]
    assert asked["ObjectSize"] == 9


def a_wrong_md5_is_refused_and_leaves_nothing(wire, bucket):
    right = s3_server.base64_of(hashlib.md5(b"right").digest())
    assert wire.ask("PUT", f"/{bucket}/k", b"wrong", content_md5=right).refusal == (400, "BadDigest")
    assert wire.ask("PUT", f"/{bucket}/k", b"right", content_md5="no md5").refusal == (400, "InvalidDigest")
    assert wire.ask("GET", f"/{bucket}/k").refusal == (404, "NoSuchKey")
    assert wire.ask("PUT", f"/{bucket}/k", b"right", content_md5=right).status == 200
    batch = b"<Delete><Object><Key>k</Key></Object></Delete>"
    assert wire.ask("POST", f"/{bucket}?delete", batch, content_md5=right).refusal == (400, "BadDigest")
    assert wire.ask("GET", f"/{bucket}/k").status == 200


def a_payload_with_another_hash_is_refused_and_leaves_nothing(wire, bucket):
    other = hashlib.sha256(b"other").hexdigest()
    refused = wire.ask("PUT", f"/{bucket}/k", b"content", payload_hash=other).refusal
    assert refused == (400, "XAmzContentSHA256Mismatch")
    assert wire.ask("GET", f"/{bucket}/k").refusal == (404, "NoSuchKey")
    batch = b"<Delete><Object><Key>k</Key></Object></Delete>"
    refused = wire.ask("POST", f"/{bucket}?delete", batch, payload_hash=other).refusal
    assert refused == (400, "XAmzContentSHA256Mismatch")


def the_checksum_of_an_upload_is_of_its_parts_or_of_the_whole(s3, bucket):
    parts = [b"a" * 5 * MIB, b"tail"]
    upload_id, done = s3_server.upload(s3, bucket, "parts", parts, ChecksumAlgorithm="CRC32")
    answer = s3_server.complete(s3, bucket, "parts", upload_id, done)
    digests = b"".join(zlib.crc32(part).to_bytes(4, "big") for part in parts)
    assert (answer["ChecksumCRC32"], answer["ChecksumType"]) == (f"{s3_server.crc32(digests)}-2", "COMPOSITE")
    upload_id, done = s3_server.upload(s3, bucket, "whole", parts, ChecksumAlgorithm="CRC32", ChecksumType="FULL_OBJECT")
    whole = s3_server.crc32(b"".join(parts))
    wrong = s3_server.refusal(s3_server.complete, s3, bucket, "whole", upload_id, done, ChecksumCRC32=SUMS["CRC32"])
    assert wrong == (400, "BadDigest")
    answer = s3_server.complete(s3, bucket, "whole", upload_id, done, ChecksumCRC32=whole)
    assert (answer["ChecksumCRC32"], answer["ChecksumType"]) == (whole, "FULL_OBJECT")
    head = s3.head_object(Bucket=bucket, Key="whole", ChecksumMode="ENABLED")
    assert head["ChecksumCRC32"] == whole
    asked = s3.get_object_attributes(Bucket=bucket, Key="whole", ObjectAttributes=["ObjectParts"])
    assert [part["Size"] for part in asked["ObjectParts"].get("Parts", [])] == [5 * MIB, 4]


# Signatures


def a_wrong_or_missing_signature_is_refused(objects_server, wire, s3, bucket):
    s3.put_object(Bucket=bucket, Key="k", Body=b"x")
    path = f"/{bucket}/k"
    wrong = s3_server.client(objects_server.s3_url, secret_key="wrong")
    assert s3_server.refusal(wrong.get_object, Bucket=bucket, Key="k") == (403, "SignatureDoesNotMatch")
    unknown = s3_server.client(objects_server.s3_url, access_key="unknown")
    assert s3_server.refusal(unknown.get_object, Bucket=bucket, Key="k") == (403, "InvalidAccessKeyId")
    assert wire.send("GET", path, {}).refusal == (403, "AccessDenied")
    assert wire.send("PUT", path, {}, b"y").refusal == (403, "AccessDenied")
    old = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(minutes=16)
    stale = Signer(objects_server.s3_port, at=old)
    assert wire.ask("GET", path, signer=stale).refusal == (403, "RequestTimeTooSkewed")
    version_2 = {"authorization": f"AWS {s3_server.ACCESS_KEY}:AAAA"}
    assert wire.send("GET", path, version_2).refusal == (400, "InvalidRequest")
    assert s3_server.content(s3, bucket, "k") == b"x"


def a_header_that_the_signature_leaves_out_is_refused(wire, bucket):
    answer = wire.ask("PUT", f"/{bucket}/k", b"x", unsigned={"x-amz-meta-added": "1"})
    assert answer.refusal == (403, "AccessDenied")


def signed_chunks_are_verified_to_the_last(wire, bucket):
    parts = [s3_server.random_bytes(64 * 1024), s3_server.random_bytes(1000)]
    body, path = b"".join(parts), f"/{bucket}/k"

    def chunks(signer, spoil=None):
        return b"".join(signer.chunk(part, spoil == at) for at, part in enumerate([*parts, b""])) + b"\r\n"

    for spoil in range(3):
        answer = wire.put_chunks(path, SIGNED, len(body), lambda signer: chunks(signer, spoil))
        assert answer.refusal == (403, "SignatureDoesNotMatch"), spoil
        assert wire.ask("GET", path).refusal == (404, "NoSuchKey")
    assert wire.put_chunks(path, SIGNED, len(body), chunks).status == 200
    got = wire.ask("GET", path)
    assert (got.body, got.headers["content-encoding"]) == (body, None)


def chunks_that_stop_early_or_have_another_length_leave_nothing(wire, bucket):
    path = f"/{bucket}/k"
    cases = [
        (7, lambda signer: signer.chunk(b"content")),
        (8, lambda signer: signer.chunk(b"content") + signer.chunk(b"") + b"\r\n"),
        (6, lambda signer: signer.chunk(b"content") + signer.chunk(b"") + b"\r\n"),
    ]
    for length, chunks in cases:
        answer = wire.put_chunks(path, SIGNED, length, chunks)
        assert answer.refusal == (400, "IncompleteBody"), length
        assert wire.ask("GET", path).refusal == (404, "NoSuchKey")


@pytest.mark.parametrize("kind", [SIGNED_TRAILER, UNSIGNED_TRAILER])
def a_checksum_behind_the_content_is_verified_and_stored(wire, bucket, kind):
    name, path, body = "x-amz-checksum-crc32", f"/{bucket}/k", b"123456789"

    def chunks(signer, value, spoil=False):
        if kind == UNSIGNED_TRAILER:
            return b"9\r\n123456789\r\n0\r\n" + f"{name}:{value}\r\n\r\n".encode()
        return signer.chunk(body) + signer.chunk(b"") + signer.trailer(name, value, spoil)

    def put(*values):
        return wire.put_chunks(path, kind, 9, lambda signer: chunks(signer, *values), x_amz_trailer=name)

    assert put("AAAAAA==").refusal == (400, "BadDigest")
    if kind == SIGNED_TRAILER:
        assert put(SUMS["CRC32"], True).refusal == (403, "SignatureDoesNotMatch")
    assert wire.ask("GET", path).refusal == (404, "NoSuchKey")
    assert put(SUMS["CRC32"]).headers[name] == SUMS["CRC32"]
    got = wire.ask("GET", path, x_amz_checksum_mode="ENABLED")
    assert (got.body, got.headers[name]) == (body, SUMS["CRC32"])


def one_large_unsigned_chunk_takes_no_more_memory_than_small_ones(wire, bucket, objects_server):
    body = bytes(48 * MIB)
    value = s3_server.crc32(body)
    name, path = "x-amz-checksum-crc32", f"/{bucket}/k"
    framed = f"{len(body):x}\r\n".encode() + body + f"\r\n0\r\n{name}:{value}\r\n\r\n".encode()
    answer = wire.put_chunks(path, UNSIGNED_TRAILER, len(body), lambda _: framed, x_amz_trailer=name)
    assert (answer.status, answer.headers["etag"]) == (200, f'"{hashlib.md5(body).hexdigest()}"')


# Presigned requests and forms


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def a_presigned_url_reads_and_writes_until_it_expires(objects_server, bucket, version):
    s3 = s3_server.client(objects_server.s3_url, signature_version=version)
    named = {"Bucket": bucket, "Key": "k ü"}
    put = s3.generate_presigned_url("put_object", Params=named)
    # Version 2 signs the type that urllib would add.
    assert s3_server.fetch(put, "PUT", b"content", **{"Content-Type": ""})[0] == 200
    get = s3.generate_presigned_url("get_object", Params=named)
    assert s3_server.fetch(get) == (200, b"content")
    assert s3_server.fetch(get, Range="bytes=1-2") == (206, b"on")
    assert s3_server.fetch(get, Range="bytes=oops") == (200, b"content")
    assert s3_server.fetch(get.replace("k%20", "j%20"))[0] == 403
    past = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=2)
    expired = s3_wire.presigned(objects_server, f"/{bucket}/k%20%C3%BC", past, 60)
    assert expired[0] == 403
    assert b"Request has expired" in expired[1]


@pytest.mark.parametrize("version", ["s3", "s3v4"])
def a_form_with_a_signed_policy_stores_its_file(objects_server, s3, bucket, version):
    made = s3_server.client(objects_server.s3_url, signature_version=version).generate_presigned_post(bucket, "dir/k", Conditions=[["content-length-range", 1, 10]])
    body, kind = s3_server.form(made["fields"], b"file")
    assert s3_server.fetch(made["url"], "POST", body, **{"Content-Type": kind})[0] == 204
    assert s3_server.content(s3, bucket, "dir/k") == b"file"
    too_large, kind = s3_server.form(made["fields"], b"f" * 11)
    status, answer = s3_server.fetch(made["url"], "POST", too_large, **{"Content-Type": kind})
    assert (status, b"EntityTooLarge" in answer) == (400, True)
    other, kind = s3_server.form({**made["fields"], "key": "other"}, b"file")
    assert s3_server.fetch(made["url"], "POST", other, **{"Content-Type": kind})[0] == 403
    unsigned, kind = s3_server.form({"key": "unsigned"}, b"file")
    assert s3_server.fetch(made["url"], "POST", unsigned, **{"Content-Type": kind})[0] == 403
    assert s3_server.keys(s3.list_objects_v2(Bucket=bucket)) == ["dir/k"]


# Bad input


def a_put_of_more_than_5_gib_is_refused_from_its_headers(objects_server, bucket, wire):
    large = str((5 << 30) + 1)
    signed = Signer(objects_server.s3_port).sign("PUT", f"/{bucket}/k", "UNSIGNED-PAYLOAD", {})
    wire.connection.putrequest("PUT", f"/{bucket}/k", skip_host=True, skip_accept_encoding=True)
    for name, value in {**signed, "content-length": large}.items():
        wire.connection.putheader(name, value)
    wire.connection.endheaders()
    answer = wire.connection.getresponse()
    assert answer.status == 400
    assert b"EntityTooLarge" in answer.read()


def a_put_without_a_length_is_refused(objects_server, bucket, wire):
    signed = Signer(objects_server.s3_port).sign("PUT", f"/{bucket}/k", "UNSIGNED-PAYLOAD", {})
    answer = wire.send("PUT", f"/{bucket}/k", {**signed, "transfer-encoding": "chunked"}, b"0\r\n\r\n")
    assert answer.refusal == (411, "MissingContentLength")


def a_put_that_is_cut_off_keeps_the_old_object(objects_server, s3, bucket, wire):
    s3.put_object(Bucket=bucket, Key="k", Body=b"old")
    wire.cut_off(f"/{bucket}/k", 100_000, b"new" * 1000)
    assert s3_server.content(s3, bucket, "k") == b"old"
    s3.put_object(Bucket=bucket, Key="k", Body=b"newer")
    assert s3_server.content(s3, bucket, "k") == b"newer"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"<Other/>",
        b"<Delete><Object/></Delete>",
        b'<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]><Delete><Object><Key>&b;</Key></Object></Delete>',
    ],
)
def xml_that_is_no_request_is_malformed(wire, bucket, body):
    answer = wire.ask("POST", f"/{bucket}?delete", body)
    assert answer.status == 400
    assert answer.code in ("MalformedXML", "MissingRequestBodyError")


def xml_beyond_its_bound_is_refused(wire, bucket):
    body = b"<Delete>" + b" " * (4 * MIB) + b"</Delete>"
    assert wire.ask("POST", f"/{bucket}?delete", body).refusal == (400, "MaxMessageLengthExceeded")
