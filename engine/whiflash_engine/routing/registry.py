"""Which routers a set of drafters allows."""

from collections.abc import Sequence

from whiflash_engine.routing.base import Router
from whiflash_engine.routing.entropy import EntropyRouter
from whiflash_engine.routing.static import StaticRouter


def build_routers(drafters: Sequence[str], *, entropy_threshold: float) -> dict[str, Router]:
    """Return every router that works with these drafters, by name: ``off``, one static each, ``entropy``."""
    routers: dict[str, Router] = {"off": StaticRouter("off", None)}
    routers.update({name: StaticRouter(name, name) for name in drafters})
    if {"eagle3", "dflash"} <= set(drafters):
        routers["entropy"] = EntropyRouter(entropy_threshold)
    return routers
