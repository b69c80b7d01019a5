"""Stage 2: the target's hidden states for recorded answers that have none yet, one shard per text shard.

Tap ``i`` is the state that enters block ``i``: vLLM's auxiliary layer ``i``, transformers'
``hidden_states[i]``. A feature shard holds, rows of all sequences one after the other: ``ids`` [rows];
``taps`` [rows, len(TAPS) * hidden] and ``final`` [rows, hidden] in bfloat16, the latter after the target's
last norm; ``lengths`` and ``prompts`` [sequences]. Kinds and flags are in the text shard.
"""

import json
import logging
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from whiflash_engine.training import files
from whiflash_engine.training.prompts import Split, split_of

log = logging.getLogger(__name__)

EAGLE3_TAPS: tuple[int, ...] = (2, 15, 27)
DFLASH_TAPS: tuple[int, ...] = (2, 9, 15, 22, 27)
TAPS: tuple[int, ...] = tuple(sorted({*EAGLE3_TAPS, *DFLASH_TAPS}))
_MIN_ANSWER = 3
_TOKENS_PER_BATCH = 4096


@dataclass
class Sequence:
    """A prompt and answer: ``ids`` [T], the target's ``taps`` [T, n * hidden] and ``final`` [T, hidden]."""

    ids: torch.Tensor
    taps: torch.Tensor
    final: torch.Tensor
    prompt: int
    """Number of prompt tokens; the answer starts at this position."""
    kind: str
    greedy: bool
    constrained: bool
    split: Split

    @property
    def length(self) -> int:
        """Prompt and answer tokens."""
        return int(self.ids.shape[0])

    def select(self, taps: tuple[int, ...]) -> torch.Tensor:
        """Return the states of ``taps`` side by side in float32: [T, len(taps) * hidden]."""
        width = self.final.shape[-1]
        return torch.cat([self.taps[:, TAPS.index(t) * width :][:, :width] for t in taps], dim=-1).float()


def _batches(rows: list[dict[str, Any]]) -> list[list[int]]:
    """Group sequences of like length; padding costs as much as text."""
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]["prompt"]) + len(rows[i]["answer"]))
    batches: list[list[int]] = [[]]
    for index in order:
        length = len(rows[index]["prompt"]) + len(rows[index]["answer"])
        if batches[-1] and length * (len(batches[-1]) + 1) > _TOKENS_PER_BATCH:
            batches.append([])
        batches[-1].append(index)
    return batches


@torch.no_grad()
def teacher_force(model: Any, sequences: list[list[int]]) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return (taps, final) of each sequence. Padding is on the right, where causal attention never looks."""
    longest = max(map(len, sequences))
    ids = torch.zeros(len(sequences), longest, dtype=torch.long)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence)
    states = model.model(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    taps = torch.cat([states[tap] for tap in TAPS], dim=-1).bfloat16()
    final = states[-1].bfloat16()
    return [(taps[row, : len(s)], final[row, : len(s)]) for row, s in enumerate(sequences)]


def write_shard(path: Path, rows: list[dict[str, Any]], states: list[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Write one feature shard of recorded answers and their (taps, final); too short answers are left out."""
    kept = [(row, state) for row, state in zip(rows, states, strict=True) if _is_kept(row)]
    tensors = {
        "ids": torch.cat([torch.tensor(row["prompt"] + row["answer"]) for row, _ in kept]),
        "taps": torch.cat([taps for _, (taps, _) in kept]),
        "final": torch.cat([final for _, (_, final) in kept]),
        "lengths": torch.tensor([len(row["prompt"]) + len(row["answer"]) for row, _ in kept]),
        "prompts": torch.tensor([len(row["prompt"]) for row, _ in kept]),
    }
    files.write_tensors(path, tensors, {"taps": json.dumps(TAPS)})


def _is_kept(row: dict[str, Any]) -> bool:
    return len(row["answer"]) >= _MIN_ANSWER


def extract(target: Path, work: Path) -> int:
    """Write the missing feature shards for the text shards in ``work``; return how many were written."""
    todo = []
    for text in files.shards(work, files.TEXT_GLOB):
        path = files.features_of(text)
        if not path.exists():
            todo.append((text, path))
    if not todo:
        return 0
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    for text, path in todo:
        begin = time.monotonic()
        rows = list(files.read_jsonl(text))
        states: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for batch in _batches(rows):
            sequences = [rows[i]["prompt"] + rows[i]["answer"] for i in batch]
            states.update(zip(batch, teacher_force(model, sequences), strict=True))
        write_shard(path, rows, [states[i] for i in range(len(rows))])
        log.info("%s: %d answers in %.0f s", path.name, len(rows), time.monotonic() - begin)
    return len(todo)


def load(work: Path, limit: int | None = None) -> list[Sequence]:
    """Return all sequences of the first ``limit`` feature shards; states stay on disk until they are read."""
    sequences = []
    for path in files.shards(work, files.FEATURE_GLOB)[:limit]:
        with safe_open(path, framework="pt") as shard:
            data = {name: shard.get_tensor(name) for name in ("ids", "taps", "final", "lengths", "prompts")}
        rows = [row for row in files.read_jsonl(files.text_of(path)) if _is_kept(row)]
        lengths = data["lengths"].tolist()
        parts = zip(*(torch.split(data[name], lengths) for name in ("ids", "taps", "final")), strict=True)
        for (ids, taps, final), prompt, row in zip(parts, data["prompts"].tolist(), rows, strict=True):
            sequences.append(
                Sequence(
                    ids=ids,
                    taps=taps,
                    final=final,
                    prompt=prompt,
                    kind=row["kind"],
                    greedy=row["temperature"] == 0.0,
                    constrained=row["constrained"],
                    split=split_of(row["family"]),
                )
            )
    return sequences
