"""An engine's end: a script that simply ends leaves no process behind, prints no traceback, and does not hang."""

import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.engine

SCRIPT = """
from whiflash_agent import ChatWhiFlash

model = ChatWhiFlash(temperature=0, max_tokens=4, enforce_eager=True, max_model_len=1024)
print("ANSWER", repr(model.invoke("Hi").content))
import psutil
print("CHILDREN", *[child.pid for child in psutil.Process().children(recursive=True)])
"""


def still_running(pids: list[int], seconds: float) -> list[str]:
    """Return the command lines of those of ``pids`` that do not end within ``seconds``."""
    deadline = time.monotonic() + seconds
    while True:
        left = []
        for pid in pids:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                if process.status() != psutil.STATUS_ZOMBIE:
                    left.append(" ".join(process.cmdline()))
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.2)


def test_a_script_without_a_main_guard_ends_cleanly(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = dict(line.split(" ", 1) for line in done.stdout.splitlines() if line.startswith(("ANSWER", "CHILD")))
    assert lines["ANSWER"] != "''"
    children = [int(pid) for pid in lines["CHILDREN"].split()]
    assert children, "the engine core is a process of its own"
    assert not still_running(children, seconds=10)
    assert "Traceback" not in done.stderr
