"""Stage 1: the target answers the prompts, half greedy, half sampled; token ids and states go to shards.

The answers are the drafters' training text because a drafter is right exactly when it says what the target
would say (on-policy data).
"""

import logging
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from torch import Tensor

from whiflash_engine.training import features, files
from whiflash_engine.training.capture import Capture
from whiflash_engine.training.prompts import Prompt, Split, all_prompts

log = logging.getLogger(__name__)

_MAX_ROWS = 1024
_Answer = tuple[dict[str, Any], tuple[Tensor, Tensor]]
_REPEATS = {"diff": 3, "tool_json": 4}
"""Answers per training prompt where there are few prompts; every other kind has one."""
_LOOP_REPEATS = 4
_LOOP_PERIOD = 24


@dataclass(frozen=True)
class GenerateOptions:
    """Settings of the stage. Several processes share the work as ``part`` 0 .. ``parts`` - 1."""

    target: Path
    work: Path
    count: int | None = None
    max_tokens: int = 256
    answers_per_shard: int = 128
    max_num_seqs: int = 96
    part: int = 0
    parts: int = 1
    split: Split | None = None
    """Only answers of this side of the split; ``None``: all of them."""
    seed: int = 0


def cut_loop(ids: list[int]) -> list[int]:
    """Cut an answer once its end has repeated itself four times: a loop teaches and measures nothing."""
    for end in range(1, len(ids) + 1):
        for period in range(1, min(_LOOP_PERIOD, end // _LOOP_REPEATS) + 1):
            tail = ids[end - period * _LOOP_REPEATS : end]
            if tail == tail[:period] * _LOOP_REPEATS and period * _LOOP_REPEATS >= 12:
                return ids[:end]
    return ids


def prompt_ids(tokenizer: Any, prompt: Prompt) -> list[int]:
    """Return the token ids the target is asked with: chat template, then the given start of the answer."""
    text = tokenizer.apply_chat_template(
        prompt.messages, tools=prompt.tools or None, add_generation_prompt=True, tokenize=False
    )
    ids: list[int] = tokenizer.encode(text + prompt.prefix, add_special_tokens=False)
    return ids


def _jobs(options: GenerateOptions) -> list[tuple[Prompt, float]]:
    """Prompts with a temperature per answer, shuffled. What is replayed later is greedy: replay is exact then."""
    rng = random.Random(options.seed + 1)
    jobs: list[tuple[Prompt, float]] = []
    for prompt in all_prompts(options.seed):
        if prompt.split != "train":
            jobs.append((prompt, 0.0))
            continue
        repeats = _REPEATS.get(prompt.kind, 1)
        for number in range(repeats):
            is_greedy = number == 0 if repeats > 1 else rng.random() < 0.5
            jobs.append((prompt, 0.0 if is_greedy else round(rng.uniform(0.7, 1.0), 2)))
    rng.shuffle(jobs)
    return jobs[: options.count]


def _engine(options: GenerateOptions) -> Any:
    os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    from vllm import LLM

    return LLM(
        model=str(options.target),
        dtype="float32",
        enforce_eager=True,
        max_model_len=_MAX_ROWS,
        enable_prefix_caching=False,
        max_num_seqs=options.max_num_seqs,
        max_num_batched_tokens=1024,
        seed=options.seed,
    )


def _sampling(prompt: Prompt, temperature: float, max_tokens: int) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    constraint = StructuredOutputsParams(**prompt.constraint) if prompt.constraint else None
    # No seed per request: vLLM 0.32's CPU runner fails on it in chunked prefill. The engine's own seed holds.
    return SamplingParams(temperature=temperature, max_tokens=max_tokens, structured_outputs=constraint)


def _record(index: int, prompt: Prompt, temperature: float, asked: list[int], answer: list[int]) -> dict[str, Any]:
    return {
        "id": index,
        "kind": prompt.kind,
        "family": prompt.family,
        "temperature": temperature,
        "constrained": prompt.constraint is not None,
        "prompt": asked,
        "answer": cut_loop(answer),
    }


def generate(options: GenerateOptions) -> dict[str, int]:
    """Write shards ``text-PART-NNNN.jsonl`` below ``options.work``; return all answer tokens per kind.

    Answers already in a shard of this part are not asked for again, so a run that was stopped goes on.
    """
    mine = f"text-{options.part:02d}-*.jsonl"
    written = sorted(options.work.glob(mine))
    done = {row["id"] for path in written for row in files.read_jsonl(path)}
    jobs = [
        (index, prompt, temperature)
        for index, (prompt, temperature) in enumerate(_jobs(options))
        if index % options.parts == options.part
        and index not in done
        and (options.split is None or prompt.split == options.split)
    ]
    if jobs:
        number = len(written)
        for batch in _batched(_answers(options, jobs), options.answers_per_shard):
            path = options.work / f"text-{options.part:02d}-{number:04d}.jsonl"
            rows, states = [row for row, _ in batch], [state for _, state in batch]
            features.write_shard(files.features_of(path), rows, states)
            files.write_jsonl(path, rows)
            number += 1
    counts: Counter[str] = Counter()
    for path in files.shards(options.work, files.TEXT_GLOB):
        for row in files.read_jsonl(path):
            counts[row["kind"]] += len(row["answer"])
    return dict(counts)


def _batched(rows: Iterator[_Answer], size: int) -> Iterator[list[_Answer]]:
    while batch := list(islice(rows, size)):
        yield batch


def _answers(options: GenerateOptions, jobs: list[tuple[int, Prompt, float]]) -> Iterator[_Answer]:
    """Yield answers as they are finished; the engine always has more prompts waiting than it can run."""
    llm = _engine(options)
    capture = Capture(llm, _MAX_ROWS)
    tokenizer = llm.get_tokenizer()
    engine = llm.llm_engine
    asked = {}
    for index, prompt, temperature in jobs:
        ids = prompt_ids(tokenizer, prompt)
        asked[str(index)] = (index, prompt, temperature, ids)
        params = _sampling(prompt, temperature, options.max_tokens)
        engine.add_request(str(index), {"prompt_token_ids": ids}, params)
    begin, tokens, steps = time.monotonic(), 0, 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        steps += 1
        if steps % 50 == 0:
            log.info("%d steps, %d tokens of ended answers in %.0f s", steps, tokens, time.monotonic() - begin)
        for output in outputs:
            if not output.finished:
                continue
            answer = list(output.outputs[0].token_ids)
            tokens += len(answer)
            index, prompt, temperature, ids = asked[output.request_id]
            row = _record(index, prompt, temperature, ids, answer)
            yield row, capture.take(output.request_id, len(ids) + len(row["answer"]))
