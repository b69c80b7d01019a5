"""The texts the model reads, from ``prompts.yaml`` beside this file."""

from functools import cache
from pathlib import Path

import yaml
from jinja2 import Environment, StrictUndefined, Template


@cache
def _templates() -> dict[str, Template]:
    texts = yaml.safe_load(Path(__file__).with_name("prompts.yaml").read_text(encoding="utf-8"))
    jinja = Environment(undefined=StrictUndefined, autoescape=False)
    return {name: jinja.from_string(text.rstrip("\n")) for name, text in texts.items()}


def prompt(name: str, /, **values: object) -> str:
    """Render the text ``name``; a value that is missing is an error, not an empty string."""
    return _templates()[name].render(**values)
