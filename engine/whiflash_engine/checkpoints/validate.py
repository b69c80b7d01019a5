"""Checks that drafters fit their target before the engine starts.

Without these checks a wrong pair ends in a shape error deep inside vLLM a minute later, or drafts nonsense
silently. Only local folders are read; Hub names are left to vLLM.
"""

from pathlib import Path
from typing import Any

from whiflash_engine.checkpoints.formats import (
    DrafterFiles,
    Shape,
    dflash_taps,
    eagle3_taps,
    read_config,
    read_drafter,
    read_shape,
    read_tensors,
)
from whiflash_engine.checkpoints.registry import ResolvedModels
from whiflash_engine.config import WhiFlashConfig
from whiflash_engine.errors import CheckpointError
from whiflash_engine.routing.acceptance import AcceptanceModel
from whiflash_engine.routing.mlp import load_mlp

_LABELS = {"eagle3": "EAGLE-3", "dflash": "DFlash"}


def check_models(models: ResolvedModels, config: WhiFlashConfig) -> None:
    """Raise a one-line :class:`CheckpointError` if a file is damaged or a drafter does not fit the target."""
    target = _read_target(models.target)
    if target is not None:
        check_router_files(models, target.hidden_size)
    if models.eagle3 and Path(models.eagle3).is_dir():
        check_eagle3(Path(models.eagle3), target, models.target)
    if models.dflash and Path(models.dflash).is_dir():
        check_dflash(Path(models.dflash), target, models.target, config.dflash_tokens)


def check_router_files(models: ResolvedModels, hidden: int) -> None:
    """Raise :class:`CheckpointError` for a router's network that is damaged, or is not for this target or use."""
    if models.neural_router is not None:
        model, _ = load_mlp(Path(models.neural_router), hidden)
        if model.down.out_features != 1:
            raise CheckpointError(
                f"neural_router={models.neural_router} has {model.down.out_features} outputs, the neural router "
                "has one: is it the cost router's file (acceptance=)?"
            )
    if models.acceptance is not None:
        AcceptanceModel.read(Path(models.acceptance), hidden)


def check_eagle3(folder: Path, target: Shape | None, target_name: str) -> None:
    """Check an EAGLE-3 head in ``folder``; ``target=None`` leaves out what needs the target's sizes."""
    drafter = _read_as("eagle3", folder)
    _check_sizes(drafter, target, target_name)
    if target is not None:
        taps = eagle3_taps(drafter, target.num_layers)
        _check_taps(drafter, taps, range(target.num_layers + 1), target_name)
        _check_fusion(drafter, len(taps), target)
    _check_draft_vocabulary(drafter)
    # Only the first layer reads [embedding; fused features], twice the hidden size.
    _check_layers(drafter, inputs=[2 * drafter.shape.hidden_size])


def check_dflash(folder: Path, target: Shape | None, target_name: str, draft_tokens: int) -> None:
    """Check a DFlash drafter in ``folder``, and that its block holds ``draft_tokens``."""
    drafter = _read_as("dflash", folder)
    taps = dflash_taps(drafter)
    if taps is None:
        raise _error(
            drafter,
            "names no target layers: config.json needs dflash_config.target_layer_ids "
            "(or aux_hidden_state_layer_ids)",
        )
    _check_mask(drafter)
    _check_block(drafter, draft_tokens)
    _check_attention_kinds(drafter)
    _check_sizes(drafter, target, target_name)
    if target is not None:
        _check_taps(drafter, taps, range(target.num_layers), target_name)
        _check_fusion(drafter, len(taps), target)
    _need(drafter, "hidden_norm.weight", (drafter.shape.hidden_size,))
    _check_layers(drafter, inputs=[drafter.shape.hidden_size] * drafter.shape.num_layers)


def _read_target(name: str) -> Shape | None:
    """Return the target's sizes, or ``None`` for a Hub name."""
    folder = Path(name)
    if not folder.is_dir():
        return None
    shape = read_shape(read_config(folder, "target"), folder, "target")
    read_tensors(folder, "target")
    return shape


def _read_as(algorithm: str, folder: Path) -> DrafterFiles:
    drafter = read_drafter(folder, f"{_LABELS[algorithm]} drafter")
    found = drafter.algorithm
    if found == algorithm:
        return drafter
    label = _LABELS[algorithm]
    if found in _LABELS:
        raise CheckpointError(f"{algorithm}={folder} is not {label} but {_LABELS[found]}: pass it as {found}=")
    raise CheckpointError(
        f"{label} drafter {folder} has architecture {found}, which is not known here: "
        f"pass {algorithm}=… with {label} weights"
    )


