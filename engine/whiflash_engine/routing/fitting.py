"""Fitting the routers' networks to labels: seeded, and chosen on answers that they were not fitted on."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from whiflash_engine.routing.calibrate import DELTA_CANDIDATES, best_threshold, delta_of, sweep
from whiflash_engine.routing.labels import Labels
from whiflash_engine.routing.mlp import RouterMlp

_FITTED_SHARE = 0.8
"""Share of the answers that a network is fitted on; the others choose its epoch and its threshold."""


@dataclass(frozen=True)
class FitOptions:
    """How a router's network is trained."""

    epochs: int = 12
    batch: int = 256
    rate: float = 5e-4
    weight_decay: float = 0.05
    seed: int = 0


def fit(
    model: RouterMlp,
    parts: tuple[Sequence[Labels], Sequence[Labels]],
    loss: Callable[[Tensor, Sequence[Labels], Tensor], Tensor],
    options: FitOptions,
) -> float:
    """Train ``model`` on the first part, keep the epoch that is best on the second; return its loss there.

    ``loss`` takes the outputs of some rounds, the answers they are of, and the rounds' places in them all.
    """
    states = [torch.cat([answer.hidden for answer in part]).float() for part in parts]
    generator = torch.Generator().manual_seed(options.seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=options.weight_decay)
    best, kept = float("inf"), {name: tensor.clone() for name, tensor in model.state_dict().items()}
    everything = torch.arange(len(states[1]))
    for _ in range(options.epochs):
        model.train()
        for places in torch.split(torch.randperm(len(states[0]), generator=generator), options.batch):
            optimizer.zero_grad()
            loss(model(states[0][places]), parts[0], places).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        model.eval()
        with torch.no_grad():
            value = float(loss(model(states[1]), parts[1], everything))
        if value < best:
            best, kept = value, {name: tensor.clone() for name, tensor in model.state_dict().items()}
    model.load_state_dict(kept)
    model.requires_grad_(False)
    return best


def halves(answers: Sequence[Labels], seed: int = 0) -> tuple[list[Labels], list[Labels]]:
    """Split answers for :func:`fit`: most for fitting, the others for choosing."""
    order = torch.randperm(len(answers), generator=torch.Generator().manual_seed(seed)).tolist()
    cut = int(_FITTED_SHARE * len(order))
    return [answers[i] for i in order[:cut]], [answers[i] for i in order[cut:]]


def new_mlp(hidden: int, outputs: int, seed: int) -> RouterMlp:
    """Return a fresh network, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return RouterMlp(hidden, outputs)


def fit_neural(answers: Sequence[Labels], options: FitOptions) -> tuple[RouterMlp, dict[str, Any]]:
    """Train the paper's router: mean squared error on ΔAL = AL(EAGLE-3) − AL(DFlash). Return it with its notes."""
    parts = halves(answers, options.seed)
    model = new_mlp(answers[0].hidden.shape[1], 1, options.seed)

    def loss(outputs: Tensor, part: Sequence[Labels], places: Tensor) -> Tensor:
        lead = _accepted(part, "eagle3") - _accepted(part, "dflash")
        return F.mse_loss(outputs[:, 0], lead[places].float())

    error = fit(model, parts, loss, options)
    points = sweep(parts[1], delta_of(model), DELTA_CANDIDATES)
    return model, {"threshold": best_threshold(points), "mse": error, "answers": len(answers)}


def fit_acceptance(
    answers: Sequence[Labels], lengths: dict[str, int], options: FitOptions
) -> tuple[RouterMlp, dict[str, Any]]:
    """Train the cost router's network: is this draft token right, given that those before it were?

    ``lengths``: the longest draft of each drafter. A position counts where the draft reached it.
    """
    parts = halves(answers, options.seed)
    columns, total = {}, 0
    for name, length in lengths.items():
        columns[name] = (total, total + length)
        total += length
    model = new_mlp(answers[0].hidden.shape[1], total, options.seed)

    def loss(outputs: Tensor, part: Sequence[Labels], places: Tensor) -> Tensor:
        total = outputs.new_zeros(())
        reached_in_all = 0
        for name, (start, end) in columns.items():
            accepted = _accepted(part, name)[places][:, None]
            offered = torch.cat([answer.offered[name] for answer in part])[places][:, None]
            position = torch.arange(end - start)
            reached = (position <= accepted) & (position < offered)
            right = (position < accepted).float()
            each = F.binary_cross_entropy_with_logits(outputs[:, start:end], right, reduction="none")
            total = total + (each * reached).sum()
            reached_in_all += int(reached.sum())
        return total / max(reached_in_all, 1)

    error = fit(model, parts, loss, options)
    return model, {"columns": columns, "cross_entropy": error, "answers": len(answers)}


def _accepted(answers: Sequence[Labels], name: str) -> Tensor:
    """Return the accepted tokens of one drafter over all rounds of all answers: [rounds]."""
    return torch.cat([answer.accepted[name] for answer in answers])
