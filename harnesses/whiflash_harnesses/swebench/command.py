"""What the subcommands of ``python -m whiflash_agent.swebench`` do."""

from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from rich.console import Console

from whiflash_agent import ChatWhiFlash
from whiflash_engine.config import check_router
from whiflash_engine.errors import ConfigError, EngineError
from whiflash_harnesses.environments import environment_factory
from whiflash_harnesses.loop import AgentConfig
from whiflash_harnesses.swebench.evaluate import check_grader, evaluate
from whiflash_harnesses.swebench.figures import figures
from whiflash_harnesses.swebench.folder import RunFolder, write_json
from whiflash_harnesses.swebench.progress import Progress
from whiflash_harnesses.swebench.report import render
from whiflash_harnesses.swebench.run import RunConfig, Runner
from whiflash_harnesses.swebench.tasks import load_tasks, select

DEMO_AGENT = AgentConfig(
    steps=8,
    max_tokens=2048,
    wall_clock=150,
    turn_tokens=192,
    temperature=0.6,
    first_commands=["git ls-files", "grep -n 'def ' *.py | head -12"],
    command_timeout=20,
    observation_bytes=1500,
)
"""Limits of the demo: a few minutes with a small model on two cores. Sampled, with a fixed seed: greedily a
model this small repeats its first call for ever."""


def run_config(agent: dict[str, Any], **fields: Any) -> RunConfig:
    """Build the configuration of a run; a setting that cannot work becomes a :class:`ConfigError`."""
    if fields.get("router") is not None:
        check_router(fields["router"])
    try:
        return RunConfig(agent=AgentConfig(**agent), **fields)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{where}={first.get('input')!r}: {first['msg']}") from error


def chat_model(config: RunConfig) -> ChatWhiFlash:
    """Return the ``ChatWhiFlash`` of a run; its engine starts with the first question."""
    settings: dict[str, Any] = {"model": config.model, "base_url": config.base_url, "router": config.router}
    return ChatWhiFlash(
        **settings,
        enforce_eager=config.enforce_eager,
        temperature=config.agent.temperature,
        seed=0,
        max_tokens=config.agent.turn_tokens,
        trace=config.trace,
    )


def run(
    config: RunConfig,
    output: Path,
    *,
    pattern: str | None = None,
    part: str | None = None,
    unsafe_local: bool = False,
    redo: bool = False,
) -> None:
    """Let the agent work on the chosen tasks; what can be known to be wrong is raised before it starts."""
    tasks = select(load_tasks(config.subset), pattern, part)
    make_environment = environment_factory(config.environment, unsafe_local=unsafe_local)
    folder = RunFolder(output)
    with Progress() as progress:
        model = chat_model(config)
        try:
            Runner(config, folder, lambda: model, make_environment, progress).run(tasks, redo=redo)
        finally:
            model.close()  # what follows needs the cores and no engine
        _raise_model_errors(folder)
        progress.line(f"predictions and trajectories are in {output}; next: evaluate {output}")


def _raise_model_errors(folder: RunFolder) -> None:
    """End a run in which the model failed as a failure; what was done is kept and can be resumed."""
    infos = {name: (folder.trajectory(name) or {}).get("info", {}) for name in folder.predictions()}
    failed = [name for name, info in infos.items() if info.get("exit_status") == "model_error"]
    if failed:
        detail = infos[failed[0]]["exit_detail"]
        raise EngineError(
            f"the model failed in {len(failed)} of {len(infos)} tasks ({failed[0]}: {detail}): "
            "the work so far is kept, the same command goes on from there"
        )


def evaluate_folder(output: Path) -> None:
    """Judge the predictions of ``output`` in bubblewrap: patches are model-written code."""
    folder = RunFolder(output)
    tasks = load_tasks(str(folder.read_run()["config"]["subset"]))
    make_environment = environment_factory("bubblewrap")
    with Progress() as progress:
        evaluate(folder, tasks, make_environment, progress)


def report_folder(output: Path, json_path: Path | None, console: Console) -> None:
    """Print the tables of ``output``; with ``json_path`` write the same figures there."""
    report = figures(RunFolder(output))
    render(report, console)
    if json_path is not None:
        write_json(json_path, report)


def demo(config: RunConfig, output: Path | None, console: Console) -> Path:
    """Run, evaluate and report on the bundled tasks in a fresh folder; return it."""
    folder = output or Path("runs") / f"swebench-demo-{datetime.now():%Y%m%d-%H%M%S}"
    if folder.exists() and any(folder.iterdir()):
        raise ConfigError(f"output folder {folder} is not empty: the demo wants a fresh --output")
    check_grader()
    run(config, folder, part="0:1")
    evaluate_folder(folder)
    report_folder(folder, folder / "report.json", console)
    return folder
