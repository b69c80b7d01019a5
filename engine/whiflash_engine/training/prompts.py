"""Deterministic prompts of the five kinds of text that agents write, split by topic.

A prompt's *family* is its kind and topic; families never straddle the train/held-out split, so a held-out
figure is about topics the drafters have not seen.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from whiflash_engine.training import tools, topics

Kind = Literal["reasoning", "prose", "code", "diff", "tool_json"]
KINDS: tuple[str, ...] = get_args(Kind)
HELD_OUT_SHARE = 0.12

_PROSE_FORMS = (
    "Write a short paragraph about {t}.", "Explain {t} to a ten-year-old child.",
    "Tell me three facts about {t}.", "What do you think about {t}?",
    "Write a friendly message to a friend about {t}.", "Summarise {t} in a few lines.",
    "Write the beginning of a story about {t}.", "Give me some tips that have to do with {t}.",
    "Write a list of five points on {t}.", "Can you tell me about {t}?", "Write a dialogue about {t}.",
    "Write a short news report about {t}.",
)  # fmt: skip
_REASONING_FORMS = (
    "Think step by step about this problem: {t}. State your assumptions first.",
    "Make a numbered plan for the following: {t}.",
    "Here is my problem: {t}. What would you check first, and why?",
    "Consider {t}. Explain your reasoning, then give the result.",
    "You are an agent that works step by step. Write your thoughts before acting on: {t}.",
    "What are the causes and the possible solutions? The case: {t}.",
    "Compare two ways to handle this: {t}.", "Ask and answer the questions that matter for: {t}.",
)  # fmt: skip
_CODE_FORMS = (
    "Write a Python function that {t}.", "Write Python code that {t}. Add a docstring and a small example.",
    "Write a JavaScript function that {t}.", "Write a Python program that {t}. Answer with code only.",
    "Write code that {t} and a unit test for it in Python.",
    "How do I write a Python function that {t}? Explain it.", "Write a Java method that {t}.",
    "Write a C function that {t}.", "Write a shell script or a function that {t}.",
    "Complete this Python module: a function that {t}, with type hints.",
)  # fmt: skip
# (request, start of the answer): the given start makes a small model write an edit at all.
_DIFF_FORMS = (
    ("Change this file: {change}. Answer with a unified diff.\n\n{name}\n```\n{code}```",
     "```diff\n--- a/{name}\n+++ b/{name}\n@@ -1,"),
    ("Here is {name}:\n\n```\n{code}```\n\nTask: {change}. Give a search/replace block.",
     "{name}\n```\n<<<<<<< SEARCH\n"),
    ("Fix {name}: {change}.\n\n```\n{code}```\n\nWrite the patch.", "Here is the patch:\n\n```diff\n"),
    ("{code}\nIn the code above ({name}), {change}. Show the whole new file.", ""),
    ("Edit {name} so that {change}. Show the old lines and the new lines.\n\n```\n{code}```", ""),
    ("Review this change request for {name}: {change}.\n```\n{code}```\nWrite the corrected code.", "```\n"),
)  # fmt: skip


@dataclass(frozen=True)
class Prompt:
    """One conversation to be answered; ``prefix`` is a given start of the answer and not trained on."""

    kind: str
    topic: str
    messages: list[dict[str, str]]
    prefix: str = ""
    tools: list[dict[str, Any]] = field(default_factory=list)
    constraint: dict[str, Any] | None = None
    """Keyword arguments of vLLM's ``StructuredOutputsParams`` or ``None``."""

    @property
    def family(self) -> str:
        """Kind and topic: the unit of the split."""
        return f"{self.kind}/{self.topic}"

    @property
    def held_out(self) -> bool:
        """Whether this prompt's family belongs to the held-out side."""
        digest = hashlib.sha256(self.family.encode()).digest()
        return int.from_bytes(digest[:4], "big") / 2**32 < HELD_OUT_SHARE


def _plain(kind: str, topics_of_kind: tuple[str, ...], forms: tuple[str, ...]) -> Iterator[Prompt]:
    for topic in topics_of_kind:
        for form in forms:
            yield Prompt(kind, topic, [{"role": "user", "content": form.format(t=topic)}])


def _diffs() -> Iterator[Prompt]:
    for name, code, change in topics.SNIPPETS:
        for request, start in _DIFF_FORMS:
            text = request.format(name=name, code=code, change=change)
            yield Prompt("diff", name, [{"role": "user", "content": text}], start.format(name=name))


def _tool_calls(rng: random.Random) -> Iterator[Prompt]:
    for request, fitting in topics.TOOL_REQUESTS:
        for form in tools.FORMS:
            offered = tools.offer(fitting, rng)
            yield Prompt(
                "tool_json",
                request,
                [{"role": "user", "content": request}],
                tools=offered,
                constraint=tools.constraint(form, fitting, offered),
            )


def all_prompts(seed: int = 0) -> list[Prompt]:
    """Return every prompt in an order fixed by ``seed``, kinds interleaved so that any head is balanced."""
    rng = random.Random(seed)
    by_kind = {
        "reasoning": list(_plain("reasoning", topics.REASONING, _REASONING_FORMS)),
        "prose": list(_plain("prose", topics.PROSE, _PROSE_FORMS)),
        "code": list(_plain("code", topics.CODE, _CODE_FORMS)),
        "diff": list(_diffs()),
        "tool_json": list(_tool_calls(rng)),
    }
    placed: list[tuple[float, str, Prompt]] = []
    for prompts in by_kind.values():
        rng.shuffle(prompts)
        for index, prompt in enumerate(prompts):
            place = (index + rng.random()) / len(prompts)
            placed.append((place, json.dumps(prompt.messages) + prompt.prefix, prompt))
    placed.sort(key=lambda item: item[:2])
    return [prompt for _, _, prompt in placed]
