"""Checks of `waystation doctor`: each yields findings (ok, warning, failure) with advice.

The checks change nothing. Only the self-test subscribes a user agent at the running server and
sends it one notification.
"""

import os
import shutil
import stat
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec

from waystation.app.addresses import PortTakenError, reserve
from waystation.app.data_dir import DataDir
from waystation.app.descriptor_limits import raise_limit
from waystation.app.roles import DEFAULT_ROLES, host_of, ports_of
from waystation.app.server_info import ServerInfo, read_server_info
from waystation.app.settings import (
    Settings,
    is_loopback,
    is_loopback_host,
    loopback_relay,
    open_node_api,
    presence_out_of_reach,
    relay_out_of_reach,
)
from waystation.app.tls import load_tls
from waystation.base.settings import SettingsError

FILES_MIN = 65_536
CERTIFICATE_DAYS_MIN = 14
DISK_BYTES_MIN = 1 << 30
EARLIEST_S = 1_735_689_600  # 2025: an earlier clock was never set
SELF_TEST_TIMEOUT_S = 10.0


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


class Finding(msgspec.Struct, frozen=True):
    """One line of the report."""

    verdict: Verdict
    about: str
    text: str
    advice: str = ""


def _ok(about: str, text: str) -> Finding:
    return Finding(Verdict.OK, about, text)


def _warn(about: str, text: str, advice: str) -> Finding:
    return Finding(Verdict.WARN, about, text, advice)


def _fail(about: str, text: str, advice: str) -> Finding:
    return Finding(Verdict.FAIL, about, text, advice)


def check_files(settings: Settings) -> Iterator[Finding]:
    """The data directory and the keys in it."""
    data = DataDir(settings.data_dir)
    if not data.root.exists():
        advice = "start the server once: waystation serve"
        yield _warn("data directory", f"{data.root} does not exist yet", advice)
        return
    for path in (data.root, data.keys, data.run):
        if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            yield _fail("data directory", f"{path} is open to others", f"chmod 700 {path}")
    yield _ok("data directory", str(data.root))
    free = shutil.disk_usage(data.root).free
    if free < DISK_BYTES_MIN:
        advice = "make room; a full disk refuses new notifications"
        yield _warn("disk", f"{free >> 20} MiB free", advice)
    else:
        yield _ok("disk", f"{free >> 30} GiB free")
    yield from _check_keys(settings, data)


def _check_keys(settings: Settings, data: DataDir) -> Iterator[Finding]:
    from waystation.push.token import InvalidKeyError, parse_key_list  # noqa: PLC0415 slow to load

    path = data.keys / "crypto_keys"
    if not settings.push.crypto_keys and not path.exists():
        yield _warn("keys", "none yet", "the first start creates them")
        return
    for file in data.keys.glob("*"):
        if file.is_file() and stat.S_IMODE(file.stat().st_mode) & 0o077:
            yield _fail("keys", f"{file} can be read by others", f"chmod 600 {file}")
    try:
        count = len(parse_key_list(settings.push.crypto_keys or path.read_text()))
    except (InvalidKeyError, OSError) as exc:
        yield _fail("keys", str(exc), "restore keys/crypto_keys from your backup")
        return
    yield _ok("keys", f"{count} crypto key{'s' if count > 1 else ''}; keep a copy of keys/")


def check_machine() -> Iterator[Finding]:
    """Descriptor limit and clock."""
    limit = raise_limit()  # as a worker does
    if limit < FILES_MIN:
        yield _warn(
            "open files",
            f"at most {limit:,} per process, so about as many connections",
            "LimitNOFILE=1048576 in the systemd unit, or: ulimit -Hn 1048576",
        )
    else:
        yield _ok("open files", f"{limit:,} per process")
    if time.time() < EARLIEST_S:
        yield _fail("clock", f"shows {time.strftime('%Y-%m-%d')}", "enable NTP")
    else:
        yield _ok("clock", time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()))


def check_ports(settings: Settings, serving: ServerInfo | None) -> Iterator[Finding]:
    """Each port is free, or served by the running server."""
    for port, number in ports_of(settings, DEFAULT_ROLES):
        ours = serving.ports.get(port.setting) if serving is not None else None
        if ours is not None:
            yield _ok("port", f"{ours} ({port.setting}) is served by the running server")
            continue
        try:
            reserve(host_of(settings, port), number, port.setting).release()
        except PortTakenError as exc:
            yield _fail("port", str(exc), "find the program: ss -ltnp")
        else:
            yield _ok("port", f"{number} ({port.setting}) is free")
    if exposed := open_node_api(settings):
        yield _warn("node API", exposed, "admit your nodes' addresses to connect.relay_port only")
    if warning := loopback_relay(settings):
        yield _warn(
            "relay", warning, "with several machines: connect.relay_url = http://ADDRESS:PORT"
        )
    if warning := relay_out_of_reach(settings):
        yield _warn("relay", warning, "host = an address of this machine that your nodes reach")
    if warning := presence_out_of_reach(settings):
        yield _warn(
            "presence", warning, "with several machines: presence.peer_endpoint = HOST:PORT"
        )


