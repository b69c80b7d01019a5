"""``python -m whiflash_engine.routing``: calibrate the routers of a pair of drafters by replay."""

import json
import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from whiflash_engine.command_line import run
from whiflash_engine.errors import CheckpointError
from whiflash_engine.routing import calibrate as calibrating
from whiflash_engine.routing import replay
from whiflash_engine.routing.acceptance import AcceptanceModel
from whiflash_engine.routing.fitting import FitOptions, fit_acceptance, fit_neural
from whiflash_engine.routing.labels import Labels
from whiflash_engine.routing.mlp import load_mlp, save_mlp
from whiflash_engine.training.prompts import Split

app = typer.Typer(add_completion=False, no_args_is_help=True, help=__doc__)
log = logging.getLogger(__name__)

_LEAST_ANSWERS = 2

Target = Annotated[Path, typer.Option(help="Folder of the target model.", exists=True, file_okay=False)]
Work = Annotated[Path, typer.Option(help="Folder of the recorded answers (`training generate`).")]
Drafters = Annotated[Path, typer.Option(help="Folder with eagle3/ and dflash/; the routers' files go there.")]


@app.callback()
def _group() -> None:
    """Keep the command's name: with one command typer would drop it."""


@app.command()
def calibrate(
    target: Target,
    work: Work,
    drafters: Drafters,
    dflash_offered: Annotated[
        int, typer.Option(min=1, max=7, help="Tokens of a DFlash block that are verified.")
    ] = 4,
    per_kind: Annotated[int | None, typer.Option(help="Answers per segment; all by default.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the networks and their training.")] = 0,
) -> None:
    """Calibrate every router on the calibration split, and say what each reaches on held-out answers."""
    from whiflash_engine.training import stages  # not at the top: the engine imports routers, not training

    splits: tuple[Split, ...] = ("calibration", "held_out")
    sides = {
        split: stages.router_labels(target, work, drafters, split, offered=dflash_offered, per_kind=per_kind)
        for split in splits
    }
    for split, found in sides.items():
        if len(found) < _LEAST_ANSWERS:
            raise CheckpointError(
                f"{work} has {len(found)} greedy answers of the split {split!r}, {_LEAST_ANSWERS} are needed: run "
                "`python -m whiflash_engine.training generate` for longer"
            )
    answers = sides["calibration"]
    log.info("%d calibration answers, %d possible rounds", len(answers), sum(map(len, answers)))
    points = calibrating.sweep(answers, calibrating.entropy_of, calibrating.ENTROPY_CANDIDATES)
    options = FitOptions(seed=seed)
    neural, neural_notes = fit_neural(answers, options)
    save_mlp(neural, drafters / "neural_router.safetensors", neural_notes)
    lengths = {name: max(int(answer.offered[name].max()) for answer in answers) for name in answers[0].offered}
    acceptance, acceptance_notes = fit_acceptance(answers, lengths, options)
    save_mlp(acceptance, drafters / "acceptance.safetensors", acceptance_notes)
    result = {
        "schema": "whiflash-router/2",
        "entropy_threshold_nats": calibrating.best_threshold(points),
        "neural": neural_notes,
        "acceptance": acceptance_notes,
        "answers": len(answers),
        "entropy_histogram": calibrating.histogram(answers),
        "entropy_sweep": points,
        "held_out": evaluation(sides["held_out"], drafters, points),
    }
    (drafters / "router.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    typer.echo(json.dumps(result["held_out"], indent=2))


def evaluation(answers: list[Labels], drafters: Path, points: list[dict[str, float]]) -> dict[str, Any]:
    """Return what every arm, router and oracle reaches on ``answers`` in replay."""
    hidden = answers[0].hidden.shape[1]
    names = tuple(answers[0].offered)
    acceptance = AcceptanceModel.read(drafters / "acceptance.safetensors", hidden)
    neural, notes = load_mlp(drafters / "neural_router.safetensors", hidden)
    by_entropy = replay.by_threshold(calibrating.entropy_of, calibrating.best_threshold(points))
    by_delta = replay.by_threshold(calibrating.delta_of(neural), float(str(notes["threshold"])))
    arms = {
        **{name: replay.decode(answers, replay.full(name)) for name in names},
        "entropy": replay.decode(answers, by_entropy),
        "neural": replay.decode(answers, by_delta),
        "cost": replay.replay_cost_router(answers, names, acceptance),
        "oracle per request": replay.best_per_request(answers, names),
        "oracle per round": replay.best_per_round(answers, names),
        "oracle per round, EAGLE-3 or DFlash": replay.best_per_round(answers, replay.PAIR),
    }
    return {name: replay.report(made) for name, made in arms.items()}


if __name__ == "__main__":
    run(app)
