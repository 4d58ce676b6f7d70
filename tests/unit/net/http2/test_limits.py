"""Budgets for frames that cost the sender nothing."""

import pytest

from waystation.net.http2.frames import ConnectionFault, ErrorCode
from waystation.net.http2.limits import Guard, Limits


@pytest.mark.parametrize(
    "name, burst",
    [
        ("premature_reset", Limits().premature_resets_burst),
        ("settings_changed", Limits().settings_burst),
        ("idle_frame", Limits().idle_frames_burst),
    ],
)
def test_a_budget_ends_and_comes_back(name: str, burst: int) -> None:
    guard = Guard(Limits())
    spend = getattr(guard, name)
    for _ in range(burst):
        spend(0.0)

    with pytest.raises(ConnectionFault) as caught:
        spend(0.0)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM
    spend(5.0)
