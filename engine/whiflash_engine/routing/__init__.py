"""Routers: which drafter proposes for a request in the coming round."""

from whiflash_engine.routing.base import Router, Signals
from whiflash_engine.routing.entropy import EntropyRouter, row_entropy
from whiflash_engine.routing.registry import build_routers
from whiflash_engine.routing.static import StaticRouter

__all__ = ["EntropyRouter", "Router", "Signals", "StaticRouter", "build_routers", "row_entropy"]
