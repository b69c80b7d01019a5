"""Test doubles: answers that are written down beforehand, for tests of agents on ``ChatWhiFlash``.

:class:`ScriptedBackend` gives whole OpenAI answers: no template and no parser are involved, and it needs no vLLM.
:class:`ScriptedEngine` gives what the model would write; chat template, tokenizer, tool and reasoning parsers are
the real ones. It starts in seconds.

    >>> ChatWhiFlash(backend=ScriptedBackend(answer("Hi")))
    >>> ChatWhiFlash(backend=ScriptedEngine(lambda prompt: tool_call("search", {"query": "vLLM"})))
"""

import copy
import json
import random
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from whiflash_agent._backends import EmbeddedBackend
from whiflash_engine.config import DEFAULT_TARGET, EngineConfig, build_config

Wire = dict[str, Any]

USAGE: Wire = {
    "prompt_tokens": 20,
    "completion_tokens": 7,
    "total_tokens": 27,
    "prompt_tokens_details": {"cached_tokens": 16},
}
FIGURES: Wire = {
    "rounds": 3,
    "drafted": 9,
    "accepted": 4,
    "mean_acceptance_length": 2.333,
    "share_by_drafter": {"dflash": 0.333, "eagle3": 0.667},
    "switches": 1,
    "seconds": {"draft": 0.01, "verify": 0.05, "catch_up": 0.0, "router": 0.001},
}


def call(name: str, arguments: str, call_id: str = "call-1") -> Wire:
    """Return one tool call of an answer."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def answer(
    text: str = "",
    *,
    reasoning: str = "",
    calls: Sequence[Wire] = (),
    finish_reason: str | None = None,
    logprobs: Sequence[Wire] = (),
) -> Wire:
    """Return a ``chat.completion`` as vLLM gives it, with usage and WhiFlash's figures."""
    message: Wire = {"role": "assistant", "content": text or None}
    if reasoning:
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = list(calls)
    choice = {
        "index": 0,
        "message": message,
        "finish_reason": finish_reason or ("tool_calls" if calls else "stop"),
    }
    if logprobs:
        choice["logprobs"] = {"content": list(logprobs)}
    return {
        "id": "chatcmpl-scripted",
        "object": "chat.completion",
        "created": 0,
        "model": "scripted",
        "choices": [choice],
        "usage": copy.deepcopy(USAGE),
        "whiflash": copy.deepcopy(FIGURES),
    }


