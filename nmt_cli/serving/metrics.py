"""Prometheus metrics: requests, texts, latency, slots and memory."""

from collections.abc import Callable, Sequence
from time import monotonic

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest

from nmt_cli.translation.pending import Pending

# Upper bounds of the histograms' buckets, in seconds
SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)


class Metrics:
    content_type = CONTENT_TYPE_LATEST

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter("nmt_requests", "Requests", ["route", "code"], registry=registry)
        self.texts = Counter("nmt_texts", "Texts in requests", registry=registry)
        self.characters = Counter("nmt_characters", "Characters in requests", registry=registry)
        self._queued = Histogram(
            "nmt_queue_seconds", "Time that each line or sentence waited", buckets=SECONDS, registry=registry
        )
        self._searched = Histogram(
            "nmt_search_seconds", "Time that one model took for one request", buckets=SECONDS, registry=registry
        )
        self._waiting = Gauge("nmt_segments_waiting", "Segments waiting to be translated", registry=registry)
        self._slots = Gauge("nmt_slots_in_use", "Segments being translated", registry=registry)
        ProcessCollector(registry=registry)  # memory, processor time, open files

    def watch(self, load: Callable[[], tuple[int, int]]) -> None:
        """Make the gauges show the result of `load`: a tuple (waiting segments, segments being searched)."""
        self._waiting.set_function(lambda: load()[0])
        self._slots.set_function(lambda: load()[1])

    def observe(self, units: Sequence[Pending], begun: float) -> None:
        """Record how long each unit waited for its search to start, and how long the model took for all of them.

        One model has translated the units. They were submitted at the monotonic time `begun`.
        """
        starts = [segments[0].started for unit in units for segments in unit.drafts if segments]
        for start in starts:
            self._queued.observe(max(start - begun, 0))
        if starts:
            self._searched.observe(monotonic() - min(starts))

    def page(self) -> bytes:
        return generate_latest(self._registry)
