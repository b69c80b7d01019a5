"""Reads checkpoint folders without torch: ``config.json`` and the headers of the safetensors files.

The two layouts of drafters in public use are brought to one form here: the papers' own (flat config) and
speculators' (the decoder's config nested in ``transformer_layer_config``, tap layers counted from one more).
"""

import json
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from whiflash_engine.errors import CheckpointError

Tensors = dict[str, tuple[int, ...]]
"""Tensor name -> shape."""

_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_MAX_HEADER = 100_000_000


@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that a target and its drafters must agree on."""

    hidden_size: int
    num_layers: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int


def read_config(folder: Path, what: str) -> dict[str, Any]:
    """Return ``config.json`` of the checkpoint ``what`` in ``folder``."""
    path = folder / "config.json"
    if not path.is_file():
        raise CheckpointError(f"{what} {folder} has no config.json: pass the folder of a checkpoint")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"{what} {folder}: config.json is damaged ({error}): fetch it again") from error
    if not isinstance(config, dict):
        raise CheckpointError(f"{what} {folder}: config.json is not an object: fetch it again")
    return config


def read_shape(config: dict[str, Any], folder: Path, what: str) -> Shape:
    """Return the sizes in ``config``; defaults are those of the transformers classes."""
    for inner in ("transformer_layer_config", "text_config"):
        config = config.get(inner) or config
    try:
        heads = int(config["num_attention_heads"])
        return Shape(
            hidden_size=int(config["hidden_size"]),
            num_layers=int(config["num_hidden_layers"]),
            num_kv_heads=int(config.get("num_key_value_heads") or heads),
            head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
            vocab_size=int(config["vocab_size"]),
        )
    except KeyError as error:
        raise CheckpointError(
            f"{what} {folder}: config.json has no {error.args[0]}: pass the folder of a whole checkpoint"
        ) from error


def read_tensors(folder: Path, what: str) -> Tensors:
    """Return names and shapes of all tensors in the safetensors files of ``folder``.

    A folder that holds pickles only is refused: reading one runs whatever code it carries.
    """
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(path.name for path in folder.iterdir() if path.suffix in _PICKLES)
        if pickles:
            raise CheckpointError(
                f"{what} {folder} holds only {pickles[0]}: pickle files are not loaded, convert it to safetensors"
            )
        raise CheckpointError(f"{what} {folder} has no .safetensors file: fetch it again")
    tensors: Tensors = {}
    for path in files:
        tensors |= _read_header(path, what)
    return tensors


def _read_header(path: Path, what: str) -> Tensors:
    """Return names and shapes from the header of one safetensors file; raise if the file is cut short."""
    size = path.stat().st_size
    damaged = CheckpointError(f"{what} {path} is cut short or damaged ({size} bytes): fetch it again")
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else _MAX_HEADER
        if length > min(size, _MAX_HEADER) - 8:
            raise damaged
        try:
            header = json.loads(file.read(length))
        except ValueError as error:
            raise damaged from error
    header.pop("__metadata__", None)
    end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
    if size != 8 + length + end:
        raise damaged
    return {name: tuple(entry["shape"]) for name, entry in header.items()}


@dataclass(frozen=True)
class DrafterFiles:
    """A drafter folder: its config, the config's sizes and the shapes of its tensors."""

    folder: Path
    config: dict[str, Any]
    shape: Shape
    tensors: Tensors

    @property
    def algorithm(self) -> str:
        """``eagle3``, ``dflash``, or the architecture's own name when it is neither."""
        named = self.config.get("speculators_model_type")
        architecture = str((self.config.get("architectures") or ["no architecture"])[0])
        if named is not None:
            return str(named)
        if architecture in _EAGLE3:
            return "eagle3"
        return "dflash" if architecture in _DFLASH else architecture

    @property
    def quantized(self) -> bool:
        """Whether weights are packed, so that tensor shapes say little."""
        return bool(self.config.get("quantization_config") or self.config.get("compression_config"))

    def option(self, name: str) -> Any:
        """Return option ``name``, which formats keep at top level or in a section of their own."""
        for section in ("dflash_config", "eagle_config", "transformer_layer_config"):
            inner = self.config.get(section) or {}
            if inner.get(name) is not None:
                return inner[name]
        return self.config.get(name)


# Names that vLLM 0.32 maps to its EAGLE-3 and DFlash models (model_executor/models/registry.py), and
# speculators' older name for the first.
_EAGLE3 = frozenset(
    {
        "LlamaForCausalLMEagle3",
        "Eagle3LlamaForCausalLM",
        "Eagle3Qwen3ForCausalLM",
        "Eagle3DraftModel",
        "Eagle3Speculator",
    }
)
_DFLASH = frozenset({"DFlashDraftModel"})

# Prefixes and names under which public checkpoints keep the same tensors.
_ALIASES = (
    ("model.", ""),
    ("midlayer.", "layers.0."),
    ("encoder.fc.", "fc."),
    ("encoder.output_norm_enc.", "hidden_norm."),
)


def read_drafter(folder: Path, what: str) -> DrafterFiles:
    """Read a drafter's folder; tensor names come back in vLLM's form (``layers.0.`` for ``midlayer.``)."""
    config = read_config(folder, what)
    tensors = {_plain_name(name): shape for name, shape in read_tensors(folder, what).items()}
    return DrafterFiles(folder, config, read_shape(config, folder, what), tensors)


def _plain_name(name: str) -> str:
    for prefix, plain in _ALIASES:
        if name.startswith(prefix):
            name = plain + name.removeprefix(prefix)
    return name


def dflash_taps(drafter: DrafterFiles) -> list[int] | None:
    """Return the target layers whose output DFlash reads, as z-lab counts them: state leaving layer ``l``.

    speculators counts the state entering a layer, one more. ``None``: the config names no layers.
    """
    taps = drafter.option("target_layer_ids")
    if taps:
        return [int(layer) for layer in taps]
    entering = drafter.option("aux_hidden_state_layer_ids")
    return [int(layer) - 1 for layer in entering] if entering else None


def eagle3_taps(drafter: DrafterFiles, target_layers: int) -> list[int]:
    """Return the target layers whose input EAGLE-3 reads (vLLM's auxiliary layer numbers)."""
    named = drafter.option("eagle_aux_hidden_state_layer_ids")
    return [int(layer) for layer in named] if named else [2, target_layers // 2, target_layers - 3]
