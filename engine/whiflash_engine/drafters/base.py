"""The ``Drafter`` protocol, and the rows that a round hands to it.

A *context row* is one token that the target has verified: its position, the KV slot that is its own in every
layer's cache, the target features at it, and the token that follows it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class ContextRows:
    """Verified rows of one or more requests; every tensor has one entry (or row) per context row."""

    next_token_ids: torch.Tensor
    """[rows] the token after each row."""
    positions: torch.Tensor
    """[rows] int64."""
    slots: torch.Tensor
    """[rows] int64 slots in the paged KV cache."""
    features: torch.Tensor
    """[rows, taps * hidden] target states at the union of all drafters' tap layers."""

    def __len__(self) -> int:
        return self.positions.shape[0]

    def between(self, start: int, end: int) -> "ContextRows":
        """Return rows ``start`` to ``end``, sharing memory."""
        return ContextRows(
            self.next_token_ids[start:end],
            self.positions[start:end],
            self.slots[start:end],
            self.features[start:end],
        )

    def clone(self) -> "ContextRows":
        """Return a copy that shares no memory."""
        return ContextRows(
            self.next_token_ids.clone(), self.positions.clone(), self.slots.clone(), self.features.clone()
        )

    def take(self, rows: torch.Tensor) -> "ContextRows":
        """Return the given rows. ``rows``: [n] int64 indexes."""
        return ContextRows(self.next_token_ids[rows], self.positions[rows], self.slots[rows], self.features[rows])


@dataclass(frozen=True, slots=True)
class RoundBatch:
    """What one engine step verified, rejected tokens left out, for all requests of the batch."""

    rows: ContextRows
    last_rows: torch.Tensor
    """[requests] index of each request's last verified row; its next token is the one just sampled."""
    seq_lens: torch.Tensor
    """[requests] verified tokens of each request, this step's included."""
    block_table: torch.Tensor
    """[requests, blocks]."""
    block_size: int
    """Tokens of a block in ``block_table``."""
    token_ids: NDArray[np.int32]
    """[requests, window] prompt and output of each request, the token just sampled included."""
    num_tokens: NDArray[np.int32]
    """[requests] how many of ``token_ids`` are known."""


class Drafter(Protocol):
    """Proposes tokens: from the target's features with a KV cache of its own, or from the tokens alone."""

    name: str
    max_tokens: int
    """Draft tokens per round."""
    tap_layers: tuple[int, ...]
    """Target layers it reads: vLLM's auxiliary layer i is the state entering block i. Empty: it needs no context
    rows, and none are kept for it."""
    max_positions: int
    """Positions it can draft up to."""

    def write_context(self, rows: ContextRows) -> None:
        """Write K and V of the rows into this drafter's cache: norms and projections only, no attention."""
        ...

    def offers(self, batch: RoundBatch, index: int) -> int:
        """Return how many tokens it could draft for a request of the batch now, at most ``max_tokens``."""
        ...

    def propose(self, batch: RoundBatch, chosen: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
        """Return draft tokens for the chosen requests of the batch, as many as ``lengths`` says for each.

        The context of every chosen request has been written up to, not including, its last row.
        """
        ...
