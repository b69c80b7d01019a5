"""What a person sees while a run goes on: lines, and on a terminal a spinner with the running time."""

from types import TracebackType

from rich.console import Console
from rich.progress import Progress as RichProgress
from rich.progress import SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.text import Text


class Progress:
    """Lines on stderr; on a terminal also what is going on now and for how long."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(stderr=True, highlight=False)
        self._live: RichProgress | None = None
        if self._console.is_terminal:
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._live = RichProgress(*columns, console=self._console, transient=True)

    def __enter__(self) -> "Progress":
        if self._live:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live:
            self._live.stop()

    def line(self, text: str) -> None:
        """Print one line; on a terminal it is cut to the width."""
        if self._live:
            self._live.console.print(Text(text), no_wrap=True, overflow="ellipsis")
        else:
            print(text, file=self._console.file, flush=True)

    def now(self, text: str) -> None:
        """Say what starts now."""
        if self._live is None:
            self.line(f"{text} ...")
            return
        for task in self._live.task_ids:
            self._live.remove_task(task)
        self._live.add_task(text, total=None)
