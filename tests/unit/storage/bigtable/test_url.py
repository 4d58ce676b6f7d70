"""What a Bigtable URL and Autopush's settings say, and what is refused."""

import json

import pytest

from waystation.base.settings import SettingsError
from waystation.push.model import USER_AGENT_LIFETIME_S
from waystation.storage.bigtable.url import BigtableUrl, parse_bigtable_url

TABLE_NAME = "projects/p-1/instances/main/tables/autopush"


def test_project_and_instance_are_enough() -> None:
    url = parse_bigtable_url("bigtable://p-1/main")

    assert url == BigtableUrl(project="p-1", instance="main")
    assert url.table_name == TABLE_NAME
    assert url.instance_name == "projects/p-1/instances/main"
    assert url.grpc_channel_count == 4
    assert url.retry_count == 2
    assert url.max_router_ttl == USER_AGENT_LIFETIME_S
    assert not url.emulator


def test_table_emulator_and_settings_come_with_the_url() -> None:
    url = parse_bigtable_url(
        "bigtable://p/i/push?emulator=127.0.0.1:8086&app_profile_id=one&retry_count=0"
    )

    assert url.table == "push"
    assert url.emulator == "127.0.0.1:8086"
    assert url.app_profile_id == "one"
    assert url.retry_count == 0


def test_a_project_may_belong_to_a_domain() -> None:
    assert parse_bigtable_url("bigtable://example.com:p/i").project == "example.com:p"


def test_autopush_names_the_table_in_its_settings() -> None:
    settings = {
        "table_name": TABLE_NAME,
        "app_profile_id": "autopush",
        "router_family": "router",
        "message_family": "",
        "database_pool_max_size": 50,
        "grpc_point_attempt_timeout": 3,
        "max_router_ttl": 86_400,
        "route_to_leader": True,
        "database_pool_create_timeout": None,
    }
    url = parse_bigtable_url("grpc://bigtable.googleapis.com", json.dumps(settings))

    assert url.table_name == TABLE_NAME
    assert url.host == "bigtable.googleapis.com"
    assert url.app_profile_id == "autopush"
    assert url.database_pool_max_size == 50
    assert url.grpc_point_attempt_timeout == 3
    assert url.max_router_ttl == 86_400
    assert not url.emulator


def test_an_older_release_calls_the_profile_otherwise() -> None:
    settings = json.dumps({"table_name": TABLE_NAME, "profile_id": "autopush"})

    assert parse_bigtable_url("grpc://host", settings).app_profile_id == "autopush"


@pytest.mark.parametrize(
    "dsn, emulator",
    [
        ("grpc://localhost:8086", "localhost:8086"),
        ("grpc://127.0.0.1", "127.0.0.1:8086"),
        ("grpc://[::1]:9000", "[::1]:9000"),
    ],
)
def test_autopush_reaches_an_emulator_by_its_loopback_address(dsn: str, emulator: str) -> None:
    settings = json.dumps({"table_name": TABLE_NAME})

    assert parse_bigtable_url(dsn, settings).emulator == emulator


@pytest.mark.parametrize(
    "url, settings, said",
    [
        ("bigtable://p", "", "PROJECT/INSTANCE"),
        ("bigtable://p/i/t/more", "", "PROJECT/INSTANCE"),
        ("bigtable:///i", "", "PROJECT/INSTANCE"),
        ("bigtable://p/i?colour=red", "", "'colour'"),
        ("bigtable://p/i?grpc_channel_count=0", "", "at least 1"),
        ("bigtable://p/i?retry_count=-1", "", "retry_count"),
        ("bigtable://p/i", '{"table_name": "x"}', "bigtable:// names the table"),
        ("bigtable://p/i", '{"router_family": "r"}', "only be 'router'"),
        ("bigtable://p/i", '{"tabel_name": "x"}', "'tabel_name'"),
        ("bigtable://p/i", "[]", "not a JSON object"),
        ("grpc://host", "", "needs table_name"),
        ("grpc://host", '{"table_name": "/projects/p"}', "needs table_name"),
        ("grpc://host/path", '{"table_name": "x"}', "grpc://HOST"),
        ("grpc://host:port", '{"table_name": "x"}', "HOST or HOST:PORT"),
        (
            "bigtable://p/i?grpc_scan_attempt_timeout=9&grpc_scan_total_timeout=8",
            "",
            "longer than",
        ),
    ],
)
def test_what_is_wrong_is_named(url: str, settings: str, said: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_bigtable_url(url, settings)

    assert said in str(caught.value)
