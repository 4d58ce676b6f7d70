"""What a PostgreSQL URL may say, and what it must not repeat."""

import pytest

from waystation.base.settings import SettingsError
from waystation.push.model import USER_AGENT_LIFETIME_S
from waystation.storage.postgres.tables import Tables
from waystation.storage.postgres.url import PostgresUrl, parse_postgres_url


@pytest.mark.parametrize("scheme", ["postgres", "postgresql"])
def test_a_plain_url_has_the_names_of_autopush(scheme: str) -> None:
    url = parse_postgres_url(f"{scheme}://push@db.example/autopush")

    assert url == PostgresUrl(dsn="postgresql://push@db.example/autopush")
    assert url.router_table == "router"
    assert url.max_router_ttl_s == USER_AGENT_LIFETIME_S


def test_credentials_are_kept_for_the_driver_and_never_shown() -> None:
    url = parse_postgres_url("postgres://app:p%40ss@h:5433/db?sslmode=require")

    assert url.dsn == "postgresql://app:p%40ss@h:5433/db?sslmode=require"
    assert url.address == "h:5433/db"
    assert "p%40ss" not in repr(url)


def test_options_of_autopush_and_its_driver_do_not_reach_ours() -> None:
    """Its documentation shows this very form; our driver would send them to the server."""
    url = parse_postgres_url(
        "postgres://scott:tiger@dbhost/autopush?connect_timeout=10&keepalives_idle=3600"
    )

    assert url.connect_timeout_s == 10
    assert url.dsn == "postgresql://scott:tiger@dbhost/autopush"


def test_settings_of_autopush_are_taken_and_the_url_wins() -> None:
    url = parse_postgres_url(
        "postgres://h/db?router_table=other",
        '{"schema": "AutoPush", "router_table": "r", "message_table": "m", "meta_table": "c",'
        ' "reliability_table": "l", "max_router_ttl": 100}',
    )

    assert (url.schema, url.router_table, url.message_table) == ("autopush", "other", "m")
    assert (url.meta_table, url.reliability_table, url.max_router_ttl_s) == ("c", "l", 100)
    assert Tables(url).fill("{router} {add_channel}") == (
        '"autopush"."other" "autopush"."waystation_add_channel"'
    )


def test_settings_that_autopush_leaves_out_keep_their_defaults() -> None:
    assert parse_postgres_url("postgres://h/db", '{"schema": null}').schema is None
    assert parse_postgres_url("postgres://h/db", "  ") == parse_postgres_url("postgres://h/db")


@pytest.mark.parametrize(
    "text, db_settings, message",
    [
        ("postgres://u:secret@h/db?pool=9", "", "no option 'pool'"),
        ("postgres://u:secret@h:x/db", "", "port"),
        ("postgres://u:secret@h/db?schema=a%22b", "", "schema must have at most 63"),
        ("postgres://u:secret@h/db?router_table=a.b", "", "router_table must have at most 63"),
        ("postgres://u:secret@h/db?max_router_ttl=0", "", "max_router_ttl must be a whole number"),
        (
            "postgres://u:secret@h/db?connect_timeout=soon",
            "",
            "connect_timeout must be a whole number",
        ),
        ("postgres://u:secret@h/db", "[]", "not a JSON object"),
        ("postgres://u:secret@h/db", '{"use_tls": true}', "no setting 'use_tls'"),
    ],
)
def test_another_word_is_refused_with_the_reason(text: str, db_settings: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        parse_postgres_url(text, db_settings)

    assert "secret" not in str(caught.value)
