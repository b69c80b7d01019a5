"""The routed proposer: several drafters where vLLM expects one.

vLLM's runner owns one ``drafter`` and asserts its type, so this is an ``EagleProposer`` (which loads the
EAGLE-3 head) that owns a ``DFlashProposer`` beside it. Both register their layers in vLLM's static forward
context and so get KV cache like any layer. A round is in :mod:`whiflash_engine.rounds`.
"""

import copy
from typing import Any

import torch
from vllm.config import VllmConfig
from vllm.config.speculative import SpeculativeConfig
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.spec_decode.eagle import EagleProposer
from vllm.v1.utils import CpuGpuBuffer

from whiflash_engine.config import WhiFlashConfig
from whiflash_engine.drafters.base import Drafter
from whiflash_engine.drafters.dflash import DFlashDrafter
from whiflash_engine.drafters.eagle3 import Eagle3Drafter
from whiflash_engine.drafters.ngram import NgramDrafter
from whiflash_engine.errors import CheckpointError, ConfigError
from whiflash_engine.runtime.dflash_loader import PrefixedDFlashProposer


class RoutedProposer(EagleProposer):
    """Holds the drafters; forwards what vLLM's runner asks of a drafter to the loaders of all of them."""

    def __init__(self, vllm_config: VllmConfig, device: torch.device, runner: Any) -> None:
        super().__init__(vllm_config, device, runner)
        self.config = WhiFlashConfig.model_validate(vllm_config.additional_config["whiflash"])
        self.dflash_loader = PrefixedDFlashProposer(_with_dflash(vllm_config, self.config), device, runner)
        if device.type == "cpu":
            for loader in (self, self.dflash_loader):
                adopt_cpu_buffers(loader)
        taps = {"eagle3": _eagle3_taps(self), "dflash": _dflash_taps(self.dflash_loader)}
        self.tap_layers = tuple(sorted({layer for layers in taps.values() for layer in layers}))
        hidden = vllm_config.model_config.get_hidden_size()
        dflash = DFlashDrafter(
            self.dflash_loader,
            max_tokens=self.config.dflash_tokens,
            tap_layers=taps["dflash"],
            feature_columns=_columns(taps["dflash"], self.tap_layers, hidden, device),
        )
        dflash.offered = min(self.config.dflash_offered or dflash.max_tokens, dflash.max_tokens)
        self._dflash = dflash
        self.drafters: dict[str, Drafter] = {
            "eagle3": Eagle3Drafter(
                self,
                max_tokens=self.config.eagle3_tokens,
                tap_layers=taps["eagle3"],
                feature_columns=_columns(taps["eagle3"], self.tap_layers, hidden, device),
            ),
            "dflash": dflash,
        }
        if self.config.ngram_tokens:
            self.drafters["ngram"] = NgramDrafter(self.config.ngram_tokens, vllm_config.model_config.max_model_len)

    # What vLLM's runner asks of its drafter, for both.

    def load_model(self, target_model: torch.nn.Module) -> None:
        """Load both drafters; each finds its own new attention layers."""
        super().load_model(target_model)
        self.dflash_loader.load_model(target_model)
        _check_eagle3_head(self.model, self.config.eagle3)
        self._shorten_dflash_head()

    def _shorten_dflash_head(self) -> None:
        """Leave DFlash the rows of the head that the EAGLE-3 head drafts from, where that is asked for."""
        offsets = self.model.draft_id_to_target_id
        one_worker = self.vllm_config.parallel_config.tensor_parallel_size == 1
        can = offsets is not None and one_worker and self.dflash_loader.model.draft_id_to_target_id is None
        asked = self.config.dflash_short_head
        if asked and not can:
            raise ConfigError(
                "dflash_short_head=True needs an EAGLE-3 head with a draft vocabulary, a DFlash drafter on the "
                "target's whole head, and one worker: leave it out"
            )
        if can and (asked or (asked is None and self.device.type == "cpu")):
            ids = torch.arange(len(offsets), device=offsets.device)
            self._dflash.shorten_head(ids + offsets)

    def initialize_attn_backend(
        self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int] | None = None
    ) -> None:
        """Build the attention groups of both drafters' layers."""
        super().initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        self.dflash_loader.initialize_attn_backend(kv_cache_config, kernel_block_sizes)
        if self.dflash_loader.kv_cache_gid != self.kv_cache_gid:
            raise CheckpointError(
                f"DFlash drafter {self.config.dflash} and EAGLE-3 head {self.config.eagle3} need different KV "
                "cache layouts (sliding window?): pass drafters with full attention and the target's KV heads"
            )

    def initialize_cudagraph_keys(self, cudagraph_mode: Any) -> None:
        """Tell both dispatchers the CUDA graph mode."""
        super().initialize_cudagraph_keys(cudagraph_mode)
        self.dflash_loader.initialize_cudagraph_keys(cudagraph_mode)

    def dummy_run(self, num_tokens: int, **kwargs: Any) -> None:
        """Run both drafters on dummy rows (profiling and compilation)."""
        super().dummy_run(num_tokens, **kwargs)
        self.dflash_loader.dummy_run(num_tokens, **kwargs)

    def validate_same_kv_cache_group(self, kv_cache_config: KVCacheConfig) -> None:
        """Check that each drafter's layers share one KV cache group."""
        super().validate_same_kv_cache_group(kv_cache_config)
        self.dflash_loader.validate_same_kv_cache_group(kv_cache_config)

    def propose(self, *args: Any, **kwargs: Any) -> torch.Tensor:
        """Refuse vLLM's one-drafter call: the runner mixin runs rounds through ``rounds.run_round``."""
        raise NotImplementedError("the routed proposer drafts in whiflash_engine.rounds.run_round")


