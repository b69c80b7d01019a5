"""The entropy router's threshold, from replay: which one gives the most tokens per round.

Recorded greedy answers of the training split are decoded again; at every round the entropy of the target
picks the drafter, and the threshold under test says where. No cost enters: on the CPU a round of either
drafter takes about the same time. Held-out answers and the bench's prompts take no part.
"""

from collections.abc import Sequence as Sized
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whiflash_engine.routing.entropy import row_entropy
from whiflash_engine.training.features import Sequence

_BINS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Upper bounds, in nats, of the histogram's bins; the last bin has none."""
CANDIDATES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 100.0)
"""Thresholds tried; the first sends every round to EAGLE-3, the last every round to DFlash."""

TOLERANCE = 0.03


@dataclass(frozen=True)
class Labels:
    """What either drafter would have got right, and how sure the target was, at every possible round."""

    entropy: Tensor
    """[answer - 1] nats, of the distribution that the round's first known token came from."""
    eagle3: Tensor
    """[answer - 1] accepted draft tokens."""
    dflash: Tensor
    """[answer - 1] accepted draft tokens."""


def entropies(sequence: Sequence, embedding: Tensor) -> Tensor:
    """Return the target's entropy behind every answer token but the last: [answer - 1]."""
    states = sequence.final[sequence.prompt - 1 : sequence.length - 2].float()
    return torch.cat([row_entropy(part @ embedding.T) for part in torch.split(states, 64)])


def accepted_tokens(labels: Sized[Labels], threshold: float) -> tuple[int, int, int]:
    """Decode all answers with the entropy router; return rounds, accepted tokens, rounds by EAGLE-3."""
    rounds = accepted = by_eagle3 = 0
    for part in labels:
        uncertain = (part.entropy > threshold).tolist()
        eagle3, dflash = part.eagle3.tolist(), part.dflash.tolist()
        start = 0
        while start < len(uncertain):
            taken = eagle3[start] if uncertain[start] else dflash[start]
            rounds += 1
            accepted += taken
            by_eagle3 += uncertain[start]
            start += taken + 1
    return rounds, accepted, by_eagle3


def sweep(labels: Sized[Labels]) -> list[dict[str, float]]:
    """Return acceptance length and EAGLE-3's share for every candidate threshold."""
    points = []
    for threshold in CANDIDATES:
        rounds, accepted, by_eagle3 = accepted_tokens(labels, threshold)
        points.append(
            {
                "threshold": threshold,
                "mean_acceptance_length": round(1 + accepted / max(rounds, 1), 4),
                "eagle3_share": round(by_eagle3 / max(rounds, 1), 4),
            }
        )
    return points


def histogram(labels: Sized[Labels]) -> dict[str, float]:
    """Return the share of possible rounds per entropy bin; keys are the bins' upper bounds in nats."""
    values = torch.cat([part.entropy for part in labels])
    places = torch.bucketize(values, torch.tensor(_BINS))
    counts = torch.bincount(places, minlength=len(_BINS) + 1) / max(len(values), 1)
    names = [f"<= {bound:g}" for bound in _BINS] + [f"> {_BINS[-1]:g}"]
    return {name: round(float(share), 4) for name, share in zip(names, counts, strict=True)}


def router_file(labels: Sized[Labels]) -> dict[str, Any]:
    """Return what ``router.json`` holds: the threshold, how it was found, and the histogram.

    Of all thresholds within ``TOLERANCE`` of the best acceptance length, the one that gives DFlash most rounds:
    where the two are that close, both stay in use.
    """
    points = sweep(labels)
    best = max(point["mean_acceptance_length"] for point in points)
    close = [p["threshold"] for p in points if p["mean_acceptance_length"] >= (1 - TOLERANCE) * best]
    return {
        "schema": "whiflash-router/1",
        "entropy_threshold_nats": max(close),
        "tolerance": TOLERANCE,
        "answers": len(labels),
        "entropy_histogram": histogram(labels),
        "sweep": points,
    }
