"""Commands straight on this machine. Only for people who have said ``--unsafe-local``."""

import os
import sys
from pathlib import Path

from whiflash_harnesses.environments.process import ProcessEnvironment


class LocalEnvironment(ProcessEnvironment):
    """Runs commands in the working tree with no protection at all: they can read and write everything."""

    def __init__(self, testbed: Path, shared: Path) -> None:
        super().__init__(testbed.resolve(), shared.resolve())
        self.workdir = str(self.testbed)

    def inside(self, shared: Path) -> str:
        """Return the path itself: nothing is mapped."""
        return str(shared.resolve())

    def _argv(self, command: str) -> list[str]:
        return ["/bin/bash", "-c", command]

    def _environ(self) -> dict[str, str]:
        own = str(Path(sys.executable).parent)
        return {
            "PATH": f"{own}:{os.environ.get('PATH', '/usr/local/bin:/usr/bin:/bin')}",
            "HOME": os.environ.get("HOME", "/tmp"),
            "LANG": "C.UTF-8",
            "TERM": "dumb",
            "PAGER": "cat",
            "PYTHONPATH": self.workdir,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
