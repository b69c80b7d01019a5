"""``python -m whiflash_agent.swebench``: an agent on real bugs, judged by swebench's grader.

A door only: what it does is in :mod:`whiflash_harnesses.swebench`.
"""

from pathlib import Path
from typing import Annotated

import typer

from whiflash_agent import _cli
from whiflash_engine.config import DEFAULT_TARGET
from whiflash_harnesses.loop import AgentConfig
from whiflash_harnesses.swebench import command

app = _cli.app("swebench", "Run an agent on SWE-bench tasks, evaluate its patches, report.")

_DEFAULT = AgentConfig()
_DEMO = command.DEMO_AGENT
Folder = Annotated[Path, typer.Argument(help="Output folder of a run.")]
Model = Annotated[str, typer.Option(help="Target: a registry name or a folder.")]
BaseUrl = Annotated[str | None, typer.Option(help="Use this server instead of the embedded engine.")]
Router = Annotated[str | None, typer.Option(help="eagle3, dflash, entropy, or off.")]
Steps = Annotated[int, typer.Option(help="Most model calls per task.")]
MaxTokens = Annotated[int, typer.Option(help="Most generated tokens per task.")]
WallClock = Annotated[float, typer.Option(help="Seconds per task.")]
TurnTokens = Annotated[int, typer.Option(help="Most generated tokens per model call.")]
Eager = Annotated[bool, typer.Option("--enforce-eager", help="Do not compile: starts sooner, runs slower.")]
Trace = Annotated[bool, typer.Option("--trace/--no-trace", help="Keep round records in trajectories.")]


@app.command()
def run(
    output: Annotated[Path, typer.Option(help="Folder for predictions and trajectories.")],
    subset: Annotated[str, typer.Option(help="bundled, or the path of a task set.")] = "bundled",
    pattern: Annotated[str | None, typer.Option("--filter", help="Regular expression on task ids.")] = None,
    part: Annotated[str | None, typer.Option("--slice", help="a:b, as Python slices a list.")] = None,
    model: Model = DEFAULT_TARGET,
    base_url: BaseUrl = None,
    router: Router = None,
    environment: Annotated[str, typer.Option(help="bubblewrap, local or docker.")] = "bubblewrap",
    unsafe_local: Annotated[
        bool, typer.Option("--unsafe-local", help="Accept that `local` protects nothing.")
    ] = False,
    steps: Steps = _DEFAULT.steps,
    max_tokens: MaxTokens = _DEFAULT.max_tokens,
    wall_clock: WallClock = _DEFAULT.wall_clock,
    turn_tokens: TurnTokens = _DEFAULT.turn_tokens,
    redo: Annotated[bool, typer.Option("--redo", help="Discard the run in the output folder.")] = False,
    enforce_eager: Eager = False,
    trace: Trace = True,
) -> None:
    """Let the agent work on tasks; a run that was stopped goes on where it was."""
    limits = {"steps": steps, "max_tokens": max_tokens, "wall_clock": wall_clock, "turn_tokens": turn_tokens}
    config = command.run_config(
        limits,
        subset=subset,
        model=model,
        base_url=base_url,
        router=router,
        environment=environment,
        enforce_eager=enforce_eager,
        trace=trace,
    )
    command.run(config, output, pattern=pattern, part=part, unsafe_local=unsafe_local, redo=redo)


@app.command()
def evaluate(output: Folder) -> None:
    """Judge the patches of a run in a sandbox, with swebench's grading functions."""
    command.evaluate_folder(output)


@app.command()
def report(
    output: Folder,
    json_path: Annotated[Path | None, typer.Option("--json", help="Write the figures to this file.")] = None,
) -> None:
    """Show what a run came to: resolved or not, times, and what each drafter did."""
    command.report_folder(output, json_path, _cli.results())


@app.command()
def demo(
    output: Annotated[Path | None, typer.Option(help="A fresh folder; by default one under runs/.")] = None,
    model: Model = DEFAULT_TARGET,
    base_url: BaseUrl = None,
    router: Router = "cost",
    steps: Steps = _DEMO.steps,
    max_tokens: MaxTokens = _DEMO.max_tokens,
    wall_clock: WallClock = _DEMO.wall_clock,
    turn_tokens: TurnTokens = _DEMO.turn_tokens,
    enforce_eager: Eager = False,
    trace: Trace = True,
) -> None:
    """Run, evaluate and report on one bundled task in a few minutes; ends with 0 if all of that worked."""
    limits = {"steps": steps, "max_tokens": max_tokens, "wall_clock": wall_clock, "turn_tokens": turn_tokens}
    config = command.run_config(
        _DEMO.model_dump() | limits,
        model=model,
        base_url=base_url,
        router=router,
        enforce_eager=enforce_eager,
        trace=trace,
    )
    folder = command.demo(config, output, _cli.results())
    _cli.progress(f"all of it is in {folder}")


if __name__ == "__main__":
    _cli.main(app)
