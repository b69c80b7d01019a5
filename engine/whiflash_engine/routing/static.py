"""Always the same drafter, or none: the arms a router is measured against. And the survey of them all."""

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


class SurveyRouter(Router):
    """Decodes plainly, and has every drafter draft in every round: the labels of oracles and calibration."""

    name = "survey"
    needs = frozenset({"entropy"})
    surveys = True

    def __init__(self, drafters: tuple[str, ...]) -> None:
        self.drafters = drafters

    def choose(self, signals: Signals, offers: Mapping[str, int]) -> Choice | None:
        """Return ``None``: nothing is verified."""
        return None
