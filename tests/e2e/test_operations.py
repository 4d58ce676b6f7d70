"""Running it: health, alerts, logs, keys in every spelling: C-153, C-154, C-159 and C-160."""

import asyncio
import base64
import json
from pathlib import Path

import pytest
from cryptography.fernet import Fernet

from tests.e2e.platform import Autoconnect, Autoendpoint, Serve, until
from tests.e2e.wire_clients import (
    UserAgent,
    Vapid,
    accepted,
    b64url,
    http,
    new_channel,
    post,
    user_agent,
    version_of,
)
from tests.ports import free_ports

pytestmark = pytest.mark.e2e

Nodes = tuple[Autoconnect, Autoconnect, Autoendpoint]


def plain(ws_url: str) -> str:
    return ws_url.replace("ws://", "http://").rstrip("/")


async def test_health_is_told_on_every_port(server: Serve, two_nodes: Nodes) -> None:
    """C-153"""
    connect, _, endpoint = two_nodes
    nodes = (plain(server.ws_url), server.relay_url, plain(connect.ws_url), connect.relay_url)
    endpoints = (server.endpoint_url, endpoint.endpoint_url)
    for base in (*nodes, *endpoints):
        for path in ("/__heartbeat__", "/health", "/status"):
            answer = await http("GET", base + path)

            assert answer.status == 200
            assert answer.json["status"] == "OK"
            assert answer.json["version"]
        load_balancer = await http("GET", f"{base}/__lbheartbeat__")
        assert (load_balancer.status, load_balancer.body) == (200, b"")
        version = await http("GET", f"{base}/__version__")
        assert set(version.json) >= {"source", "version", "commit", "build"}
    for base in nodes:
        assert (await http("GET", f"{base}/__heartbeat__")).json["connections"] >= 0
    for base in endpoints:
        body = (await http("GET", f"{base}/__heartbeat__")).json
        assert body["router_table"] == body["message_table"] == {"status": "OK"}
        assert set(body) >= {"routers", "request_count", "reliability"}


async def test_health_is_told_to_head_as_well(server: Serve) -> None:
    """C-153: balancers ask so"""
    for base in (plain(server.ws_url), server.relay_url, server.endpoint_url):
        answer = await http("HEAD", f"{base}/__lbheartbeat__")

        assert (answer.status, answer.body) == (200, b"")


async def test_the_alert_chain_can_be_tried_out(server: Serve, two_nodes: Nodes) -> None:
    """C-154: one critical line for each request"""
    connect, _, endpoint = two_nodes
    daemons = [(connect, plain(connect.ws_url)), (endpoint, endpoint.endpoint_url)]
    routes = [
        (server, plain(server.ws_url), "/__error__"),
        (server, plain(server.ws_url), "/v1/err/crit"),
        (server, server.endpoint_url, "/__error__"),
        (server, server.endpoint_url, "/v1/err"),
        *((daemon, base, "/__error__") for daemon, base in daemons),
    ]
    for process, base, path in routes:
        before = len([line for line in process.err if "log_check" in line])
        answer = await http("GET", base + path)

        assert (answer.status, answer.json["code"], answer.json["errno"]) == (418, 418, 999)
        await asyncio.to_thread(
            until, lambda p=process, n=before: sum("log_check" in line for line in p.err) == n + 1
        )
        last = [line for line in process.err if "log_check" in line][-1]
        parsed = json.loads(last)
        assert parsed.get("level") == "critical" or parsed["Severity"] == 2


async def test_metrics_are_not_public(server: Serve) -> None:
    internal = await http("GET", f"{server.relay_url}/metrics")
    public = await http("GET", f"{plain(server.ws_url)}/metrics")
    endpoint = await http("GET", f"{server.endpoint_url}/metrics")

    assert internal.status == 200
    assert b"waystation_" in internal.body
    assert public.status == endpoint.status == 404


