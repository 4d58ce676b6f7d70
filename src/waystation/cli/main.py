"""The command `waystation`.

Only the requested command's module is imported, so that commands start quickly; `--help` imports
all. A module has either `app` (a group) or a function of its own name (and `CONTEXT` if its
arguments are parsed differently).
"""

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer

COMMANDS: Mapping[str, str] = {
    "listen": "waystation.cli.listen",
    "send": "waystation.cli.send",
    "queue": "waystation.cli.queue",
    "party": "waystation.cli.party",
    "cluster": "waystation.cli.cluster",
    "demo": "waystation.cli.demo",
    "doctor": "waystation.cli.doctor",
    "config": "waystation.cli.config",
    "keys": "waystation.cli.keys",
    "store": "waystation.cli.store",
    "pipeline": "waystation.cli.pipeline",
    "bench": "waystation.cli.bench",
}

PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}


def build_app(only: str | None = None) -> "typer.Typer":
    """With all commands, or with the one that is about to run."""
    import typer

    app = typer.Typer(
        name="waystation",
        help="Carries small messages to devices that are sometimes there and sometimes not.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    def show_version(asked: bool) -> None:
        if asked:
            from waystation.app.version import build

            typer.echo(f"waystation {build().version}")
            raise typer.Exit

    @app.callback()
    def waystation(
        *,
        version: bool = typer.Option(
            False, "--version", callback=show_version, is_eager=True, help="Show the version."
        ),
    ) -> None: ...

    # Its arguments are read by itself, `--help` too; `main` does not even come here for it.
    @app.command(context_settings={**PASS_ON, "help_option_names": []})
    def serve(context: typer.Context) -> None:
        """Run the platform until SIGTERM or Ctrl-C."""
        importlib.import_module("waystation.cli.serve").run(context.args)

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


def main() -> None:
    asked = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    try:
        if sys.argv[1:2] == ["serve"]:  # quick: without typer
            from waystation.cli import serve

            serve.run(sys.argv[2:])
        build_app(asked if asked in COMMANDS else None)(prog_name="waystation")
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
