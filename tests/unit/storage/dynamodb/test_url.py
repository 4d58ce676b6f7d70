import pytest

from waystation.base.settings import SettingsError
from waystation.storage.dynamodb.url import DynamoUrl, parse_dynamodb_url
from waystation.storage.open import parse_store_url


def test_a_region_alone_means_the_tables_of_autopush() -> None:
    url = parse_dynamodb_url("dynamodb://eu-central-1")

    assert url == DynamoUrl(region="eu-central-1")
    assert (url.router_table, url.message_table, url.storage_table) == (
        "router",
        "message",
        "storage",
    )
    assert url.rotation == "off"


def test_a_prefix_stands_before_every_table() -> None:
    url = parse_dynamodb_url("dynamodb://eu-central-1/test")

    assert url.router_table == "test_router"
    assert url.message_table == "test_message"
    assert url.own_table == "test_waystation"


def test_endpoint_rotation_and_units_are_options() -> None:
    url = parse_store_url(
        "dynamodb://local/x?endpoint=http://127.0.0.1:8000&rotation=monthly"
        "&read_units=5&write_units=7&key_hash=secret"
    )

    assert url == DynamoUrl(
        region="local",
        endpoint="http://127.0.0.1:8000",
        rotation="monthly",
        router_table="x_router",
        message_table="x_message",
        storage_table="x_storage",
        own_table="x_waystation",
        read_units=5,
        write_units=7,
        key_hash="secret",
    )


def test_autopush_settings_name_the_tables() -> None:
    settings = """{"router_table": "autopush_router", "message_table": "autopush_message_2021_06",
        "message_table_names": ["a"], "current_message_month": "autopush_message_2021_06"}"""
    url = parse_dynamodb_url("dynamodb://us-east-1", settings)

    assert url.router_table == "autopush_router"
    assert url.message_table == "autopush_message", "the month is found out by asking"


@pytest.mark.parametrize(
    "query, settings, rotation",
    [
        ("", "", "off"),
        ("", '{"no_table_rotation": true}', "off"),
        ("", '{"no_table_rotation": false}', "monthly"),
        ("", '{"no_table_rotation": null}', "off"),
        ("?rotation=off", '{"no_table_rotation": false}', "off"),
        ("?rotation=monthly", '{"no_table_rotation": true}', "monthly"),
    ],
)
def test_rotation_is_switched_in_both_vocabularies(
    query: str, settings: str, rotation: str
) -> None:
    assert parse_dynamodb_url(f"dynamodb://us-east-1{query}", settings).rotation == rotation


def test_tables_are_made_unless_the_url_says_otherwise() -> None:
    assert parse_dynamodb_url("dynamodb://us-east-1").create_tables
    assert parse_dynamodb_url("dynamodb://us-east-1?create_tables=on").create_tables
    assert not parse_dynamodb_url("dynamodb://us-east-1?create_tables=off").create_tables
    for query, settings, expected in (
        ("?create_tables=no", "", "create_tables is on or off"),
        ("", '{"no_table_rotation": 1.5}', "no_table_rotation is true or false"),
    ):
        with pytest.raises(SettingsError, match=expected):
            parse_dynamodb_url(f"dynamodb://us-east-1{query}", settings)


def test_the_url_wins_over_autopush_settings() -> None:
    url = parse_dynamodb_url("dynamodb://us-east-1?router_table=mine", '{"router_table": "theirs"}')

    assert url.router_table == "mine"


@pytest.mark.parametrize(
    "url",
    [
        "dynamodb://",
        "dynamodb://secret@eu-central-1",
        "dynamodb://eu-central-1:80",
        "dynamodb://eu-central-1?rotation=weekly&key_hash=secret",
        "dynamodb://eu-central-1?colour=secret",
        "dynamodb://eu-central-1/se cret",
        "dynamodb://eu-central-1?router_table=!secret",
        "dynamodb://eu-central-1?router_table=ab",
        "dynamodb://eu-central-1?endpoint=ftp://secret",
        "dynamodb://eu-central-1?endpoint=secret",
        "dynamodb://eu-central-1?read_units=5&key_hash=secret",
        "dynamodb://eu-central-1?read_units=secret&write_units=1",
    ],
)
def test_a_bad_url_is_refused_without_repeating_what_it_holds(url: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_dynamodb_url(url)

    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("settings", ["[]", "{", '{"tables": 1}'])
def test_bad_autopush_settings_are_refused(settings: str) -> None:
    with pytest.raises(SettingsError, match="db_settings"):
        parse_dynamodb_url("dynamodb://us-east-1", settings)


def test_the_key_of_the_hash_never_reaches_a_line() -> None:
    assert "secret" not in repr(parse_dynamodb_url("dynamodb://us-east-1?key_hash=secret"))
