"""Runs one command with a time limit, and keeps the head and the tail of what it prints."""

import contextlib
import os
import shlex
import signal
import subprocess
import tempfile
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from whiflash_harnesses.environments import OUTPUT_LIMIT, CommandResult

TIMEOUT_STATUS = 124
FILE_LIMIT = 1_000_000
"""Bytes above which a file is not read into the harness."""
_FILE_TIMEOUT = 30.0


class HeadTail:
    """Keeps the first and the last ``limit / 2`` bytes of a stream of any length."""

    def __init__(self, limit: int) -> None:
        self._half = max(1, limit // 2)
        self._head = bytearray()
        self._tail = bytearray()
        self.total = 0

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of the stream."""
        self.total += len(chunk)
        room = self._half - len(self._head)
        self._head += chunk[:room]
        self._tail += chunk[room:]
        if len(self._tail) > 4 * self._half + 65536:
            del self._tail[: -self._half]

    @property
    def cut(self) -> int:
        """Number of bytes that :meth:`data` leaves out."""
        return max(0, self.total - 2 * self._half)

    def data(self) -> bytes:
        """Return all bytes, or head, a note of how much was cut, and tail."""
        if not self.cut:
            return bytes(self._head + self._tail)
        note = f"\n[... {self.cut} of {self.total} bytes cut here ...]\n".encode()
        return bytes(self._head) + note + bytes(self._tail[-self._half :])


def run_process(
    argv: Sequence[str],
    *,
    timeout: float,
    env: Mapping[str, str],
    cwd: str | None = None,
    stdin: bytes = b"",
    limit: int = OUTPUT_LIMIT,
) -> tuple[HeadTail, int, bool]:
    """Run ``argv`` in a process group of its own: (output with stderr merged, exit status, timed out).

    The whole group is killed when the time is up, and also when the command has ended but left processes.
    """
    with tempfile.TemporaryFile() as source:
        source.write(stdin)
        source.seek(0)
        process = subprocess.Popen(
            argv,
            stdin=source,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(env),
            cwd=cwd,
            start_new_session=True,
        )
    assert process.stdout is not None
    kept = HeadTail(limit)
    reader = threading.Thread(target=_drain, args=(process.stdout, kept), daemon=True)
    reader.start()
    try:
        status, timed_out = process.wait(timeout=max(0.01, timeout)), False
    except subprocess.TimeoutExpired:
        status, timed_out = TIMEOUT_STATUS, True
    finally:
        _kill_group(process)
    reader.join(timeout=5)
    return kept, status, timed_out


def _drain(stream: IO[bytes], kept: HeadTail) -> None:
    with stream:
        while chunk := os.read(stream.fileno(), 65536):
            kept.feed(chunk)


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class ProcessEnvironment(ABC):
    """An environment whose commands are processes of this machine, wrapped or not.

    Files are read and written by commands too, never by this process: a link that a command left in the
    working tree must not lead the harness out of the sandbox.
    """

    workdir: str

    def __init__(self, testbed: Path, shared: Path) -> None:
        self.testbed = testbed
        self.shared = shared

    @abstractmethod
    def _argv(self, command: str) -> list[str]:
        """Return the command line that runs ``command`` in bash."""

    @abstractmethod
    def _environ(self) -> dict[str, str]:
        """Return the whole set of environment variables of a command."""

    @abstractmethod
    def inside(self, shared: Path) -> str:
        """Return the path, as commands see it, of a file of the shared folder."""

    def _run(self, command: str, timeout: float, *, limit: int, stdin: bytes = b"") -> tuple[HeadTail, int, bool]:
        argv = self._argv(command)
        return run_process(
            argv, timeout=timeout, env=self._environ(), cwd=str(self.testbed), stdin=stdin, limit=limit
        )

    def execute(self, command: str, timeout: float, *, limit: int = OUTPUT_LIMIT) -> CommandResult:
        """Run ``command``; see :class:`~whiflash_harnesses.environments.Environment`."""
        kept, status, timed_out = self._run(command, timeout, limit=limit)
        return CommandResult(kept.data().decode(errors="replace"), status, timed_out, kept.cut)

    def read_file(self, path: str) -> str:
        """Return the text of ``path``; OSError if there is no such file, ValueError if it is not text."""
        quoted = shlex.quote(path)
        kept, status, _ = self._run(
            f"test -f {quoted} && cat < {quoted} 2>/dev/null", _FILE_TIMEOUT, limit=FILE_LIMIT
        )
        if status:
            raise FileNotFoundError(f"{path}: no such file")
        if kept.cut:
            raise ValueError(f"{path}: larger than {FILE_LIMIT} bytes")
        try:
            return kept.data().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 text") from error

    def write_file(self, path: str, text: str) -> None:
        """Write ``text`` to ``path``; OSError with the shell's words if that fails."""
        quoted = shlex.quote(path)
        command = f'mkdir -p -- "$(dirname -- {quoted})" && cat > {quoted}'
        kept, status, _ = self._run(command, _FILE_TIMEOUT, limit=OUTPUT_LIMIT, stdin=text.encode())
        if status:
            raise OSError(kept.data().decode(errors="replace").strip() or f"{path}: cannot be written")

    def close(self) -> None:  # noqa: B027  (a default, not a gap: nothing is held between two commands)
        """Do nothing."""