async def test_logs_name_nobody(tmp_path: Path) -> None:
    """C-159: all output of a busy server at the default level: no uaid, no channel, no token, no
    message id, no key, no body, whatever went right or wrong."""
    sender, other = Vapid(), Vapid()
    secrets: set[str] = {sender.key, other.key}
    body = b"the body of a message, which nobody may read"
    with Serve(tmp_path / "data", workers=2) as server:
        for turn in range(4):
            async with user_agent(server.ws_url) as agent:
                channels = [new_channel(), new_channel()]
                v1 = await agent.subscribe(channels[0])
                v2 = await agent.subscribe(channels[1], key=sender.key)
                secrets |= {agent.uaid, *channels}
                secrets |= {endpoint.rpartition("/")[2] for endpoint in (v1, v2)}
                token = sender.token(v2)
                signed = {"Authorization": f"vapid t={token},k={sender.key}"}
                secrets.add(token)
                for _ in range(3):
                    secrets.add(version_of(await accepted(v1, body)))
                    secrets.add(version_of(await accepted(v2, body, headers=signed)))
                messages = await agent.notifications(6)
                await agent.ack(*messages[:3])
                await agent.send(
                    {"messageType": "nack", "version": messages[0]["version"], "code": 301}
                )
                await agent.reconnect()
                await agent.notifications(3, ack=True)
                refused = [
                    await post(v1, body, ttl=None),
                    await post(v2, body, vapid=other),
                    await post(v2, body, headers={"Authorization": f"vapid t={token}x,k=x"}),
                    await post(f"{v1[:-5]}AAAAA", body),
                    await post(v1, body * 200),
                    await http("PUT", v1),
                    await http("PUT", f"{server.relay_url}/push/{agent.uaid}", {}, body),
                ]
                assert all(answer.status >= 400 for answer in refused)
                await agent.unregister(channels[0])
                assert (await post(v1, body)).status == 410
                match turn:
                    case 0:
                        await agent.send(
                            {"messageType": "register", "channelID": "X" + channels[0]}
                        )
                        assert await agent.closed() == 1011
                    case 1:
                        await agent.send("{ " + agent.uaid)
                        assert await agent.closed() == 1011
                    case 2:
                        await agent.vanish()
                    case _:
                        await agent.leave()
        key = server.crypto_key
        server.restart()
        async with UserAgent(server.ws_url) as agent:
            await agent.connect(uaid="f" * 32)
        server.stop()
        text = "\n".join(server.lines)
    files = {
        path.read_text().strip()
        for path in (tmp_path / "data" / "keys").iterdir()
        if path.suffix != ".toml"
    }
    secrets |= {key, *files}
    secrets |= {
        f"{s[:8]}-{s[8:12]}-{s[12:16]}-{s[16:20]}-{s[20:]}" for s in secrets if len(s) == 32
    }
    secrets |= {s.replace("-", "") for s in secrets if len(s) == 36}
    secrets |= {body.decode(), b64url(body), base64.b64encode(body).decode()}

    assert len(server.lines) > 10
    assert all(len(secret) > 20 for secret in secrets)
    told = [line for line in text.splitlines() if any(secret in line for secret in secrets)]
    assert not told


async def test_keys_are_understood_in_every_spelling(tmp_path: Path) -> None:
    """C-160: quoted, unquoted, JSON, with or without brackets and blanks"""
    new, old = Fernet.generate_key().decode(), Fernet.generate_key().decode()
    store_url = f"embedded://{tmp_path / 'store'}"
    ports = [free_ports(1) for _ in range(3)]
    spellings = [f'["{new}", "{old}"]', f"[{new},{old}]", f"'{new}' , '{old}'"]
    connect = Autoconnect(
        tmp_path / "connect",
        endpoint_url=f"http://127.0.0.1:{ports[0]}",
        crypto_key=f"[ {new} , '{old}']",
        db_dsn=store_url,
    )
    endpoints = [
        Autoendpoint(
            tmp_path / f"endpoint-{port}",
            port=port,
            crypto_key=spelling,
            auth_key=auth,
            db_dsn=store_url,
        )
        for port, spelling, auth in zip(ports, spellings, ("[a]", '["a"]', "a"), strict=True)
    ]
    with connect, endpoints[0], endpoints[1], endpoints[2]:
        async with user_agent(connect.ws_url) as agent:
            channel_id = new_channel()
            minted = await agent.subscribe(channel_id)
            token = minted.rpartition("/")[2]
            plain_token = Fernet(new).decrypt(token + "=" * (-len(token) % 4))
            older = Fernet(old).encrypt(plain_token).decode().rstrip("=")
            for endpoint in endpoints:
                for text in (token, older):
                    answer = await accepted(f"{endpoint.endpoint_url}/wpush/v1/{text}")
                    message = await agent.notification(ack=True)

                    assert message["version"] == version_of(answer)
                    assert message["channelID"] == channel_id
                    assert Fernet(new).decrypt(message["version"])
