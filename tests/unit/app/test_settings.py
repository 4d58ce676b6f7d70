"""Defaults, file, environment, flags; and what settings say about each other."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from waystation.app.roles import PORTS
from waystation.app.settings import (
    Settings,
    cross_check,
    decode_settings,
    encode_settings,
    is_loopback,
    load_settings,
    loopback_relay,
    presence_out_of_reach,
    relay_out_of_reach,
    replaced,
)
from waystation.base.settings import SettingsError
from waystation.storage.open import shared_by_machines


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_everything_has_a_default_and_the_defaults_hold_together() -> None:
    settings = load_settings()

    assert settings == Settings()
    assert settings.host == "127.0.0.1"
    assert settings.data_dir == Path("waystation-data")
    assert (settings.connect.port, settings.connect.relay_port) == (8080, 8081)
    assert (settings.endpoint.port, settings.console.port) == (8082, 8083)


def test_flags_win_over_environment_over_file(tmp_path: Path) -> None:
    config = write(
        tmp_path / "c.toml", "host = '10.0.0.1'\nworkers = 3\n[connect]\nport = 1\nmsg_limit = 7\n"
    )
    settings = load_settings(
        config=config,
        env={"WAYSTATION_CONNECT__PORT": "2", "WAYSTATION_WORKERS": "4"},
        flags={"workers": "5", "host": None},
    )

    assert settings.host == "10.0.0.1"
    assert settings.connect.port == 2
    assert settings.connect.msg_limit == 7
    assert settings.workers == 5


def test_an_unknown_key_is_an_error_that_names_it_and_the_nearest_known_one(
    tmp_path: Path,
) -> None:
    config = write(tmp_path / "c.toml", "[connect]\nprot = 8080\n")
    with pytest.raises(SettingsError, match=r"connect\.prot .*connect\.port"):
        load_settings(config=config)
    with pytest.raises(SettingsError, match="WAYSTATION_WORKER; did you mean WAYSTATION_WORKERS"):
        load_settings(env={"WAYSTATION_WORKER": "3"})


def test_settings_of_the_retired_section_proxy_name_the_new_ones(tmp_path: Path) -> None:
    config = tmp_path / "c.toml"
    config.write_text("[proxy]\nport = 5223\n")

    with pytest.raises(SettingsError, match=r"proxy\.port in .*c\.toml .*set `edge\.port`"):
        load_settings(config=config)
    with pytest.raises(SettingsError, match=r"WAYSTATION_PROXY__DRAIN_S .*set `edge\.drain_s`"):
        load_settings(env={"WAYSTATION_PROXY__DRAIN_S": "1"})


def test_names_that_others_read_are_no_settings() -> None:
    env = {"WAYSTATION_SOAK": "1", "WAYSTATION_COMMIT": "abc", "WAYSTATION_CONFIG": "x"}

    assert load_settings(env=env) == Settings()


@pytest.mark.parametrize("text", ["workers = ", "\xff"])
def test_a_file_that_is_no_toml_is_named(tmp_path: Path, text: str) -> None:
    config = tmp_path / "c.toml"
    config.write_bytes(text.encode("latin-1"))
    with pytest.raises(SettingsError, match=r"c\.toml is not TOML"):
        load_settings(config=config)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no settings file .*missing\.toml"):
        load_settings(config=tmp_path / "missing.toml")


def test_a_port_base_gives_all_ports_at_once() -> None:
    settings = load_settings(flags={"port_base": 9000})

    assert settings.connect.port == 9000
    assert settings.connect.relay_port == 9001
    assert settings.endpoint.port == 9002
    assert settings.console.port == 9003
    assert len({port.offset for port in PORTS}) == len(PORTS)


def test_a_single_port_stands_above_the_base() -> None:
    settings = load_settings(flags={"port_base": 9000}, env={"WAYSTATION_CONSOLE__PORT": "0"})

    assert settings.console.port == 0
    assert settings.endpoint.port == 9002


@pytest.mark.parametrize(
    "env, expected",
    [
        ({"WAYSTATION_TLS__CERT": "c.pem"}, "must be set together"),
        ({"WAYSTATION_CONNECT__RELAY_TLS": "yes"}, r"needs tls\.cert"),
        ({"WAYSTATION_CONNECT__PORT": "8082"}, "both 8082"),
        ({"WAYSTATION_ENDPOINT__URL": "push.example.org"}, r"expected http://HOST"),
        ({"WAYSTATION_CONNECT__URL": "https://push.example.org"}, r"expected ws://HOST"),
        ({"WAYSTATION_CONNECT__RELAY_URL": "http://a:b"}, r"connect\.relay_url"),
        ({"WAYSTATION_STORE__URL": "memory:", "WAYSTATION_WORKERS": "2"}, "one process"),
        ({"WAYSTATION_STORE__URL": "cassandra://x"}, "is not a known store"),
        ({"WAYSTATION_CONNECT__SEND_BUFFER_HIGH_BYTES": "2000000"}, "send_buffer_max_bytes"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    env: dict[str, str], expected: str
) -> None:
    with pytest.raises(SettingsError, match=expected):
        load_settings(env=env)


NAMED = {"endpoint": {"url": "https://u.example.org"}, "queue": {"hosts": "smp.example.org"}}


def on_redis(relay_url: str, host: str) -> Settings:
    changes = {"store": {"url": "redis://r"}, "connect": {"relay_url": relay_url}, **NAMED}
    return replace(replaced(Settings(), changes), host=host)


@pytest.mark.parametrize(
    "relay_url, host, warned",
    [
        ("http://127.0.0.1:8081", "127.0.0.1", True),
        ("http://localhost:8081", "0.0.0.0", True),
        ("", "127.0.0.1", True),
        ("", "10.0.0.5", False),
        ("http://10.0.0.5:8081", "0.0.0.0", False),
    ],
)
def test_one_machine_on_a_shared_store_may_have_a_loopback_relay_address(
    relay_url: str, host: str, warned: bool
) -> None:
    settings = on_redis(relay_url, host)
    warning = loopback_relay(settings)

    assert cross_check(settings) == []
    assert (warning is not None) is warned
    assert warning is None or "with a second one" in warning.lower()


def test_an_address_for_all_needs_a_relay_address_that_leads_here() -> None:
    (problem,) = cross_check(on_redis("", "0.0.0.0"))

    assert problem.startswith("connect.relay_url must be set")


def test_a_store_of_this_machine_alone_is_relayed_on_loopback_without_a_word() -> None:
    assert loopback_relay(Settings()) is None


def test_a_store_that_nobody_knows_is_one_problem_not_two() -> None:
    (problem,) = cross_check(replaced(Settings(), {"store": {"url": "nonsense:"}}))

    assert problem.startswith("store.url")


@pytest.mark.parametrize(
    "store, relay_url, host, in_vain",
    [
        ("redis://r", "http://10.0.0.5:8081", "127.0.0.1", True),
        ("redis://r", "http://10.0.0.5:8081", "localhost", True),
        ("redis://r", "http://10.0.0.5:8081", "::1", True),
        ("redis://r", "http://10.0.0.5:8081", "10.0.0.5", False),
        ("redis://r", "http://10.0.0.5:8081", "0.0.0.0", False),
        ("embedded", "http://10.0.0.5:8081", "127.0.0.1", False),
        ("embedded", "", "127.0.0.1", False),
    ],
)
def test_a_relay_address_that_leads_to_a_closed_door_is_told(
    store: str, relay_url: str, host: str, in_vain: bool
) -> None:
    settings = load_settings(
        flags={
            "store.url": store,
            "connect.relay_url": relay_url,
            "host": host,
            "endpoint.url": "https://updates.example.org",
            "queue.hosts": "smp.example.org",
        }
    )

    warning = relay_out_of_reach(settings)
    assert (warning is not None) is in_vain
    assert warning is None or relay_url in warning


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "0", "0.0", "::0", "::ffff:0.0.0.0"])
def test_an_address_that_stands_for_all_needs_public_names(host: str) -> None:
    nameless = replace(Settings(), host=host)

    named = [problem.split()[0] for problem in cross_check(nameless)]
    assert named == ["endpoint.url", "queue.hosts"]
    assert cross_check(nameless, ("presence", "console")) == []
    assert [one.split()[0] for one in cross_check(nameless, ("edge",))] == ["queue.hosts"]
    assert cross_check(replaced(nameless, NAMED)) == []


@pytest.mark.parametrize("host", ["127.0.0.1", "192.0.2.7", "push.example.org", "::1"])
def test_an_address_that_others_can_connect_to_is_a_name(host: str) -> None:
    assert cross_check(replace(Settings(), host=host)) == []


@pytest.mark.parametrize(
    "host, store, peer_endpoint, told",
    [
        ("0.0.0.0", "redis://r", "", True),
        ("::0", "redis://r", "", True),
        ("0.0.0.0", "redis://r", "10.0.0.5:50052", False),
        ("10.0.0.5", "redis://r", "", False),
        ("127.0.0.1", "redis://r", "", False),  # on purpose: several nodes on one machine
        ("0.0.0.0", "embedded:./store", "", False),
    ],
)
def test_a_presence_node_that_leads_others_to_themselves_is_told_of(
    host: str, store: str, peer_endpoint: str, told: bool
) -> None:
    presence = {"host": host, "store": store, "peer_endpoint": peer_endpoint}
    warning = presence_out_of_reach(replaced(Settings(), {"presence": presence}))

    assert (warning is not None) is told
    assert warning is None or "presence.peer_endpoint" in warning


def test_a_flag_is_called_as_the_command_calls_it() -> None:
    with pytest.raises(SettingsError, match=r"log\.level from flag --log-level is 'loud'"):
        load_settings(flags={"log.level": "loud"})
    with pytest.raises(SettingsError, match=r"workers from flag --workers is 'x': .* or auto"):
        load_settings(flags={"workers": "x"})


def test_who_holds_no_connections_needs_no_relay_address() -> None:
    settings = replaced(Settings(), {"store": {"url": "redis://r"}})

    assert cross_check(settings, ("endpoint",)) == []
    assert cross_check(settings, ()) == [], "store commands listen nowhere"


def test_ports_of_roles_that_do_not_run_do_not_matter() -> None:
    settings = replaced(Settings(), {"connect": {"port": 8083}})

    assert cross_check(settings, ("connect", "endpoint")) == []
    assert cross_check(settings) != []


def test_all_objections_are_reported_together() -> None:
    env = {"WAYSTATION_CONNECT__PORT": "8082", "WAYSTATION_TLS__KEY": "k"}
    with pytest.raises(SettingsError) as caught:
        load_settings(env=env)

    assert len(caught.value.problems) == 2


def test_settings_reach_another_process_unchanged() -> None:
    settings = load_settings(flags={"workers": "7", "data_dir": "/var/lib/x", "port_base": 9000})

    assert decode_settings(encode_settings(settings)) == settings


def test_auto_is_a_worker_for_each_core_we_may_use() -> None:
    assert Settings().worker_count >= 1
    assert Settings(workers=3).worker_count == 3


@pytest.mark.parametrize(
    "url, loopback",
    [
        ("http://localhost:1", True),
        ("http://[::1]:1", True),
        ("http://127.9.9.9", True),
        ("http://a.localhost", True),
        ("http://10.0.0.1", False),
        ("http://localhost.example.org", False),
    ],
)
def test_loopback_is_recognised(url: str, loopback: bool) -> None:
    assert is_loopback(url) is loopback


def test_embedded_and_memory_stores_are_this_machines_own() -> None:
    assert not shared_by_machines("embedded:./store")
    assert not shared_by_machines("memory:")
    assert shared_by_machines("redis://host")


def test_the_choice_of_a_transport_is_no_setting_any_more(tmp_path: Path) -> None:
    config = write(tmp_path / "waystation.toml", '[presence]\ntransport = "native"\n')

    with pytest.raises(SettingsError, match="presence serves HTTP/2 itself"):
        load_settings(config=config)
