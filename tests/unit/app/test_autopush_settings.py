"""Autopush's names and defaults, and ours under its prefixes (webpush §8.4)."""

from pathlib import Path

import pytest

from waystation.app.autopush_settings import (
    PREFIXES,
    Daemon,
    DaemonSettings,
    daemon_names,
    load_daemon_settings,
)
from waystation.base.settings import SettingsError

AUTH = {"AUTOEND__AUTH_KEYS": '["one", "two"]'}


def load(daemon: Daemon, env: dict[str, str] | None = None, config: Path | None = None):
    given = {**(AUTH if daemon == "autoendpoint" else {}), **(env or {})}
    return load_daemon_settings(
        daemon,
        config=config,
        env=given,
        hostname=lambda: "box.example.org",
        resolve=lambda name: {"box.example.org": "10.1.2.3"}[name],
    )


def test_autoconnect_has_autopushs_defaults() -> None:
    settings = load("autoconnect").settings

    assert settings.host == "0.0.0.0"
    assert (settings.connect.port, settings.connect.relay_port) == (8080, 8081)
    assert settings.connect.msg_limit == 150
    assert settings.connect.drain_s == 0
    assert settings.connect.simplepush == "off"
    assert settings.connect.auto_ping_interval_s == 300
    assert settings.endpoint.url == "http://localhost:8082"
    assert settings.store.url == "embedded:./store"
    assert settings.log.form == "mozlog"


def test_autoendpoint_has_autopushs_defaults() -> None:
    settings = load("autoendpoint").settings

    assert (settings.host, settings.endpoint.port) == ("127.0.0.1", 8000)
    assert settings.endpoint.url == "http://127.0.0.1:8000"
    assert settings.endpoint.max_data_bytes == 5630


@pytest.mark.parametrize("keys", [None, "", "[]", ' [ "" ] ', "[,]"])
def test_autoendpoint_without_auth_keys_does_not_start_and_says_why(keys: str | None) -> None:
    env = {} if keys is None else {"AUTOEND__AUTH_KEYS": keys}
    with pytest.raises(SettingsError, match=r"AUTOEND__AUTH_KEYS is empty.*does not start"):
        load_daemon_settings("autoendpoint", env=env)


def test_autopushs_names_lead_to_ours() -> None:
    settings = load(
        "autoconnect",
        {
            "AUTOCONNECT__PORT": "9080",
            "AUTOCONNECT__ROUTER_PORT": "9081",
            "AUTOCONNECT__AUTO_PING_INTERVAL": "12.5",
            "AUTOCONNECT__AUTO_PING_TIMEOUT": "3",
            "AUTOCONNECT__OPEN_HANDSHAKE_TIMEOUT": "2",
            "AUTOCONNECT__CRYPTO_KEY": "[abc]",
            "AUTOCONNECT__MSG_LIMIT": "10",
            "AUTOCONNECT__CLIENT_CHANNEL_CAPACITY": "64",
            "AUTOCONNECT__MEGAPHONE_API_URL": "http://megaphone/v1",
            "AUTOCONNECT__MEGAPHONE_POLL_INTERVAL": "5",
            "AUTOCONNECT__ACTIX_WORKERS": "3",
            "AUTOCONNECT__DB_DSN": "memory:",
            "AUTOCONNECT__WORKERS": "1",
        },
    ).settings

    assert (settings.connect.port, settings.connect.relay_port) == (9080, 9081)
    assert settings.connect.auto_ping_interval_s == 12.5
    assert settings.connect.auto_ping_timeout_s == 3
    assert settings.connect.open_handshake_timeout_s == 2
    assert settings.push.crypto_keys == "[abc]"
    assert settings.connect.msg_limit == 10
    assert settings.connect.delivery_window == 64
    assert settings.connect.megaphone_api_url == "http://megaphone/v1"
    assert settings.connect.megaphone_poll_interval_s == 5
    assert settings.store.url == "memory:"


def test_milliseconds_become_seconds() -> None:
    settings = load(
        "autoendpoint",
        {
            "AUTOEND__CONNECTION_TIMEOUT_MILLIS": "500",
            "AUTOEND__REQUEST_TIMEOUT_MILLIS": "2500",
            "AUTOEND__POOL_IDLE_TIMEOUT_SECS": "7",
            "AUTOEND__MAX_NOTIFICATION_TTL": "60",
        },
    ).settings

    assert settings.endpoint.connection_timeout_s == 0.5
    assert settings.endpoint.request_timeout_s == 2.5
    assert settings.endpoint.pool_idle_timeout_s == 7
    assert settings.endpoint.max_notification_ttl_s == 60


@pytest.mark.parametrize("name", ["DELIVERY_WINDOW", "CONNECT__DELIVERY_WINDOW", "delivery_window"])
def test_our_own_settings_are_taken_under_the_daemons_prefix(name: str) -> None:
    assert load("autoconnect", {f"AUTOCONNECT__{name}": "1"}).settings.connect.delivery_window == 1


def test_a_unit_may_be_left_out_of_our_names() -> None:
    env = {"AUTOCONNECT__MIN_PING_INTERVAL": "1", "AUTOCONNECT__DRAIN_S": "2"}
    settings = load("autoconnect", env).settings

    assert settings.connect.min_ping_interval_s == 1
    assert settings.connect.drain_s == 2


def test_settings_of_other_sections_are_reached_by_their_path() -> None:
    env = {"AUTOEND__DATA_DIR": "/srv/push", "AUTOEND__METRICS__PUBLIC": "true"}
    settings = load("autoendpoint", env).settings

    assert settings.data_dir == Path("/srv/push")
    assert settings.metrics.public


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text(
        "port = 1111\nrouter_port = 2222\ncrypto_key = ['a', 'b']\nhuman_logs = true\n"
    )
    settings = load("autoconnect", {"AUTOCONNECT__PORT": "3333"}, config).settings

    assert (settings.connect.port, settings.connect.relay_port) == (3333, 2222)
    assert settings.push.crypto_keys == '["a","b"]'
    assert settings.log.form == "text"


