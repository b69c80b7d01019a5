"""What ``python -m whiflash_agent.bench`` does, once its options are read."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from whiflash_engine.checkpoints.registry import check_router_fits, resolve
from whiflash_engine.config import EngineConfig, RouterName, build_config, check_router
from whiflash_engine.errors import ConfigError, WhiFlashError
from whiflash_harnesses.bench.console import open_progress, print_report, results_console
from whiflash_harnesses.bench.html import bench_page
from whiflash_harnesses.bench.runner import ARMS, BenchOptions, Progress, Service, run_bench

STOCK = ("off", "eagle3", "dflash")
QUICK: dict[str, Any] = {"requests": 3, "max_tokens": 96, "oracle": False, "stock": False, "prompt_lengths": ()}
"""``--quick``: about seven minutes on two cores, the start of the engine included."""


def execute(
    options: BenchOptions,
    config: EngineConfig,
    json_path: Path | None,
    open_engine: Callable[[EngineConfig], Service],
    html_path: Path | None = None,
) -> int:
    """Run the bench, show and write the report; return the exit code: 1 if any output was not ``off``'s."""
    check_outputs({"--json": json_path, "--html": html_path})
    with open_progress() as progress:
        report = run_bench(open_engine(config), options, progress)
        if json_path is not None:  # what comes next takes long and may fail
            write_whole(json_path, json.dumps(report, indent=2) + "\n")
        if options.stock:
            report["stock"] = measure_stock(options, config, report, open_engine, progress)
    console = results_console()
    print_report(console, report)
    if json_path is not None:
        write_whole(json_path, json.dumps(report, indent=2) + "\n")
    if html_path is not None:
        write_whole(html_path, bench_page(report))
    for path in (json_path, html_path):
        if path is not None:
            console.print(f"written: {path}", markup=False, highlight=False)
    return 1 if report["overall"]["identical_to_off"] is False else 0


def measure_stock(
    options: BenchOptions,
    config: EngineConfig,
    report: dict[str, Any],
    open_engine: Callable[[EngineConfig], Service],
    progress: Progress,
) -> dict[str, Any]:
    """Return the speed of vLLM's own drafters next to ours, by method; each runs in an engine of its own."""
    found = {}
    for method in STOCK:
        if method in options.arms:
            progress.note(f"starting stock vLLM with {method}")
            service = open_engine(config.model_copy(update={"stock": method}))
            alone = run_bench(service, replace(options, arms=("off",), oracle=False), progress)
            found[method] = against_stock(report, alone, method)
    return found


def against_stock(report: dict[str, Any], alone: dict[str, Any], method: str) -> dict[str, Any]:
    """Return tokens per second of our arm and of stock vLLM, and ours over stock's; and stock's ``prompts``."""
    parts = {**report["workloads"], "overall": report["overall"]}
    others = {**alone["workloads"], "overall": alone["overall"]}
    figures: dict[str, Any] = {"prompts": alone.get("prompts", {})}
    for name, part in parts.items():
        ours, stock = part["arms"][method]["tok_s"], others[name]["arms"]["off"]["tok_s"]
        figures[name] = {
            "ours_tok_s": ours,
            "stock_tok_s": stock,
            "ratio": ours / stock if ours and stock else None,
        }
    return figures


def open_service(config: EngineConfig) -> Service:
    """Return the embedded engine for ``config``; not started yet."""
    from whiflash_engine.service import get_engine  # imports vLLM: seconds that --help need not wait for

    service: Service = get_engine(config)
    return service


def default_arms(config: EngineConfig) -> tuple[str, ...]:
    """Return those of the bench's arms that this target has drafters and router files for."""
    return tuple(arm for arm in ARMS if not _missing(check_router(arm), config))


def check_arms(arms: Sequence[str], config: EngineConfig) -> None:
    """Raise for an arm that this target lacks something for: before the engine starts, not after."""
    for arm in arms:
        if error := _missing(check_router(arm), config):
            raise error


def _missing(arm: RouterName, config: EngineConfig) -> WhiFlashError | None:
    models = resolve(config.whiflash, prepare=False)
    try:
        check_router_fits(arm, models, config.whiflash)
    except WhiFlashError as error:
        return error
    return None


def engine_config(
    models: dict[str, str | None], *, concurrency: int, seed: int, enforce_eager: bool = False
) -> EngineConfig:
    """Return the engine of a bench; ``models`` may name ``target``, ``eagle3`` and ``dflash``."""
    given = {name: value for name, value in models.items() if value is not None}
    return EngineConfig(
        whiflash=build_config(**given),
        max_num_seqs=max(concurrency, EngineConfig().max_num_seqs),
        enforce_eager=enforce_eager,
        seed=seed,
    )


def check_outputs(paths: dict[str, Path | None]) -> None:
    """Raise :class:`ConfigError` before the long run, not after it, if a file cannot be written."""
    given = {option: path for option, path in paths.items() if path is not None}
    for option, path in given.items():
        check_output(option, path)
    if len({path.absolute() for path in given.values()}) < len(given):
        raise ConfigError(f"{' and '.join(given)} name the same file: name two")


def check_output(option: str, path: Path) -> None:
    """Raise :class:`ConfigError` if the file that ``option`` names cannot be written."""
    if path.is_dir():
        raise ConfigError(f"{option} {path} is a folder: name a file")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"{option} {path}: the folder {path.absolute().parent} does not exist: create it first")


def write_whole(path: Path, text: str) -> None:
    """Write ``text``; a file that is there stays whole until the new one is complete."""
    partial = path.with_name(path.name + ".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
