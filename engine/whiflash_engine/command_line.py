"""How the engine's own command lines are run."""

import logging

import typer

from whiflash_engine.errors import WhiFlashError


def run(app: typer.Typer) -> None:
    """Run ``app``, its log on stderr; errors a user can mend are one line and exit code 2."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    try:
        app()
    except WhiFlashError as error:
        typer.echo(f"error: {error}", err=True)
        raise SystemExit(2) from error
