"""Volumes and files: what is sent, what is repeated, and the same against the real program."""

import asyncio
import uuid
from typing import Any, Awaitable, Callable

import pytest

import cluster
import kinds
import landfast
import program
from landfast._volumes import PART_BYTES


def _over_program(scenario: Callable[[Any, str], Awaitable[None]]) -> Callable[..., None]:
    @pytest.mark.parametrize("kind", ["blocking", "asyncio"])
    def run(kind: str, landfast_serve: program.Program) -> None:
        name = f"v{uuid.uuid4().hex}"
        asyncio.run(kinds.with_client(kind, landfast_serve.url, lambda client: scenario(client, name)))

    run.__name__ = scenario.__name__
    run.__doc__ = scenario.__doc__
    return run


@kinds.over()
async def a_path_is_names_and_never_leaves_its_volume(client: kinds.Client, servers: cluster.Cluster) -> None:
    servers.fail("", *[cluster.reply(204, b"")] * 3)
    files = client.files("demo")
    await files.write("/a b/../c%", b"x", mode=0o600, parents=True)
    await files.append(b"\xff//d", b"x")
    await files.rename("a", "b/c d", replace=False)
    assert [(seen.method, seen.path) for seen in servers.seen] == [
        ("PUT", "/v1/volumes/demo/files/a%20b/%2E%2E/c%25?mode=600&parents"),
        ("POST", "/v1/volumes/demo/files/%FF/d?append"),
        ("POST", "/v1/volumes/demo/files/a?rename-to=b/c%20d&noreplace"),
    ]


@kinds.over(nodes=2)
async def a_write_is_repeated_and_an_append_is_not(client: kinds.Client, servers: cluster.Cluster) -> None:
    servers.fail("PUT", cluster.reset_unheard, cluster.reply(204, b""))
    assert await client.files("demo").write("a", b"x") is None
    servers.fail("POST", cluster.reset_after)
    with pytest.raises(landfast.OutcomeUnknown):
        await client.files("demo").append("a", b"x")
    assert [seen.method for seen in servers.seen].count("POST") == 1


@kinds.over()
async def the_parts_of_a_long_file_have_one_etag(client: kinds.Client, servers: cluster.Cluster) -> None:
    part = cluster.reply(206, b"x" * 10, {"ETag": '"1"', "Content-Range": "bytes 0-9/20"})
    changed = cluster.refuse(412, "condition-not-met")
    servers.fail("GET", part, changed)
    with pytest.raises(landfast.ConditionNotMet):
        await client.files("demo").read("a")
    first, second = servers.seen
    assert first.headers["range"] == f"bytes=0-{PART_BYTES - 1}" and "if-match" not in first.headers
    assert (second.headers["range"], second.headers["if-match"]) == (f"bytes=10-{PART_BYTES + 9}", '"1"')


@_over_program
async def volumes_are_made_bounded_and_deleted(client: Any, name: str) -> None:
    volumes = client.volumes()
    await volumes.create(name, block_bytes=4096, quota_bytes=1 << 20)
    with pytest.raises(landfast.VolumeExists):
        await volumes.create(name)
    found = await volumes.get(name)
    assert (found.name, found.block_bytes, found.quota_bytes) == (name, 4096, 1 << 20)
    await volumes.set_quota(name, None)
    assert [one.quota_bytes for one in await volumes.list() if one.name == name] == [None]
    await volumes.delete(name)
    with pytest.raises(landfast.NoSuchVolume):
        await volumes.get(name)
    with pytest.raises(landfast.NoSuchVolume):
        await client.files(name).read("a")


