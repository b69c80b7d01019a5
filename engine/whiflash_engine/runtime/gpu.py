"""The CUDA worker and runner (V1): written to vLLM's interface, not yet run on a GPU by this project."""

from typing import Any

from vllm.v1.worker.gpu_model_runner import GPUModelRunner
from vllm.v1.worker.gpu_worker import Worker

from whiflash_engine.runtime.runner import RoutedRunnerMixin
from whiflash_engine.runtime.worker import TraceWorkerMixin


class WhiFlashGPUModelRunner(RoutedRunnerMixin, GPUModelRunner):
    """vLLM's CUDA runner (V1) with routed drafting."""


class WhiFlashGPUWorker(TraceWorkerMixin, Worker):
    """vLLM's CUDA worker with our runner. The V2 runner is not supported: VLLM_USE_V2_MODEL_RUNNER=0."""

    def _make_model_runner(self) -> Any:
        return WhiFlashGPUModelRunner(self.vllm_config, self.device)
