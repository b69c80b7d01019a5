"""Always the same drafter, or none: the arms a router is measured against."""

from whiflash_engine.routing.base import Signals


class StaticRouter:
    """Names one drafter for every round; ``drafter=None`` is plain decoding."""

    needs_entropy = False

    def __init__(self, name: str, drafter: str | None) -> None:
        self.name = name
        self.drafter = drafter

    def choose(self, signals: Signals, eligible: tuple[str, ...]) -> str | None:
        """Return the one drafter, or ``None`` where it cannot draft (past its positions)."""
        return self.drafter if self.drafter in eligible else None
