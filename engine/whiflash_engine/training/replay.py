"""Exact acceptance by replay: recorded greedy answers are decoded again, round by round, with each drafter.

Under greedy decoding a draft token is accepted exactly when it equals the recorded one, so nothing has to be
generated and both drafters are measured on the same positions.
"""

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import mean
from typing import Any

import torch
from torch import Tensor

from whiflash_engine.training import dflash, eagle3
from whiflash_engine.training.dflash import Blocks, DFlash
from whiflash_engine.training.eagle3 import Eagle3
from whiflash_engine.training.features import Sequence
from whiflash_engine.training.layers import Drafted
from whiflash_engine.training.prompts import Split


def accepted_lengths(drafted: Tensor, sequence: Sequence) -> Tensor:
    """Count the accepted draft tokens of every round that could start in ``sequence``.

    ``drafted`` [answer - 1, tokens]: row ``s`` follows answer token ``s``; tokens past the end never match.
    """
    count, width = drafted.shape
    padded = torch.cat([sequence.ids, torch.full((width,), -1)])
    at = sequence.prompt + 1 + torch.arange(count)[:, None] + torch.arange(width)
    return (drafted == padded[at]).int().cumprod(dim=1).sum(dim=1)


@dataclass
class Tally:
    """Rounds of a real decode: each starts where the one before stopped."""

    rounds: int = 0
    accepted: int = 0
    by_position: list[int] = field(default_factory=list)
    by_answer: list[float] = field(default_factory=list)
    """Mean acceptance length of each answer."""

    def walk(self, lengths: Tensor, width: int) -> None:
        """Add the rounds of one answer."""
        self.by_position = self.by_position or [0] * width
        start, first, before = 0, self.rounds, self.accepted
        while start < len(lengths):
            taken = int(lengths[start])
            self.rounds += 1
            self.accepted += taken
            for position in range(taken):
                self.by_position[position] += 1
            start += taken + 1
        self.by_answer.append(1 + (self.accepted - before) / max(self.rounds - first, 1))

    def report(self) -> dict[str, Any]:
        """Return rounds, mean acceptance length (with the bonus token) and acceptance by position."""
        rounds = max(self.rounds, 1)
        return {
            "rounds": self.rounds,
            "mean_acceptance_length": round(1 + self.accepted / rounds, 3),
            "mean_over_answers": round(sum(self.by_answer) / max(len(self.by_answer), 1), 3),
            "acceptance_by_position": [round(count / rounds, 3) for count in self.by_position],
        }


def eagle3_lengths(model: Eagle3, sequence: Sequence, steps: int) -> Tensor:
    """Return accepted lengths of EAGLE-3 for every possible round of ``sequence``."""
    return accepted_lengths(eagle3.draft(model, [sequence], steps).tokens, sequence)


def dflash_lengths(model: DFlash, sequence: Sequence, vocabulary: Tensor | None = None) -> Tensor:
    """Return accepted lengths of DFlash for every possible round of ``sequence``; see :func:`dflash.draft`."""
    return accepted_lengths(dflash_drafts(model, sequence, vocabulary).tokens, sequence)


def dflash_drafts(model: DFlash, sequence: Sequence, vocabulary: Tensor | None = None) -> Drafted:
    """Return what DFlash drafts in every possible round of ``sequence``: [answer - 1, BLOCK - 1]."""
    anchors = torch.arange(sequence.prompt, sequence.length - 1)
    parts = [dflash.draft(model, Blocks([sequence], [part]), vocabulary) for part in torch.split(anchors, 128)]
    return Drafted(*(torch.cat(columns) for columns in zip(*parts, strict=True)))


def of_split(sequences: list[Sequence], split: Split, per_kind: int | None = None) -> list[Sequence]:
    """Return greedily decoded sequences of one split, at most ``per_kind`` of each kind: their replay is exact."""
    chosen = []
    seen: dict[str, int] = defaultdict(int)
    for sequence in sequences:
        if not sequence.greedy or sequence.split != split:
            continue
        seen[sequence.kind] += 1
        if per_kind is None or seen[sequence.kind] <= per_kind:
            chosen.append(sequence)
    return chosen


def replay(
    sequences: list[Sequence], eagle3_model: Eagle3 | None, dflash_model: DFlash | None, steps: int = 4
) -> dict[str, dict[str, Any]]:
    """Return one report per drafter and segment, ``all`` being every round of every segment."""
    tallies: dict[str, dict[str, Tally]] = defaultdict(lambda: defaultdict(Tally))
    for sequence in sequences:
        lengths: dict[str, tuple[Tensor, int]] = {}
        if eagle3_model is not None:
            lengths["eagle3"] = (eagle3_lengths(eagle3_model, sequence, steps), steps)
        if dflash_model is not None:
            lengths["dflash"] = (dflash_lengths(dflash_model, sequence), dflash.BLOCK - 1)
        for name, (accepted, width) in lengths.items():
            for segment in ("all", sequence.kind):
                tallies[name][segment].walk(accepted, width)
    return {
        name: {segment: tally.report() for segment, tally in sorted(parts.items())}
        for name, parts in tallies.items()
    }


def table(report: dict[str, dict[str, Any]]) -> str:
    """Return a replay report as a table: mean acceptance length per drafter and segment, and three means of all.

    Long answers with short acceptance have most rounds, so the mean over rounds is the lowest of the three.
    """
    segments = sorted({segment for parts in report.values() for segment in parts} - {"all"})
    rows = {
        segment: [parts[segment]["mean_acceptance_length"] for parts in report.values()] for segment in segments
    }
    rows["all: mean over rounds"] = [parts["all"]["mean_acceptance_length"] for parts in report.values()]
    rows["all: mean over answers"] = [parts["all"]["mean_over_answers"] for parts in report.values()]
    rows["all: mean over segments"] = [
        mean(rows[segment][column] for segment in segments) for column in range(len(report))
    ]
    lines = [f"{'segment':<24}" + "".join(f"{name:>10}" for name in report)]
    lines += [f"{name:<24}" + "".join(f"{value:>10.3f}" for value in values) for name, values in rows.items()]
    return "\n".join(lines)
