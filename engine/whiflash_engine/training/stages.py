"""The stages after generation, on one work folder: features, two trainings, export with cards, replay."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from whiflash_engine.errors import CheckpointError
from whiflash_engine.routing.labels import Labels
from whiflash_engine.training import cards, dflash, eagle3, files, labels, loop
from whiflash_engine.training import export as exporting
from whiflash_engine.training import features as feature_stage
from whiflash_engine.training import replay as replaying
from whiflash_engine.training.features import Sequence
from whiflash_engine.training.loop import LoopOptions
from whiflash_engine.training.prompts import Split
from whiflash_engine.training.replay import table
from whiflash_engine.training.router_labels import label
from whiflash_engine.training.target import new_dflash, new_eagle3, read_target

__all__ = [
    "DRAFT_VOCABULARY",
    "export",
    "features",
    "replay",
    "router_labels",
    "table",
    "train_dflash",
    "train_eagle3",
]

DRAFT_VOCABULARY = 8192
EXPORTED_VOCABULARY = 4096
"""On held-out answers these draft as well as all that were trained."""
_FREQUENT = 2048
"""Tokens that every loss is taken over; others take their turns."""
MASK_TOKEN = 16
"""``<empty_output>``: a reserved token of SmolLM2 that chat text never holds."""
UNROLLED_STEPS = 4
EARLY_STEPS = 2
EARLY_BLOCK = 4
EARLY = 0.25
"""Up to this share of a run the drafters look ahead less far: cheaper, and what they learn carries over."""

_TIMES = {"tool_json": 3}
"""How often an answer comes in an epoch: tool calls are short, and what agents wait for most."""

features = feature_stage.extract


def _training_set(sequences: list[Sequence]) -> list[Sequence]:
    return [s for s in sequences if s.split == "train"]


def _weighted(training: list[Sequence]) -> list[Sequence]:
    """Return the answers of an epoch: those of some segments come more than once."""
    return [s for s in training for _ in range(_TIMES.get(s.kind, 1))]


def _facts(sequences: list[Sequence]) -> dict[str, Any]:
    tokens: Counter[str] = Counter()
    for sequence in sequences:
        tokens[sequence.kind] += sequence.length - sequence.prompt
    return {"answers": len(sequences), "tokens": dict(tokens), "threads": torch.get_num_threads()}


def _draft_vocabulary(work: Path, training: list[Sequence], size: int, vocab: int) -> Tensor:
    """Return the draft vocabulary: the most frequent answer tokens, chosen once per work folder."""
    path = work / "vocabulary.json"
    if not path.exists():
        if size > vocab:
            raise CheckpointError(f"draft vocabulary {size} is larger than the target's {vocab}: choose less")
        files.write_text(path, json.dumps(labels.frequent_tokens(training, size).tolist()))
    return torch.tensor(json.loads(path.read_text(encoding="utf-8")))


def train_eagle3(target_folder: Path, work: Path, options: LoopOptions, size: int) -> None:
    """Train the EAGLE-3 head to ``work/eagle3.pt`` and note what it was trained on."""
    target = read_target(target_folder)
    training = _training_set(feature_stage.load(work))
    vocabulary = _draft_vocabulary(work, training, size, target.shape.vocab)
    model = new_eagle3(target, vocabulary, options.seed)
    head = target.embedding[vocabulary]
    frequent = labels.frequent_tokens(training, min(_FREQUENT, target.shape.vocab))

    def step_loss(
        batch: list[Sequence], generator: torch.Generator, progress: float
    ) -> tuple[Tensor, list[float]]:
        steps = EARLY_STEPS if progress < EARLY else UNROLLED_STEPS
        part = eagle3.loss_part(model, frequent, batch, generator)
        return eagle3.loss(model, batch, head, steps, generator, part)

    spent = loop.train(model, _weighted(training), step_loss, options, work / "eagle3.pt")
    files.write_text(work / "eagle3.json", json.dumps(_facts(training) | spent | vars(options)))


def train_dflash(target_folder: Path, work: Path, options: LoopOptions, anchors: int, layers: int) -> None:
    """Train the DFlash drafter to ``work/dflash.pt`` and note what it was trained on."""
    target = read_target(target_folder)
    training = _training_set(feature_stage.load(work))
    frequent = labels.frequent_tokens(training, min(2 * _FREQUENT, target.shape.vocab))
    model = new_dflash(target, MASK_TOKEN, layers, options.seed)

    def step_loss(
        batch: list[Sequence], generator: torch.Generator, progress: float
    ) -> tuple[Tensor, list[float]]:
        size = EARLY_BLOCK if progress < EARLY else dflash.BLOCK
        places = [dflash.sample_anchors(s, anchors, generator) for s in batch]
        blocks = dflash.Blocks(batch, places, size)
        vocabulary = dflash.loss_vocabulary(frequent, batch, target.shape.vocab, generator)
        return dflash.loss(model, blocks, vocabulary)

    spent = loop.train(model, _weighted(training), step_loss, options, work / "dflash.pt")
    files.write_text(work / "dflash.json", json.dumps(_facts(training) | spent | vars(options)))


def export(target_folder: Path, work: Path, out: Path) -> None:
    """Write every trained drafter of ``work`` below ``out``, replay it, write its card with the figures."""
    target = read_target(target_folder)
    sequences = feature_stage.load(work)
    measured = replaying.of_split(sequences, "held_out")
    if (work / "eagle3.pt").exists():
        state = _state(work / "eagle3.pt")
        vocabulary = torch.tensor(json.loads((work / "vocabulary.json").read_text(encoding="utf-8")))
        head = new_eagle3(target, vocabulary, 0)
        head.load_state_dict(state)
        answers = torch.cat([s.ids[s.prompt :] for s in _training_set(sequences)])
        counts = torch.bincount(answers, minlength=target.shape.vocab)
        head = exporting.prune_vocabulary(head, counts, EXPORTED_VOCABULARY)
        exporting.export_eagle3(head, target, out / "eagle3", "")
        report = replaying.replay(measured, exporting.load_eagle3(out / "eagle3", target), None)
        files.write_text(out / "eagle3" / "README.md", cards.card("eagle3", _notes(work, "eagle3"), report))
    if (work / "dflash.pt").exists():
        state = _state(work / "dflash.pt")
        layers = 1 + max(int(name.split(".")[1]) for name in state if name.startswith("layers."))
        drafter = new_dflash(target, MASK_TOKEN, layers, 0)
        drafter.load_state_dict(state)
        exporting.export_dflash(drafter, target, out / "dflash", "")
        report = replaying.replay(measured, None, exporting.load_dflash(out / "dflash", target))
        files.write_text(out / "dflash" / "README.md", cards.card("dflash", _notes(work, "dflash"), report))


def _state(path: Path) -> dict[str, Tensor]:
    state: dict[str, Tensor] = torch.load(path, weights_only=True, mmap=True)["model"]
    return state


def _notes(work: Path, name: str) -> dict[str, Any]:
    """Return what the training stage noted; a run that has not ended has noted nothing yet."""
    path = work / f"{name}.json"
    notes: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return notes


def replay(target_folder: Path, work: Path, drafters: Path, per_kind: int | None) -> dict[str, dict[str, Any]]:
    """Replay held-out answers with the exported drafters below ``drafters``."""
    target = read_target(target_folder)
    sequences = replaying.of_split(feature_stage.load(work), "held_out", per_kind)
    return replaying.replay(
        sequences,
        exporting.load_eagle3(drafters / "eagle3", target) if (drafters / "eagle3").exists() else None,
        exporting.load_dflash(drafters / "dflash", target) if (drafters / "dflash").exists() else None,
    )


def router_labels(
    target_folder: Path, work: Path, drafters: Path, split: Split, *, offered: int, per_kind: int | None = None
) -> list[Labels]:
    """Replay the greedy answers of ``split`` with the drafters below ``drafters``: one :class:`Labels` each.

    ``offered``: tokens of a DFlash block that the engine puts to the target.
    """
    target = read_target(target_folder)
    head = exporting.load_eagle3(drafters / "eagle3", target)
    block = exporting.load_dflash(drafters / "dflash", target)
    return [
        label(sequence, target.embedding, head, block, steps=UNROLLED_STEPS, offered=offered)
        for sequence in replaying.of_split(feature_stage.load(work), split, per_kind)
    ]
