"""Our cost-aware router: the choice that should give most tokens per second.

For every drafter that can draft, and every length it could draft, and for no draft at all: expected tokens of
the round (accepted ones and the bonus token) over its expected seconds, catch-up included. Acceptance is
forecast per drafter (:mod:`.acceptance`), times are measured (:mod:`.costs`); both are corrected by what a
bounded window of rounds showed. No clock and no chance is asked, so a trace decides the choices.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import partial

from whiflash_engine.routing.acceptance import GLOBAL_WINDOW, WINDOW, AcceptanceModel, Track, corrected
from whiflash_engine.routing.base import Choice, Router, Signals
from whiflash_engine.routing.costs import RoundCosts
from whiflash_engine.trace import RoundRecord


class CostRouter(Router):
    """Maximises expected tokens per second over ``drafters``."""

    name = "cost"
    needs = frozenset({"hidden"})

    def __init__(self, drafters: tuple[str, ...], acceptance: AcceptanceModel, costs: RoundCosts) -> None:
        self.drafters = drafters
        self._acceptance = acceptance
        self._costs = costs
        self._everywhere: dict[str, Track] = defaultdict(partial(Track, GLOBAL_WINDOW))
        self._tracks: dict[str, dict[str, Track]] = defaultdict(lambda: defaultdict(partial(Track, WINDOW)))
        self._expected: dict[str, float] = {}

    def choose(self, signals: Signals, offers: Mapping[str, int]) -> Choice | None:
        """Return the best drafter and length, or ``None`` where plain decoding should be faster."""
        survivals = self._acceptance.survivals(signals.hidden, dict(offers))
        self._expected.pop(signals.request, None)
        best, speed = None, 1.0 / self._costs.round_seconds(None, 0, signals.requests)
        for choice, value in self._options(signals, survivals):
            if value > speed:
                best, speed = choice, value
        if best is None:
            return None
        self._expected[signals.request] = sum(survivals[best.drafter][: best.tokens])
        return Choice(best.drafter, best.tokens, {"expected_tok_s": speed})

    def _options(self, signals: Signals, survivals: dict[str, list[float]]) -> Iterator[tuple[Choice, float]]:
        for name, forecast in survivals.items():
            believed = self._everywhere[name].ratio()
            ratio = self._tracks[signals.request][name].ratio(believed)
            late = self._costs.catch_up_seconds(signals.deferred.get(name, 0))
            tokens = 1.0
            for length, survival in enumerate(corrected(forecast, ratio), start=1):
                tokens += survival
                seconds = late + self._costs.round_seconds(name, length, signals.requests)
                yield Choice(name, length), tokens / seconds

    def observe(self, record: RoundRecord) -> None:
        """Learn from a round that is over: forecast against outcome."""
        expected = self._expected.pop(record.request_id, None)
        if expected is not None and record.drafted:
            self._everywhere[record.drafter].add(expected, record.accepted)
            self._tracks[record.request_id][record.drafter].add(expected, record.accepted)

    def forget(self, request: str) -> None:
        """Drop what was learnt of a request that ended."""
        self._tracks.pop(request, None)
        self._expected.pop(request, None)
