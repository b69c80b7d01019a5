"""What is added to vLLM's answers, and taken out of them, before they leave the engine."""

from collections.abc import Sequence
from typing import Any

Body = dict[str, Any]

CUT_TEXT = "whiflash_text"
"""Key in a choice of the whole generated text, as it was before parsing. Only where the token limit cut an answer
that could have been a tool call: vLLM's parsers drop an unfinished call, some with all of its text."""


def token_ids(choice: Body) -> list[int]:
    """Return the tokens of a choice of an answer or a chunk."""
    return list(choice.get("token_ids") or [])


def drop_token_ids(answer: Body) -> None:
    """Remove the tokens, which the engine asked for and the caller did not."""
    answer.pop("prompt_token_ids", None)
    for choice in answer["choices"]:
        choice.pop("token_ids", None)


def note_cut_text(choice: Body, ids: Sequence[int], body: Body, tokenizer: Any) -> None:
    """Put the generated text into a choice that was cut where a tool call was possible."""
    callable_ = body.get("tools") and body.get("tool_choice") != "none"
    if callable_ and choice.get("finish_reason") == "length":
        choice[CUT_TEXT] = tokenizer.decode(ids)


def must_repeat(body: Body) -> bool:
    """Whether a request is sampled with a seed: its text must be the same every time."""
    return body.get("seed") is not None and body.get("temperature") != 0
