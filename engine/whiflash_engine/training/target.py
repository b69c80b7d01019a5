"""What training needs of the target: shape, frozen embedding, and weights to start the drafters from."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from whiflash_engine.errors import CheckpointError
from whiflash_engine.training.dflash import DFlash
from whiflash_engine.training.eagle3 import Eagle3
from whiflash_engine.training.features import DFLASH_TAPS, EAGLE3_TAPS
from whiflash_engine.training.layers import Shape

_INIT_STD = 0.02


@dataclass(frozen=True)
class Target:
    """A Llama-shaped target on disk."""

    config: dict[str, Any]
    shape: Shape
    weights: dict[str, Tensor]
    """Embedding, last norm and the last blocks, float32, by their names without ``model.``."""

    @property
    def embedding(self) -> Tensor:
        """Embedding, tied to the output rows: [vocab, hidden]."""
        return self.weights["embed_tokens.weight"]


def read_target(folder: Path, last_blocks: int = 3) -> Target:
    """Read the configuration and the needed weights of a one-file, tied-embedding Llama checkpoint."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if not config.get("tie_word_embeddings"):
        raise CheckpointError(
            f"target {folder} has an output head of its own: training reads tied embeddings only"
        )
    heads = config["num_attention_heads"]
    shape = Shape(
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config["num_key_value_heads"],
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        intermediate=config["intermediate_size"],
        vocab=config["vocab_size"],
        rope_theta=config["rope_parameters"]["rope_theta"],
        eps=config["rms_norm_eps"],
        max_positions=config["max_position_embeddings"],
    )
    blocks = config["num_hidden_layers"]
    wanted = ["embed_tokens.", "norm.", *(f"layers.{blocks - 1 - i}." for i in range(last_blocks))]
    weights = {}
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - a safetensors handle is no mapping
            short = name.removeprefix("model.")
            if any(short.startswith(prefix) for prefix in wanted):
                weights[short] = file.get_tensor(name).float()
    return Target(config, shape, weights)


def _block(target: Target, from_end: int) -> dict[str, Tensor]:
    prefix = f"layers.{target.config['num_hidden_layers'] - 1 - from_end}."
    return {
        name.removeprefix(prefix): tensor for name, tensor in target.weights.items() if name.startswith(prefix)
    }


@torch.no_grad()
def _randomize(module: torch.nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        if parameter.dim() == 2:
            parameter.normal_(0.0, _INIT_STD, generator=generator)


def _pick_last_tap(taps: tuple[int, ...], hidden: int) -> Tensor:
    """Return a projection that hands on the deepest tap and a little of none of the others."""
    weight = torch.zeros(hidden, len(taps) * hidden)
    weight[:, -hidden:] = torch.eye(hidden)
    return weight


@torch.no_grad()
def new_eagle3(target: Target, vocabulary: Tensor, seed: int) -> Eagle3:
    """Return a head that starts as the target's last block on the deepest tap, blind to the embedding."""
    model = Eagle3(target.shape, target.embedding, vocabulary)
    _randomize(model, seed)
    block = _block(target, 0)
    hidden = target.shape.hidden
    model.fc.weight.add_(_pick_last_tap(EAGLE3_TAPS, hidden))
    layer = model.midlayer
    for name in ("q_proj", "k_proj", "v_proj"):
        getattr(layer.self_attn, name).weight[:, hidden:] = block[f"self_attn.{name}.weight"]
    layer.self_attn.o_proj.weight.copy_(block["self_attn.o_proj.weight"])
    layer.hidden_norm.weight.copy_(block["input_layernorm.weight"])
    layer.post_attention_layernorm.weight.copy_(block["post_attention_layernorm.weight"])
    for name in ("gate_proj", "up_proj", "down_proj"):
        getattr(layer.mlp, name).weight.copy_(block[f"mlp.{name}.weight"])
    model.norm.weight.copy_(target.weights["norm.weight"])
    model.lm_head.weight.copy_(target.embedding[vocabulary])
    return model.eval()


@torch.no_grad()
def new_dflash(target: Target, mask_token: int, layers: int, seed: int, from_blocks: bool = True) -> DFlash:
    """Return a drafter that starts with the deepest tap as context and the target's last blocks."""
    model = DFlash(target.shape, target.embedding, mask_token, layers)
    _randomize(model, seed)
    model.norm.weight.copy_(target.weights["norm.weight"])
    if from_blocks:
        model.fc.weight.add_(_pick_last_tap(DFLASH_TAPS, target.shape.hidden))
        model.hidden_norm.weight.copy_(_block(target, layers - 1)["input_layernorm.weight"])
        for index, layer in enumerate(model.layers):
            missing = layer.load_state_dict(_block(target, layers - 1 - index), strict=False).missing_keys
            if any("_norm" not in name for name in missing):
                raise CheckpointError(f"the target's blocks lack {missing}: it is not Llama-shaped")
    return model.eval()
