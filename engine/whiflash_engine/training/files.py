"""Atomic files: a stage that is stopped leaves the last complete file, never half of one."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from whiflash_engine.errors import CheckpointError

TEXT_GLOB = "text-*.jsonl"
FEATURE_GLOB = "features-*.safetensors"


def write_text(path: Path, text: str) -> None:
    """Write ``text`` beside ``path`` and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    aside.write_text(text, encoding="utf-8")
    aside.replace(path)


def write_jsonl(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write one JSON object per line."""
    write_text(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def read_jsonl(path: Path) -> Iterator[dict[str, Any]]:
    """Read what :func:`write_jsonl` wrote."""
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def write_tensors(path: Path, tensors: dict[str, torch.Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file beside ``path`` and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, aside, metadata)
    aside.chmod(0o644)
    aside.replace(path)


def write_state(path: Path, state: dict[str, Any]) -> None:
    """Write a training state (weights, optimizer, step) beside ``path`` and rename it into place."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".part")
    torch.save(state, aside)
    aside.replace(path)


def features_of(text: Path) -> Path:
    """Return the feature shard that belongs to a text shard."""
    return text.with_name(text.name.replace("text-", "features-").replace(".jsonl", ".safetensors"))


def text_of(features: Path) -> Path:
    """Return the text shard that a feature shard belongs to."""
    return features.with_name(features.name.replace("features-", "text-").replace(".safetensors", ".jsonl"))


def shards(folder: Path, pattern: str) -> list[Path]:
    """Return the shard files of a stage in order; an empty folder means that the stage before did not run."""
    found = sorted(folder.glob(pattern))
    if not found:
        raise CheckpointError(f"no {pattern} in {folder}: run the stage that writes them first")
    return found
