"""Routers: which drafter proposes for a request in the coming round, and how many tokens."""

from whiflash_engine.routing.base import Choice, Router, Signals
from whiflash_engine.routing.cost import CostRouter
from whiflash_engine.routing.costs import RoundCosts
from whiflash_engine.routing.entropy import EntropyRouter, row_entropy
from whiflash_engine.routing.neural import NeuralRouter
from whiflash_engine.routing.registry import RouterSettings, build_routers
from whiflash_engine.routing.static import StaticRouter

__all__ = [
    "Choice",
    "CostRouter",
    "EntropyRouter",
    "NeuralRouter",
    "RoundCosts",
    "Router",
    "RouterSettings",
    "Signals",
    "StaticRouter",
    "build_routers",
    "row_entropy",
]
