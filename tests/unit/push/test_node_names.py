import re

import pytest

from waystation.push.node_names import NodeNames
from waystation.telemetry.contract import NODE_PATTERN
from waystation.telemetry.hashes import EventHashes

HASHES = EventHashes(b"m" * 32)
TOLD = {"http://10.0.0.9:8081/w/3": "far.push.3"}


def names(own: str = "near.push.1") -> NodeNames:
    return NodeNames(HASHES, own=own, relay_url="http://10.0.0.7:8081/", told=TOLD.get)


@pytest.mark.parametrize(
    "node_id, name",
    [
        ("http://10.0.0.7:8081/w/0", "near.push.0"),
        ("http://10.0.0.7:8081/w/1", "near.push.1"),
        ("http://10.0.0.7:8081", "near.push.1"),
        ("http://10.0.0.9:8081/w/3", "far.push.3"),
    ],
)
def test_a_node_has_the_name_that_its_own_events_have(node_id: str, name: str) -> None:
    assert names().of(node_id) == name


def test_whoever_has_not_told_us_has_a_name_of_its_own_that_is_no_address() -> None:
    first, again, other, worker = (
        names().of(node_id)
        for node_id in (
            "http://10.0.0.8:8081",
            "http://10.0.0.8:8081",
            "http://10.0.0.8:9000",
            "http://10.0.0.8:8081/w/12",
        )
    )

    assert first == again != other
    assert worker == first.removesuffix(".0") + ".12"
    assert all(re.fullmatch(NODE_PATTERN, name) for name in (first, other, worker))
    assert "10.0.0.8" not in first


def test_who_holds_no_user_agents_does_not_take_a_neighbour_for_itself() -> None:
    """`autoendpoint` beside `autoconnect`: the relay's address is the other one's."""
    assert names(own="").of("http://10.0.0.7:8081").startswith("node-")


def test_a_worker_is_named_for_the_link_that_leads_to_it() -> None:
    assert [names().worker(index) for index in ("", "0", "7")] == [
        "near.push.1",
        "near.push.0",
        "near.push.7",
    ]