def _error(drafter: DrafterFiles, problem: str) -> CheckpointError:
    return CheckpointError(f"{_LABELS[drafter.algorithm]} drafter {drafter.folder} {problem}")


def _check_sizes(drafter: DrafterFiles, target: Shape | None, target_name: str) -> None:
    """Hidden size (the drafter borrows the target's embedding), K/V shape (one cache group), vocabulary."""
    if target is None:
        return
    own = drafter.shape
    fused = int(drafter.option("target_hidden_size") or own.hidden_size)
    for label, value, wanted in (
        ("hidden size", own.hidden_size, target.hidden_size),
        ("target_hidden_size", fused, target.hidden_size),
        ("key/value heads", own.num_kv_heads, target.num_kv_heads),
        ("head size", own.head_dim, target.head_dim),
        ("vocabulary size", own.vocab_size, target.vocab_size),
    ):
        if value != wanted:
            raise _error(
                drafter,
                f"has {label} {value}, target {target_name} has {wanted}: "
                f"pass {drafter.algorithm}=… trained for this target",
            )


def _check_taps(drafter: DrafterFiles, taps: list[int], layers: range, target_name: str) -> None:
    outside = [layer for layer in taps if layer not in layers]
    if outside:
        raise _error(
            drafter,
            f"reads target layers {taps}, but {outside[0]} is not among the layers "
            f"{layers.start}–{layers.stop - 1} of target {target_name}: "
            f"pass {drafter.algorithm}=… trained for this target",
        )


def _check_fusion(drafter: DrafterFiles, taps: int, target: Shape) -> None:
    """``fc`` maps the tapped states side by side to the drafter's hidden size."""
    if not drafter.quantized:
        _need(drafter, "fc.weight", (drafter.shape.hidden_size, taps * target.hidden_size))


def _check_layers(drafter: DrafterFiles, inputs: list[int]) -> None:
    """The final norm and, per decoder layer, a key projection of the size that config.json promises."""
    if drafter.quantized:
        return
    _need(drafter, "norm.weight", (drafter.shape.hidden_size,))
    rows = drafter.shape.num_kv_heads * drafter.shape.head_dim
    for index, columns in enumerate(inputs):
        _need(drafter, f"layers.{index}.self_attn.k_proj.weight", (rows, columns))


def _check_draft_vocabulary(drafter: DrafterFiles) -> None:
    """A head over fewer tokens than the target's needs the table that maps its ids (``d2t``, offsets)."""
    vocab = drafter.shape.vocab_size
    draft_vocab = int(drafter.config.get("draft_vocab_size") or vocab)
    if draft_vocab > vocab:
        raise _error(drafter, f"has draft_vocab_size {draft_vocab}, more than its vocabulary of {vocab}")
    if draft_vocab < vocab:
        _need(drafter, "d2t", (draft_vocab,))
        if not drafter.quantized:
            _need(drafter, "lm_head.weight", (draft_vocab, drafter.shape.hidden_size))


def _need(drafter: DrafterFiles, name: str, shape: tuple[int, ...]) -> None:
    found = drafter.tensors.get(name)
    if found is None:
        raise _error(drafter, f"has no tensor {name}: the checkpoint is incomplete, fetch or train it again")
    if found != shape:
        raise _error(
            drafter,
            f"has {name} of shape {list(found)}, expected {list(shape)}: "
            f"pass {drafter.algorithm}=… trained for this target",
        )


def _check_mask(drafter: DrafterFiles) -> None:
    mask = drafter.option("mask_token_id")
    if mask is None:
        raise _error(drafter, "names no mask token: config.json needs dflash_config.mask_token_id")
    if not 0 <= int(mask) < drafter.shape.vocab_size:
        raise _error(drafter, f"has mask_token_id {mask}, outside its vocabulary of {drafter.shape.vocab_size}")


def _check_block(drafter: DrafterFiles, draft_tokens: int) -> None:
    block: Any = drafter.option("block_size")
    if not isinstance(block, int) or block < 2:
        raise _error(drafter, f"has block_size {block!r}: config.json needs a block_size of at least 2")
    # The block's first slot holds the last verified token unless the drafter was trained to predict from it.
    room = block if drafter.option("sample_from_anchor") else block - 1
    if draft_tokens > room:
        raise _error(drafter, f"has block size {block}: set dflash_tokens={room} or less, not {draft_tokens}")


def _check_attention_kinds(drafter: DrafterFiles) -> None:
    kinds = sorted(set(drafter.option("layer_types") or []))
    if len(kinds) > 1:
        raise _error(
            drafter,
            f"mixes {' and '.join(kinds)} layers, which vLLM's V1 runner cannot serve: "
            "pass dflash=… with one kind of attention",
        )
