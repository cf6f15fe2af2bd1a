"""A program for the type checker, checked by `typing_test.py`; nothing here runs.

A wrong call is marked for mypy, and only there: an ignored error that does not occur is an error of
its own.
"""

from typing import Any, Callable, Coroutine, List, Optional, Tuple

from typing_extensions import assert_type

import landfast
from landfast import aio


@landfast.transactional
def plain(t: landfast.Transaction, order: int) -> str:
    return str(order)


@landfast.transactional(id=lambda order, amount: f"pay/{order}", isolation="serializable")
def pay(t: landfast.Transaction, order: int, amount: float) -> bytes:
    return b""


@landfast.transactional(id=lambda *, order: f"ship/{order}")
def ship(t: landfast.Transaction, *, order: str) -> None: ...


@aio.transactional
async def plain_later(t: aio.Transaction, order: int) -> str:
    return str(order)


@aio.transactional(id=lambda order: f"pay/{order}", runs_max=3)
async def pay_later(t: aio.Transaction, order: int) -> bytes:
    return b""


@landfast.step(name="charge")
def charge(amount: int) -> List[int]:
    return [amount]


@aio.step
async def charge_later(amount: int) -> List[int]:
    return [amount]


@aio.workflow
async def handler(event: Any, context: Any) -> List[int]:
    assert_type(await charge_later(3), List[int])
    await charge_later("3")  # type: ignore[arg-type]
    return await charge_later(3)


def blocking(client: landfast.Client) -> None:
    assert_type(plain(7), Optional[str])
    assert_type(pay(4711, amount=2.5), Optional[bytes])
    assert_type(ship(order="x"), None)
    assert_type(pay, Callable[..., Optional[bytes]])  # type: ignore[assert-type]
    pay("4711", 2.5)  # type: ignore[arg-type]
    pay(4711)  # type: ignore[call-arg]
    plain(order="7")  # type: ignore[arg-type]
    assert_type(charge(3), List[int])
    charge("3")  # type: ignore[arg-type]

    @client.transactional(id=lambda order: f"of/{order}")
    def of_client(t: landfast.Transaction, order: int) -> str:
        return str(order)

    assert_type(of_client(7), Optional[str])
    of_client("7")  # type: ignore[arg-type]
    page = client.state().scan("orders/", after=b"orders/17", limit=10)
    assert_type(page.items, List[Tuple[bytes, bytes]])
    assert_type(page.next, Optional[bytes])
    assert_type(client.runs("w").list(), Tuple[List[landfast.Run], Optional[str]])
    assert_type(handler({}, None), List[int])


async def later(client: aio.Client) -> None:
    coroutine = assert_type(plain_later(7), Coroutine[Any, Any, Optional[str]])
    assert_type(await coroutine, Optional[str])
    assert_type(await pay_later(7), Optional[bytes])
    await pay_later("7")  # type: ignore[arg-type]
    assert_type(await client.state().scan(), landfast.Page)
    assert_type(await client.runs("w").run({}), landfast.Run)
    assert_type(await client.run_step("s", lambda: charge_later(3)), List[int])
