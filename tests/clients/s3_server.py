"""A server with its S3 listener, and clients of it."""

import base64
import os
import subprocess
import sys
import urllib.error
import urllib.request
import zlib

import boto3
import botocore.client
import botocore.exceptions

import server as servers
import waiting

ACCESS_KEY = "landfast-test"
SECRET_KEY = "a secret of these tests alone"
REGION = "us-east-1"
MIB = 1 << 20


class Landfast(servers.Landfast):
    """`landfast serve` with known keys of S3 clients."""

    variables = {"LANDFAST_S3_ACCESS_KEY": ACCESS_KEY, "LANDFAST_S3_SECRET_KEY": SECRET_KEY}

    @property
    def s3_url(self):
        return f"http://127.0.0.1:{self.s3_port}"


def client(url, secret_key=SECRET_KEY, access_key=ACCESS_KEY, **options):
    """A boto3 client. It does not retry, so that a test sees the first answer."""
    options = {"retries": {"max_attempts": 0}, "read_timeout": waiting.GUARD_SECONDS, **options}
    return boto3.client(
        "s3",
        endpoint_url=url,
        region_name=REGION,
        aws_access_key_id=access_key,
        aws_secret_access_key=secret_key,
        config=botocore.client.Config(**options),
    )


def refusal(call, *arguments, **named):
    """The status and code of a call that must fail. A HEAD has the status alone as its code."""
    try:
        answer = call(*arguments, **named)
    except botocore.exceptions.ClientError as error:
        return error.response["ResponseMetadata"]["HTTPStatusCode"], error.response["Error"]["Code"]
    raise AssertionError(f"it was answered: {answer}")


def keys(page):
    return [item["Key"] for item in page.get("Contents", [])]


def prefixes(page):
    return [item["Prefix"] for item in page.get("CommonPrefixes", [])]


def pages(call, **named):
    """All keys and common prefixes that a list gives, page after page, and the number of pages."""
    found, count, token = [], 0, {}
    while True:
        page = call(**named, **token)
        found += sorted(keys(page) + prefixes(page), key=lambda key: key.encode())
        count += 1
        if not page["IsTruncated"]:
            return found, count
        token = {"ContinuationToken": page["NextContinuationToken"]}


def content(s3, bucket, key, **named):
    return s3.get_object(Bucket=bucket, Key=key, **named)["Body"].read()


def upload(s3, bucket, key, parts, **named):
    """Uploads parts, without completing; their list for the completion, and the upload's id."""
    upload_id = s3.create_multipart_upload(Bucket=bucket, Key=key, **named)["UploadId"]
    done = []
    for number, part in enumerate(parts, 1):
        answer = s3.upload_part(Bucket=bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=part)
        sums = {name: value for name, value in answer.items() if name.startswith("Checksum")}
        done.append({"PartNumber": number, "ETag": answer["ETag"], **sums})
    return upload_id, done


def complete(s3, bucket, key, upload_id, parts, **named):
    return s3.complete_multipart_upload(
        Bucket=bucket, Key=key, UploadId=upload_id, MultipartUpload={"Parts": parts}, **named
    )


def random_bytes(count):
    return os.urandom(count)


def base64_of(digest):
    return base64.b64encode(digest).decode()


def crc32(data):
    return base64_of(zlib.crc32(data).to_bytes(4, "big"))


def fetch(url, method="GET", body=None, **headers):
    request = urllib.request.Request(url, method=method, data=body, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=waiting.GUARD_SECONDS) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def form(fields, file):
    """A form as a browser sends it."""
    boundary = "----------------------------form"
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    head = "".join(parts) + f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
    return head.encode() + file + f"\r\n--{boundary}--\r\n".encode(), f"multipart/form-data; boundary={boundary}"


def run(tool, running, *arguments, home):
    """A command-line client that lies beside this Python."""
    environment = {
        **os.environ,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_DEFAULT_REGION": REGION,
        "AWS_ENDPOINT_URL": running.s3_url,
        "AWS_MAX_ATTEMPTS": "1",
        "HOME": str(home),
    }
    program = os.path.join(os.path.dirname(sys.executable), tool)
    done = subprocess.run(
        [sys.executable, program, *map(str, arguments)], env=environment, capture_output=True, text=True, cwd=home
    )
    assert done.returncode == 0, done
    return done.stdout


def command(running, *arguments):
    """Runs the program as a client of the server."""
    environment = {**os.environ, "LANDFAST_URL": f"http://127.0.0.1:{running.http_port}"}
    command = [running.program, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=waiting.GUARD_SECONDS)
