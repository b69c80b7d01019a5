"""How many draft tokens of each drafter the target will accept, predicted from what it just computed.

A network gives every drafter a *hazard* per draft position: the probability that this token is right, given
that all before it were. Their running product is the probability that the draft survives so far; its sum is
the expected number of accepted tokens. Without a network (a target nobody trained one for) the hazards are
constants. Either way the forecast is corrected by what was seen: see :class:`Track`.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from whiflash_engine.errors import CheckpointError
from whiflash_engine.routing.mlp import RouterMlp, load_mlp

DEFAULT_HAZARD = 0.5
WINDOW = 16
"""Rounds of one request and drafter that correct its forecast."""
GLOBAL_WINDOW = 128
_TRUST = 2.0
"""Expected tokens' worth of belief in the forecast, against what was seen."""


class AcceptanceModel:
    """Survival probabilities of drafts: ``columns`` names, per drafter, the network's outputs that are its own."""

    def __init__(self, model: RouterMlp | None, columns: dict[str, tuple[int, int]]) -> None:
        self._model = model
        self._columns = columns

    @classmethod
    def read(cls, path: Path | None, hidden: int) -> "AcceptanceModel":
        """Read a network that ``whiflash_engine.routing calibrate`` wrote; ``None``: constant hazards."""
        if path is None:
            return cls(None, {})
        model, notes = load_mlp(path, hidden)
        columns = notes.get("columns")
        if not isinstance(columns, dict):
            raise CheckpointError(
                f"router file {path} does not say which output is whose: make one with "
                "`python -m whiflash_engine.routing calibrate`"
            )
        spans = {str(name): (int(span[0]), int(span[1])) for name, span in columns.items()}
        if max((end for _, end in spans.values()), default=0) > model.down.out_features:
            raise CheckpointError(f"router file {path} names more outputs than it has: make it again")
        return cls(model, spans)

    def survivals(self, hidden: Tensor | None, lengths: dict[str, int]) -> dict[str, list[float]]:
        """Return for each drafter in ``lengths`` the survival probability of its first draft tokens."""
        hazards: list[float] = []
        if self._model is not None and hidden is not None:
            hazards = torch.sigmoid(self._model(hidden)).tolist()
        result = {}
        for name, length in lengths.items():
            start, end = self._columns.get(name, (0, 0))
            own = hazards[start:end] or [DEFAULT_HAZARD]
            own = (own + [own[-1]] * length)[:length]
            result[name] = list(_running_product(own))
        return result


def _running_product(values: Iterable[float]) -> Iterable[float]:
    product = 1.0
    for value in values:
        product *= value
        yield product


class Track:
    """Forecast against outcome of one drafter over a bounded window of rounds."""

    def __init__(self, window: int) -> None:
        self._seen: deque[tuple[float, int]] = deque(maxlen=window)

    def add(self, expected: float, accepted: int) -> None:
        """Take in one round."""
        self._seen.append((expected, accepted))

    def ratio(self, believed: float = 1.0) -> float:
        """Return accepted over expected, drawn towards ``believed`` where little was seen."""
        expected = sum(pair[0] for pair in self._seen)
        accepted = sum(pair[1] for pair in self._seen)
        return (accepted + _TRUST * believed) / (expected + _TRUST)


def corrected(survivals: Sequence[float], ratio: float) -> list[float]:
    """Return the survival probabilities scaled by ``ratio``, none above 1."""
    return [min(1.0, ratio * value) for value in survivals]
