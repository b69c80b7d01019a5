"""What a forked child of a process with a running engine must not do: use that engine, or end it.

``fork`` copies the engine's objects but none of its threads: a call would wait for ever, and at the child's exit
vLLM's clean-up would kill the parent's engine core. Nor can the child start an engine of its own, since OpenMP
does not survive a fork either.
"""

import os
from collections.abc import Callable
from typing import Any

from whiflash_engine.errors import ConfigError

FORKED = (
    "this process was forked from one whose engine had started, and an engine does not survive a fork: start "
    "processes with multiprocessing's 'spawn' or 'forkserver' method (and pool workers with the same), or let "
    "them use a server (base_url=)"
)

_forget: list[Callable[[], None]] = []
_forked = False


def refuse_after_fork() -> None:
    """Raise :class:`ConfigError` in a child that was forked after an engine had started."""
    if _forked:
        raise ConfigError(FORKED)


def forget_after_fork(forget: Callable[[], None]) -> None:
    """Have ``forget`` called in children from now on. Only the first call counts."""
    if not _forget:
        _forget.append(forget)
        os.register_at_fork(after_in_child=_in_child)


def _in_child() -> None:
    global _forked
    _forked = True
    for forget in _forget:
        forget()


def detach_finalizers(*owners: Any) -> None:
    """Take the clean-up at exit off vLLM's objects: in a child it would end the parent's processes."""
    for owner in owners:
        finalizer = getattr(owner, "_finalizer", None)
        if finalizer is not None:
            finalizer.detach()
