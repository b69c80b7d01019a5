"""Starting vLLM's child processes: without the caller's script, and without a mark on the caller's environment."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def hidden_main() -> Iterator[None]:
    """Hide ``__main__`` while processes are spawned.

    vLLM's CPU backend spawns its engine core, and a spawned child imports its parent's main module again: a
    user's script without an ``if __name__ == "__main__"`` guard would start an engine in the child. The core
    needs nothing of that module, so it is not told of it.
    """
    main = sys.modules["__main__"]
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main


@contextmanager
def kept_preload() -> Iterator[None]:
    """Put ``LD_PRELOAD`` back afterwards.

    vLLM's CPU platform sets it for its own children; left in place, every program the caller starts later would
    get it too, those of a sandbox that does not hold the library among them.
    """
    before = os.environ.get("LD_PRELOAD")
    try:
        yield
    finally:
        if before is None:
            os.environ.pop("LD_PRELOAD", None)
        else:
            os.environ["LD_PRELOAD"] = before
