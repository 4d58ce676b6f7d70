"""Ports that are free, held and told; URLs that follow from them."""

import socket

import pytest

from tests.ports import free_ports
from waystation.app.addresses import (
    PortTakenError,
    listen,
    listening,
    node_id,
    origin,
    reserve,
    reserve_ports,
    settle,
)
from waystation.app.settings import Settings, replaced


def test_port_zero_becomes_a_port_that_siblings_can_share() -> None:
    held = reserve("127.0.0.1", 0, "connect.port")
    first = listen("127.0.0.1", held.port, "connect.port")
    second = listen("127.0.0.1", held.port, "connect.port")

    assert held.port > 0
    assert first.getsockname() == second.getsockname()
    for one in (first, second):
        one.close()
    held.release()


def test_a_port_that_a_stranger_listens_on_is_refused_with_its_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        with pytest.raises(
            PortTakenError, match=rf"127\.0\.0\.1:{port} \(endpoint\.port\) is taken"
        ):
            reserve("127.0.0.1", port, "endpoint.port")


def test_a_second_server_is_refused_even_though_it_could_share() -> None:
    held = reserve("127.0.0.1", 0, "connect.port")
    with pytest.raises(PortTakenError):
        reserve("127.0.0.1", held.port, "connect.port")
    worker = listen("127.0.0.1", held.port, "connect.port")
    with pytest.raises(PortTakenError):
        reserve("127.0.0.1", held.port, "connect.port")
    worker.close()
    held.release()
    reserve("127.0.0.1", held.port, "connect.port").release()


def test_nobody_connects_to_a_port_that_is_only_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor while it is being reserved: that door would close again."""
    monkeypatch.setattr(socket.socket, "listen", _never, raising=False)
    held = reserve("127.0.0.1", free_ports(1), "connect.port")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", held.port), 1)
    held.release()


def _never(*_: object) -> None:
    raise AssertionError("it listens")


def test_an_address_that_is_not_ours_is_named() -> None:
    with pytest.raises(PortTakenError, match="not an address of this machine"):
        reserve("192.0.2.1", 0, "connect.port")


def test_if_one_port_is_taken_none_is_held() -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        taken = stranger.getsockname()[1]
        free = reserve("127.0.0.1", 0, "x")
        free.release()
        ports = {"connect": {"port": free.port, "relay_port": taken}}
        with pytest.raises(PortTakenError, match=r"connect\.relay_port"):
            reserve_ports(replaced(Settings(), ports), ("connect",))
        reserve("127.0.0.1", free.port, "x").release()


@pytest.mark.parametrize(
    "scheme, host, port, url",
    [
        ("http", "a", 80, "http://a"),
        ("https", "a", 443, "https://a"),
        ("https", "a", 80, "https://a:80"),
        ("ws", "[::1]", 8080, "ws://[::1]:8080"),
    ],
)
def test_a_port_that_the_scheme_implies_is_left_out(
    scheme: str, host: str, port: int, url: str
) -> None:
    assert origin(scheme, host, port) == url


def test_urls_follow_from_host_port_and_tls() -> None:
    plain = settle(Settings(), {"connect.port": 5, "connect.relay_port": 6, "endpoint.port": 7})
    secure = settle(replaced(Settings(host="push.example.org"), {"tls": {"cert": "c"}}), {})

    assert plain.connect.url == "ws://127.0.0.1:5/"
    assert plain.connect.relay_url == "http://127.0.0.1:6"
    assert plain.endpoint.url == "http://127.0.0.1:7"
    assert secure.connect.url == "wss://push.example.org:8080/"
    assert secure.endpoint.url == "https://push.example.org:8082"
    assert secure.connect.relay_url == "http://push.example.org:8081"


def test_urls_that_are_set_stay() -> None:
    urls = {"endpoint": {"url": "https://up.example.org/"}, "connect": {"url": "wss://p/x"}}
    settled = settle(replaced(Settings(host="0.0.0.0"), urls), {})

    assert settled.endpoint.url == "https://up.example.org"
    assert settled.connect.url == "wss://p/x"
    assert settled.connect.relay_url == "http://127.0.0.1:8081"


def test_the_table_has_a_line_for_each_port_of_the_roles_that_run() -> None:
    settings = settle(Settings(), {})

    assert [row.setting for row in listening(settings, ("connect", "endpoint", "console"))] == [
        "connect.port",
        "connect.relay_port",
        "endpoint.port",
        "console.port",
    ]
    assert [row.setting for row in listening(settings, ("endpoint",))] == ["endpoint.port"]


def test_a_worker_is_named_in_the_node_id_only_if_it_has_siblings() -> None:
    settings = settle(Settings(), {})

    assert node_id(settings, 0, 1) == "http://127.0.0.1:8081"
    assert node_id(settings, 3, 4) == "http://127.0.0.1:8081/w/3"
