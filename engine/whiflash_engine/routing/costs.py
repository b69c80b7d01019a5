"""What a round costs, as measured: the time of each phase by its size, over a bounded window.

Nothing here reads a clock: the rounds report what they took, so that the same trace gives the same estimates.
"""

from collections import deque
from collections.abc import Callable
from statistics import median

WINDOW = 24
"""Measurements kept per phase and size. A median of them shrugs off what another process did to one round."""
ENOUGH = 3


class PhaseTimes:
    """Seconds of one phase by size; sizes that were never seen are scaled from those that were by ``prior``."""

    def __init__(self, prior: Callable[[int], float]) -> None:
        self.prior = prior
        """Relative times, in one-row verifications."""
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
            return self.prior(size)
        nearest = min(self._medians, key=lambda known: (abs(known - size), known))
        return self._medians[nearest] * self.prior(size) / self.prior(nearest)


PRIORS: dict[str, tuple[float, float]] = {
    "verify": (0.95, 0.05),
    "catch_up": (0.02, 0.001),
    "eagle3": (0.0, 0.055),
    "dflash": (0.12, 0.01),
    "ngram": (0.002, 0.0),
}
"""(base, per token) of each phase in units of a one-row verification, until it has been measured."""


class RoundCosts:
    """The phases of a round; before enough of them were measured, ``PRIORS`` stand in."""

    def __init__(self) -> None:
        self._phases: dict[tuple[str, int], PhaseTimes] = {}

    def add_verify(self, rows: int, seconds: float) -> None:
        """Take in what the target's pass over ``rows`` took, with all that a round takes beside drafting."""
        self._phase("verify").add(rows, seconds)

    def add_draft(self, drafter: str, requests: int, tokens: int, seconds: float) -> None:
        """Take in what drafting ``tokens`` for each of ``requests`` took."""
        self._phase(drafter, requests).add(tokens, seconds)

    def add_writes(self, rows: int, seconds: float) -> None:
        """Take in what writing ``rows`` context rows took; the fewer of them the less was caught up."""
        self._phase("catch_up").add(rows, seconds)

    def forget(self, drafter: str) -> None:
        """Drop what was measured of a drafter: it may have been an unlucky moment."""
        self._phases = {key: phase for key, phase in self._phases.items() if key[0] != drafter}

    @property
    def measured(self) -> bool:
        """Whether estimates are seconds; before that they are in one-row verifications."""
        return self._phase("verify").known

    def catch_up_seconds(self, rows: int) -> float:
        """Return what ``rows`` deferred rows add to the writes of a round."""
        if not rows or not self.measured:
            return 0.0
        phase = self._phase("catch_up")
        return max(0.0, phase.estimate(1 + rows) - phase.estimate(1)) if phase.known else 0.0

    def round_seconds(self, drafter: str | None, tokens: int, requests: int) -> float:
        """Return the expected seconds of a round in which each of ``requests`` drafts ``tokens``."""
        verify = self._phase("verify")
        rows = requests * (1 + tokens)
        if not verify.known:
            return verify.prior(rows) + (self._phase(drafter, requests).prior(tokens) if drafter else 0.0)
        seconds = verify.estimate(rows)
        if drafter is None:
            return seconds
        drafting = self._nearest(drafter, requests)
        if drafting is not None:
            return seconds + drafting.estimate(tokens)
        return seconds + self._phase(drafter, requests).prior(tokens) * verify.estimate(1)

    def _nearest(self, drafter: str, requests: int) -> PhaseTimes | None:
        """Return the measured phase of a drafter for this many requests, or for about as many."""
        known = {key[1]: phase for key, phase in self._phases.items() if key[0] == drafter and phase.known}
        if not known:
            return None
        return known[min(known, key=lambda count: (abs(count - requests), count))]

    def _phase(self, name: str, requests: int = 1) -> PhaseTimes:
        key = (name, requests)
        if key not in self._phases:
            base, per_token = PRIORS.get(name, (0.25, 0.01))
            self._phases[key] = PhaseTimes(lambda size: base + per_token * size)
        return self._phases[key]
