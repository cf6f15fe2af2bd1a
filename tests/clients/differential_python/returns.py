"""Results: what has JSON, what has none, and the exact text of it."""

import collections
import dataclasses
import datetime
import decimal
import enum
import types
import uuid

import dispatch

Point = collections.namedtuple("Point", "x y")


@dataclasses.dataclass
class Order:
    id: int


class Colour(enum.Enum):
    RED = 1


class Level(enum.IntEnum):
    LOW = 1


class Name(str, enum.Enum):
    ONE = "one"


class Text(str):
    def __str__(self):
        return "another"


class Number(int):
    def __repr__(self):
        return "another"


class Share(float):
    def __repr__(self):
        return "another"


class Money(decimal.Decimal):
    pass


class Record:
    def _asdict(self):
        return {"a": 1, "b": Point(1, [Point(2, 3)])}


class NoRecord:
    def _asdict(self):
        return [1]


class Table(dict):
    def items(self):
        raise LookupError("it has no items")


class Counted(list):
    def __len__(self):
        return 7


def exact_decimals(event, context):
    return {"id": decimal.Decimal("9007199254740993"), "n": decimal.Decimal("5"), "p": decimal.Decimal("1.10")}


def a_decimal(event, context):
    return decimal.Decimal("1.10")


def decimals_with_exponents(event, context):
    return [decimal.Decimal("1E+5"), decimal.Decimal("-0"), decimal.Decimal("1E-7"), decimal.Decimal("123456789012345678901234567890.1")]


def decimals_that_are_not_numbers(event, context):
    return [decimal.Decimal("NaN"), decimal.Decimal("-NaN"), decimal.Decimal("Infinity"), decimal.Decimal("-Infinity")]


def a_decimal_as_key(event, context):
    return {decimal.Decimal("1"): 1}


def a_kind_of_decimal(event, context):
    return [Money("2.50")]


def a_decimal_among_others(event, context):
    return {"p": decimal.Decimal("1.10"), "t": (1, 2), "n": None, "b": [True, False], "f": 1.5, "s": "é\u2028\ud800", "e": {}, "l": []}


def bytes_that_are_json(event, context):
    return b'{"a": 1.10}'


def bytes_that_are_not_json(event, context):
    return b"hello \xff"


def no_bytes(event, context):
    return b""


def bytes_inside(event, context):
    return {"a": b"text", b"key": "value"}


def bytes_inside_that_are_no_text(event, context):
    return {"a": b"\xff"}


def a_bytearray(event, context):
    return bytearray(b"1")


def a_view(event, context):
    return [memoryview(b"1")]


def a_set(event, context):
    return {1}


def a_set_inside(event, context):
    return {"a": [frozenset()]}


def a_tuple(event, context):
    return 1, "two", (3,)


def a_named_tuple(event, context):
    return Point(1, 2)


def named_tuples_inside(event, context):
    return {"a": [{"b": Point(Point(1, b"x"), None)}]}


def a_record(event, context):
    return [Record()]


def a_record_that_is_no_object(event, context):
    return [NoRecord()]


def a_dataclass(event, context):
    return Order(1)


def a_dataclass_as_dict(event, context):
    return dataclasses.asdict(Order(1))


def a_generator(event, context):
    return (x for x in [1])


def a_range(event, context):
    return range(3)


def times(event, context):
    return {"at": datetime.datetime(2024, 1, 1)}


def an_id(event, context):
    return uuid.UUID(int=1)


def not_numbers(event, context):
    return [float("nan"), float("inf"), float("-inf")]


def floats(event, context):
    return [1.0, -0.0, 1e22, 1e-7, 0.1, 5e-324, 1.7976931348623157e308]


def large_integers(event, context):
    return [2**53 + 1, -(10**100)]


def an_integer_of_5000_digits(event, context):
    return 10**5000


def a_complex_number(event, context):
    return 1j


def enums(event, context):
    return [Level.LOW, Name.ONE, {Level.LOW: Name.ONE, Name.ONE: 1}]


def an_enum(event, context):
    return Colour.RED


def own_texts_and_numbers(event, context):
    return [Text("text"), Number(5), Share(1.5), {Text("key"): 1, Number(6): 2, Share(2.5): 3}]


def scalars(event, context):
    return [True, False, None, "", 0]


def nothing(event, context):
    return None


def an_empty_text(event, context):
    return ""


def a_text(event, context):
    return 'a "text"\n\t\\ \x00\x7f\u00e9\u2028\U0001f600'


def half_a_character(event, context):
    return {"\udc80": "\ud800"}


def two_halves_of_a_character(event, context):
    return "\ud83d\ude00"


def kinds_of_dicts(event, context):
    return [collections.OrderedDict(b=1, a=2), collections.defaultdict(list, a=[1]), collections.Counter("aab")]


def a_dict_whose_items_fail(event, context):
    return [Table(a=1)]


def a_list_with_a_wrong_length(event, context):
    return Counted([1, 2])


def a_proxy_of_a_dict(event, context):
    return types.MappingProxyType({"a": 1})


def a_queue(event, context):
    return collections.deque([1])


def keys(event, context):
    return {0: 1, 1.5: 2, True: 3, None: 4, "": 5, float("nan"): 6, float("inf"): 7}


def keys_that_meet(event, context):
    return {"1": "a", 1: "b"}


def a_tuple_as_key(event, context):
    return {(1, 2): 1}


def an_object_as_key(event, context):
    return {Colour.RED: 1}


def a_deep_list(event, context):
    value = []
    for _ in range(200):
        value = [value]
    return value


def a_list_that_is_too_deep(event, context):
    value = []
    for _ in range(100_000):
        value = [value]
    return value


def a_dict_that_is_too_deep(event, context):
    value = {}
    for _ in range(100_000):
        value = {"a": value}
    return value


def a_list_in_itself(event, context):
    value = []
    value.append(value)
    return value


def a_dict_in_itself(event, context):
    value = {"p": decimal.Decimal(1)}
    value["a"] = [value]
    return value


def one_list_twice(event, context):
    value = [decimal.Decimal("1.0")]
    return [value, value]


def an_exception(event, context):
    return ValueError("no result")


def a_function(event, context):
    return {"a": print}


def a_class(event, context):
    return Point


async def a_coroutine(event, context):
    return 1


def a_result_that_is_too_long(event, context):
    return "x" * 6_400_000


def the_event(event, context):
    return [type(event).__name__, repr(event)[:2000], event]


handler = dispatch.handler_of(globals())
