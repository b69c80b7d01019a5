"""The frame of a page: a template, its data, and the file that comes of them.

Autoescape is on for everything: what a model wrote is text, whatever it looks like. The content security policy
in the frame forbids scripts and anything from elsewhere, should a template ever forget.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from whiflash_harnesses.report.colours import PALETTE

TEMPLATES = Path(__file__).with_name("templates")


@dataclass(frozen=True)
class Table:
    """Cells as text. The first ``labels`` columns name the row; the others are figures."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    labels: int = 1
    note: str = ""


def render_page(template: Path, **context: Any) -> str:
    """Return the page of ``template``, which may extend ``page.html`` and import ``tokens.html``."""
    environment = Environment(
        loader=FileSystemLoader([template.parent, TEMPLATES]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template.name).render(palette=PALETTE, **context)


def flat(data: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted name, value as text) for nested data; nothing at all is ``-``."""
    for key, value in data.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", plain(value)


def plain(value: Any) -> str:
    """Return a value of a report as text."""
    if value is None or value == "" or (isinstance(value, Sequence | Mapping) and not value):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(plain(entry) for entry in value)
    return str(value)
