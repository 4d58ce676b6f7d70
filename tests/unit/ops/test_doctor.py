"""What the doctor finds, and what it advises."""

import socket
from pathlib import Path

import msgspec
import pytest

from waystation.app.data_dir import DataDir
from waystation.app.keys import ensure_secrets
from waystation.app.server_info import ServerInfo
from waystation.app.settings import Settings, replaced
from waystation.ops import doctor
from waystation.ops.doctor import Finding, Verdict
from waystation.queue.cluster.membership import enrol, new_invitation
from waystation.queue.cluster.slot_map import Node, NodeId, SlotMap
from waystation.storage.open import open_cluster_store
from waystation.storage.settings import Store


def settings(tmp_path: Path, **changes: dict[str, object]) -> Settings:
    ports: dict[str, dict[str, object]] = {
        "connect": {"port": 0, "relay_port": 0},
        "endpoint": {"port": 0},
        "console": {"port": 0},
    }
    return replaced(Settings(data_dir=tmp_path / "data"), {**ports, **changes})


def made(tmp_path: Path) -> DataDir:
    data = DataDir(tmp_path / "data")
    data.make()
    ensure_secrets(data)
    return data


def failures(findings: list[Finding]) -> list[Finding]:
    return [one for one in findings if one.verdict is Verdict.FAIL]


def test_a_good_directory_has_nothing_to_complain_about(tmp_path: Path) -> None:
    made(tmp_path)
    findings = list(doctor.check_files(settings(tmp_path)))

    assert not failures(findings)
    assert any("1 crypto key" in one.text for one in findings)


def test_what_others_can_read_is_a_failure_with_the_command_that_mends_it(tmp_path: Path) -> None:
    data = made(tmp_path)
    (data.keys / "crypto_keys").chmod(0o644)
    data.root.chmod(0o755)
    advice = [one.advice for one in failures(list(doctor.check_files(settings(tmp_path))))]

    assert f"chmod 700 {data.root}" in advice
    assert f"chmod 600 {data.keys / 'crypto_keys'}" in advice


def test_a_damaged_key_is_a_failure(tmp_path: Path) -> None:
    data = made(tmp_path)
    (data.keys / "crypto_keys").write_text("short")

    assert failures(list(doctor.check_files(settings(tmp_path))))


def test_before_the_first_start_there_is_only_a_hint(tmp_path: Path) -> None:
    findings = list(doctor.check_files(settings(tmp_path)))

    assert [one.verdict for one in findings] == [Verdict.WARN]
    assert "waystation serve" in findings[0].advice


