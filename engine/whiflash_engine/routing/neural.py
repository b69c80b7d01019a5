"""WhiFlash's neural router: a small network says by how much EAGLE-3 will be ahead.

Source: the WhiFlash paper. It predicts ΔAL = AL(EAGLE-3) − AL(DFlash) from the target's final hidden state; the
paper does not say which sign is which, ours is this one by construction of the labels, and tested.
"""

from collections.abc import Mapping

from whiflash_engine.routing.base import Choice, Router, Signals
from whiflash_engine.routing.mlp import RouterMlp


class NeuralRouter(Router):
    """A predicted difference above ``threshold`` (tokens) drafts with EAGLE-3, else with DFlash."""

    name = "neural"
    needs = frozenset({"hidden"})
    drafters = ("eagle3", "dflash")

    def __init__(self, model: RouterMlp, threshold: float) -> None:
        self.model = model
        self.threshold = threshold

    def choose(self, signals: Signals, offers: Mapping[str, int]) -> Choice | None:
        """Return the drafter that is predicted to be ahead; the other one where that cannot draft."""
        assert signals.hidden is not None, "the neural router needs the hidden state"
        difference = float(self.model(signals.hidden)[0])
        order = self.drafters if difference > self.threshold else self.drafters[::-1]
        notes = {"delta_al": difference}
        return next((Choice(name, offers[name], notes) for name in order if name in offers), None)
