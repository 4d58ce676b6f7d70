"""The reference page and the settings in force, as people read them."""

import tomllib

from waystation.app.settings import PREFIX, Settings, load_settings
from waystation.app.settings_reference import HIDDEN, render_markdown, render_toml
from waystation.base.settings import describe


def test_every_setting_is_on_the_page_with_a_sentence() -> None:
    page = render_markdown()
    rows = describe(Settings, prefix=PREFIX)

    assert all(row.sentence for row in rows), [row.name for row in rows if not row.sentence]
    assert all(f"| `{row.name}` |" in page for row in rows)
    assert "`AUTOCONNECT__ROUTER_PORT`" in page
    assert "`AUTOEND__DB_DSN`" in page


def test_every_line_of_a_table_has_as_many_cells() -> None:
    lines = [line for line in render_markdown().splitlines() if line.startswith("|")]

    assert {line.replace("\\|", "").count("|") for line in lines} == {7}


def test_what_is_shown_can_be_loaded_again() -> None:
    settings = load_settings(flags={"port_base": 9000, "host": 'a"b', "workers": "2"})
    shown = tomllib.loads(render_toml(settings))

    assert shown["host"] == 'a"b'
    assert shown["connect"]["port"] == 9000
    assert shown["push"]["message_status"] is True


def test_only_what_was_changed_can_be_shown() -> None:
    settings = load_settings(env={"WAYSTATION_CONNECT__PORT": "5"})

    assert tomllib.loads(render_toml(settings, changed_only=True)) == {"connect": {"port": 5}}


def test_secrets_are_not_shown() -> None:
    settings = load_settings(
        env={"WAYSTATION_CLUSTER__SECRET": "hush", "WAYSTATION_PUSH__CRYPTO_KEYS": "hush"}
    )
    shown = render_toml(settings)

    assert "hush" not in shown
    assert shown.count(HIDDEN) == 2
