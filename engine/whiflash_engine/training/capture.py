"""Keep the target's hidden states while vLLM generates: a teacher-forced pass would cost as much again.

Works on an engine that runs in this process, eagerly, without prefix caching (no row is computed for a hit).
The rows are those of :mod:`whiflash_engine.training.features`; the state of an answer's last token is never
computed and stays zero, and nothing that is trained reads it.
"""

from typing import Any

import torch
from torch import Tensor

from whiflash_engine.training.features import TAPS


class Capture:
    """Collects [rows, (len(TAPS) + 1) * hidden] in bfloat16 per request: the taps, then the final state."""

    def __init__(self, llm: Any, rows: int) -> None:
        """Hook the model of ``llm``; ``rows`` is the longest prompt and answer together."""
        self._runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
        self._rows = rows
        self._parts: list[Tensor] = []
        self._positions = torch.empty(0, dtype=torch.long)
        self._buffers: dict[str, Tensor] = {}
        inner = self._runner.model.model
        for tap in TAPS:
            inner.layers[tap].register_forward_pre_hook(self._keep_tap)
        inner.norm.register_forward_hook(self._keep_final)

    def _keep_tap(self, module: Any, args: tuple[Any, ...]) -> None:
        positions, states, residual = args[:3]
        self._positions = positions.clone()
        self._parts.append((states if residual is None else states + residual).bfloat16())

    def _keep_final(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        parts, self._parts = self._parts, []
        states = torch.cat([*parts, output[0].bfloat16()], dim=-1)
        requests = self._runner.input_batch.req_ids
        starts = self._runner.query_start_loc.np[: len(requests) + 1].tolist()
        for request, start, end in zip(requests, starts, starts[1:], strict=False):
            # vLLM appends a random part to the id it was given.
            key = request.split("-")[0]
            if key not in self._buffers:
                width = states.shape[1]
                self._buffers[key] = torch.zeros(self._rows, width, dtype=torch.bfloat16)
            self._buffers[key][self._positions[start:end]] = states[start:end]

    def take(self, request: str, rows: int) -> tuple[Tensor, Tensor]:
        """Return (taps, final) of the first ``rows`` rows of a finished request and forget it."""
        states = self._buffers.pop(request)[:rows].clone()
        hidden = states.shape[1] // (len(TAPS) + 1)
        return states[:, :-hidden], states[:, -hidden:]