def to_chunks(completion: Wire, cut: random.Random | None = None) -> list[Wire]:
    """Stream a completion: piece by piece at random places, or the whole in one delta if ``cut`` is ``None``.

    A delta may hold the end of one kind of content and the start of the next, as with speculation.
    """
    choice = completion["choices"][0]
    deltas = [{"role": "assistant"}, *_merge_at_random(_atoms(choice["message"]), cut)]
    frame = {key: completion[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    chunks = [{**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas]
    chunks[-1]["choices"][0] |= {key: choice[key] for key in ("logprobs", "finish_reason") if key in choice}
    chunks.append({**frame, "choices": [], "usage": completion["usage"], "whiflash": completion["whiflash"]})
    return chunks


def _atoms(message: Wire) -> list[Wire]:
    """Return the smallest deltas that make up a message."""
    atoms: list[Wire] = [{"reasoning": char} for char in message.get("reasoning") or ""]
    atoms += [{"content": char} for char in message.get("content") or ""]
    for index, made in enumerate(message.get("tool_calls") or []):
        head = {
            "index": index,
            "id": made["id"],
            "type": "function",
            "function": {"name": made["function"]["name"]},
        }
        atoms.append({"tool_calls": [head]})
        for char in made["function"]["arguments"]:
            atoms.append({"tool_calls": [{"index": index, "function": {"arguments": char}}]})
    return atoms


def _merge_at_random(atoms: list[Wire], cut: random.Random | None) -> list[Wire]:
    merged: list[Wire] = []
    for atom in atoms:
        if merged and (cut is None or cut.random() < 0.6):
            _extend(merged[-1], atom)
        else:
            merged.append(copy.deepcopy(atom))
    return merged


def _extend(delta: Wire, atom: Wire) -> None:
    """Add an atom to a delta; pieces of one call become one entry, as vLLM sends them."""
    for key in ("reasoning", "content"):
        if key in atom:
            delta[key] = delta.get(key, "") + atom[key]
    for piece in atom.get("tool_calls", []):
        entries = delta.setdefault("tool_calls", [])
        if entries and entries[-1]["index"] == piece["index"]:
            function = entries[-1].setdefault("function", {})
            function["arguments"] = function.get("arguments", "") + piece["function"]["arguments"]
        else:
            entries.append(copy.deepcopy(piece))


class ScriptedBackend:
    """A backend that gives set answers in turn and keeps what it was asked.

    A script entry is a ``chat.completion`` (see :func:`answer`), an exception to raise, or, for streams only,
    a list of ``chat.completion.chunk`` dicts. The last entry repeats.
    """

    def __init__(
        self, *script: Wire | Exception | list[Wire], window: int = 2048, seed: int | None = None
    ) -> None:
        """``seed`` cuts streams at random places; without it a stream has one delta."""
        self.script = list(script) or [answer("ok")]
        self.window = window
        self.bodies: list[Wire] = []
        self.closed = False
        self.aborted = 0
        self._cut = None if seed is None else random.Random(seed)

    def _next(self, body: Wire) -> Wire | list[Wire]:
        self.bodies.append(body)
        entry = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        if isinstance(entry, Exception):
            raise entry
        return copy.deepcopy(entry)

    def chat(self, body: Wire) -> Wire:
        """Return the next answer."""
        entry = self._next(body)
        if isinstance(entry, list):
            raise TypeError("a script of chunks can only be streamed")
        return entry

    def stream(self, body: Wire) -> Iterator[Wire]:
        """Yield the next answer's chunks."""
        entry = self._next(body)
        done = False
        try:
            yield from entry if isinstance(entry, list) else to_chunks(entry, self._cut)
            done = True
        finally:
            self.aborted += not done

    async def achat(self, body: Wire) -> Wire:
        """Return the next answer."""
        return self.chat(body)

    async def astream(self, body: Wire) -> AsyncIterator[Wire]:
        """Yield the next answer's chunks."""
        entry = self._next(body)
        done = False
        try:
            for chunk in entry if isinstance(entry, list) else to_chunks(entry, self._cut):
                yield chunk
            done = True
        finally:
            self.aborted += not done

    def max_model_len(self) -> int:
        """Return the set context window."""
        return self.window

    def count_tokens(self, body: Wire) -> int:
        """Count a token per word of the texts and per tool: enough to see what was counted."""
        self.bodies.append(body)
        return sum(len(str(m["content"]).split()) for m in body["messages"]) + len(body.get("tools", []))

    def tokenize(self, text: str) -> list[int]:
        """Return a number per word."""
        return list(range(len(text.split())))

    def close(self) -> None:
        """Note that it was closed."""
        self.closed = True


def tool_call(name: str, arguments: Wire) -> str:
    """Return a tool call as models of the Hermes form write it, the embedded one and Qwen among them."""
    made = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
    return f"<tool_call>\n{made}\n</tool_call>"


def random_rounds(seed: int) -> Callable[[Sequence[int]], list[Sequence[int]]]:
    """Return a way to cut answers at random places, as speculation does: several tokens arrive at once."""
    dice = random.Random(seed)

    def cut(tokens: Sequence[int]) -> list[Sequence[int]]:
        rounds = []
        while tokens:
            size = dice.randint(1, 8)
            rounds.append(tokens[:size])
            tokens = tokens[size:]
        return rounds

    return cut


class ScriptedEngine(EmbeddedBackend):
    """The embedded engine with a script in the model's place.

    ``script`` takes the rendered prompt and returns what the model writes, or its token ids. No grammar is
    enforced: a forced call is what the script makes of it. ``prompts`` holds what was asked.
    """

    def __init__(
        self,
        script: Callable[[str], str | Sequence[int]],
        *,
        cut: Callable[[Sequence[int]], Sequence[Sequence[int]]] | None = None,
        folder: Path | None = None,
        name: str = DEFAULT_TARGET,
        max_model_len: int | None = None,
        timeout: float | None = None,
    ) -> None:
        """Describe the engine; it starts at the first request.

        Args:
            script: who answers.
            cut: divides an answer's tokens into deltas; by default one token each. See :func:`random_rounds`.
            folder: config, tokenizer and chat template of another model than the embedded one (no weights).
            name: what the parsers go by: ``qwen3`` for one that thinks in ``<think>`` tags, and so on.
            max_model_len: context window in tokens.
            timeout: seconds per request.
        """
        config = EngineConfig(whiflash=build_config(target=name), max_model_len=max_model_len)
        super().__init__(config, timeout)
        self.script = script
        self.prompts: list[str] = []
        self._cut = cut
        self._folder = folder

    @cached_property
    def _service(self) -> Any:
        # Imported late: it pulls in vLLM.
        from whiflash_engine.service.scripted import ScriptedService, token_by_token

        return ScriptedService(
            self._answer, cut=self._cut or token_by_token, folder=self._folder, config=self._config
        )

    def cut_by(self, cut: Callable[[Sequence[int]], Sequence[Sequence[int]]]) -> None:
        """Divide answers in another way from now on."""
        self._service.cut = cut

    def pause(self, seconds: float) -> None:
        """Wait that long between two rounds from now on."""
        self._service.pause_s = seconds

    @property
    def unfinished(self) -> int:
        """How many requests are running."""
        return int(self._service.unfinished)

    @property
    def aborted(self) -> list[str]:
        """Ids of the requests that the engine core was told to drop."""
        ids: list[str] = self._service.aborted
        return ids

    def _answer(self, request: Any) -> str | Sequence[int]:
        self.prompts.append(request.prompt)
        return self.script(request.prompt)
