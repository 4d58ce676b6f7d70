"""`waystation config`: show, check and document the settings."""

from pathlib import Path
from typing import Annotated

import typer

from .terminal import say, settings_or_exit

app = typer.Typer(
    help="Show, check and document the settings.", no_args_is_help=True, rich_markup_mode=None
)

ConfigOption = Annotated[Path | None, typer.Option("--config", help="Settings file (TOML).")]


@app.command()
def show(
    config: ConfigOption = None,
    changed: Annotated[
        bool, typer.Option("--changed", help="Only settings that differ from their defaults.")
    ] = False,
) -> None:
    """Print the settings in force as TOML; secrets are not shown."""
    from waystation.app.settings_reference import render_toml

    say(render_toml(settings_or_exit(config), changed_only=changed))


@app.command()
def check(config: ConfigOption = None) -> None:
    """Check file and environment. Prints every error; exit code 78 if there is one."""
    from waystation.app.data_dir import DataDir
    from waystation.app.tls import load_tls
    from waystation.base.settings import SettingsError
    from waystation.push.token import InvalidKeyError, parse_key_list

    from .terminal import EXIT_CONFIG, give_up

    settings = settings_or_exit(config)
    try:
        load_tls(settings.tls)
        if settings.push.crypto_keys:
            parse_key_list(settings.push.crypto_keys)
    except (SettingsError, InvalidKeyError) as exc:
        give_up(str(exc), EXIT_CONFIG)
    say(f"settings are fine; data directory {DataDir(settings.data_dir).root}")


@app.command()
def docs() -> None:
    """Print the reference of all settings as Markdown."""
    from waystation.app.settings_reference import render_markdown

    print(render_markdown(), end="")
