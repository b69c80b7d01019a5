"""Fetches a task's source distribution with pip, at its pinned sha256, and keeps it in the cache."""

import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs

from whiflash_engine.errors import WhiFlashError
from whiflash_harnesses.swebench.tasks import Source

_PIP_SECONDS = 300


def cache_folder() -> Path:
    """Return the folder of fetched sources: under ``WHIFLASH_CACHE``, or the user's cache folder."""
    root = os.environ.get("WHIFLASH_CACHE") or platformdirs.user_cache_dir("whiflash-agent")
    return Path(root).expanduser() / "sources"


def fetch(source: Source) -> Path:
    """Return the path of the source distribution, from the cache or through pip.

    A cached file that does not have the pinned sha256 is fetched again.
    """
    folder = cache_folder() / source.sha256[:16]
    cached = next(iter(folder.glob("*.tar.gz")), None)
    if cached and sha256_of(cached) == source.sha256:
        return cached
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            return _download(source, Path(scratch)).replace(folder / f"{source.distribution}.tar.gz")
    except OSError as error:
        raise WhiFlashError(f"cache folder {folder}: {error}: point WHIFLASH_CACHE elsewhere") from error


def sha256_of(path: Path) -> str:
    """Return the file's SHA-256 in hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _download(source: Source, scratch: Path) -> Path:
    """Let pip download; it compares the hash before it looks into the archive."""
    requirements = scratch / "requirements.txt"
    requirements.write_text(f"{source.distribution}=={source.version} --hash=sha256:{source.sha256}\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--no-binary", ":all:", "--require-hashes", "--dest", str(scratch), "-r", str(requirements)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_PIP_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        raise _failed(source, f"no answer in {_PIP_SECONDS} seconds") from None
    found = next(iter(scratch.glob("*.tar.gz")), None)
    if done.returncode or found is None:
        raise _failed(source, _last_error(done.stderr) or f"exit status {done.returncode}")
    return found


def _last_error(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1]


def _failed(source: Source, reason: str) -> WhiFlashError:
    return WhiFlashError(
        f"the source of {source.distribution} {source.version} is not in the cache {cache_folder()} and pip "
        f"could not download it ({reason}): connect to a package index once, then it works offline"
    )
