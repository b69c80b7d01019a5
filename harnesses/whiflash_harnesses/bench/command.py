"""What ``python -m whiflash_agent.bench`` does, once its options are read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from whiflash_engine.config import EngineConfig, build_config
from whiflash_engine.errors import ConfigError
from whiflash_harnesses.bench.console import open_progress, print_report, results_console
from whiflash_harnesses.bench.runner import BenchOptions, Service, run_bench

QUICK: dict[str, Any] = {"requests": 3, "max_tokens": 96, "oracle": False}
"""``--quick``: about five minutes on two cores, the start of the engine included."""


def execute(
    options: BenchOptions,
    config: EngineConfig,
    json_path: Path | None,
    open_engine: Callable[[EngineConfig], Service],
) -> int:
    """Run the bench, show and write the report; return the exit code: 1 if any output was not ``off``'s."""
    if json_path is not None:
        check_output(json_path)
    with open_progress() as progress:
        report = run_bench(open_engine(config), options, progress)
    console = results_console()
    print_report(console, report)
    if json_path is not None:
        write_report(report, json_path)
        console.print(f"written: {json_path}", markup=False, highlight=False)
    return 1 if report["overall"]["identical_to_off"] is False else 0


def open_service(config: EngineConfig) -> Service:
    """Return the embedded engine for ``config``; not started yet."""
    from whiflash_engine.service import get_engine  # imports vLLM: seconds that --help need not wait for

    service: Service = get_engine(config)
    return service


def engine_config(
    options: BenchOptions, models: dict[str, str | None], enforce_eager: bool = False
) -> EngineConfig:
    """Return the engine of a bench; ``models`` may name ``target``, ``eagle3`` and ``dflash``."""
    given = {name: value for name, value in models.items() if value is not None}
    return EngineConfig(
        whiflash=build_config(**given),
        max_num_seqs=max(options.concurrency, EngineConfig().max_num_seqs),
        enforce_eager=enforce_eager,
        seed=options.seed,
    )


def check_output(path: Path) -> None:
    """Raise :class:`ConfigError` before the long run, not after it, if ``path`` cannot be written."""
    if path.is_dir():
        raise ConfigError(f"--json {path} is a folder: name a file")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--json {path}: the folder {path.absolute().parent} does not exist: create it first")


def write_report(report: dict[str, Any], path: Path) -> None:
    """Write the report as JSON; a file that is there stays whole until the new one is complete."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
