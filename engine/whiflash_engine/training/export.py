"""Write drafters in the public formats: what vLLM's methods ``eagle3`` and ``dflash`` load unchanged."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from whiflash_engine.training import files
from whiflash_engine.training.dflash import BLOCK, DFlash
from whiflash_engine.training.eagle3 import Eagle3
from whiflash_engine.training.features import DFLASH_TAPS, EAGLE3_TAPS
from whiflash_engine.training.layers import Shape
from whiflash_engine.training.target import Target

_DTYPE = torch.bfloat16


def _common(shape: Shape, layers: int) -> dict[str, Any]:
    return {
        "attention_bias": False,
        "bos_token_id": 1,
        "dtype": "bfloat16",
        "eos_token_id": 2,
        "head_dim": shape.head_dim,
        "hidden_act": "silu",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "max_position_embeddings": shape.max_positions,
        "num_attention_heads": shape.heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": shape.kv_heads,
        "rms_norm_eps": shape.eps,
        "rope_parameters": {"rope_theta": shape.rope_theta, "rope_type": "default"},
        "rope_theta": shape.rope_theta,
        "tie_word_embeddings": False,
        "vocab_size": shape.vocab,
    }


def prune_vocabulary(model: Eagle3, counts: Tensor, size: int) -> Eagle3:
    """Return the head with only the ``size`` draft tokens seen most often (``counts`` [vocab]).

    The head is read once per draft token, so every row costs time; rare rows bring no accepted tokens.
    """
    if size >= len(model.vocabulary):
        return model
    rows = counts[model.vocabulary].topk(size).indices.sort().values
    state = model.state_dict() | {"lm_head.weight": model.lm_head.weight[rows]}
    pruned = Eagle3(model.midlayer.self_attn.shape, model.embedding, model.vocabulary[rows])
    pruned.load_state_dict(state)
    return pruned.eval()


def eagle3_tensors(model: Eagle3) -> dict[str, Tensor]:
    """Return the head's tensors by their public names, ``d2t`` (offsets) and ``t2d`` (mask) included."""
    tensors = {name: tensor.to(_DTYPE) for name, tensor in model.state_dict().items()}
    vocabulary = model.vocabulary
    tensors["d2t"] = vocabulary - torch.arange(len(vocabulary))
    is_drafted = torch.zeros(model.embedding.shape[0], dtype=torch.bool)
    is_drafted[vocabulary] = True
    tensors["t2d"] = is_drafted
    return tensors


def export_eagle3(model: Eagle3, target: Target, folder: Path, card: str) -> None:
    """Write ``config.json``, ``model.safetensors`` and ``README.md`` of an EAGLE-3 head."""
    config = _common(target.shape, 1) | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": len(model.vocabulary),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(EAGLE3_TAPS), "use_aux_hidden_state": True},
        "model_type": "llama",
    }
    _write(folder, config, eagle3_tensors(model), card)


def export_dflash(model: DFlash, target: Target, folder: Path, card: str) -> None:
    """Write the three files of a DFlash drafter. ``target_layer_ids`` count states leaving a block."""
    config = _common(target.shape, len(model.layers)) | {
        "architectures": ["DFlashDraftModel"],
        "block_size": BLOCK,
        "dflash_config": {
            "mask_token_id": model.mask_token,
            "target_layer_ids": [tap - 1 for tap in DFLASH_TAPS],
        },
        "layer_types": ["full_attention"] * len(model.layers),
        "model_type": "qwen3",
        "num_target_layers": target.config["num_hidden_layers"],
        "sliding_window": None,
        "use_sliding_window": False,
    }
    _write(folder, config, {name: t.to(_DTYPE) for name, t in model.state_dict().items()}, card)


def _write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor], card: str) -> None:
    """Weights last: a folder with weights is a whole one."""
    files.write_text(folder / "config.json", json.dumps(config, indent=2, sort_keys=True) + "\n")
    files.write_text(folder / "README.md", card)
    files.write_tensors(folder / "model.safetensors", tensors, {"format": "pt"})


def load_eagle3(folder: Path, target: Target) -> Eagle3:
    """Read an exported head back, for replay on exactly the weights that are shipped."""
    tensors = load_file(folder / "model.safetensors")
    offsets = tensors.pop("d2t")
    tensors.pop("t2d")
    model = Eagle3(target.shape, target.embedding, offsets + torch.arange(len(offsets)))
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval()


def load_dflash(folder: Path, target: Target) -> DFlash:
    """Read an exported DFlash drafter back."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    mask = config["dflash_config"]["mask_token_id"]
    model = DFlash(target.shape, target.embedding, mask, config["num_hidden_layers"])
    tensors = load_file(folder / "model.safetensors")
    model.load_state_dict({name: tensor.float() for name, tensor in tensors.items()})
    return model.eval()
