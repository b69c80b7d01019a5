"""Calibration of the routers' thresholds from labels: which is fastest, and how the entropy is spread.

Fastest at the prior costs of :mod:`.costs`: a drafter that accepts a little less may give more tokens a second.
"""

from collections.abc import Callable, Iterable, Sequence

import torch
from torch import Tensor

from whiflash_engine.routing.labels import Labels
from whiflash_engine.routing.mlp import RouterMlp
from whiflash_engine.routing.replay import by_threshold, decode, report

_BINS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Upper bounds, in nats, of the histogram's bins; the last bin has none."""
ENTROPY_CANDIDATES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 100.0)
"""Thresholds tried; the first sends (almost) every round to EAGLE-3, the last every round to DFlash."""
DELTA_CANDIDATES = (-100.0, -2.0, -1.0, -0.75, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 100.0)


def sweep(
    answers: Sequence[Labels], values: Callable[[Labels], Tensor], candidates: Iterable[float]
) -> list[dict[str, float]]:
    """Return acceptance length, speed and EAGLE-3's share of the rounds for every threshold."""
    points = []
    for threshold in candidates:
        found = report(decode(answers, by_threshold(values, threshold)))
        points.append(
            {
                "threshold": threshold,
                "mean_acceptance_length": found["mean_acceptance_length"],
                "speed_at_prior_costs": found["speed_at_prior_costs"],
                "eagle3_share": found["share_by_drafter"].get("eagle3", 0.0),
            }
        )
    return points


def best_threshold(points: Sequence[dict[str, float]]) -> float:
    """Return the fastest threshold; of equals the highest."""
    return max(points, key=lambda point: (point["speed_at_prior_costs"], point["threshold"]))["threshold"]


def entropy_of(answer: Labels) -> Tensor:
    """Return the entropies [rounds] of an answer."""
    return answer.entropy


def delta_of(model: RouterMlp) -> Callable[[Labels], Tensor]:
    """Return a function that predicts ΔAL for all rounds of an answer, computed once per answer."""
    known: dict[int, Tensor] = {}

    def values(answer: Labels) -> Tensor:
        if id(answer) not in known:
            known[id(answer)] = model(answer.hidden.float())[:, 0]
        return known[id(answer)]

    return values


def histogram(answers: Sequence[Labels]) -> dict[str, float]:
    """Return the share of possible rounds per entropy bin; keys are the bins' upper bounds in nats."""
    values = torch.cat([answer.entropy for answer in answers])
    places = torch.bucketize(values, torch.tensor(_BINS))
    counts = torch.bincount(places, minlength=len(_BINS) + 1) / max(len(values), 1)
    names = [f"<= {bound:g}" for bound in _BINS] + [f"> {_BINS[-1]:g}"]
    return {name: round(float(share), 4) for name, share in zip(names, counts, strict=True)}
