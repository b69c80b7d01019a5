"""Drafters with random weights in the public formats: exactness must hold whatever a drafter proposes."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

EAGLE3_TAPS = (2, 15, 27)
DFLASH_TAPS = (1, 14, 26)
MASK_TOKEN = 3


def _layer(prefix: str, width: int, shape: dict[str, Any], *, norms: tuple[str, ...]) -> dict[str, torch.Tensor]:
    hidden, inter, dim = shape["hidden_size"], shape["intermediate_size"], shape["head_dim"]
    heads, kv = shape["num_attention_heads"] * dim, shape["num_key_value_heads"] * dim
    sizes = {
        "self_attn.q_proj": (heads, width),
        "self_attn.k_proj": (kv, width),
        "self_attn.v_proj": (kv, width),
        "self_attn.o_proj": (hidden, heads),
        "mlp.gate_proj": (inter, hidden),
        "mlp.up_proj": (inter, hidden),
        "mlp.down_proj": (hidden, inter),
    }
    weights = {f"{prefix}{name}.weight": torch.randn(size) * 0.04 for name, size in sizes.items()}
    weights |= {f"{prefix}{name}.weight": torch.ones(hidden) for name in norms}
    return weights


def _save(folder: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / "model.safetensors")
    return folder


def random_eagle3(folder: Path, target: Path, *, draft_vocab: int = 512, **changes: Any) -> Path:
    """Write an EAGLE-3 head for ``target`` with random weights; ``changes`` go into its config."""
    shape = json.loads((target / "config.json").read_text())
    hidden, vocab = shape["hidden_size"], shape["vocab_size"]
    torch.manual_seed(0)
    ids = torch.randperm(vocab)[:draft_vocab].sort().values
    weights = _layer(
        "midlayer.",
        2 * hidden,
        shape,
        norms=("input_layernorm", "hidden_norm", "post_attention_layernorm"),
    )
    weights |= {
        "fc.weight": torch.randn(hidden, 3 * hidden) * 0.04,
        "norm.weight": torch.ones(hidden),
        "lm_head.weight": torch.randn(draft_vocab, hidden) * 0.04,
        "d2t": ids - torch.arange(draft_vocab),
        "t2d": torch.zeros(vocab, dtype=torch.bool).scatter_(0, ids, True),
    }
    config = shape | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": draft_vocab,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": list(EAGLE3_TAPS)},
        "tie_word_embeddings": False,
        "dtype": "float32",
    }
    return _save(folder, config | changes, weights)


def random_dflash(folder: Path, target: Path, *, layers: int = 2, **changes: Any) -> Path:
    """Write a DFlash drafter for ``target`` with random weights; ``changes`` go into its config."""
    shape = json.loads((target / "config.json").read_text())
    hidden, dim = shape["hidden_size"], shape["head_dim"]
    torch.manual_seed(1)
    weights = {
        "fc.weight": torch.randn(hidden, len(DFLASH_TAPS) * hidden) * 0.04,
        "hidden_norm.weight": torch.ones(hidden),
        "norm.weight": torch.ones(hidden),
    }
    for index in range(layers):
        prefix = f"layers.{index}."
        weights |= _layer(prefix, hidden, shape, norms=("input_layernorm", "post_attention_layernorm"))
        weights |= {f"{prefix}self_attn.{name}_norm.weight": torch.ones(dim) for name in "qk"}
    config = shape | {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "num_hidden_layers": layers,
        "num_target_layers": shape["num_hidden_layers"],
        "block_size": 8,
        "dflash_config": {"mask_token_id": MASK_TOKEN, "target_layer_ids": list(DFLASH_TAPS)},
        "dtype": "float32",
    }
    return _save(folder, config | changes, weights)