def test_unknown_names_are_ignored_and_reported_as_they_were_written(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("answer = 42\n[fcm]\nmin_ttl = 60\n")
    env = {"AUTOEND__NO_SUCH_THING": "1", "AUTOEND__STATSD_HOST": "h", "AUTOCONNECT__PORT": "x"}
    loaded: DaemonSettings = load("autoendpoint", env, config)

    assert set(loaded.unknown) == {f"answer in {config}", "AUTOEND__NO_SUCH_THING"}
    assert set(loaded.without_effect) == {f"fcm.min_ttl in {config}", "AUTOEND__STATSD_HOST"}


def test_one_underscore_is_no_prefix() -> None:
    assert load("autoendpoint", {"AUTOEND_PORT": "1"}).settings.endpoint.port == 8000


def test_a_bad_value_is_refused_under_the_name_that_was_written() -> None:
    with pytest.raises(SettingsError, match=r"AUTOEND__PORT is 'abc'"):
        load("autoendpoint", {"AUTOEND__PORT": "abc"})
    with pytest.raises(SettingsError, match=r"AUTOCONNECT__AUTO_PING_INTERVAL is '0'"):
        load("autoconnect", {"AUTOCONNECT__AUTO_PING_INTERVAL": "0"})
    with pytest.raises(SettingsError, match="AUTOCONNECT__ENDPOINT_PORT"):
        load("autoconnect", {"AUTOCONNECT__ENDPOINT_PORT": "many"})
    with pytest.raises(SettingsError, match="AUTOEND__SCHEME"):
        load("autoendpoint", {"AUTOEND__SCHEME": "gopher"})


def test_the_node_id_comes_from_router_hostname_and_port() -> None:
    env = {"AUTOCONNECT__ROUTER_HOSTNAME": "box.example.org", "AUTOCONNECT__ROUTER_PORT": "80"}
    resolved = {**env, "AUTOCONNECT__RESOLVE_HOSTNAME": "true"}

    assert load("autoconnect", env).settings.connect.relay_url == "http://box.example.org"
    assert load("autoconnect", resolved).settings.connect.relay_url == "http://10.1.2.3"
    assert load("autoconnect").settings.connect.relay_url == "http://127.0.0.1:8081"


def test_the_endpoint_url_is_composed_as_autopush_does() -> None:
    env = {
        "AUTOCONNECT__ENDPOINT_SCHEME": "https",
        "AUTOCONNECT__ENDPOINT_HOSTNAME": "updates.example.org",
        "AUTOCONNECT__ENDPOINT_PORT": "443",
    }
    explicit = {"AUTOEND__ENDPOINT_URL": "https://updates.example.org"}

    assert load("autoconnect", env).settings.endpoint.url == "https://updates.example.org"
    assert load("autoendpoint", explicit).settings.endpoint.url == "https://updates.example.org"


def test_a_store_that_nobody_knows_is_refused_with_its_name() -> None:
    with pytest.raises(SettingsError, match="rocks"):
        load("autoconnect", {"AUTOCONNECT__DB_DSN": "rocks:./x"})


@pytest.mark.parametrize(
    "dsn, keys",
    [
        ("", "unique"),
        ("embedded:./here", "unique"),
        ("redis://10.0.0.5:6379/0", "autopush"),
        ("rediss://10.0.0.5:6379/0", "autopush"),
        ("redis+cluster://10.0.0.5:6379", "unique"),
        ("postgres://push@10.0.0.5/push", "autopush"),
        ("bigtable://p/i", "autopush"),
        ("dynamodb://eu-central-1/prod", "autopush"),
        ("dual:?primary=redis%3A%2F%2F10.0.0.5&secondary=embedded", "autopush"),
        ("dual:?primary=redis%2Bcluster%3A%2F%2F10.0.0.5&secondary=embedded", "unique"),
    ],
)
@pytest.mark.parametrize("daemon", ["autoconnect", "autoendpoint"])
def test_on_a_store_with_autopushs_layout_keys_are_autopushs(
    daemon: Daemon, dsn: str, keys: str
) -> None:
    prefix = PREFIXES[daemon]
    env = {f"{prefix}DB_DSN": dsn, f"{prefix}AUTH_KEYS": "x", f"{prefix}ROUTER_HOSTNAME": "h"}
    chosen = {**env, f"{prefix}SORT_KEYS": "unique"}

    assert load_daemon_settings(daemon, env=env).settings.push.sort_keys == keys
    assert load_daemon_settings(daemon, env=chosen).settings.push.sort_keys == "unique"


def test_two_stores_as_one_are_named_as_in_autopush() -> None:
    stores = '{"primary": {"dsn": "memory:"}, "secondary": {"dsn": "rocks:"}}'
    env = {"AUTOCONNECT__DB_DSN": "dual", "AUTOCONNECT__DB_SETTINGS": stores}

    with pytest.raises(SettingsError, match="rocks"):
        load("autoconnect", env)
    env["AUTOCONNECT__DB_SETTINGS"] = stores.replace("rocks", "memory")
    assert load("autoconnect", env).settings.store.url == "dual"


def test_every_setting_has_a_name_for_the_documents() -> None:
    names = daemon_names("autoconnect")

    assert names["connect.port"] == "port"
    assert names["connect.relay_port"] == "router_port"
    assert names["store.url"] == "db_dsn"
    assert names["tls.cert"] == "tls.cert"
