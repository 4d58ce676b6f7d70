"""What a Redis URL may say, and what it must not repeat."""

import pytest

from waystation.base.settings import SettingsError
from waystation.push.model import TTL_MAX_S, USER_AGENT_LIFETIME_S
from waystation.storage.redis.url import Address, RedisUrl, parse_redis_url


def test_a_plain_url_has_the_defaults_of_redis() -> None:
    url = parse_redis_url("redis://cache.example")

    assert url == RedisUrl(addresses=(Address("cache.example", 6379),))
    assert url.router_ttl_s == USER_AGENT_LIFETIME_S
    assert url.notification_ttl_s == TTL_MAX_S


@pytest.mark.parametrize(
    "text, address",
    [
        ("redis://", Address("127.0.0.1", 6379)),
        ("redis://[::1]:7000/2", Address("::1", 7000)),
        ("redis://10.0.0.7:7000", Address("10.0.0.7", 7000)),
    ],
)
def test_the_server_is_where_the_url_says(text: str, address: Address) -> None:
    assert parse_redis_url(text).addresses == (address,)


def test_credentials_are_unquoted_and_never_shown() -> None:
    url = parse_redis_url("rediss://app:p%40ss%2F@h:6380/5?ssl_ca_certs=/ca.pem")

    assert (url.username, url.password, url.db, url.tls) == ("app", "p@ss/", 5, True)
    assert url.ssl_ca_certs == "/ca.pem"
    assert "p@ss" not in repr(url)
    assert parse_redis_url("redis://:word@h").password == "word"


def test_a_cluster_is_named_by_some_of_its_nodes() -> None:
    url = parse_redis_url("redis+cluster://u:w@a:7001,b:7002,c?tls=1")

    assert url.addresses == (Address("a", 7001), Address("b", 7002), Address("c", 6379))
    assert url.cluster
    assert url.tls
    assert url.username == "u"


def test_settings_of_autopush_are_taken_and_the_url_wins() -> None:
    url = parse_redis_url(
        "redis://h?router_ttl=100",
        '{"create_timeout": 3, "router_ttl": 50, "notification_ttl": null}',
    )

    assert url.create_timeout_s == 3
    assert url.router_ttl_s == 100
    assert url.notification_ttl_s == TTL_MAX_S


@pytest.mark.parametrize(
    "text, db_settings, message",
    [
        ("redis://:secret@h/first", "", "must be a database number"),
        ("redis://:secret@h?colour=secret", "", "no option 'colour'"),
        ("redis://:secret@h:port", "", "HOST or HOST:PORT"),
        ("redis+cluster://:secret@h/3", "", "database 0 only"),
        ("redis://:secret@h?router_ttl=0", "", "router_ttl"),
        ("redis://:secret@h?tls=maybe", "", "tls must be 0 or 1"),
        ("redis://:secret@h", '{"router_ttl": 0}', "router_ttl"),
        ("redis://:secret@h", '{"table_name": "secret"}', "no setting 'table_name'"),
        ("redis://:secret@h", "secret", "not a JSON object"),
    ],
)
def test_what_is_wrong_is_named_without_the_secrets(
    text: str, db_settings: str, message: str
) -> None:
    with pytest.raises(SettingsError, match=message) as caught:
        parse_redis_url(text, db_settings)

    assert "secret" not in str(caught.value)
