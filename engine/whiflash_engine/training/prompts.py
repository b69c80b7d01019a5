"""Deterministic prompts of the five kinds of text that agents write, split by topic.

A prompt's *family* is its kind and topic; a family is on one side of the split, so a held-out figure is about
topics that nothing has seen. Drafters learn from ``train``, routers from ``calibration``: what a drafter
accepts on its own training text says little about what it accepts elsewhere.
"""

import hashlib
import json
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from whiflash_engine.training import catalogue, tools, topics

Kind = Literal["reasoning", "prose", "code", "diff", "tool_json"]
KINDS: tuple[str, ...] = get_args(Kind)
Split = Literal["train", "calibration", "held_out"]
SPLITS: tuple[str, ...] = get_args(Split)
SHARE = 0.06
"""Share of the families that is held out, and of those that routers are calibrated on."""

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
    def split(self) -> Split:
        """Side of the split that this prompt's family is on."""
        return split_of(self.family)


def split_of(family: str) -> Split:
    """Return the side of the split that ``family`` is on: a hash of its name decides."""
    place = int.from_bytes(hashlib.sha256(family.encode()).digest()[:4], "big") / 2**32
    if place < SHARE:
        return "held_out"
    return "calibration" if place < 2 * SHARE else "train"


def _plain(kind: str, topics_of_kind: tuple[str, ...], forms: tuple[str, ...]) -> Iterator[Prompt]:
    for topic in topics_of_kind:
        for form in forms:
            yield Prompt(kind, topic, [{"role": "user", "content": form.format(t=topic)}])


def _asked(kind: str, pairs: Iterator[tuple[str, str]]) -> Iterator[Prompt]:
    for topic, text in pairs:
        yield Prompt(kind, topic, [{"role": "user", "content": text}])


def _code_requests(pairs: Iterator[tuple[str, str]], rng: random.Random) -> Iterator[tuple[str, str]]:
    for topic, text in pairs:
        yield topic, rng.choice(_CODE_FORMS).format(t=text)


def _edit(name: str, code: str, change: str, form: tuple[str, str]) -> Prompt:
    request, start = form
    text = request.format(name=name, code=code, change=change)
    return Prompt("diff", name, [{"role": "user", "content": text}], start.format(name=name))


def _edits(rng: random.Random) -> Iterator[Prompt]:
    for snippet in topics.SNIPPETS:
        for form in _DIFF_FORMS:
            yield _edit(*snippet, form)
    for function in catalogue.library_edits(rng):
        for form in rng.sample(_DIFF_FORMS, 2):
            yield _edit(*function, form)


def _tool_call(topic: str, request: str, fitting: str, form: str, rng: random.Random) -> Prompt:
    offered = tools.offer(fitting, rng)
    return Prompt(
        "tool_json",
        topic,
        [{"role": "user", "content": request}],
        tools=offered,
        constraint=tools.constraint(form, fitting, offered),
    )


def _tool_calls(rng: random.Random) -> Iterator[Prompt]:
    for request, fitting in topics.TOOL_REQUESTS:
        for form in tools.FORMS:
            yield _tool_call(request, request, fitting, form, rng)
    for topic, request, fitting in catalogue.tool_requests(4, rng):
        yield _tool_call(topic, request, fitting, rng.choice(tools.FORMS), rng)


def _reasoning(rng: random.Random) -> Iterator[tuple[str, str]]:
    for topic, case in catalogue.crossed(catalogue.COMPONENTS, catalogue.SYMPTOMS, 10, rng):
        yield topic, rng.choice(_REASONING_FORMS).format(t=case)
    yield from catalogue.sums(16, rng)


def all_prompts(seed: int = 0) -> list[Prompt]:
    """Return every prompt in an order fixed by ``seed``, kinds interleaved so that any head is balanced."""
    rng = random.Random(seed)
    by_kind = {
        "reasoning": [
            *_plain("reasoning", topics.REASONING, _REASONING_FORMS),
            *_asked("reasoning", _reasoning(rng)),
        ],
        "prose": [
            *_plain("prose", topics.PROSE, _PROSE_FORMS),
            *_asked("prose", catalogue.crossed(catalogue.SUBJECTS, catalogue.ASPECTS, 6, rng)),
        ],
        "code": [
            *_plain("code", topics.CODE, _CODE_FORMS),
            *_asked(
                "code", _code_requests(catalogue.crossed(catalogue.STRUCTURES, catalogue.OPERATIONS, 12, rng), rng)
            ),
            *_asked("code", _code_requests(catalogue.crossed(catalogue.DOMAINS, catalogue.USES, 10, rng), rng)),
        ],
        "diff": list(_edits(rng)),
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
