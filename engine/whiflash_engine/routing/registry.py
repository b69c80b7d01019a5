"""Which routers a set of drafters and router files allows."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from whiflash_engine.routing.acceptance import AcceptanceModel
from whiflash_engine.routing.base import Router
from whiflash_engine.routing.cost import CostRouter
from whiflash_engine.routing.costs import RoundCosts
from whiflash_engine.routing.entropy import EntropyRouter
from whiflash_engine.routing.mlp import load_mlp
from whiflash_engine.routing.neural import NeuralRouter
from whiflash_engine.routing.static import StaticRouter, SurveyRouter

NEURAL_THRESHOLD = 1.0
"""Tokens of ΔAL for a file that names no threshold: the paper's for its Qwen3-4B pair."""


@dataclass(frozen=True)
class RouterSettings:
    """Where the routers' parameters come from."""

    entropy_threshold: float
    hidden: int
    """Size of the target's hidden state."""
    neural: Path | None = None
    """Network of the neural router; without it there is none."""
    neural_threshold: float | None = None
    """``None``: the one calibrated for the file, else ``NEURAL_THRESHOLD``."""
    acceptance: Path | None = None
    """Network of the cost router; without it acceptance is learnt from the rounds alone."""


def build_routers(drafters: Sequence[str], settings: RouterSettings, costs: RoundCosts) -> dict[str, Router]:
    """Return every router that works with these drafters, by name."""
    routers: dict[str, Router] = {"off": StaticRouter("off", None)}
    routers.update({name: StaticRouter(name, name) for name in drafters})
    routers["survey"] = SurveyRouter(tuple(drafters))
    acceptance = AcceptanceModel.read(settings.acceptance, settings.hidden)
    routers["cost"] = CostRouter(tuple(drafters), acceptance, costs)
    if {"eagle3", "dflash"} <= set(drafters):
        routers["entropy"] = EntropyRouter(settings.entropy_threshold)
        if settings.neural is not None:
            routers["neural"] = _neural(settings.neural, settings)
    return routers


def _neural(path: Path, settings: RouterSettings) -> NeuralRouter:
    model, notes = load_mlp(path, settings.hidden)
    threshold = settings.neural_threshold
    if threshold is None:
        threshold = float(str(notes.get("threshold", NEURAL_THRESHOLD)))
    return NeuralRouter(model, threshold)
