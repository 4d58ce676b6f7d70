"""The state file of a user agent."""

import stat
from pathlib import Path

import pytest

from waystation.client.encryption import AgentKeys, PublicKeys
from waystation.client.subscriptions import AgentState, StateFile, StateFileError, Subscription

KEYS = AgentKeys.generate()
SUBSCRIPTION = Subscription("c1", "http://127.0.0.1:1/wpush/v1/x", KEYS, "BKey")


def test_a_missing_file_is_an_empty_state(tmp_path: Path) -> None:
    assert StateFile(tmp_path / "none.json").load() == AgentState()


def test_what_was_saved_comes_back_and_is_private(tmp_path: Path) -> None:
    file = StateFile(tmp_path / "deep" / "agent.json")
    state = AgentState("ab" * 16, {"c1": SUBSCRIPTION})

    file.save(state)
    file.save(state)

    assert file.load() == state
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert [path.name for path in file.path.parent.iterdir()] == ["agent.json"]


@pytest.mark.parametrize("content", ["", "[]", '{"uaid": 5}', '{"uaid":"","subscriptions":[{}]}'])
def test_a_foreign_file_is_refused_by_name_and_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "agent.json"
    path.write_text(content)

    with pytest.raises(StateFileError, match=r"agent\.json"):
        StateFile(path).load()
    assert path.read_text() == content


def test_a_file_of_a_later_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "agent.json"
    path.write_text('{"uaid":"","subscriptions":[],"format":2}')

    with pytest.raises(StateFileError, match="another version"):
        StateFile(path).load()


def test_a_subscription_is_found_by_its_endpoint() -> None:
    state = AgentState("u", {"c1": SUBSCRIPTION})

    assert state.by_endpoint(SUBSCRIPTION.endpoint) is SUBSCRIPTION
    assert state.by_endpoint("http://elsewhere/") is None


def test_a_page_gets_what_a_browser_would_give_it() -> None:
    told = SUBSCRIPTION.to_json()

    assert told["endpoint"] == SUBSCRIPTION.endpoint
    keys = told["keys"]
    assert isinstance(keys, dict)
    assert PublicKeys.from_json(keys) == KEYS.public


def test_two_states_do_not_share_their_subscriptions() -> None:
    AgentState().subscriptions["c1"] = SUBSCRIPTION

    assert AgentState().subscriptions == {}
