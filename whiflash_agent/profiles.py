"""What is known of a model before its engine runs.

Agents read ``profile["max_input_tokens"]`` when they are built, to decide when to summarise; the engine
starts at first use. So the window comes from the settings, the table of known models or the checkpoint.
"""

import json
from pathlib import Path

from langchain_core.language_models import ModelProfile

KNOWN_WINDOWS = {"smollm2-135m": 8192}
"""Context windows, in tokens, of the targets that need no checkpoint folder."""

_CAPABILITIES = ModelProfile(
    open_weights=True,
    text_inputs=True,
    text_outputs=True,
    image_inputs=False,
    audio_inputs=False,
    video_inputs=False,
    tool_calling=True,
    tool_choice=True,
    tool_call_streaming=True,
    structured_output=True,
    temperature=True,
)


def known_window(target: str) -> int | None:
    """Return the context window of a known model name or a checkpoint folder, else ``None``."""
    if target in KNOWN_WINDOWS:
        return KNOWN_WINDOWS[target]
    config = Path(target) / "config.json"
    if not config.is_file():
        return None
    window = json.loads(config.read_text(encoding="utf-8")).get("max_position_embeddings")
    return window if isinstance(window, int) else None


def build_profile(name: str, window: int | None, max_tokens: int | None) -> ModelProfile:
    """Return the capabilities of a served model. Prompt and answer share the window."""
    profile = ModelProfile(**_CAPABILITIES, name=name)
    if window is not None:
        profile["max_input_tokens"] = window
    if max_tokens is not None:
        profile["max_output_tokens"] = max_tokens
    return profile
