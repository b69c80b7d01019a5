"""``python -m whiflash_agent.bench``: compare routers with each drafter alone and with no speculation.

A door only: what it does is in :mod:`whiflash_harnesses.bench`.
"""

from pathlib import Path
from typing import Annotated

import typer

from whiflash_agent import _cli
from whiflash_harnesses.bench.command import (
    QUICK,
    check_arms,
    default_arms,
    engine_config,
    execute,
    open_service,
)
from whiflash_harnesses.bench.runner import ARMS, BenchOptions
from whiflash_harnesses.bench.workloads import WORKLOADS

app = _cli.app("bench", "Measure all arms on the same requests, in one engine, interleaved.")


def _names(values: list[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    if values is None:
        return default
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


@app.command()
def bench(
    workload: Annotated[
        list[str] | None,
        typer.Option(help=f"Workloads, repeated or separated by commas: {', '.join(WORKLOADS)}."),
    ] = None,
    arms: Annotated[
        list[str] | None, typer.Option(help=f"Routers to compare: {', '.join(ARMS)}; `off` drafts nothing.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Requests per workload (default 4; 3 if --quick).")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(min=2, help="Longest output in tokens (default 192; 96 if --quick).")
    ] = None,
    seed: Annotated[int, typer.Option(help="Shuffles the order of the arms.")] = 0,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the report to this file.")] = None,
    html_path: Annotated[
        Path | None, typer.Option("--html", help="Write the report as one page: tables, charts, every token.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A small run of a few minutes.")] = False,
    oracle: Annotated[
        bool | None,
        typer.Option("--oracle/--no-oracle", help="Also say what perfect routing would reach (not if --quick)."),
    ] = None,
    stock: Annotated[
        bool | None,
        typer.Option("--stock/--no-stock", help="Also measure vLLM's own drafters (not if --quick)."),
    ] = None,
    temperature: Annotated[
        float, typer.Option(min=0.0, max=2.0, help="Above 0 texts differ and are not compared; needs --no-oracle.")
    ] = 0.0,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests that run at a time, of one arm.")] = 1,
    enforce_eager: Annotated[
        bool, typer.Option("--enforce-eager", help="Do not compile: starts in seconds, runs slower.")
    ] = False,
    model: Annotated[str | None, typer.Option(help="Target: a registry name or a folder.")] = None,
    eagle3: Annotated[str | None, typer.Option(help="EAGLE-3 drafter: a folder.")] = None,
    dflash: Annotated[str | None, typer.Option(help="DFlash drafter: a folder.")] = None,
) -> None:
    """Measure speed and acceptance of every arm; exit 1 if any arm's greedy output is not that of `off`."""
    sizes = QUICK if quick else {}
    given = {"requests": requests, "max_tokens": max_tokens, "oracle": oracle, "stock": stock}
    models = {"target": model, "eagle3": eagle3, "dflash": dflash}
    config = engine_config(models, concurrency=concurrency, seed=seed, enforce_eager=enforce_eager)
    options = BenchOptions(
        workloads=_names(workload, WORKLOADS),
        arms=default_arms(config) if arms is None else _names(arms, ()),
        seed=seed,
        concurrency=concurrency,
        temperature=temperature,
        **{**sizes, **{name: value for name, value in given.items() if value is not None}},
    )
    check_arms(options.arms, config)
    raise typer.Exit(execute(options, config, json_path, open_service, html_path))


if __name__ == "__main__":
    _cli.main(app)
