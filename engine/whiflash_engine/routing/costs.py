"""What a round costs, as measured: the time of each phase by its size, over a bounded window.

Nothing here reads a clock: the rounds report what they took, so that the same trace gives the same estimates.
"""

from collections import deque
from collections.abc import Callable, Hashable
from statistics import median

WINDOW = 24
"""Measurements kept per phase and size. A median of them shrugs off what another process did to one round."""
ENOUGH = 3


class PhaseTimes:
    """Seconds of one phase by size; sizes that were never seen are scaled from those that were by ``prior``."""

    def __init__(self, prior: Callable[[int], float]) -> None:
        self._prior = prior
        self._seen: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}

    def add(self, size: int, seconds: float) -> None:
        """Take in one measurement."""
        window = self._seen.setdefault(size, deque(maxlen=WINDOW))
        window.append(seconds)
        if len(window) >= ENOUGH:
            self._medians[size] = median(window)

    @property
    def known(self) -> bool:
        """Whether any size has been measured often enough."""
        return bool(self._medians)

    def estimate(self, size: int) -> float:
        """Return seconds for ``size``: its median, else the nearest known size's, scaled by the prior."""
        if size in self._medians:
            return self._medians[size]
        if not self._medians:
            return self._prior(size)
        nearest = min(self._medians, key=lambda known: (abs(known - size), known))
        return self._medians[nearest] * self._prior(size) / self._prior(nearest)


PRIORS: dict[str, tuple[float, float]] = {
    "verify": (0.97, 0.03),
    "catch_up": (0.02, 0.001),
    "eagle3": (0.0, 0.06),
    "dflash": (0.25, 0.01),
    "ngram": (0.002, 0.0),
}
"""(base, per token) of each phase in units of a one-row verification, until it has been measured."""


class RoundCosts:
    """The phases of a round; before enough of them were measured, ``PRIORS`` stand in."""

    def __init__(self) -> None:
        self._phases: dict[Hashable, PhaseTimes] = {}

    def add_verify(self, rows: int, seconds: float) -> None:
        """Take in what the target's pass over ``rows`` took, with all that a round takes beside drafting."""
        self._phase("verify").add(rows, seconds)

    def add_draft(self, drafter: str, requests: int, tokens: int, seconds: float) -> None:
        """Take in what drafting ``tokens`` for each of ``requests`` took."""
        self._phase(drafter, requests).add(tokens, seconds)

    def add_catch_up(self, rows: int, seconds: float) -> None:
        """Take in what writing ``rows`` deferred rows took."""
        self._phase("catch_up").add(rows, seconds)

    def catch_up_seconds(self, rows: int) -> float:
        """Return the expected seconds of catching up ``rows`` rows; 0 where it was never measured."""
        phase = self._phase("catch_up")
        return phase.estimate(rows) if rows and phase.known else 0.0

    def round_seconds(self, drafter: str | None, tokens: int, requests: int) -> float:
        """Return the expected seconds of a round in which each of ``requests`` drafts ``tokens``."""
        verify = self._phase("verify")
        seconds = verify.estimate(requests * (1 + tokens))
        if drafter is None:
            return seconds
        drafting = self._phase(drafter, requests)
        if drafting.known or not verify.known:
            return seconds + drafting.estimate(tokens)
        # Never measured: the prior is relative to a one-row verification.
        return seconds + drafting.estimate(tokens) * verify.estimate(requests)

    def _phase(self, name: str, requests: int = 1) -> PhaseTimes:
        key = (name, requests)
        if key not in self._phases:
            base, per_token = PRIORS.get(name, (0.25, 0.01))
            self._phases[key] = PhaseTimes(lambda size: base + per_token * size)
        return self._phases[key]
