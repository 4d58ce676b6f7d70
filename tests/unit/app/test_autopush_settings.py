"""Autopush's names and defaults, and ours under its prefixes (webpush §8.4)."""

from pathlib import Path

import pybase64
import pytest

from waystation.app.autopush_settings import (
    PREFIXES,
    Daemon,
    DaemonSettings,
    daemon_names,
    load_daemon_settings,
)
from waystation.base.settings import SettingsError
from waystation.storage.dynamodb.url import parse_dynamodb_url

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


@pytest.mark.parametrize("daemon", ["autoconnect", "autoendpoint"])
def test_a_retired_setting_is_refused_with_its_new_name(daemon: Daemon) -> None:
    name = f"{PREFIXES[daemon]}PROXY__PORT"
    with pytest.raises(SettingsError, match=rf"{name}: .*retired.*set `edge\.port`"):
        load_daemon_settings(daemon, env={name: "5223", "AUTOEND__AUTH_KEYS": "secret"})


def test_unknown_names_are_ignored_and_reported_as_they_were_written(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("answer = 42\n[gcm]\nttl = 60\n")
    env = {"AUTOEND__NO_SUCH_THING": "1", "AUTOEND__STATSD_HOST": "h", "AUTOCONNECT__PORT": "x"}
    loaded: DaemonSettings = load("autoendpoint", env, config)

    assert set(loaded.unknown) == {f"answer in {config}", "AUTOEND__NO_SUCH_THING"}
    assert set(loaded.without_effect) == {f"gcm.ttl in {config}", "AUTOEND__STATSD_HOST"}


@pytest.mark.parametrize("name", ["AUTOEND_PORT", "AUTOENDPOINT__PORT"])
def test_a_prefix_that_only_autopushs_documents_have_is_told(name: str) -> None:
    loaded = load("autoendpoint", {name: "1", "AUTOCONNECT_PORT": "1"})

    assert loaded.settings.endpoint.port == 8000
    assert loaded.unknown == (f"{name} (the prefix is AUTOEND__)",)


@pytest.mark.parametrize(
    "name", ["STATSD_HOST", "STATSD_PORT", "ENV", "FCM_CREDS", "DATADOG_API_KEY", "KEY_HASH"]
)
@pytest.mark.parametrize("daemon", ["autoconnect", "autoendpoint"])
def test_what_only_autopush_has_is_named_as_without_effect(daemon: Daemon, name: str) -> None:
    loaded = load(daemon, {f"{PREFIXES[daemon]}{name}": "x"})

    assert loaded.without_effect == (f"{PREFIXES[daemon]}{name}",)
    assert loaded.unknown == ()


@pytest.mark.parametrize("daemon", ["autoconnect", "autoendpoint"])
def test_tables_of_dynamodb_are_as_autopush_makes_and_rotates_them(daemon: Daemon) -> None:
    prefix = PREFIXES[daemon]
    env = {f"{prefix}DB_DSN": "dynamodb://us-east-1", f"{prefix}ROUTER_HOSTNAME": "10.0.0.5"}

    def rotation(**more: str) -> str:
        store = load(daemon, env | {prefix + name: text for name, text in more.items()})
        where = parse_dynamodb_url(store.settings.store.url, store.settings.store.db_settings)
        return where.rotation

    assert load(daemon, env).settings.store.table_units == 1
    assert rotation() == "off"
    assert rotation(NO_TABLE_ROTATION="true") == "off"
    assert rotation(NO_TABLE_ROTATION="false") == "monthly"
    assert rotation(NO_TABLE_ROTATION="false", DB_DSN="dynamodb://x?rotation=off") == "off"
    elsewhere = load(daemon, {f"{prefix}NO_TABLE_ROTATION": "true"})
    assert elsewhere.without_effect == (f"{prefix}NO_TABLE_ROTATION",)


@pytest.mark.parametrize("daemon", ["autoconnect", "autoendpoint"])
def test_tracking_keys_that_are_none_are_left_out_with_a_warning(daemon: Daemon) -> None:
    """Autopush takes any text."""
    good = pybase64.urlsafe_b64encode(b"\4" + bytes(64)).decode()
    loaded = load(daemon, {f"{PREFIXES[daemon]}TRACKING_KEYS": f'["short", "{good}", "!!"]'})

    assert loaded.settings.push.tracking_keys == good
    (warning,) = loaded.warnings
    assert "number 1, 3 of 3" in warning
    assert "short" not in warning


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


CREDENTIALS = '{"app":{"project_id":"p","credential":"/etc/fcm.json"}}'
CHANNELS = '{"release":{"cert":"/etc/apns.pem","key":"/etc/apns.key"}}'


def test_bridges_are_configured_with_autopushs_names() -> None:
    loaded = load(
        "autoendpoint",
        {
            "AUTOEND__FCM__CREDENTIALS": CREDENTIALS,
            "AUTOEND__FCM__MIN_TTL": "30",
            "AUTOEND__FCM__MAX_TTL": "3600",
            "AUTOEND__FCM__MAX_DATA": "3000",
            "AUTOEND__FCM__TIMEOUT": "7",
            "AUTOEND__FCM__BASE_URL": "http://127.0.0.1:1",
            "AUTOEND__APNS__CHANNELS": CHANNELS,
            "AUTOEND__APNS__MAX_DATA": "2000",
            "AUTOEND__APNS__REQUEST_TIMEOUT_SECS": "5",
            "AUTOEND__APNS__POOL_IDLE_TIMEOUT_SECS": "60",
            "AUTOEND__STUB__ENABLED": "true",
        },
    )
    fcm, apns = loaded.settings.fcm, loaded.settings.apns

    assert loaded.unknown == loaded.without_effect == ()
    assert fcm.credentials == CREDENTIALS
    assert (fcm.min_ttl_s, fcm.max_ttl_s, fcm.max_data_bytes) == (30, 3600, 3000)
    assert (fcm.timeout_s, fcm.base_url) == (7, "http://127.0.0.1:1")
    assert apns.channels == CHANNELS
    assert (apns.max_data_bytes, apns.request_timeout_s, apns.pool_idle_timeout_s) == (2000, 5, 60)
    assert loaded.settings.stub.enabled


def test_a_file_holds_credentials_and_channels_as_tables_or_as_text(tmp_path: Path) -> None:
    tables = tmp_path / "tables.toml"
    tables.write_text(
        "[fcm]\nmin_ttl = 30\n"
        '[fcm.credentials.app]\nproject_id = "p"\ncredential = "/etc/fcm.json"\n'
        '[apns.channels.release]\ncert = "/etc/apns.pem"\nkey = "/etc/apns.key"\n'
    )
    text = tmp_path / "text.toml"
    text.write_text(f"[fcm]\ncredentials = '{CREDENTIALS}'\n[apns]\nchannels = '{CHANNELS}'\n")

    for config in (tables, text):
        settings = load("autoendpoint", config=config).settings
        assert settings.fcm.credentials == CREDENTIALS
        assert settings.apns.channels == CHANNELS


def test_the_keys_of_registration_secrets_are_taken_as_they_are_written() -> None:
    assert load("autoendpoint").settings.push.auth_keys == '["one", "two"]'


def test_names_of_retired_bridges_are_told_together() -> None:
    names = ("AUTOEND__GCM__TTL", "AUTOEND__ADM_CREDS", "AUTOEND__SENDERID_LIST")
    loaded = load("autoendpoint", dict.fromkeys(names, "1"))

    assert loaded.unknown == ()
    assert set(loaded.without_effect) == set(names)
