"""Stock vLLM loads both shipped drafters unchanged, writes the same text, and accepts the same draft tokens.

Equal acceptance in every round is the sharpest check of our drafting path: it holds only if the drafters' K
and V, their inputs and their positions are those of vLLM's own proposers.
"""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from safetensors.torch import load_file

from whiflash_engine.checkpoints.registry import resolve

pytestmark = pytest.mark.engine

PROMPTS = [
    "Write a Python function that counts the vowels of a string.",
    "Explain in two sentences why the sky is blue.",
]
MAX_TOKENS = 48


def stock(method: str, drafter: str | None, draft_tokens: int, target: str, folder: Path) -> Any:
    settings = {
        "target": target,
        "drafter": drafter,
        "draft_tokens": draft_tokens,
        "prompts": PROMPTS,
        "max_tokens": MAX_TOKENS,
    }
    path = folder / f"{method}.json"
    path.write_text(json.dumps(settings))
    script = Path(__file__).with_name("stock_vllm.py")
    done = subprocess.run(
        [sys.executable, str(script), method, str(path)], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.strip().splitlines()[-1])


def ours(engine: Any, router: str) -> list[dict[str, Any]]:
    answers = []
    for prompt in PROMPTS:
        body = {
            "messages": [{"role": "user", "content": prompt}],
            "temperature": 0,
            "max_tokens": MAX_TOKENS,
            "return_token_ids": True,
            "whiflash_trace": True,
            "vllm_xargs": {"whiflash_router": router},
        }
        answer = engine.chat(body)
        rounds = answer["whiflash"]["trace"]
        answers.append(
            {
                "token_ids": answer["choices"][0]["token_ids"],
                "accepted": [r["accepted"] for r in rounds if r["drafted"]],
            }
        )
    return answers


@pytest.mark.parametrize("method", ["off", "eagle3", "dflash"])
def test_stock_vllm_agrees(engine: Any, method: str, tmp_path: Path) -> None:
    config = engine.config.whiflash
    models = resolve(config)
    drafter, draft_tokens = {
        "off": (None, 0),
        "eagle3": (models.eagle3, config.eagle3_tokens),
        "dflash": (models.dflash, config.dflash_tokens),
    }[method]
    theirs = stock(method, drafter, draft_tokens, models.target, tmp_path)
    mine = ours(engine, method)
    assert [a["token_ids"] for a in mine] == [a["token_ids"] for a in theirs]
    if method == "off":
        return
    short = draft_vocabulary(Path(str(models.eagle3))) if method == "dflash" else None
    offered = models.dflash_offered if method == "dflash" else None
    compared = sum(same_rounds(own, stocks, short, offered) for own, stocks in zip(mine, theirs, strict=True))
    assert compared >= 12, "most of two answers"
    assert sum(sum(a["accepted"]) for a in mine) > 0, "the shipped drafters get something right"


def same_rounds(own: dict[str, Any], stocks: dict[str, Any], short: set[int] | None, offered: int | None) -> int:
    """Assert that all rounds accept alike; return how many. The last one of ours is clipped at the answer's end.

    Our DFlash drafts from a ``short`` vocabulary on the CPU, and no more tokens than are ``offered``: it may
    differ from stock for either reason, and from there on rounds start elsewhere.
    """
    position = 1
    for number, (accepted, expected) in enumerate(zip(own["accepted"][:-1], stocks["accepted"], strict=False)):
        if accepted != expected:
            assert short is not None
            # Ahead of stock: what stock took for best is not in the short vocabulary, and was wrong.
            lacking = own["token_ids"][position + accepted] not in short
            assert accepted > expected or accepted == offered or lacking
            return number
        position += accepted + 1
    return len(own["accepted"]) - 1


def draft_vocabulary(folder: Path) -> set[int]:
    """Return the target ids that an EAGLE-3 head drafts from."""
    offsets = load_file(folder / "model.safetensors")["d2t"].tolist()
    return {draft + offset for draft, offset in enumerate(offsets)}


def test_a_short_head_drafts_the_best_of_its_vocabulary() -> None:
    """Unless it is asked for the whole head, DFlash on the CPU chooses among the EAGLE-3 head's draft tokens."""
    import torch

    from whiflash_engine.drafters.dflash import DFlashDrafter

    generator = torch.Generator().manual_seed(0)
    head, hidden = torch.randn(50, 8, generator=generator), torch.randn(20, 8, generator=generator)
    drafter = DFlashDrafter.__new__(DFlashDrafter)
    drafter.loader = SimpleNamespace(model=SimpleNamespace(lm_head=SimpleNamespace(weight=head)))
    kept = torch.tensor([3, 8, 9, 31, 44])
    drafter.shorten_head(kept)
    logits = torch.full((20, 50), float("-inf"))
    logits[:, kept] = (hidden @ head.T)[:, kept]
    assert drafter.greedy_tokens(hidden).tolist() == logits.argmax(dim=-1).tolist()
    assert drafter.greedy_tokens(hidden).dtype == torch.int32
