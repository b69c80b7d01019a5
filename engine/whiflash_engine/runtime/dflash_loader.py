"""vLLM's ``DFlashProposer``, loaded under a name of its own beside another drafter."""

from typing import Any

from torch import nn
from vllm.compilation.backends import set_model_tag
from vllm.model_executor.model_loader import get_model
from vllm.model_executor.model_loader.utils import get_draft_load_config
from vllm.v1.spec_decode.dflash import DFlashProposer

PREFIX = "whiflash_dflash"


class PrefixedDFlashProposer(DFlashProposer):
    """Both drafters would name their first layer ``model.layers.<target depth>``; the prefix keeps them apart."""

    def _get_model(self) -> nn.Module:
        draft_vllm_config: Any = self._create_draft_vllm_config()
        with set_model_tag(PREFIX):
            model: nn.Module = get_model(
                vllm_config=draft_vllm_config,
                model_config=self.speculative_config.draft_model_config,
                load_config=get_draft_load_config(draft_vllm_config),
                prefix=PREFIX,
            )
        return model
