"""The client and the real program: `landfast serve` over TCP, killed and started again."""

import asyncio
import re
import subprocess
import sys
import threading
import uuid
from pathlib import Path
from typing import Any, Awaitable, Callable, List, Literal, Optional, Tuple, Union

import pytest

import kinds
import landfast
import program
from cluster import GUARD_S

README = Path(__file__).resolve().parents[1] / "README.md"


def _over_program(scenario: Callable[[Any, str], Awaitable[None]]) -> Callable[..., None]:
    @pytest.mark.parametrize("kind", ["blocking", "asyncio"])
    def run(kind: str, landfast_serve: program.Program) -> None:
        name = uuid.uuid4().hex
        asyncio.run(kinds.with_client(kind, landfast_serve.url, lambda client: scenario(client, name)))

    run.__name__ = scenario.__name__
    run.__doc__ = scenario.__doc__
    return run


@_over_program
async def a_transaction_is_seen_whole_and_only_once_it_has_committed(client: kinds.Client, name: str) -> None:
    """T1, T3."""
    keys: List[Union[str, bytes]] = [
        f"{name}/a",
        f"{name}/ü?#%",
        name.encode() + b"\x00\xff/",
        f"{name}..",
        ".",
        "..",
        "",
    ]
    async with client.transaction() as t:
        for key in keys:
            await t.put(key, repr(key).encode())
            assert await t.get(key) == repr(key).encode()
            assert await client.state().get(key) is None
        assert await t.status() == "open"
    assert await t.status() == "committed"
    for key in keys:
        assert await client.state().get(key) == repr(key).encode()
        await client.state().delete(key)
        assert await client.state().get(key) is None


@_over_program
async def a_value_of_64_mib_is_written_and_read_whole(client: kinds.Client, name: str) -> None:
    """T2, T3. One more byte is refused before it is sent."""
    value = (uuid.uuid4().bytes * 65_537)[: 1024 * 1024 + 3] * 64
    value = value[: 64 * 1024 * 1024]
    async with client.transaction() as t:
        await t.put(name, value)
        assert await t.get(name) == value
        assert await client.state().get(name) is None
    assert await client.state().get(name) == value
    with pytest.raises(landfast.TooLarge):
        await client.state().put(name, value + b"v")
    await client.state().put(name, value[1:])
    assert await client.state().get(name) == value[1:]
    await client.state().delete(name)


@_over_program
async def keys_are_scanned_page_by_page(client: kinds.Client, name: str) -> None:
    """T18: for any bytes of the keys. A value too long for a page is fetched, and deleted keys are
    left out.
    """
    state = client.state()
    expected = [(f"{name}/".encode() + key, key or b"none") for key in (b"", b"\0%+&=", b"a/b", "ü".encode(), b"\xff")]
    expected[2] = (expected[2][0], b"v" * 65_537)
    for key, value in expected:
        await state.put(key, value)
    await state.put(f"{name}/deleted", b"")
    await state.delete(f"{name}/deleted")
    page = await state.scan(f"{name}/")
    assert page == landfast.Page(expected, None)
    for limit in (1, 4):
        found: List[Tuple[bytes, bytes]] = []
        after: Optional[bytes] = None
        while found == [] or after is not None:
            page = await state.scan(f"{name}/", after=after, limit=limit)
            assert len(page.items) <= limit
            found, after = found + page.items, page.next
        assert found == expected
    assert await state.scan(f"{name}/a/c") == landfast.Page([], None)
    assert (await state.scan(name, after=f"{name}/a", limit=1)).items == expected[2:3]


@_over_program
async def an_aborted_transaction_leaves_nothing(client: kinds.Client, name: str) -> None:
    with pytest.raises(ZeroDivisionError):
        async with client.transaction(id=name) as t:
            await t.put(name, b"1")
            raise ZeroDivisionError
    assert await client.state().get(name) is None
    async with client.transaction(id=name) as t:
        await t.put(name, b"2")
    assert await client.state().get(name) == b"2"


@_over_program
async def a_committed_id_is_skipped(client: kinds.Client, name: str) -> None:
    """T4."""

    async def body(t: kinds.Transaction) -> bytes:
        value = (await t.get(name) or b"") + b"x"
        await t.put(name, value)
        return value

    assert await client.transact(body, id=name) == b"x"
    assert await client.transact(body, id=name) is None
    with pytest.raises(landfast.AlreadyCommitted):
        async with client.transaction(id=name):
            raise AssertionError("the block must not be entered")
    assert await client.state().get(name) == b"x"


