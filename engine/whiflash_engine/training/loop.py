"""One training loop for both drafters: AdamW, warm-up and cosine, resumable to the same result.

Everything random in step ``n`` is drawn from a generator seeded by (seed, n), so a run that was stopped and
taken up again makes the very steps that an uninterrupted one makes.
"""

import logging
import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from whiflash_engine.training import files
from whiflash_engine.training.features import Sequence

log = logging.getLogger(__name__)

StepLoss = Callable[[list[Sequence], torch.Generator, float], tuple[Tensor, list[float]]]
"""Loss and right shares of a batch; the number is how much of the run is behind, 0 to 1."""


@dataclass(frozen=True)
class LoopOptions:
    """Length and rate of a run. ``batch`` is in sequences; the cosine ends at ``steps``."""

    steps: int
    batch: int
    rate: float
    seed: int = 0
    warmup: int = 50
    clip: float = 1.0
    weight_decay: float = 0.01
    save_every: int = 100
    log_every: int = 25
    stop_after: int | None = None
    """Stop here and keep the state; the schedule stays that of ``steps``."""


def rate_at(options: LoopOptions, step: int) -> float:
    """Return the learning rate of ``step``: linear warm-up, then cosine to a twentieth."""
    if step < options.warmup:
        return options.rate * (step + 1) / options.warmup
    done = (step - options.warmup) / max(options.steps - options.warmup, 1)
    return options.rate * (0.05 + 0.95 * 0.5 * (1 + math.cos(math.pi * min(done, 1.0))))


def batch_at(sequences: list[Sequence], options: LoopOptions, step: int) -> list[Sequence]:
    """Return the sequences of ``step``: every epoch goes through all of them in an order of its own."""
    per_epoch = max(len(sequences) // options.batch, 1)
    epoch, place = divmod(step, per_epoch)
    order = list(range(len(sequences)))
    random.Random(f"{options.seed}/{epoch}").shuffle(order)
    return [sequences[i] for i in order[place * options.batch : (place + 1) * options.batch]]


def train(
    model: nn.Module, sequences: list[Sequence], step_loss: StepLoss, options: LoopOptions, state_path: Path
) -> dict[str, float]:
    """Train to ``options.steps``, from ``state_path`` if it exists; return steps and seconds in all."""
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad],
        lr=options.rate,
        betas=(0.9, 0.95),
        weight_decay=options.weight_decay,
        fused=True,
    )
    first, spent = 0, 0.0
    if state_path.exists():
        state = torch.load(state_path, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first, spent = state["step"], state["seconds"]
        log.info("resumed %s at step %d", state_path.name, first)
    begin = time.monotonic() - spent
    model.train()
    sums: list[list[float]] = []
    last = min(options.steps, options.stop_after or options.steps)
    for step in range(first, last):
        torch.manual_seed(options.seed * 1_000_003 + step)  # dropout draws from the global generator
        generator = torch.Generator().manual_seed(options.seed * 1_000_003 + step)
        for group in optimizer.param_groups:
            group["lr"] = rate_at(options, step)
        loss, right = step_loss(batch_at(sequences, options, step), generator, step / options.steps)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), options.clip)
        optimizer.step()
        sums.append([loss.item(), *right])
        if len(sums) == options.log_every:
            means = [sum(column) / len(sums) for column in zip(*sums, strict=False)]
            shares = " ".join(f"{share:.3f}" for share in means[1:])
            seconds = time.monotonic() - begin
            log.info("step %d loss %.4f right %s (%.0f s)", step + 1, means[0], shares, seconds)
            sums = []
        if (step + 1) % options.save_every == 0 or step + 1 == last:
            seconds = time.monotonic() - begin
            state = {
                "model": model.state_dict(),
                "optimizer": optimizer.state_dict(),
                "step": step + 1,
                "seconds": seconds,
            }
            files.write_state(state_path, state)
    return {"steps": last, "seconds": time.monotonic() - begin}
