"""Where an agent's commands run.

An :class:`Environment` is a working tree plus a way to run commands in it. Every command is a new process:
nothing but the working tree is kept between two commands.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from whiflash_engine.errors import ConfigError

EnvironmentName = Literal["bubblewrap", "local", "docker"]
OUTPUT_LIMIT = 10_000
"""Bytes of output kept of one command; the middle of longer output is cut."""


class CommandResult(NamedTuple):
    """What one command left behind."""

    output: str
    """Standard output and error, in the order written; a note stands where the middle was cut."""
    returncode: int
    """Exit status; 124 after a timeout."""
    timed_out: bool
    cut_bytes: int = 0


class Environment(Protocol):
    """A working tree in which commands run."""

    workdir: str
    """Path of the working tree as commands see it."""

    def execute(self, command: str, timeout: float, *, limit: int = OUTPUT_LIMIT) -> CommandResult:
        """Run ``command`` in bash in the working tree; kill all it started after ``timeout`` seconds."""
        ...

    def read_file(self, path: str) -> str:
        """Return a text file. Raises OSError (none there), ValueError (not text, too large)."""
        ...

    def write_file(self, path: str, text: str) -> None:
        """Write a text file, making its folders. Raises OSError."""
        ...

    def inside(self, shared: Path) -> str:
        """Return the path, as commands see it, of a file of the folder shared read-only."""
        ...

    def close(self) -> None:
        """Release what the environment holds; the working tree stays."""
        ...


EnvironmentFactory = Callable[[Path, Path], Environment]
"""Makes an environment from a working tree (writable) and a shared folder (read-only)."""


def environment_factory(name: str, *, unsafe_local: bool = False) -> EnvironmentFactory:
    """Return what makes environments of the kind ``name``; raise :class:`ConfigError` if it cannot work."""
    if name == "bubblewrap":
        from whiflash_harnesses.environments.bubblewrap import BubblewrapEnvironment, check_bubblewrap

        check_bubblewrap()
        return BubblewrapEnvironment
    if name == "local":
        if not unsafe_local:
            raise ConfigError(
                "environment 'local' runs model-written commands on this machine unprotected: "
                "pass --unsafe-local to accept that, or use --environment bubblewrap"
            )
        from whiflash_harnesses.environments.local import LocalEnvironment

        return LocalEnvironment
    if name == "docker":
        raise ConfigError("environment 'docker' is not in this version yet: use --environment bubblewrap")
    raise ConfigError(f"unknown environment {name!r}: choose one of bubblewrap, local, docker")