def check_tls(settings: Settings) -> Iterator[Finding]:
    if not settings.tls.on:
        url = settings.endpoint.url
        here = is_loopback(url) if url else is_loopback_host(settings.host)
        if url.startswith("https:") or here:
            yield _ok("tls", "off; a reverse proxy terminates TLS, or the server is on loopback")
        else:
            yield _warn(
                "tls",
                "off, and endpoint.url is not https: browsers and senders refuse that",
                "set tls.cert and tls.key, or put a reverse proxy in front (deploy/)",
            )
        return
    try:
        load_tls(settings.tls)
    except SettingsError as exc:
        yield _fail("tls", str(exc), "renew the certificate or correct the paths")
        return
    yield _certificate_age(Path(settings.tls.cert))


def _certificate_age(path: Path) -> Finding:
    from cryptography.x509 import load_pem_x509_certificates  # noqa: PLC0415 slow to load

    leaf = load_pem_x509_certificates(path.read_bytes())[0]
    days = (leaf.not_valid_after_utc.timestamp() - time.time()) / 86_400
    if leaf.not_valid_before_utc.timestamp() > time.time():
        return _fail("tls", f"{path} is not valid yet", "check the clock and the certificate")
    if days < 0:
        return _fail("tls", f"{path} has expired", "renew it, then: kill -HUP the server")
    if days < CERTIFICATE_DAYS_MIN:
        return _warn("tls", f"{path} expires in {days:.0f} days", "renew it, then send SIGHUP")
    return _ok("tls", f"{path} is valid for {days:.0f} days")


async def check_store(settings: Settings) -> Finding:
    from waystation.base.clock import SystemClock  # noqa: PLC0415
    from waystation.base.errors import WaystationError  # noqa: PLC0415
    from waystation.storage.open import (  # noqa: PLC0415 loads a driver
        backends_of,
        open_push_store,
        shown_url,
        store_warnings,
    )

    data = DataDir(settings.data_dir)
    where = (settings.store.url, settings.store.db_settings)
    is_local = any(backend.directory for backend in backends_of(*where))
    if is_local and not data.root.exists():
        return _warn("store", "not created yet", "the first start creates it")
    try:
        store = await open_push_store(
            settings.store.url, data_dir=data.root, settings=settings.store, clock=SystemClock()
        )
        try:
            await store.check()
            warnings = await store_warnings(store)
        finally:
            await store.close()
    except (WaystationError, OSError) as exc:
        return _fail("store", str(exc), "for details: waystation store check")
    if warnings:
        text = f"{shown_url(*where)} answers, but may lose accepted data"
        return _warn("store", text, "; ".join(warnings))
    return _ok("store", f"{shown_url(*where)} opens and answers")


async def check_bridges(settings: Settings) -> list[Finding]:
    """Check each app of each bridge with a dry run: no device receives anything."""
    from waystation.app.wiring.bridges import Bridges  # noqa: PLC0415
    from waystation.base.clock import SystemClock  # noqa: PLC0415
    from waystation.telemetry.logs import get  # noqa: PLC0415 loads structlog

    try:
        part = Bridges(settings, clock=SystemClock(), log=get("doctor"))
    except SettingsError as exc:
        return [_fail("bridge", problem, "see docs/guides/bridges.md") for problem in exc.problems]
    findings: list[Finding] = []
    try:
        for name, bridge in part.by_type.items():
            for found in await bridge.check():
                where = f"{name} {found.app_id}"
                if found.ok:
                    findings.append(_ok("bridge", f"{where}: the credentials are accepted"))
                else:
                    advice = "compare key, ids and topic with the vendor's console, see bridges.md"
                    findings.append(_fail("bridge", f"{where}: {found.detail}", advice))
    finally:
        await part.close()
    return findings


async def check_cluster(settings: Settings) -> list[Finding]:
    """Check the queue cluster of this data directory: its slot map and links to its servers."""
    from waystation.base.clock import SystemClock  # noqa: PLC0415
    from waystation.base.errors import WaystationError  # noqa: PLC0415
    from waystation.queue.cluster.link_check import link_complaints  # noqa: PLC0415
    from waystation.queue.cluster.membership import link_context, load_membership  # noqa: PLC0415
    from waystation.queue.cluster.slot_map_text import references, summary  # noqa: PLC0415
    from waystation.storage.open import open_cluster_store  # noqa: PLC0415

    data = DataDir(settings.data_dir)
    try:
        membership = load_membership(data.keys)
        if membership is None:
            return []
        opened = await open_cluster_store(
            membership.member.store_url, data_dir=data.root, settings=settings.store
        )
        try:
            slot_map, ages = await opened.read(), await opened.ages()
        finally:
            await opened.close()
    except (SettingsError, WaystationError, OSError) as exc:
        return [_fail("cluster", str(exc), "every member must reach the store of the slot map")]
    node_id = membership.member.node_id
    if node_id and node_id not in slot_map.nodes:
        text = f"this node ({node_id}) was removed from the cluster"
        return [_fail("cluster", text, "stop it; its data directory can be deleted")]
    context = link_context(membership, server_side=False)
    wrong = await link_complaints(context, slot_map, ages, SystemClock())
    advice = "edges that cannot reach that server do not serve its queues"
    findings = [_fail("cluster", complaint, advice) for complaint in wrong]
    findings += [
        _warn("cluster", line, "start that server, and wait") for line in references(slot_map, ages)
    ]
    return findings or [_ok("cluster", summary(slot_map))]


def running_server(settings: Settings) -> ServerInfo | None:
    serving = read_server_info(DataDir(settings.data_dir))
    return serving if serving is not None and serving.pid != os.getpid() else None
