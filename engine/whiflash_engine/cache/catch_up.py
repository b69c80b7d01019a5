"""Deferred rows: what one drafter has not been given yet."""

from collections.abc import Sequence

import torch

from whiflash_engine.drafters.base import ContextRows


class Deferred:
    """The rows one drafter still lacks, per request: fewer than one KV block of them each."""

    def __init__(self) -> None:
        self._rows: dict[str, list[ContextRows]] = {}

    def put(self, req_id: str, rows: ContextRows) -> None:
        """Remember rows of a request; they are copied, so the step's tensors can go."""
        self._rows.setdefault(req_id, []).append(rows.clone())

    def take(self, req_id: str) -> list[ContextRows]:
        """Return and forget what the request's drafter lacks, in order of position."""
        return self._rows.pop(req_id, [])

    def forget(self, req_id: str) -> None:
        """Drop the rows of a request that ended or lost its cache."""
        self._rows.pop(req_id, None)

    def count(self, req_id: str) -> int:
        """Return how many rows are deferred for a request."""
        return sum(len(rows) for rows in self._rows.get(req_id, ()))


def join_rows(parts: Sequence[ContextRows]) -> ContextRows:
    """Return the rows of all parts, one batch for one write. ``parts`` is not empty."""
    if len(parts) == 1:
        return parts[0]
    return ContextRows(
        torch.cat([part.next_token_ids for part in parts]),
        torch.cat([part.positions for part in parts]),
        torch.cat([part.slots for part in parts]),
        torch.cat([part.features for part in parts]),
    )
