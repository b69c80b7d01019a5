"""Round records of finished and running requests, kept in the engine core until somebody takes them."""

from collections import OrderedDict

from whiflash_engine.trace import RoundRecord

TRACE_KEY = "whiflash_trace_id"
"""Key in ``SamplingParams.extra_args`` that names a request's trace; without it the request id does."""


class TraceStore:
    """At most ``capacity`` requests; the oldest go first, so that nobody's traces grow without bound."""

    def __init__(self, capacity: int = 1024, *, enabled: bool = True) -> None:
        self.capacity = capacity
        self.enabled = enabled
        self._records: OrderedDict[str, list[RoundRecord]] = OrderedDict()

    def add(self, trace_id: str, record: RoundRecord) -> None:
        """Append a closed record to its request's trace."""
        if not self.enabled:
            return
        self._records.setdefault(trace_id, []).append(record)
        while len(self._records) > self.capacity:
            self._records.popitem(last=False)

    def take(self, trace_id: str) -> list[RoundRecord]:
        """Return and forget the records of one request; an unknown one has none."""
        return self._records.pop(trace_id, [])

    def __len__(self) -> int:
        return len(self._records)
