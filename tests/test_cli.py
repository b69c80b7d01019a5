"""Command lines: one line for an error that the user can mend, a traceback for a bug."""

import subprocess
import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from whiflash_agent import _cli
from whiflash_engine.errors import ConfigError

application = _cli.app("example", help="An example.")


@application.callback()
def both(fail_early: bool = False) -> None:
    if fail_early:
        raise ConfigError("failed in the callback")


@application.command()
def work(name: str, count: int = 1) -> None:
    """Do some work."""
    _cli.progress("working")
    _cli.results().print(f"{name} {count}")


@application.command()
def mend() -> None:
    raise ConfigError("router 'x' is unknown:\n   choose\tanother")


@application.command()
def bug() -> None:
    raise RuntimeError("a bug")


@application.command()
def stop() -> None:
    raise KeyboardInterrupt


def test_results_go_to_stdout_and_progress_to_stderr() -> None:
    result = CliRunner().invoke(application, ["work", "thing", "--count", "3"])
    assert (result.exit_code, result.stdout, result.stderr) == (0, "thing 3\n", "working\n")


def test_a_whiflash_error_is_one_line_and_exit_code_2() -> None:
    result = CliRunner().invoke(application, ["mend"])
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "error: router 'x' is unknown: choose another\n"


def test_an_error_in_the_callback_is_reported_alike() -> None:
    result = CliRunner().invoke(application, ["--fail-early", "mend"])
    assert (result.exit_code, result.stderr) == (2, "error: failed in the callback\n")


def test_interrupt_exits_with_130() -> None:
    result = CliRunner().invoke(application, ["stop"])
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


def test_a_bug_keeps_its_exception() -> None:
    result = CliRunner().invoke(application, ["bug"])
    assert isinstance(result.exception, RuntimeError)


def test_commands_can_still_be_called_as_functions() -> None:
    with pytest.raises(ConfigError):
        mend()


def test_a_single_command_needs_no_name() -> None:
    single = _cli.app("single", help="One command.")

    @single.command()
    def only(quick: bool = False) -> None:
        typer.echo(f"quick={quick}")

    assert CliRunner().invoke(single, ["--quick"]).stdout == "quick=True\n"


def test_in_a_process_of_its_own(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from whiflash_agent import _cli\n"
        "from whiflash_engine.errors import CheckpointError\n"
        "app = _cli.app('script', help='A script.')\n"
        "@app.command()\n"
        "def run(bug: bool = False) -> None:\n"
        "    raise ValueError('boom') if bug else CheckpointError('no such model ' + 'x' * 200)\n"
        "_cli.main(app)\n",
        encoding="utf-8",
    )

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(script), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    mended = run()
    assert (mended.returncode, mended.stdout) == (2, "")
    assert mended.stderr == f"error: no such model {'x' * 200}\n"
    broken = run("--bug")
    assert broken.returncode == 1
    assert broken.stderr.startswith("Traceback")
    assert "ValueError: boom" in broken.stderr