@_over_program
async def a_serializable_body_runs_again_when_somebody_wrote_what_it_read(client: kinds.Client, name: str) -> None:
    """T11, T12."""

    async def increments(isolation: Literal["read-atomic", "serializable"], writes: bool) -> int:
        runs = 0

        async def body(t: kinds.Transaction) -> None:
            nonlocal runs
            runs += 1
            value = int(await t.get(name) or b"0")
            if runs == 1:
                await client.state().put(name, b"10")
            if writes:
                await t.put(name, b"%d" % (value + 1))

        await client.transact(body, isolation=isolation)
        return runs

    assert await increments("serializable", writes=True) == 2
    assert await client.state().get(name) == b"11"
    assert await increments("serializable", writes=False) == 1, "who only reads never conflicts"
    assert await increments("read-atomic", writes=True) == 1
    assert await client.state().get(name) == b"11", "the update beside it is lost, as the page says"


@_over_program
async def an_earlier_attempt_is_refused(client: kinds.Client, name: str) -> None:
    """T8."""
    with pytest.raises(landfast.TransactionFinished, match="begun-anew"):
        async with client.transaction(id=name) as earlier:
            await earlier.put(f"{name}/a", b"earlier")
            async with client.transaction(id=name) as later:
                await later.put(f"{name}/b", b"later")
                await earlier.put(f"{name}/b", b"earlier")
    assert await client.state().get(f"{name}/a") is None
    assert await client.state().get(f"{name}/b") in (None, b"later")


@_over_program
async def a_write_under_a_condition_takes_effect_only_if_it_holds(client: kinds.Client, name: str) -> None:
    """T20."""
    state = client.state()
    assert await state.get_with_etag(name) is None
    for refused in (state.put(name, b"0", if_match="*"), state.put(name, b"0", if_match='"1"'), state.delete(name, if_match="*")):
        with pytest.raises(landfast.ConditionNotMet):
            await refused
    etag = await state.put(name, b"1", if_absent=True)
    assert etag is not None and await state.get_with_etag(name) == (b"1", etag)
    with pytest.raises(landfast.ConditionNotMet):
        await state.put(name, b"2", if_absent=True)
    newer = await state.put(name, b"2", if_match=etag)
    assert newer is not None and newer != etag
    for refused in (state.put(name, b"3", if_match=etag), state.delete(name, if_match=etag)):
        with pytest.raises(landfast.ConditionNotMet):
            await refused
    assert await state.get_with_etag(name) == landfast.Versioned(b"2", newer)
    await state.delete(name, if_match=newer)
    assert await state.get(name) is None
    for wrong in ({"if_match": "1"}, {"if_match": '"a"\r\nX: "'}, {"if_match": "*", "if_absent": True}):
        with pytest.raises(landfast.InvalidRequest):
            await state.put(name, b"1", **wrong)


@_over_program
async def limits_are_refused_by_name(client: kinds.Client, name: str) -> None:
    """T15."""
    with pytest.raises(landfast.InvalidRequest):
        await client.state().put("k" * 1025, b"1")
    with pytest.raises(landfast.InvalidRequest):
        async with client.transaction(id="i" * 129):
            raise AssertionError("the block must not be entered")
    with pytest.raises(landfast.NoSuchTransaction):
        await client.transaction(id=name).status()


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
def a_server_killed_under_load_loses_and_doubles_nothing(kind: str, own_landfast_serve: program.Program) -> None:
    """T4, T5. Each id is written by one transaction; the keys it writes tell how often it took effect."""
    kills, ids = 3, 60
    killers = []

    async def scenario(client: kinds.Client) -> None:
        for number in range(ids):

            async def body(t: kinds.Transaction) -> None:
                count = int(await t.get("count") or b"0")
                await t.put("count", b"%d" % (count + 1))
                await t.put(f"written/{number}", b"%d" % (count + 1))

            await client.transact(body, id=f"id/{number}")
            if number % (ids // kills) == ids // kills // 2:
                killers.append(threading.Thread(target=kill_and_start))
                killers[-1].start()
        for killer in killers:
            killer.join()
        assert await client.state().get("count") == b"%d" % ids
        for number in range(ids):
            assert await client.state().get(f"written/{number}") == b"%d" % (number + 1)

    def kill_and_start() -> None:
        own_landfast_serve.kill()
        own_landfast_serve.start()

    asyncio.run(kinds.with_client(kind, own_landfast_serve.url, scenario))


def the_examples_of_the_page_run(own_landfast_serve: program.Program) -> None:
    examples = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert len(examples) >= 6
    environment = {"LANDFAST_URL": own_landfast_serve.url, "PYTHONPATH": str(README.parent)}
    subprocess.run([sys.executable, "-B", "-c", "\n".join(examples)], check=True, timeout=GUARD_S, env=environment)
    with landfast.connect(own_landfast_serve.url) as client:
        assert client.state().get("accounts/ann") == b"100"
        assert client.state().get("paid") == b"30"
        assert [key for key, _ in client.state().scan("guests/").items] == [b"guests/ann", b"guests/bob"]
        assert client.state().get("shipped") == b"4711"
