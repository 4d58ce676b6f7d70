import pytest

from waystation.base.settings import SettingsError
from waystation.storage.db_settings import read_db_settings

KNOWN = ("router_ttl", "schema")


@pytest.mark.parametrize("text", ["", "  \n", "{}", '{"schema": null}'])
def test_nothing_was_said(text: str) -> None:
    assert read_db_settings(text, "Redis", KNOWN) == {}


def test_what_was_said_comes_as_it_is() -> None:
    said = read_db_settings('{"router_ttl": 5, "schema": ""}', "Redis", KNOWN)

    assert said == {"router_ttl": 5, "schema": ""}


@pytest.mark.parametrize("text", ["[]", "5", "{", "{'schema': 1}"])
def test_anything_but_an_object_is_refused(text: str) -> None:
    with pytest.raises(SettingsError, match=r"store\.db_settings: not a JSON object"):
        read_db_settings(text, "Redis", KNOWN)


def test_an_unknown_name_is_said_with_those_that_there_are() -> None:
    with pytest.raises(SettingsError, match="Redis has no setting 'ttl'; there are router_ttl, sc"):
        read_db_settings('{"ttl": null}', "Redis", KNOWN)
