"""The ``Router`` protocol and what a router may look at."""

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Signals:
    """What the target already computed for one request, at its last accepted position."""

    entropy: float | None
    """Shannon entropy (nats, temperature 1) of the target's next-token distribution; ``None`` if not asked."""

    def to_dict(self) -> dict[str, float]:
        """Return the known signals, as the round record stores them."""
        return {} if self.entropy is None else {"entropy": self.entropy}


class Router(Protocol):
    """Picks a drafter for one request and round."""

    name: str
    needs_entropy: bool

    def choose(self, signals: Signals, eligible: tuple[str, ...]) -> str | None:
        """Return the name of a drafter in ``eligible``, or ``None`` to draft nothing."""
        ...
