"""Calibration of the routers from labels: which threshold is best, and what each router would reach."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from whiflash_engine.routing.acceptance import AcceptanceModel
from whiflash_engine.routing.base import Signals
from whiflash_engine.routing.cost import CostRouter
from whiflash_engine.routing.costs import RoundCosts
from whiflash_engine.routing.labels import Labels, Pick, Round, acceptance_length, decode, shares
from whiflash_engine.routing.mlp import RouterMlp
from whiflash_engine.trace import RoundRecord

PAIR = ("eagle3", "dflash")
_BINS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
"""Upper bounds, in nats, of the histogram's bins; the last bin has none."""
ENTROPY_CANDIDATES = (0.0, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0, 2.5, 3.0, 4.0, 100.0)
"""Thresholds tried; the first sends (almost) every round to EAGLE-3, the last every round to DFlash."""
DELTA_CANDIDATES = (-100.0, -2.0, -1.0, -0.75, -0.5, -0.25, -0.1, 0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 2.0, 100.0)


def full(name: str) -> Pick:
    """Pick one drafter wherever it has something to offer."""

    def pick(answer: Labels, at: int) -> tuple[str, int] | None:
        tokens = int(answer.offered[name][at])
        return (name, tokens) if tokens else None

    return pick


def by_threshold(values: Callable[[Labels], Tensor], threshold: float) -> Pick:
    """Pick EAGLE-3 where the value is above the threshold, else DFlash."""
    picks = {name: full(name) for name in PAIR}
    return lambda answer, at: picks["eagle3" if values(answer)[at] > threshold else "dflash"](answer, at)


def best_per_round(names: Sequence[str]) -> Pick:
    """Pick the drafter that will have most accepted: the oracle per round."""

    def pick(answer: Labels, at: int) -> tuple[str, int] | None:
        name = max(names, key=lambda name: int(answer.accepted[name][at]))
        return full(name)(answer, at)

    return pick


def best_per_request(answers: Sequence[Labels], names: Sequence[str]) -> list[Round]:
    """Decode every answer with the drafter that needs fewest rounds for it: the oracle per request."""
    rounds: list[Round] = []
    for answer in answers:
        fewest: list[Round] = min((decode([answer], full(name)) for name in names), key=len)
        rounds += fewest
    return rounds


def sweep(
    answers: Sequence[Labels], values: Callable[[Labels], Tensor], candidates: Iterable[float]
) -> list[dict[str, float]]:
    """Return acceptance length and EAGLE-3's share of the rounds for every threshold."""
    points = []
    for threshold in candidates:
        rounds = decode(answers, by_threshold(values, threshold))
        points.append(
            {
                "threshold": threshold,
                "mean_acceptance_length": round(acceptance_length(rounds), 4),
                "eagle3_share": shares(rounds).get("eagle3", 0.0),
            }
        )
    return points


def best_threshold(points: Sequence[dict[str, float]]) -> float:
    """Return the threshold with the longest mean acceptance; of equals the highest."""
    return max(points, key=lambda point: (point["mean_acceptance_length"], point["threshold"]))["threshold"]


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


# What each router would reach


def replay_cost_router(
    answers: Sequence[Labels], names: Sequence[str], acceptance: AcceptanceModel
) -> tuple[list[Round], RoundCosts]:
    """Decode all answers with the cost router under the prior costs; return rounds and costs."""
    costs = RoundCosts()
    router = CostRouter(tuple(names), acceptance, costs)
    rounds: list[Round] = []
    for number, answer in enumerate(answers):
        request = str(number)

        def pick(answer: Labels, at: int, request: str = request) -> tuple[str, int] | None:
            offers = {name: tokens for name in names if (tokens := int(answer.offered[name][at]))}
            choice = router.choose(Signals(hidden=answer.hidden[at].float(), request=request), offers)
            if choice is None:
                return None
            accepted = min(choice.tokens, int(answer.accepted[choice.drafter][at]))
            router.observe(RoundRecord(request, 0, 0, choice.drafter, "cost", choice.tokens, accepted))
            return choice.drafter, choice.tokens

        rounds += decode([answer], pick)
        router.forget(request)
    return rounds, costs


def report(rounds: Sequence[Round], costs: RoundCosts) -> dict[str, Any]:
    """Return acceptance length, shares, and the speed under the prior costs relative to plain decoding."""
    seconds = sum(costs.round_seconds(made.drafter, made.drafted, 1) for made in rounds)
    tokens = sum(made.accepted + 1 for made in rounds)
    return {
        "rounds": len(rounds),
        "mean_acceptance_length": round(acceptance_length(rounds), 4),
        "share_by_drafter": shares(rounds),
        "speed_at_prior_costs": round(tokens * costs.round_seconds(None, 0, 1) / seconds, 4),
    }
