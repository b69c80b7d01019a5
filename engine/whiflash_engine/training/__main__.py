"""``python -m whiflash_engine.training``: one command per stage, in the order in which they are run."""

import json
from pathlib import Path
from typing import Annotated, cast

import typer

from whiflash_engine.command_line import run
from whiflash_engine.training import stages
from whiflash_engine.training.generate import GenerateOptions
from whiflash_engine.training.generate import generate as run_generate
from whiflash_engine.training.loop import LoopOptions
from whiflash_engine.training.prompts import SPLITS, Split

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)

Target = Annotated[Path, typer.Option(help="Folder of the target model.", exists=True, file_okay=False)]
Work = Annotated[Path, typer.Option(help="Folder that the stages read from and write to.")]
Seed = Annotated[int, typer.Option(help="Seed of everything random in this stage.")]


@app.command()
def generate(
    target: Target,
    work: Work,
    count: Annotated[int | None, typer.Option(help="Number of answers; all by default.")] = None,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.")] = 256,
    part: Annotated[int, typer.Option(help="Which part this process makes.")] = 0,
    parts: Annotated[int, typer.Option(help="Number of processes that share the work.")] = 1,
    split: Annotated[str | None, typer.Option(help=f"Only prompts of one of {', '.join(SPLITS)}.")] = None,
    seed: Seed = 0,
) -> None:
    """Let the target answer the prompts."""
    if split is not None and split not in SPLITS:
        raise typer.BadParameter(f"{split!r} is none of {', '.join(SPLITS)}", param_hint="--split")
    side = cast(Split | None, split)
    options = GenerateOptions(target, work, count, max_tokens, part=part, parts=parts, split=side, seed=seed)
    typer.echo(json.dumps(run_generate(options)))


@app.command()
def features(target: Target, work: Work) -> None:
    """Compute the target's hidden states for every answer."""
    typer.echo(f"{stages.features(target, work)} shards written")


@app.command()
def eagle3(
    target: Target,
    work: Work,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 1600,
    batch: Annotated[int, typer.Option(help="Sequences per step.")] = 4,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 1e-3,
    vocabulary: Annotated[int, typer.Option(help="Draft vocabulary size.")] = stages.DRAFT_VOCABULARY,
    seed: Seed = 0,
) -> None:
    """Train the EAGLE-3 head."""
    stages.train_eagle3(target, work, LoopOptions(steps, batch, rate, seed), vocabulary)


@app.command()
def dflash(
    target: Target,
    work: Work,
    steps: Annotated[int, typer.Option(help="Optimizer steps.")] = 4500,
    batch: Annotated[int, typer.Option(help="Sequences per step.")] = 1,
    rate: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-3,
    anchors: Annotated[int, typer.Option(help="Blocks per sequence and step.")] = 40,
    layers: Annotated[int, typer.Option(help="Decoder layers.")] = 2,
    seed: Seed = 0,
) -> None:
    """Train the DFlash drafter."""
    stages.train_dflash(target, work, LoopOptions(steps, batch, rate, seed), anchors, layers)


@app.command()
def export(target: Target, work: Work, out: Annotated[Path, typer.Option(help="Where to write.")]) -> None:
    """Write both drafters in the public formats, each with its card."""
    stages.export(target, work, out)


@app.command()
def replay(
    target: Target,
    work: Work,
    drafters: Annotated[Path, typer.Option(help="Folder with eagle3/ and dflash/.")],
    per_kind: Annotated[int | None, typer.Option(help="Answers per segment; all by default.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Measure acceptance on held-out answers."""
    report = stages.replay(target, work, drafters, per_kind)
    typer.echo(json.dumps(report, indent=2) if as_json else stages.table(report))


if __name__ == "__main__":
    run(app)
