"""Round records of finished and running requests, kept in the engine core until somebody takes them."""

from collections import OrderedDict

from whiflash_engine.trace import RoundRecord

TRACE_KEY = "whiflash_trace_id"
"""Key in ``SamplingParams.extra_args`` that names a request's trace; without it the request id does."""


class TraceStore:
    """At most ``capacity`` records; the oldest requests' go first, so that abandoned traces do not pile up."""

    def __init__(self, capacity: int = 200_000, *, enabled: bool = True) -> None:
        self.capacity = capacity
        self.enabled = enabled
        self._records: OrderedDict[str, list[RoundRecord]] = OrderedDict()
        self._count = 0

    def add(self, trace_id: str, record: RoundRecord) -> None:
        """Append a closed record to its request's trace."""
        if not self.enabled:
            return
        self._records.setdefault(trace_id, []).append(record)
        self._count += 1
        while self._count > self.capacity:
            self._count -= len(self._records.popitem(last=False)[1])

    def take(self, trace_id: str) -> list[RoundRecord]:
        """Return and forget the records of one request; an unknown one has none."""
        taken = self._records.pop(trace_id, [])
        self._count -= len(taken)
        return taken

    def __len__(self) -> int:
        return len(self._records)
