"""Starting vLLM's child processes without running the caller's script in them again."""

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
