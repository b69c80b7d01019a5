"""The output folder of a run.

    run.json                          configuration and versions
    preds.json                        {instance_id: {instance_id, model_name_or_path, model_patch}}
    <id>/<id>.traj.json               the conversation, turn by turn, with times and drafting figures
    evaluations/<n>/<id>/             log, script, patch and verdict of one evaluation
    results.json                      the newest evaluation's verdicts

Files are replaced as a whole, so that a run that is killed leaves no half-written one.
"""

import json
import shutil
from pathlib import Path
from typing import Any

from whiflash_engine.errors import ConfigError

SCHEMA = "whiflash-swebench-run/1"
REDONE_STATUSES = ("interrupted", "model_error")
"""A task that ended so is worked on again when the run is resumed."""


class RunFolder:
    """Reads and writes the files of one output folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def run_file(self) -> Path:
        """Configuration and versions."""
        return self.path / "run.json"

    @property
    def results_file(self) -> Path:
        """Verdicts of the newest evaluation."""
        return self.path / "results.json"

    def trajectory_file(self, instance_id: str) -> Path:
        """The trajectory of one task."""
        return self.path / instance_id / f"{instance_id}.traj.json"

    def open_run(self, config: dict[str, Any], versions: dict[str, str], *, redo: bool) -> None:
        """Make the folder ready for a run, new or resumed; ``redo`` discards the run it holds.

        Raises :class:`ConfigError` if it holds something else, or a run with another configuration.
        """
        held = read_json(self.run_file)
        if held is None and self.path.is_dir() and any(self.path.iterdir()):
            raise ConfigError(
                f"output folder {self.path} holds files but no run of this harness: choose another --output"
            )
        if held is not None and (redo or not any(self.path.glob("*/*.traj.json"))):
            self._discard()  # nothing is lost where no task was begun, say after a wrong model name
            held = None
        if held is not None and held.get("config") != config:
            raise ConfigError(
                f"output folder {self.path} holds a run with another configuration "
                f"({_differences(held.get('config') or {}, config)}): choose another --output, or discard "
                "the run there with --redo"
            )
        if held is None:
            write_json(self.run_file, {"schema": SCHEMA, "config": config, "versions": versions})

    def read_run(self) -> dict[str, Any]:
        """Return ``run.json``; :class:`ConfigError` if this is not a run's folder."""
        held = read_json(self.run_file)
        if not isinstance(held, dict) or held.get("schema") != SCHEMA:
            raise ConfigError(f"{self.path} is not the output folder of a run: there is no {SCHEMA} run.json")
        return held

    def predictions(self) -> dict[str, dict[str, str]]:
        """Return ``preds.json``, empty before the first task has ended."""
        return read_json(self.path / "preds.json") or {}

    def add_prediction(self, instance_id: str, model: str, patch: str) -> None:
        """Add or replace one task's patch in ``preds.json``."""
        entry = {"instance_id": instance_id, "model_name_or_path": model, "model_patch": patch}
        write_json(self.path / "preds.json", {**self.predictions(), instance_id: entry})

    def trajectory(self, instance_id: str) -> dict[str, Any] | None:
        """Return one task's trajectory, if there is one."""
        found: dict[str, Any] | None = read_json(self.trajectory_file(instance_id))
        return found

    def is_finished(self, instance_id: str) -> bool:
        """Tell whether a resumed run may skip this task."""
        if instance_id not in self.predictions():
            return False
        info = (self.trajectory(instance_id) or {}).get("info", {})
        return info.get("exit_status") not in (None, *REDONE_STATUSES)

    def new_evaluation(self) -> Path:
        """Make and return a fresh folder for one evaluation: old logs can never answer for a new patch."""
        parent = self.path / "evaluations"
        parent.mkdir(parents=True, exist_ok=True)
        number = 1 + max((int(p.name) for p in parent.iterdir() if p.name.isdigit()), default=0)
        folder = parent / f"{number:04d}"
        folder.mkdir()
        return folder

    def _discard(self) -> None:
        """Remove what a run and its evaluations wrote, and nothing else."""
        for trajectory in self.path.glob("*/*.traj.json"):
            if trajectory.name == f"{trajectory.parent.name}.traj.json":
                shutil.rmtree(trajectory.parent)
        shutil.rmtree(self.path / "evaluations", ignore_errors=True)
        for name in ("preds.json", "results.json", "run.json"):
            (self.path / name).unlink(missing_ok=True)


def read_json(path: Path) -> Any:
    """Return the file's content, ``None`` if there is no file; :class:`ConfigError` if it is damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read ({error}): remove it or use another folder") from error


def write_json(path: Path, content: Any) -> None:
    """Write the file as a whole or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.partial")
        partial.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def _differences(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> str:
    """Name every setting that differs: ``steps=8 there, steps=20 here``."""
    found = []
    for key in sorted(there.keys() | here.keys()):
        ours, theirs = here.get(key), there.get(key)
        if isinstance(ours, dict) and isinstance(theirs, dict):
            found.append(_differences(theirs, ours, f"{prefix}{key}."))
        elif ours != theirs:
            found.append(f"{prefix}{key}={theirs} there, {prefix}{key}={ours} here")
    return "; ".join(text for text in found if text)
