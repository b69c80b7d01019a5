"""Replay: decode labelled answers again as a router would, and as well as any router could."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from whiflash_engine.routing.acceptance import AcceptanceModel
from whiflash_engine.routing.base import Signals
from whiflash_engine.routing.cost import CostRouter
from whiflash_engine.routing.costs import RoundCosts
from whiflash_engine.routing.labels import Labels
from whiflash_engine.trace import RoundRecord

PAIR = ("eagle3", "dflash")


@dataclass(frozen=True)
class Round:
    """One round of a replayed decode; ``drafter=None`` is a plain step."""

    drafter: str | None
    drafted: int
    accepted: int


Pick = Callable[[Labels, int], tuple[str, int] | None]
"""(answer, round) → drafter and draft length, or ``None`` for no draft."""


def decode(answers: Sequence[Labels], pick: Pick) -> list[Round]:
    """Decode all answers as a router that picks by ``pick`` would: each round starts where the last one ended."""
    rounds = []
    for answer in answers:
        at = 0
        while at < len(answer):
            choice = pick(answer, at)
            if choice is None:
                made = Round(None, 0, 0)
            else:
                drafter, tokens = choice
                made = Round(drafter, tokens, min(tokens, int(answer.accepted[drafter][at])))
            rounds.append(made)
            at += made.accepted + 1
    return rounds


def acceptance_length(rounds: Sequence[Round]) -> float:
    """Return tokens per round, the bonus token included."""
    return 1 + sum(made.accepted for made in rounds) / max(len(rounds), 1)


def shares(rounds: Sequence[Round]) -> dict[str, float]:
    """Return each drafter's share of the rounds; ``none`` are plain steps."""
    names = [made.drafter or "none" for made in rounds]
    return {name: round(names.count(name) / len(names), 4) for name in sorted(set(names))}


# Picks


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


# Oracles


def best_per_request(answers: Sequence[Labels], names: Sequence[str]) -> list[Round]:
    """Decode every answer with the one drafter that needs fewest rounds for it."""
    rounds: list[Round] = []
    for answer in answers:
        fewest: list[Round] = min((decode([answer], full(name)) for name in names), key=len)
        rounds += fewest
    return rounds


def best_per_round(answers: Sequence[Labels], names: Sequence[str]) -> list[Round]:
    """Decode all answers in the fewest rounds that any choice of drafters makes possible."""
    rounds: list[Round] = []
    for answer in answers:
        fewest, choices = [0] * (len(answer) + 1), [""] * len(answer)
        for at in reversed(range(len(answer))):
            needed = {
                name: 1 + fewest[min(at + 1 + int(answer.accepted[name][at]), len(answer))] for name in names
            }
            choices[at] = min(needed, key=lambda name: needed[name])
            fewest[at] = needed[choices[at]]
        picks = [full(name) for name in choices]
        rounds += decode([answer], lambda answer, at, picks=picks: picks[at](answer, at))  # type: ignore[misc]
    return rounds


# The cost-aware router


def replay_cost_router(
    answers: Sequence[Labels], names: Sequence[str], acceptance: AcceptanceModel
) -> list[Round]:
    """Decode all answers with the cost router under the prior costs."""
    router = CostRouter(tuple(names), acceptance, RoundCosts())
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
    return rounds


def report(rounds: Sequence[Round]) -> dict[str, Any]:
    """Return acceptance length, shares, and the speed under the prior costs relative to plain decoding."""
    costs = RoundCosts()
    seconds = sum(costs.round_seconds(made.drafter, made.drafted, 1) for made in rounds)
    tokens = sum(made.accepted + 1 for made in rounds)
    return {
        "rounds": len(rounds),
        "mean_acceptance_length": round(acceptance_length(rounds), 4),
        "share_by_drafter": shares(rounds),
        "speed_at_prior_costs": round(tokens * costs.round_seconds(None, 0, 1) / seconds, 4),
    }
