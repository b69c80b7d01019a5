"""Task sets: rows in swebench's format, and where each row's source comes from.

A set is a folder with one ``<instance_id>.json`` per row and a ``sources.json`` ({instance_id: source}), or a
``.json`` / ``.jsonl`` file of rows with a ``sources.json`` beside it. ``bundled`` is the set shipped here.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from whiflash_engine.errors import ConfigError

BUNDLED = Path(__file__).parent / "data" / "bundled"
_SOURCES = "sources.json"
_ROW_KEYS = (
    *("instance_id", "repo", "version", "base_commit", "problem_statement", "FAIL_TO_PASS", "PASS_TO_PASS"),
    *("log_parser", "eval_type", "eval_script", "image"),
)


class Source(BaseModel):
    """A source distribution on the package index that holds the code to repair."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    distribution: str
    version: str
    sha256: str = Field(pattern="^[0-9a-f]{64}$")
    leave_out: list[str] = []
    """Glob patterns of files that packaging added and the repository does not have."""


@dataclass(frozen=True, slots=True)
class Task:
    """One row and its source."""

    row: dict[str, Any]
    source: Source

    @property
    def instance_id(self) -> str:
        """The row's ``instance_id``."""
        return str(self.row["instance_id"])


def load_tasks(subset: str) -> list[Task]:
    """Return the tasks of ``bundled`` or of a path, in the order of their ids.

    Raises :class:`ConfigError` for a set that is not there or cannot be run.
    """
    if subset in ("lite", "verified"):
        raise ConfigError(
            f"task set {subset!r} is not in this version yet: use --subset bundled or the path of a set"
        )
    path = BUNDLED if subset == "bundled" else Path(subset)
    if not path.exists():
        raise ConfigError(f"task set {subset!r} not found: pass --subset bundled or the path of a set")
    sources = _read_sources(path if path.is_dir() else path.parent)
    tasks = [_task(row, sources, path) for row in _read_rows(path)]
    return sorted(tasks, key=lambda task: task.instance_id)


def select(tasks: list[Task], pattern: str | None = None, part: str | None = None) -> list[Task]:
    """Return the tasks whose id matches the regular expression, then the slice ``a:b`` of them."""
    chosen = tasks
    if pattern:
        try:
            chosen = [task for task in chosen if re.search(pattern, task.instance_id)]
        except re.error as error:
            raise ConfigError(f"--filter {pattern!r} is not a regular expression: {error}") from error
    if part:
        chosen = chosen[_slice(part)]
    if not chosen:
        names = ", ".join(task.instance_id for task in tasks)
        raise ConfigError(f"no task is left by --filter {pattern!r} --slice {part!r}: the set has {names}")
    return chosen


def _slice(part: str) -> slice:
    match = re.fullmatch(r"(-?\d*):(-?\d*)", part)
    if not match:
        raise ConfigError(f"--slice {part!r} is not of the form a:b")
    first, last = (int(text) if text else None for text in match.groups())
    return slice(first, last)


def _read_json(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".jsonl":
            return [json.loads(line) for line in text.splitlines() if line.strip()]
        return json.loads(text)
    except (OSError, ValueError) as error:
        raise ConfigError(f"task set file {path} cannot be read: {error}") from error


def _read_rows(path: Path) -> list[dict[str, Any]]:
    files = sorted(p for p in path.glob("*.json") if p.name != _SOURCES) if path.is_dir() else [path]
    rows: list[dict[str, Any]] = []
    for file in files:
        content = _read_json(file)
        rows += content if isinstance(content, list) else [content]
    if not rows:
        raise ConfigError(f"task set {path} has no rows: it needs one <instance_id>.json for each")
    return rows


def _read_sources(folder: Path) -> dict[str, Source]:
    path = folder / _SOURCES
    if not path.exists():
        raise ConfigError(f"task set {folder} has no {_SOURCES}: it says where each row's source comes from")
    try:
        return {name: Source(**fields) for name, fields in _read_json(path).items()}
    except (TypeError, AttributeError, ValidationError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{path} is not {{instance_id: source}}: {problem}") from error


def _task(row: Any, sources: dict[str, Source], path: Path) -> Task:
    if not isinstance(row, dict):
        raise ConfigError(f"task set {path}: a row is {type(row).__name__}, not an object")
    missing = [key for key in _ROW_KEYS if key not in row]
    if missing:
        name = row.get("instance_id", "?")
        raise ConfigError(f"task set {path}: row {name} lacks {', '.join(missing)} (swebench 5 format)")
    name = str(row["instance_id"])
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ConfigError(f"task set {path}: instance_id {name!r} cannot name a folder")
    if name not in sources:
        raise ConfigError(f"task set {path}: {_SOURCES} has no source for {name}")
    return Task(row, sources[name])
