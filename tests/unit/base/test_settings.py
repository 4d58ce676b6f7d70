from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import pytest

from waystation.base.settings import SettingsError, describe, doc, load


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Connect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    port: Annotated[
        int,
        msgspec.Meta(ge=0, le=65535),
        doc("Where user agents connect.", daemon="AUTOCONNECT port"),
    ] = 8080
    ping_interval_s: Annotated[float, msgspec.Meta(gt=0), doc("How often we ping.")] = 300.0
    journal: Annotated[Literal["write", "fsync", "off"], doc("The in-flight journal.")] = "write"
    tracing: Annotated[bool, doc("Whether we trace.")] = False


class Endpoint(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    keys: Annotated[tuple[str, ...], doc("Keys, the newest first.", secret=True)] = ()
    limits: Annotated[list[int], doc("Limits.")] = msgspec.field(default_factory=lambda: [1, 2])
    pin: Annotated[int, doc("A secret number.", secret=True)] = 0

    def __post_init__(self) -> None:
        if self.limits and self.limits[0] > 1000:
            raise ValueError("the first limit is too large")


class House(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    data_dir: Annotated[Path, doc("Where state lives.")] = Path("./waystation-data")
    workers: Annotated[Annotated[int, msgspec.Meta(ge=1)] | Literal["auto"], doc("Processes.")] = (
        "auto"
    )
    store: Annotated[str | None, doc("A store's URL.")] = None
    colour: Annotated[Colour, doc("Paint.")] = Colour.RED
    names: Annotated[dict[str, int], doc("Numbers by name.")] = msgspec.field(default_factory=dict)
    connect: Connect = Connect()
    endpoint: Endpoint = Endpoint()


def test_without_any_layer_the_defaults_stand() -> None:
    assert load(House) == House()


def test_each_layer_wins_over_the_one_before_setting_by_setting() -> None:
    house = load(
        House,
        defaults={"connect": {"port": 1, "ping_interval_s": 1, "journal": "off"}},
        toml={"connect": {"port": 2, "ping_interval_s": 2}},
        env={"WAYSTATION_CONNECT__PORT": "3"},
        flags={"connect.port": None, "connect.tracing": True},
    )

    assert house.connect == Connect(port=3, ping_interval_s=2.0, journal="off", tracing=True)
    assert load(House, toml={"workers": 2}, flags={"workers": 4}).workers == 4


@pytest.mark.parametrize(
    "name, text, expected",
    [
        ("WAYSTATION_WORKERS", "3", 3),
        ("WAYSTATION_WORKERS", "auto", "auto"),
        ("WAYSTATION_STORE", "memory:", "memory:"),
        ("WAYSTATION_STORE", "5", "5"),
        ("WAYSTATION_COLOUR", "blue", Colour.BLUE),
        ("WAYSTATION_DATA_DIR", "/srv/x", Path("/srv/x")),
        ("WAYSTATION_NAMES", '{"a": 1}', {"a": 1}),
    ],
)
def test_text_of_the_environment_becomes_the_type_of_the_setting(
    name: str, text: str, expected: object
) -> None:
    field = name.removeprefix("WAYSTATION_").lower()

    assert getattr(load(House, env={name: text}), field) == expected


@pytest.mark.parametrize(
    "text, expected",
    [("true", True), ("1", True), ("on", True), ("Yes", True), ("false", False), ("off", False)],
)
def test_switches_take_the_usual_words(text: str, expected: bool) -> None:
    assert load(House, env={"WAYSTATION_CONNECT__TRACING": text}).connect.tracing is expected


@pytest.mark.parametrize("text", ["1,2, 3", "[1, 2, 3]"])
def test_lists_come_with_commas_or_as_json(text: str) -> None:
    assert load(House, env={"WAYSTATION_ENDPOINT__LIMITS": text}).endpoint.limits == [1, 2, 3]


def test_an_unknown_key_of_the_file_is_named_with_its_file_and_the_nearest_known_one() -> None:
    with pytest.raises(SettingsError) as caught:
        load(House, toml={"connect": {"prot": 1}}, toml_path="house.toml")

    assert str(caught.value) == (
        "unknown setting connect.prot in house.toml; did you mean connect.port?"
    )


def test_an_unknown_section_finds_the_setting_that_bears_the_name() -> None:
    with pytest.raises(SettingsError, match=r"did you mean connect\.ping_interval_s\?"):
        load(House, toml={"x": {"ping_interval_s": 1}})


def test_an_unknown_environment_variable_with_our_prefix_is_an_error() -> None:
    env = {"WAYSTATION_CONNECT__PRT": "1", "PATH": "/bin"}

    with pytest.raises(SettingsError) as caught:
        load(House, env=env)

    assert str(caught.value) == (
        "unknown environment variable WAYSTATION_CONNECT__PRT;"
        " did you mean WAYSTATION_CONNECT__PORT?"
    )


def test_names_on_the_allow_list_are_passed_over() -> None:
    env = {"WAYSTATION_WORKER_INDEX": "1", "WAYSTATION_TEST_SEED": "7"}

    assert load(House, env=env, allow_env=["WAYSTATION_WORKER_INDEX", "WAYSTATION_TEST_*"])


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(SettingsError, match=r"unknown setting conect\.port among the flags"):
        load(House, flags={"conect.port": 1})


def test_unknown_names_can_be_told_instead_of_refused() -> None:
    told: list[str] = []

    assert load(House, env={"AUTOCONNECT__NO": "1"}, prefix="AUTOCONNECT__", on_unknown=told.append)
    assert len(told) == 1
    assert told[0].startswith("unknown environment variable AUTOCONNECT__NO")


@pytest.mark.parametrize(
    "layer, place",
    [
        pytest.param({"toml": {"old": {"door": 1}}}, "the settings file", id="file"),
        pytest.param(
            {"env": {"WAYSTATION_OLD__DOOR": "1"}},
            "environment variable WAYSTATION_OLD__DOOR",
            id="environment",
        ),
    ],
)
def test_a_retired_setting_says_what_to_do(layer: dict[str, Any], place: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load(House, retired={"old.door": "remove it"}, on_unknown=lambda _: None, **layer)

    assert refused.value.problems == [f"old.door in {place} was retired: remove it"]


def test_a_bad_value_names_the_setting_its_place_and_what_is_expected() -> None:
    with pytest.raises(SettingsError) as caught:
        load(House, env={"WAYSTATION_CONNECT__PORT": "70000"})

    assert str(caught.value) == (
        "connect.port from environment variable WAYSTATION_CONNECT__PORT is '70000':"
        " expected int <= 65535"
    )


def test_a_bad_choice_lists_the_choices() -> None:
    with pytest.raises(SettingsError, match=r"one of write, fsync, off") as caught:
        load(House, flags={"connect.journal": "maybe"})

    assert str(caught.value).startswith("connect.journal from flag --journal is 'maybe'")


def test_text_in_the_file_is_not_taken_for_a_number() -> None:
    with pytest.raises(SettingsError, match=r"connect\.port from the settings file is '80'"):
        load(House, toml={"connect": {"port": "80"}})


def test_the_value_of_a_secret_is_not_repeated() -> None:
    with pytest.raises(SettingsError) as caught:
        load(House, env={"WAYSTATION_ENDPOINT__PIN": "hunter2"})

    assert "hunter2" not in str(caught.value)
    assert "a secret" in str(caught.value)


def test_a_section_cannot_be_set_like_a_setting() -> None:
    with pytest.raises(SettingsError, match="connect in the settings file is a section"):
        load(House, toml={"connect": 5})


def test_all_problems_are_reported_together() -> None:
    with pytest.raises(SettingsError) as caught:
        load(House, toml={"nonsense": 1, "connect": {"port": -1}}, env={"WAYSTATION_WORKERS": "0"})

    assert len(caught.value.problems) == 3


def test_a_check_of_a_struct_itself_names_its_section() -> None:
    with pytest.raises(SettingsError, match=r"^endpoint: the first limit is too large$"):
        load(House, toml={"endpoint": {"limits": [2000]}})


def test_a_setting_without_a_default_must_be_set() -> None:
    class Strict(msgspec.Struct, frozen=True, kw_only=True):
        name: str

    with pytest.raises(SettingsError, match="name has no default and must be set"):
        load(Strict)
    assert load(Strict, flags={"name": "n"}).name == "n"


def test_every_setting_is_described_with_its_names_type_default_unit_and_sentence() -> None:
    rows = {row.name: row for row in describe(House)}

    port = rows["connect.port"]
    assert (port.env, port.type, port.default) == (
        "WAYSTATION_CONNECT__PORT",
        "integer >= 0 <= 65535",
        "8080",
    )
    assert (port.sentence, port.daemon) == ("Where user agents connect.", "AUTOCONNECT port")
    assert rows["connect.ping_interval_s"].unit == "s"
    assert rows["connect.journal"].type == '"write" or "fsync" or "off"'
    assert rows["workers"].type == 'integer >= 1 or "auto"'
    assert rows["store"].default == "none"
    assert rows["endpoint.limits"].default == "[1,2]"
    assert rows["endpoint.limits"].type == "list of integer"
    assert rows["names"].type == "table of integer"
    assert rows["endpoint.keys"].secret
    assert list(rows) == [
        "data_dir", "workers", "store", "colour", "names",
        "connect.port", "connect.ping_interval_s", "connect.journal", "connect.tracing",
        "endpoint.keys", "endpoint.limits", "endpoint.pin",
    ]  # fmt: skip


def test_a_table_of_a_file_stands_for_the_json_text_of_a_setting() -> None:
    class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        named: Annotated[str, doc("By name.", table=True)] = ""
        other: Annotated[str, doc("Text.")] = ""

    class Whole(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
        section: Section = Section()

    loaded = load(Whole, toml={"section": {"named": {"a": {"b": 1}}}}, env={})

    assert loaded.section.named == '{"a":{"b":1}}'
    with pytest.raises(SettingsError, match="expected str"):
        load(Whole, toml={"section": {"other": {"a": 1}}}, env={})
