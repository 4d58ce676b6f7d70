"""Every conformance scenario has a title and a test, and the page about them is current."""

import pytest

from tools.scenario_table import (
    PAGE,
    SERVICES,
    Service,
    collect,
    load_scenarios,
    render,
    render_service,
)

SCENARIOS = load_scenarios()
COVERED = collect()
WANTED = {scenario.id for scenario in SCENARIOS if scenario.wanted_now}


def test_every_scenario_is_listed_once_and_has_a_title_of_its_own() -> None:
    ids = [scenario.id for scenario in SCENARIOS]

    assert ids == sorted(set(ids))
    assert {f"C-{number:03}" for number in range(1, 161)} <= set(ids)
    assert len({scenario.title for scenario in SCENARIOS}) == len(SCENARIOS)


def test_every_scenario_is_covered_by_a_test() -> None:
    missing = sorted(WANTED - COVERED.keys())

    assert not missing, f"no test names {', '.join(missing)} in its docstring or name"


def test_tests_name_only_scenarios_that_exist() -> None:
    unknown = {
        number: [f"{test.path}::{test.name}" for test in tests]
        for number, tests in COVERED.items()
        if number.startswith("C") and number not in {scenario.id for scenario in SCENARIOS}
    }

    assert not unknown


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_the_conformance_page_of_a_service_is_current(service: Service) -> None:
    assert service.page.read_text() == render_service(service, COVERED), "run make docs"


def test_the_conformance_page_is_current() -> None:
    assert PAGE.read_text() == render(SCENARIOS, COVERED), "run make docs"
