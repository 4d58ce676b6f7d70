"""Nobody's sockets take everybody's."""

import resource

import pytest

from waystation.app.descriptor_limits import LIMIT_MAX, Shares, passing_max, raise_limit, within
from waystation.app.wiring.connect_role import websocket_limits
from waystation.push.settings import Connect

BOTH = ("connect", "endpoint")


@pytest.mark.parametrize("limit", [64, 256, 1024, 20_000, 65_536, LIMIT_MAX])
@pytest.mark.parametrize("roles", [BOTH, ("connect",), ("endpoint",)])
def test_the_shares_leave_something_for_the_rest(limit: int, roles: tuple[str, ...]) -> None:
    shares = Shares.of(limit, roles)

    assert shares.user_agents + shares.app_servers <= limit - 32
    assert 0 < shares.nodes <= limit - shares.user_agents - shares.app_servers - 16
    assert (shares.user_agents > 0) == ("connect" in roles)
    assert (shares.app_servers > 0) == ("endpoint" in roles)


def test_nearly_all_of_many_are_for_user_agents() -> None:
    assert Shares.of(LIMIT_MAX, BOTH).user_agents > 0.97 * LIMIT_MAX
    assert Shares.of(20_000, BOTH).user_agents > 16_000


@pytest.mark.parametrize("descriptors", [10, 700, 16_000, 1_000_000])
def test_arriving_connected_and_leaving_user_agents_fit_into_their_share(descriptors: int) -> None:
    limits = websocket_limits(Connect(), descriptors)

    assert limits.connections_max > 0
    # As many as may arrive are refused with an answer.
    arriving, leaving = 2 * limits.upgrading_max, passing_max(descriptors)
    assert limits.connections_max + arriving + leaving <= descriptors


def test_a_lower_limit_of_ones_own_counts() -> None:
    assert websocket_limits(Connect(max_connections=50), 16_000).connections_max == 50
    assert within(100, 0) == 100
    assert within(100, 5000) == 100


def test_the_soft_limit_is_raised_to_the_hard() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    lower = min(soft, 256)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lower, hard))
    try:
        raised = raise_limit()

        assert raised == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        assert raised == min(hard, LIMIT_MAX) if hard != resource.RLIM_INFINITY else LIMIT_MAX
        assert raise_limit() == raised
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
