"""The CPU worker and runner (V1)."""

from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from vllm.v1.worker import cpu_worker
from vllm.v1.worker.cpu_model_runner import CPUModelRunner
from vllm.v1.worker.cpu_worker import CPUWorker

from whiflash_engine.runtime.cpu_sampling import mend_cpu_sampling, resting_generators
from whiflash_engine.runtime.runner import RoutedRunnerMixin
from whiflash_engine.runtime.worker import TraceWorkerMixin


class WhiFlashCPUModelRunner(RoutedRunnerMixin, CPUModelRunner):
    """vLLM's CPU runner with routed drafting."""

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Sample as vLLM does; a seed is not spent on tokens of unfinished prompts."""
        batch = self.input_batch
        unfinished = np.flatnonzero(self.discard_request_mask.np[: batch.num_reqs]).tolist()
        with resting_generators(batch.generators, unfinished):
            return super().sample_tokens(grammar_output)


class WhiFlashCPUWorker(TraceWorkerMixin, CPUWorker):
    """vLLM's CPU worker; it names its runner class by a module global, so that is where ours goes in."""

    def init_device(self) -> None:
        """Build the device state with our runner in place of vLLM's."""
        mend_cpu_sampling()
        with patch.object(cpu_worker, "CPUModelRunner", WhiFlashCPUModelRunner):
            super().init_device()
        assert isinstance(self.model_runner, WhiFlashCPUModelRunner)
        assert self.model_runner.device == torch.device("cpu")