@_over_program
async def files_are_written_read_listed_and_removed(client: Any, name: str) -> None:
    await client.volumes().create(name)
    files = client.files(name)
    etag = await files.write("dir/a \xfc", b"0123456789", parents=True, if_absent=True)
    with pytest.raises(landfast.ConditionNotMet):
        await files.write("dir/a \xfc", b"other", if_absent=True)
    assert await files.read("/dir/a \xfc") == b"0123456789"
    part = await files.read_part("dir/a \xfc", 8, 10, if_match=etag)
    assert (part.data, part.size, part.etag) == (b"89", 10, etag)
    assert (await files.read_part("dir/a \xfc", 10, 1)).data == b""
    await files.write("dir/a \xfc", b"ab", offset=9)
    await files.append("dir/a \xfc", b"c")
    assert await files.read("dir/a \xfc") == b"012345678abc"
    await files.write(b"dir/\xff", b"")
    assert await files.read(b"dir/\xff") == b""
    first = await files.list("dir", limit=1)
    assert [entry.name for entry in first.entries] == ["a \xfc".encode()] and first.next is not None
    rest = await files.list("dir", page=first.next)
    assert ([(entry.name, entry.size) for entry in rest.entries], rest.next) == ([(b"\xff", 0)], None)
    await files.set_attributes("dir/a \xfc", mode=0o640, mtime_ns=1_500_000_000_000_000_001)
    entry = await files.stat("dir/a \xfc")
    assert (entry.type, entry.mode, entry.mtime_ns) == ("file", 0o640, 1_500_000_000_000_000_001)
    with pytest.raises(landfast.FileConflict) as refused:
        await files.remove("dir")
    assert refused.value.code == "ENOTEMPTY"
    await files.mkdir("other/deep", parents=True)
    await files.rename(b"dir/\xff", "other/b")
    await files.remove("dir/a \xfc")
    await files.remove("dir")
    with pytest.raises(landfast.NoSuchFile) as missing:
        await files.stat("dir")
    assert missing.value.code == "ENOENT"
    await client.volumes().delete(name)


@_over_program
async def a_file_longer_than_a_request_is_read_whole(client: Any, name: str) -> None:
    await client.volumes().create(name)
    files = client.files(name)
    data = uuid.uuid4().bytes * (PART_BYTES // 16 + 1)
    await files.write("long", data)
    assert await files.read("long") == data
    await client.volumes().delete(name)


@_over_program
async def a_quota_is_an_error_of_its_own(client: Any, name: str) -> None:
    await client.volumes().create(name, quota_bytes=200_000)
    with pytest.raises(landfast.QuotaExceeded) as refused:
        await client.files(name).write("a", b"x" * 1_000_000)
    assert refused.value.code == "EDQUOT"
    await client.volumes().delete(name)


@_over_program
async def keys_and_files_of_a_volume_take_effect_together(client: Any, name: str) -> None:
    """T-3, T-4. A ledger of keys, with its journal in a file."""
    await client.volumes().create(name)

    async def pay(t: Any) -> int:
        balance = int(await t.get("balance") or b"100") - 30
        await t.put("balance", str(balance).encode())
        await t.files().append("journal", b"paid 30\n")
        assert await t.files().read("journal") == b"paid 30\n"
        assert [entry.name for entry in (await t.files().list()).entries] == [b"journal"]
        return balance

    with pytest.raises(ZeroDivisionError):
        async with client.transaction(volume=name) as t:
            await pay(t)
            raise ZeroDivisionError
    with pytest.raises(landfast.NoSuchFile):
        await client.files(name).stat("journal")
    await client.transact(pay, id=f"{name}/17", volume=name)
    assert await client.files(name).read("journal") == b"paid 30\n"
    with pytest.raises(landfast.Conflict):
        async with client.transaction(volume=name) as t:
            assert await t.get("balance") == b"70"
            await client.files(name).write("journal", b"other")
            assert await t.files().read("journal") == b"paid 30\n", "it reads as of its begin"
            await t.files().write("copy", b"x")
    with pytest.raises(landfast.NoSuchFile):
        await client.files(name).read("copy")
    with pytest.raises(ValueError, match="on no volume"):
        async with client.transaction() as t:
            t.files()


@_over_program
async def a_repeat_of_an_id_on_a_volume_writes_nothing(client: Any, name: str) -> None:
    """T-5."""
    await client.volumes().create(name)

    async def count(t: Any) -> None:
        await t.put("count", str(int(await t.get("count") or b"0") + 1).encode())
        await t.files().append("log", b".")

    for _ in range(3):
        await client.transact(count, id=f"{name}/once", volume=name)
    async with client.transaction(volume=name) as t:
        assert await t.get("count") == b"1"
    assert await client.files(name).read("log") == b"."
