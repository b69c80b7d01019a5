"""What starting child processes must not leave behind in the caller's process."""

import os
import sys

import pytest

from whiflash_engine.service.spawning import hidden_main, kept_preload


def test_main_is_hidden_and_comes_back_and_nothing_else_changes() -> None:
    main = sys.modules["__main__"]
    sys.modules.pop("this", None)
    with pytest.raises(KeyError), hidden_main():
        assert not hasattr(sys.modules["__main__"], "__file__")
        sys.modules["this"] = main  # as an import meanwhile would
        raise KeyError
    assert sys.modules["__main__"] is main
    assert sys.modules.pop("this") is main


@pytest.mark.parametrize("before", [None, "/lib/mine.so"])
def test_preload_is_put_back(monkeypatch: pytest.MonkeyPatch, before: str | None) -> None:
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if before is not None:
        monkeypatch.setenv("LD_PRELOAD", before)
    with kept_preload():
        os.environ["LD_PRELOAD"] = "/lib/theirs.so"
    assert os.environ.get("LD_PRELOAD") == before
