"""What a dataclass's fields may hold: values of their types, checked in both forms before a message is sent."""

import re
import typing
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Annotated, Any

import pytest

from tidewire.client.schema import Schema


@dataclass
class Item:
    count: Annotated[int, "int"] = 1
    price: float = 1.0


@dataclass
class Order:
    number: int = 1
    name: str = "n"
    paid: bool = True
    photo: bytes = b""
    items: dict[str, Item] = field(default_factory=dict)
    tags: list[str] = field(default_factory=list)
    due: date | None = None
    price: Annotated[Decimal, 3, 2] = Decimal(1)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"number": "7"}, "Order.number: '7' is not an int"),
        ({"number": None}, "Order.number: None is not an int"),
        ({"number": True}, "Order.number: True is not an int"),
        ({"number": 2**63}, "Order.number: 9223372036854775808 is not an int of 64 bits"),
        ({"name": 5}, "Order.name: 5 is not a str"),
        ({"paid": 1}, "Order.paid: 1 is not a bool"),
        ({"photo": "text"}, "Order.photo: 'text' is not bytes"),
        ({"items": None}, "Order.items: None is not a dict"),
        ({"items": {1: Item()}}, "Order.items: the key 1 is not a str"),
        ({"items": {"a": {"count": 1}}}, "Order.items: {'count': 1} is not a Item"),
        ({"items": {"a": Item(2**31)}}, "Item.count: 2147483648 is not an int of 32 bits"),
        ({"items": {"a": Item(price=typing.cast("float", "1"))}}, "Item.price: '1' is not a float"),
        ({"tags": "abc"}, "Order.tags: 'abc' is not a list"),
        ({"due": "2024-01-01"}, "Order.due: '2024-01-01' is not a date"),
        ({"due": datetime(2024, 1, 1, tzinfo=UTC)}, "Order.due: datetime.datetime(2024, 1, 1, 0, 0, tzinfo="),
        ({"price": Decimal("1.005")}, "Order.price: 1.005 does not fit into 3 digits, 2 of them behind the point"),
    ],
)
def test_a_value_of_another_type_is_refused_with_its_field_in_both_forms(fields: dict[str, Any], told: str) -> None:
    """JSON takes any value. A reader that expects the declared type, such as Spark's, would fail at the message."""
    for schema in (Schema.json(Order), Schema.avro(Order)):
        assert schema.decode(schema.encode(Order())) == Order()
        with pytest.raises(ValueError, match=f"^{re.escape(told)}"):
            schema.encode(Order(**fields))
