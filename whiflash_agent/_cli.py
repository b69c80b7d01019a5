"""What all command lines share: typer apps whose errors are one line, and where output goes.

Results go to stdout, so that they can be piped; progress and errors go to stderr. A
:class:`~whiflash_engine.errors.WhiFlashError` ends a command with ``error: …`` and exit code 2, Ctrl-C with
130. Any other exception is a bug and keeps its traceback.
"""

import functools
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import typer
from rich.console import Console

from whiflash_engine.errors import WhiFlashError

Command = TypeVar("Command", bound=Callable[..., Any])


class App(typer.Typer):
    """A typer app whose commands and callbacks report a :class:`WhiFlashError` in one line."""

    def command(self, *args: Any, **kwargs: Any) -> Callable[[Command], Command]:
        """As :meth:`typer.Typer.command`."""
        register = super().command(*args, **kwargs)
        return lambda function: _register(register, function)

    def callback(self, *args: Any, **kwargs: Any) -> Callable[[Command], Command]:
        """As :meth:`typer.Typer.callback`."""
        register = super().callback(*args, **kwargs)
        return lambda function: _register(register, function)


def app(name: str, help: str) -> App:
    """Return an empty app ``name``; add commands with ``@app.command()`` and start it with :func:`main`."""
    return App(name=name, help=help, pretty_exceptions_enable=False, add_completion=False)


def main(application: typer.Typer) -> None:
    """Run ``application`` on the command line's arguments and exit with its code."""
    application()


def progress(text: str) -> None:
    """Print one line for a human who waits, to stderr."""
    print(text, file=sys.stderr, flush=True)


def results() -> Console:
    """Return the console for results (stdout)."""
    return Console()


def _register(register: Callable[[Any], Any], function: Command) -> Command:
    """Register ``function`` with its errors caught; the function itself stays plain for direct calls."""
    register(_one_line_errors(function))
    return function


def _one_line_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except WhiFlashError as error:
            # Plain print: rich would wrap a long path at the width of the terminal.
            print("error:", " ".join(str(error).split()), file=sys.stderr)
            raise typer.Exit(2) from error
        except KeyboardInterrupt as error:
            print("interrupted", file=sys.stderr)
            raise typer.Exit(130) from error

    return run