def _check_eagle3_head(model: Any, name: str | None) -> None:
    """Raise :class:`CheckpointError` for a head whose context rows ``Eagle3Drafter`` could not write."""
    layers: Any = getattr(model.model, "layers", ())
    fits = len(layers) == 1 and hasattr(layers[0], "_residual_norm") and hasattr(layers[0].self_attn, "qkv_proj")
    if not fits or not model.model.use_aux_hidden_state:
        raise CheckpointError(
            f"EAGLE-3 head {name} is not of one Llama-like layer on three target features: pass eagle3=… of the "
            "SafeAILab or speculators form"
        )


def adopt_cpu_buffers(owner: object) -> None:
    """Let the device side of each buffer be its CPU side, as vLLM's CPU runner does for its own."""
    for value in vars(owner).values():
        if isinstance(value, CpuGpuBuffer):
            value.gpu = value.cpu


def _with_dflash(vllm_config: VllmConfig, config: WhiFlashConfig) -> VllmConfig:
    """Return a shallow copy whose speculative config is DFlash's; layers still register in the same context."""
    own = copy.copy(vllm_config)
    own.speculative_config = SpeculativeConfig(
        method="dflash",
        model=config.dflash,
        num_speculative_tokens=config.dflash_tokens,
        target_model_config=vllm_config.model_config,
        target_parallel_config=vllm_config.parallel_config,
    )
    return own


def _eagle3_taps(loader: Any) -> tuple[int, ...]:
    hf_config = loader.draft_model_config.hf_config
    eagle_config = getattr(hf_config, "eagle_config", None) or {}
    layers = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None) or eagle_config.get(
        "eagle_aux_hidden_state_layer_ids"
    )
    if layers:
        return tuple(layers)
    depth = loader.vllm_config.model_config.get_total_num_hidden_layers()
    return (2, depth // 2, depth - 3)


def _dflash_taps(loader: Any) -> tuple[int, ...]:
    """z-lab's ids name the state leaving a block; vLLM's auxiliary layer i is the state entering block i."""
    hf_config = loader.draft_model_config.hf_config
    entering = getattr(hf_config, "eagle_aux_hidden_state_layer_ids", None)
    if entering:
        return tuple(entering)
    return tuple(layer + 1 for layer in loader.dflash_config["target_layer_ids"])


def _columns(layers: tuple[int, ...], union: tuple[int, ...], hidden: int, device: torch.device) -> torch.Tensor:
    """Return the columns of the concatenated union features that are ``layers``, in their order."""
    starts = [union.index(layer) * hidden for layer in layers]
    return torch.cat([torch.arange(start, start + hidden, device=device) for start in starts])
