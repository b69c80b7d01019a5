"""Calls into the engine core, reached from outside by vLLM's ``collective_rpc``."""

from typing import Any

import psutil


class TraceWorkerMixin:
    """Goes before a vLLM worker in the bases of a worker whose runner is routed."""

    def whiflash_take_trace(self, trace_id: str) -> list[dict[str, Any]]:
        """Return and forget the round records of one request, as plain data."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        return [record.to_dict() for record in runner.rounds.traces.take(trace_id)]

    def whiflash_memory_mb(self) -> dict[str, float]:
        """Return MB of drafter weights, of KV cache, and resident in the engine core's process."""
        runner: Any = self.model_runner  # type: ignore[attr-defined]
        proposer = runner.drafter
        return {
            "eagle3_weights": _weights_mb(proposer.model),
            "dflash_weights": _weights_mb(proposer.dflash_loader.model),
            "target_weights": _weights_mb(runner.model),
            "kv_cache": sum(cache.numel() * cache.element_size() for cache in runner.kv_caches) / 1e6,
            "resident": psutil.Process().memory_info().rss / 1e6,
        }


def _weights_mb(model: Any) -> float:
    """Return MB of a model's parameters; tensors shared with the target count for both."""
    return float(sum(p.numel() * p.element_size() for p in model.parameters()) / 1e6)
