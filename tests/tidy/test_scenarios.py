"""Every conformance scenario has a title and a test, and the page about them is current."""

from tools.scenario_table import PAGE, collect, load_scenarios, render

# Scenarios that wait for their tests. This list only shrinks: a number that is covered must go.
PENDING = frozenset(
    """
    C-001 C-002 C-003 C-004 C-005 C-006 C-007 C-008 C-009 C-011 C-013 C-014 C-015 C-016 C-017
    C-018 C-019 C-020 C-021 C-022 C-023 C-024 C-025 C-026 C-027 C-028 C-029 C-030 C-031 C-032
    C-033 C-036 C-037 C-038 C-039 C-040 C-041 C-042 C-043 C-044 C-045 C-046 C-047 C-049 C-050
    C-051 C-052 C-053 C-054 C-055 C-056 C-057 C-058 C-059 C-060 C-062 C-063 C-065 C-066 C-067
    C-068 C-069 C-070 C-071 C-072 C-073 C-074 C-075 C-076 C-077 C-078 C-079 C-080 C-081 C-082
    C-083 C-084 C-086 C-087 C-088 C-088b C-089 C-090 C-091 C-103 C-105 C-113 C-115 C-116 C-131
    C-132 C-133 C-134 C-135 C-136 C-137 C-138 C-147 C-148 C-149 C-150 C-151 C-152 C-153 C-154
    C-155 C-156 C-157 C-158 C-159
    """.split()  # noqa: SIM905  a list this long reads better as text
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
    missing = sorted(WANTED - COVERED.keys() - PENDING)

    assert not missing, f"no test names {', '.join(missing)} in its docstring or name"


def test_what_is_covered_is_no_longer_pending() -> None:
    done = sorted(PENDING & COVERED.keys())

    assert not done, f"{', '.join(done)} have tests now: remove them from PENDING"
    assert PENDING <= WANTED, "only scenarios that are wanted now can be pending"


def test_tests_name_only_scenarios_that_exist() -> None:
    unknown = {
        number: [f"{test.path}::{test.name}" for test in tests]
        for number, tests in COVERED.items()
        if number not in {scenario.id for scenario in SCENARIOS}
    }

    assert not unknown


def test_the_conformance_page_is_current() -> None:
    assert PAGE.read_text() == render(SCENARIOS, COVERED), "run make docs"
