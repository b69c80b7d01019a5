"""Checks that drafters fit their target: each test alters one thing in a good pair and reads the error."""

import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from whiflash_engine.checkpoints.registry import ResolvedModels
from whiflash_engine.checkpoints.validate import check_models
from whiflash_engine.config import WhiFlashConfig
from whiflash_engine.errors import CheckpointError

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, LAYERS, VOCAB, DRAFT_VOCAB = 64, 4, 2, 16, 8, 100, 40
DECODER: dict[str, Any] = {
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD_DIM,
    "num_hidden_layers": LAYERS,
    "vocab_size": VOCAB,
}
KV_ROWS = KV_HEADS * HEAD_DIM


def write(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[int, ...]]) -> Path:
    """Write a checkpoint whose tensors are all zeros, by the layout of the safetensors format."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, shape in tensors.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(end))
    return folder


EAGLE3_CONFIG = {
    **DECODER,
    "architectures": ["LlamaForCausalLMEagle3"],
    "num_hidden_layers": 1,
    "draft_vocab_size": DRAFT_VOCAB,
}
EAGLE3_TENSORS: dict[str, tuple[int, ...]] = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "midlayer.self_attn.k_proj.weight": (KV_ROWS, 2 * HIDDEN),
    "norm.weight": (HIDDEN,),
    "lm_head.weight": (DRAFT_VOCAB, HIDDEN),
    "d2t": (DRAFT_VOCAB,),
    "t2d": (VOCAB,),
}
DFLASH_CONFIG = {
    **DECODER,
    "architectures": ["DFlashDraftModel"],
    "num_hidden_layers": 2,
    "block_size": 8,
    "dflash_config": {"mask_token_id": VOCAB - 1, "target_layer_ids": [1, 4, 7]},
}
DFLASH_TENSORS: dict[str, tuple[int, ...]] = {
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "hidden_norm.weight": (HIDDEN,),
    "norm.weight": (HIDDEN,),
    "layers.0.self_attn.k_proj.weight": (KV_ROWS, HIDDEN),
    "layers.1.self_attn.k_proj.weight": (KV_ROWS, HIDDEN),
}
DECODER_KEYS = (*DECODER, "layer_types")


def speculators(config: dict[str, Any], algorithm: str, **options: Any) -> dict[str, Any]:
    """Return ``config`` in the nested form of the speculators library."""
    inner = {key: value for key, value in config.items() if key in DECODER_KEYS}
    outer = {key: value for key, value in config.items() if key not in (*DECODER_KEYS, "dflash_config")}
    return outer | {"speculators_model_type": algorithm, "transformer_layer_config": inner} | options


def models(target: Path, eagle3: Path | None = None, dflash: Path | None = None) -> ResolvedModels:
    def name(path: Path | None) -> str | None:
        return str(path) if path else None

    return ResolvedModels("test", str(target), name(eagle3), name(dflash), router_threshold=1.0)


class Pair:
    """A small target with both drafters; tests alter one thing and read the error."""

    def __init__(self, root: Path) -> None:
        self.target = write(root / "target", DECODER, {"norm.weight": (HIDDEN,)})
        self.eagle3 = write(root / "eagle3", EAGLE3_CONFIG, EAGLE3_TENSORS)
        self.dflash = write(root / "dflash", DFLASH_CONFIG, DFLASH_TENSORS)

    def check(self, **config: Any) -> None:
        check_models(models(self.target, self.eagle3, self.dflash), WhiFlashConfig(**config))

    def error(self, **config: Any) -> str:
        with pytest.raises(CheckpointError) as raised:
            self.check(**config)
        text = str(raised.value)
        assert "\n" not in text
        return text


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path)


def test_the_papers_formats_pass(pair: Pair) -> None:
    pair.check()


def test_the_speculators_formats_pass(pair: Pair) -> None:
    eagle3 = speculators(EAGLE3_CONFIG, "eagle3", architectures=["Eagle3Speculator"])
    layer = {name.replace("midlayer.", "layers.0."): shape for name, shape in EAGLE3_TENSORS.items()}
    write(pair.eagle3, eagle3 | {"eagle_aux_hidden_state_layer_ids": [2, 4, 5]}, layer)
    dflash = speculators(
        DFLASH_CONFIG, "dflash", aux_hidden_state_layer_ids=[2, 5, 8], mask_token_id=0, block_size=8
    )
    write(pair.dflash, dflash, DFLASH_TENSORS)
    pair.check()


def test_full_vocabulary_head_needs_no_table(pair: Pair) -> None:
    tensors = {name: shape for name, shape in EAGLE3_TENSORS.items() if name not in ("d2t", "t2d")}
    write(pair.eagle3, {**EAGLE3_CONFIG, "draft_vocab_size": None}, tensors)
    pair.check()


def test_hidden_size(pair: Pair) -> None:
    write(pair.dflash, {**DFLASH_CONFIG, "hidden_size": 2560}, DFLASH_TENSORS)
    assert pair.error() == (
        f"DFlash drafter {pair.dflash} has hidden size 2560, target {pair.target} has 64: "
        "pass dflash=… trained for this target"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 32}, "has hidden size 32"),
        ({"target_hidden_size": 32}, "has target_hidden_size 32"),
        ({"num_key_value_heads": 4}, "has key/value heads 4, target"),
        ({"head_dim": 32}, "has head size 32, target"),
        ({"vocab_size": 99}, "has vocabulary size 99, target"),
        ({"draft_vocab_size": 101}, "has draft_vocab_size 101, more than its vocabulary of 100"),
        ({"draft_vocab_size": 41}, "has d2t of shape [40], expected [41]"),
        ({"architectures": ["MedusaModel"]}, "has architecture MedusaModel, which is not known here"),
        ({"architectures": ["DFlashDraftModel"]}, "is not EAGLE-3 but DFlash: pass it as dflash="),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4, 9]}},
            "reads target layers [2, 4, 9], but 9 is not among the layers 0–8",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [2, 4]}},
            "has fc.weight of shape [64, 192], expected [64, 128]",
        ),
    ],
)
def test_eagle3_config_that_does_not_fit(pair: Pair, change: dict[str, Any], message: str) -> None:
    write(pair.eagle3, EAGLE3_CONFIG | change, EAGLE3_TENSORS)
    text = pair.error()
    assert message in text
    assert str(pair.eagle3) in text


@pytest.mark.parametrize("name", [name for name in EAGLE3_TENSORS if name != "t2d"])
def test_eagle3_tensor_missing(pair: Pair, name: str) -> None:
    write(pair.eagle3, EAGLE3_CONFIG, {key: shape for key, shape in EAGLE3_TENSORS.items() if key != name})
    assert f"has no tensor {name.replace('midlayer.', 'layers.0.')}: the checkpoint is incomplete" in pair.error()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dflash_config": {"mask_token_id": 1}}, "names no target layers: config.json needs dflash_config"),
        ({"dflash_config": {"target_layer_ids": [1, 4, 7]}}, "names no mask token"),
        (
            {"dflash_config": {"mask_token_id": 100, "target_layer_ids": [1, 4, 7]}},
            "has mask_token_id 100, outside its vocabulary of 100",
        ),
        (
            {"dflash_config": {"mask_token_id": 1, "target_layer_ids": [1, 4, 8]}},
            "but 8 is not among the layers 0–7",
        ),
        ({"block_size": None}, "has block_size None: config.json needs a block_size of at least 2"),
        ({"block_size": 1}, "has block_size 1"),
        ({"block_size": 4}, "has block size 4: set dflash_tokens=3 or less, not 7"),
        (
            {"layer_types": ["sliding_attention", "full_attention"]},
            "mixes full_attention and sliding_attention layers, which vLLM's V1 runner cannot serve",
        ),
        ({"num_key_value_heads": 1}, "has key/value heads 1, target"),
        ({"num_hidden_layers": 3}, "has no tensor layers.2.self_attn.k_proj.weight"),
        (
            {"architectures": ["DFlash2DraftModel"]},
            "has architecture DFlash2DraftModel, which",
        ),
        ({"architectures": ["LlamaForCausalLMEagle3"]}, "is not DFlash but EAGLE-3: pass it as eagle3="),
    ],
)
def test_dflash_config_that_does_not_fit(pair: Pair, change: dict[str, Any], message: str) -> None:
    write(pair.dflash, DFLASH_CONFIG | change, DFLASH_TENSORS)
    text = pair.error()
    assert message in text
    assert str(pair.dflash) in text


def test_block_without_anchor_has_room_for_one_more(pair: Pair) -> None:
    inner = {**DFLASH_CONFIG["dflash_config"], "sample_from_anchor": True}
    write(pair.dflash, {**DFLASH_CONFIG, "dflash_config": inner}, DFLASH_TENSORS)
    pair.check(dflash_tokens=8)
    assert "set dflash_tokens=8 or less, not 9" in pair.error(dflash_tokens=9)


def test_files_that_cannot_be_read(pair: Pair) -> None:
    weights = pair.dflash / "model.safetensors"
    os.truncate(weights, weights.stat().st_size - 1)
    assert f"DFlash drafter {weights} is cut short or damaged" in pair.error()
    os.truncate(weights, 4)
    assert "is cut short or damaged (4 bytes)" in pair.error()
    weights.unlink()
    assert "has no .safetensors file" in pair.error()
    (pair.dflash / "pytorch_model.bin").write_bytes(b"")
    assert "holds only pytorch_model.bin: pickle files are not loaded" in pair.error()
    (pair.eagle3 / "config.json").write_text("{")
    assert f"EAGLE-3 drafter {pair.eagle3}: config.json is damaged" in pair.error()
    (pair.eagle3 / "config.json").write_text('{"hidden_size": 64}')
    assert "config.json has no num_attention_heads" in pair.error()
    (pair.target / "config.json").unlink()
    assert f"target {pair.target} has no config.json" in pair.error()


def test_hub_target_leaves_only_what_the_drafter_says_of_itself(pair: Pair) -> None:
    found = models(Path("Qwen/Qwen3-4B"), pair.eagle3, pair.dflash)
    check_models(found, WhiFlashConfig())
    write(pair.dflash, {**DFLASH_CONFIG, "block_size": 4}, DFLASH_TENSORS)
    with pytest.raises(CheckpointError, match="block size 4"):
        check_models(found, WhiFlashConfig())
