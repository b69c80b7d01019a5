"""Scripted engines that tests share: vLLM's real templates and parsers without a model, started once per run."""

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from whiflash_agent import ChatWhiFlash
from whiflash_agent.testing import ScriptedEngine, random_rounds

THINKING_TEMPLATE = """
{%- for message in messages -%}
  {%- if message.role == 'system' and not loop.first -%}
    {{- raise_exception('System message must be at the beginning.') -}}
  {%- endif -%}
  {%- if message.role != 'tool' and not loop.first and messages[loop.index0 - 1].role == message.role -%}
    {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') -}}
  {%- endif -%}
  {{- '<|im_start|>' + message.role + '\\n' -}}
  {%- if message.reasoning_content or message.reasoning -%}
    {{- '<think>\\n' + (message.reasoning_content or message.reasoning) + '\\n</think>\\n\\n' -}}
  {%- endif -%}
  {{- message.content or '' -}}
  {%- for call in message.tool_calls or [] -%}
    {{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
    {{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson -}}
    {{- '}\\n</tool_call>' -}}
  {%- endfor -%}
  {{- '<|im_end|>\\n' -}}
{%- endfor -%}
{%- if tools -%}{{- '<tools>' + (tools | tojson) + '</tools>' -}}{%- endif -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""Like Qwen3's, and as strict as Mistral's: turns alternate, and only the first message may be the system's."""


def unset(text: str) -> str:
    """Stand for a script that nobody set."""
    raise AssertionError(f"no script was set; asked: {text[-200:]}")


@cache
def plain_engine() -> ScriptedEngine:
    """The embedded model's template and parser (Hermes calls, no thinking)."""
    engine = ScriptedEngine(unset)
    atexit.register(engine.close)
    return engine


@cache
def thinking_engine() -> ScriptedEngine:
    """A model that thinks in ``<think>`` tags, with a template that refuses anything but turns."""
    engine = ScriptedEngine(unset, folder=thinking_folder(), name="qwen3-scripted")
    atexit.register(engine.close)
    return engine


def thinking_folder() -> Path:
    """The embedded model's configuration and tokenizer with two more tokens and another template; no weights."""
    from transformers import AutoTokenizer

    from whiflash_engine.checkpoints.embedded import prepare_target

    source = prepare_target()
    folder = Path(tempfile.mkdtemp(prefix="whiflash-thinking-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.add_tokens(["<think>", "</think>"])
    tokenizer.chat_template = THINKING_TEMPLATE
    tokenizer.save_pretrained(folder)
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    config["vocab_size"] = len(tokenizer)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def model_on(engine: ScriptedEngine, text: str, seed: int | None = None, **settings: object) -> ChatWhiFlash:
    """Return a chat model whose engine writes ``text``, in rounds cut at random if there is a ``seed``."""
    engine.script = lambda _: text
    engine.cut_by(random_rounds(seed) if seed is not None else lambda tokens: [[token] for token in tokens])
    return ChatWhiFlash(backend=engine, **settings)  # type: ignore[arg-type]
