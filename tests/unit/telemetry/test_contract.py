"""The registry and the structs say the same, and both say what the columns allow."""

import types
import typing
from collections.abc import Iterator
from typing import Any, get_args, get_origin

import msgspec
import pytest

from waystation.telemetry import contract
from waystation.telemetry.events import EVENT_TYPES, Attrs, Event

PYTHON_TYPES = {
    "tinyint": int,
    "smallint": int,
    "int": int,
    "bigint": int,
    "boolean": bool,
    "string": str,
}


def fields(cls: type[msgspec.Struct]) -> dict[str, msgspec.structs.FieldInfo]:
    return {field.name: field for field in msgspec.structs.fields(cls)}


def without_none(type_: Any) -> Any:
    if get_origin(type_) in (typing.Union, types.UnionType):
        (one,) = [arg for arg in get_args(type_) if arg is not type(None)]
        return one
    return type_


def test_codes_and_names_are_unique() -> None:
    assert len(contract.KINDS) == len(contract.CODES)
    assert all(kind.code == code for code, kind in contract.KINDS.items())


def test_every_column_of_every_kind_exists() -> None:
    for kind in contract.KINDS.values():
        columns = (*kind.required, *kind.optional)
        assert set(columns) <= {column.name for column in contract.DOMAIN}, kind.name
        assert len(set(columns)) == len(columns), kind.name
        assert bool(kind.attrs) == ("attrs" in columns), kind.name


def test_the_registry_has_the_codes_of_all_services() -> None:
    """Codes of the pipeline's specification, section 3.3, and presence's node state."""
    expected = {
        *range(15), *range(20, 34), *range(40, 45), 60, 61, 62, *range(70, 75), 80,
        *range(100, 110), 111, 112, 120, 121, 122, 130, 131, 132, *range(200, 214),
        *range(300, 304),
    }  # fmt: skip

    assert set(contract.KINDS) == expected


def test_terminal_milestones_lead_nowhere_and_the_others_lead_on() -> None:
    assert {5, 8, 9, 10, 11, 12, 13, 14} == contract.TERMINAL
    assert set(contract.TRANSITIONS) == set(contract.MILESTONES) - contract.TERMINAL


def test_legal_transitions_are_those_of_the_specification_and_the_short_ways() -> None:
    text = (
        "0->3,5,6,11,1,12,13; 3->4,6,0,12; 1->2,11,12,13,14; 4->6,1,12; 6->12,7,1,8,9,10,14;"
        " 7->8,9,10; 2->6,8,9,10,11,14"
    )
    expected = {
        int(before): {int(after) for after in afters.split(",")}
        for before, _, afters in (part.strip().partition("->") for part in text.split(";"))
    }

    assert expected == contract.TRANSITIONS
    assert contract.is_legal(contract.STORED, contract.SUPERSEDED)
    assert not contract.is_legal(contract.DELIVERED, contract.RECEIVED)


def test_each_kind_has_one_struct_and_each_struct_a_kind() -> None:
    assert set(EVENT_TYPES) == set(contract.KINDS)
    for code, cls in EVENT_TYPES.items():
        assert cls.__name__.lower() == contract.KINDS[code].name.replace(".", "").replace("_", "")


@pytest.mark.parametrize("code", sorted(EVENT_TYPES))
def test_a_struct_has_the_columns_of_its_kind_with_their_types(code: int) -> None:
    cls, kind = EVENT_TYPES[code], contract.KINDS[code]
    mine = fields(cls)

    assert {name for name, field in mine.items() if field.required} == set(kind.required)
    assert {name for name, field in mine.items() if not field.required} == set(kind.optional)
    for name, field in mine.items():
        type_ = without_none(field.type)
        if name == "attrs":
            assert list(mine)[-1] == "attrs", "the event log relies on attrs being last"
            assert issubclass(type_, Attrs)
            assert set(fields(type_)) == set(kind.attrs)
        else:
            assert type_ is PYTHON_TYPES[contract.COLUMNS[name].type]
        assert field.required or field.default is None, "absent means null"


def every_struct(cls: type[Event]) -> Iterator[type[Event]]:
    yield cls
    for child in cls.__subclasses__():
        yield from every_struct(child)


def test_events_are_frozen() -> None:
    assert all(cls.__struct_config__.frozen for cls in every_struct(Event))
