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

PATIENCE = 256
"""Rounds in which a drafter could have drafted and was not chosen, after which its bad record is dropped."""


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
        self._forecast: dict[str, list[float]] = {}
        self._unused: dict[str, int] = dict.fromkeys(drafters, 0)

    def choose(self, signals: Signals, offers: Mapping[str, int]) -> Choice | None:
        """Return the best drafter and length, or ``None`` where plain decoding should be faster."""
        survivals = self._acceptance.survivals(signals.hidden, dict(offers))
        self._forecast.pop(signals.request, None)
        best, speed = None, 1.0 / self._costs.round_seconds(None, 0, signals.requests)
        for choice, value in self._options(signals, survivals):
            if value > speed:
                best, speed = choice, value
        self._note_use(best, offers)
        if best is None:
            return None
        self._forecast[signals.request] = survivals[best.drafter]
        notes = {"expected_tok_s": speed} if self._costs.measured else None
        return Choice(best.drafter, best.tokens, notes)

    def _note_use(self, choice: Choice | None, offers: Mapping[str, int]) -> None:
        """Count for how long each drafter was passed over; after ``PATIENCE`` rounds it gets a fresh start.

        What is not chosen is not measured, so a bad spell would otherwise be held against it for ever.
        """
        for name in offers:
            self._unused[name] = 0 if choice and choice.drafter == name else self._unused[name] + 1
            if self._unused[name] >= PATIENCE:
                self._unused[name] = 0
                self._costs.forget(name)
                self._everywhere.pop(name, None)
                for tracks in self._tracks.values():
                    tracks.pop(name, None)

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
        forecast = self._forecast.pop(record.request_id, None)
        if forecast is not None and record.drafted:
            # A grammar or the token budget may have cut the draft: the forecast is cut alike.
            expected = sum(forecast[: record.drafted])
            self._everywhere[record.drafter].add(expected, record.accepted)
            self._tracks[record.request_id][record.drafter].add(expected, record.accepted)

    def forget(self, request: str) -> None:
        """Drop what was learnt of a request that ended."""
        self._tracks.pop(request, None)
        self._forecast.pop(request, None)
