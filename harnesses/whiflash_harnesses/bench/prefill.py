"""How long a long prompt takes: to the first token, with nothing of it in the prefix cache."""

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, Protocol

REPEATS = 2
_TOKENS_PER_LINE = 11.0
"""What one line takes of the embedded tokenizer; other tokenizers' prompts come out longer or shorter."""


class Streams(Protocol):
    """The part of the embedded engine that this uses."""

    def astream(self, body: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
        """Stream ``chat.completion.chunk`` dicts; the last one has ``usage``."""


def long_prompt(tokens: int) -> str:
    """Return a text of about ``tokens`` tokens, no line of it like another."""
    lines = (f"Item {n} costs {n * 37 % 101} coins." for n in range(int(tokens / _TOKENS_PER_LINE)))
    return "\n".join(lines) + "\nWhich item is cheapest?"


async def measure_prompts(
    service: Streams, lengths: Sequence[int], salt: str, clock: Callable[[], float]
) -> dict[str, dict[str, float]]:
    """Return, per asked length, the prompt's tokens and the least seconds of a few cold runs."""
    found = {}
    for length in lengths:
        seconds: list[float] = []
        tokens = 0
        for repeat in range(REPEATS):
            body = {
                "messages": [{"role": "user", "content": long_prompt(length)}],
                "temperature": 0,
                "max_tokens": 1,
                "cache_salt": f"{salt}:prompt:{length}:{repeat}",
                "stream": True,
                "stream_options": {"include_usage": True},
            }
            started = clock()
            async for chunk in service.astream(body):
                if chunk.get("choices") and len(seconds) == repeat:
                    seconds.append(clock() - started)
                if chunk.get("usage"):
                    tokens = chunk["usage"]["prompt_tokens"]
        found[str(length)] = {"prompt_tokens": tokens, "seconds": min(seconds)}
    return found