def test_a_port_of_a_stranger_is_a_failure_and_our_own_is_not(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        taken = settings(tmp_path, endpoint={"port": port})
        ours = ServerInfo(pid=1, version="", roles=(), workers=1, ports={"endpoint.port": port})

        def complaints(serving: ServerInfo | None) -> list[str]:
            """Of this port alone: on others somebody may listen on this machine."""
            findings = failures(list(doctor.check_ports(taken, serving)))
            return [one.text for one in findings if "endpoint.port" in one.text]

        assert len(complaints(None)) == 1
        assert not complaints(ours)


@pytest.mark.parametrize(
    "host, warned", [("0.0.0.0", True), ("192.0.2.7", True), ("127.0.0.1", False), ("::1", False)]
)
def test_a_node_api_that_others_can_reach_is_warned_of(
    tmp_path: Path, host: str, warned: bool
) -> None:
    there = msgspec.structs.replace(settings(tmp_path), host=host)
    findings = list(doctor.check_ports(there, None))

    warnings = [one for one in findings if one.about == "node API"]
    assert [one.verdict for one in warnings] == [Verdict.WARN] * warned


def test_a_public_name_without_tls_is_warned_of(tmp_path: Path) -> None:
    plain = settings(tmp_path, endpoint={"url": "http://updates.example.org"})
    here = msgspec.structs.replace(settings(tmp_path), host="::1")
    behind_proxy = settings(tmp_path, endpoint={"url": "https://updates.example.org"})

    assert [one.verdict for one in doctor.check_tls(plain)] == [Verdict.WARN]
    assert [one.verdict for one in doctor.check_tls(behind_proxy)] == [Verdict.OK]
    assert [one.verdict for one in doctor.check_tls(here)] == [Verdict.OK]


def test_a_certificate_that_is_not_there_is_a_failure(tmp_path: Path) -> None:
    missing = settings(tmp_path, tls={"cert": "/nowhere/c.pem", "key": "/nowhere/k.pem"})
    findings = list(doctor.check_tls(missing))

    assert [one.verdict for one in findings] == [Verdict.FAIL]
    assert "/nowhere/c.pem" in findings[0].text


async def test_a_store_that_opens_is_fine(tmp_path: Path) -> None:
    made(tmp_path)
    found = await doctor.check_store(settings(tmp_path, store={"url": "memory:"}))

    assert found.verdict is Verdict.OK


async def test_both_of_two_stores_are_asked(tmp_path: Path) -> None:
    dual = "dual:?primary=memory%3A&secondary="
    fine = settings(tmp_path, store={"url": dual + "memory%3A"})
    half = settings(
        tmp_path, store={"url": dual + "redis%3A%2F%2F127.0.0.1%3A1", "connect_timeout_s": 0.5}
    )

    found = await doctor.check_store(fine)
    assert (found.verdict, found.text) == (
        Verdict.OK,
        "dual: memory: and memory: opens and answers",
    )
    found = await doctor.check_store(half)
    assert found.verdict is Verdict.FAIL
    assert found.text.startswith("secondary: "), "whose fault it is"


async def member(tmp_path: Path, *, references_left: int = 0, alive: bool = False) -> Settings:
    """Node 1 of a cluster, at whose link nobody listens."""
    invitation = new_invitation(f"embedded:{tmp_path / 'map'}")
    enrol(made(tmp_path).keys, invitation, node_id=NodeId(1))
    node = Node(
        node_id=NodeId(1),
        host="127.0.0.1",
        port=1,
        fingerprint=b"",
        references_left=references_left,
    )
    store = await open_cluster_store(invitation.store_url, data_dir=tmp_path, settings=Store())
    assert await store.commit(SlotMap().with_node(node))
    if alive:
        await store.renew(NodeId(1))
    await store.close()
    return settings(tmp_path)


async def test_a_directory_outside_of_a_cluster_has_no_finding_about_one(tmp_path: Path) -> None:
    made(tmp_path)

    assert not await doctor.check_cluster(settings(tmp_path))


async def test_a_cluster_whose_links_are_fine_is_summed_up(tmp_path: Path) -> None:
    (found,) = await doctor.check_cluster(await member(tmp_path))

    assert (found.verdict, found.text) == (Verdict.OK, "epoch 1, 1 servers")


async def test_a_wrong_link_of_a_server_that_is_alive_is_a_failure(tmp_path: Path) -> None:
    (found,) = await doctor.check_cluster(await member(tmp_path, alive=True))

    assert found.verdict is Verdict.FAIL
    assert "127.0.0.1:1 is not reached from here: connection refused" in found.text
    assert "cluster set-link HOST:PORT --node 1" in found.text


async def test_references_that_are_still_written_are_a_warning(tmp_path: Path) -> None:
    (found,) = await doctor.check_cluster(await member(tmp_path, references_left=96))

    assert found.verdict is Verdict.WARN
    assert "4,000 of 4,096 slots are done" in found.text


async def test_a_server_that_was_removed_is_told_so(tmp_path: Path) -> None:
    there = await member(tmp_path)
    url = f"embedded:{tmp_path / 'map'}"
    store = await open_cluster_store(url, data_dir=tmp_path, settings=Store())
    assert await store.commit((await store.read()).without_node(NodeId(1)))
    await store.close()

    (found,) = await doctor.check_cluster(there)

    assert found.verdict is Verdict.FAIL
    assert "was removed from the cluster" in found.text


def test_the_machine_is_looked_at() -> None:
    assert {one.about for one in doctor.check_machine()} == {"open files", "clock"}
