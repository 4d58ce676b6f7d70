"""The command `waystation`.

Only the module of the command that was asked for is imported, so that each starts quickly;
`--help` imports them all. A module gives either `app` (a group) or a function named like it
(and `CONTEXT` if its arguments are to be read in another way).
"""

import importlib
import importlib.util
import sys
from collections.abc import Mapping

import typer

COMMANDS: Mapping[str, str] = {
    "serve": "waystation.cli.serve",
    "listen": "waystation.cli.listen",
    "send": "waystation.cli.send",
    "demo": "waystation.cli.demo",
    "doctor": "waystation.cli.doctor",
    "config": "waystation.cli.config",
    "keys": "waystation.cli.keys",
    "store": "waystation.cli.store",
    "bench": "waystation.cli.bench",
}


def build_app(only: str | None = None) -> typer.Typer:
    """With all commands, or with the one that is about to run."""
    app = typer.Typer(
        name="waystation",
        help="Carries small messages to devices that are sometimes there and sometimes not.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_waystation)
    for name, module_name in COMMANDS.items():
        if only in (None, name) and importlib.util.find_spec(module_name) is not None:
            module = importlib.import_module(module_name)
            group = getattr(module, "app", None)
            if isinstance(group, typer.Typer):
                app.add_typer(group, name=name)
            else:
                settings = getattr(module, "CONTEXT", None)
                app.command(name, context_settings=settings)(getattr(module, name))
    return app


def _show_version(asked: bool) -> None:
    if asked:
        from waystation.app.version import build

        typer.echo(f"waystation {build().version}")
        raise typer.Exit


def _waystation(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    """Options before a command."""


def main() -> None:
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        build_app(asked if asked in COMMANDS else None)(prog_name="waystation")
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
