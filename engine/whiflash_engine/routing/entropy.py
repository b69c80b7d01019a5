"""WhiFlash's entropy router: an uncertain target goes to EAGLE-3, a certain one to DFlash.

Source: the WhiFlash paper's entropy policy. It leaves the log base and the temperature open; here the entropy
is in nats at temperature 1, taken before any grammar mask.
"""

from collections.abc import Mapping

import torch

from whiflash_engine.routing.base import Choice, Router, Signals


class EntropyRouter(Router):
    """Entropy above ``threshold`` (nats) drafts with ``above``, else with ``below``."""

    name = "entropy"
    needs = frozenset({"entropy"})

    def __init__(self, threshold: float, *, above: str = "eagle3", below: str = "dflash") -> None:
        self.threshold = threshold
        self.drafters = (above, below)

    def choose(self, signals: Signals, offers: Mapping[str, int]) -> Choice | None:
        """Return the drafter for this entropy; the other one where that cannot draft."""
        assert signals.entropy is not None, "the entropy router needs the entropy signal"
        uncertain = signals.entropy > self.threshold
        order = self.drafters if uncertain else self.drafters[::-1]
        return next((Choice(name, offers[name]) for name in order if name in offers), None)


def row_entropy(logits: torch.Tensor) -> torch.Tensor:
    """Return the Shannon entropy in nats of each row's softmax. ``logits``: [rows, vocabulary]."""
    probabilities = torch.softmax(logits, dim=-1, dtype=torch.promote_types(logits.dtype, torch.float32))
    entropies: torch.Tensor = torch.special.entr(probabilities).sum(dim=-1)
    return entropies
