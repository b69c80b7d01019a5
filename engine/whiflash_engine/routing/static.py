"""Always the same drafter, or none: the arms a router is measured against."""

from collections.abc import Mapping

from whiflash_engine.routing.base import Choice, Router, Signals


class StaticRouter(Router):
    """Names one drafter for every round; ``drafter=None`` is plain decoding."""

    def __init__(self, name: str, drafter: str | None) -> None:
        self.name = name
        self.drafters = (drafter,) if drafter else ()

    def choose(self, signals: Signals, offers: Mapping[str, int]) -> Choice | None:
        """Return the one drafter at full length, or ``None`` where it cannot draft."""
        return next((Choice(name, offers[name]) for name in self.drafters if name in offers), None)
