"""How Spark's events reach a listener in Python: as the JSON that Spark makes of them."""

import json
import math
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryProgressEvent,
    StreamingQueryListener,
)


class JsonStreamingQueryListener(StreamingQueryListener):
    """A listener that hears of a batch soon after its end.

    PySpark asks the JVM for each field of a batch's progress, in some 450 calls; on a busy driver
    they take as long as a small batch does. This one asks once, for all of it.
    """

    @property
    def _jlistener(self) -> Any:
        """What PySpark gives the JVM for this listener; always the same object."""
        if not hasattr(self, "_jlistenerobj"):
            jvm: Any = SparkContext._jvm
            self._jlistenerobj = jvm.PythonStreamingQueryListenerWrapper(_FromJson(self))
        return self._jlistenerobj


class _FromJson(JStreamingQueryListener):
    """What the JVM calls."""

    def onQueryProgress(self, jevent: Any) -> None:
        self.pylistener.onQueryProgress(progress_event(jevent.progress().json()))


def progress_event(text: str) -> QueryProgressEvent:
    """A batch's progress from Spark's JSON, which leaves out a rate that is no finite number."""
    progress = json.loads(text)
    for part in (progress, *progress["sources"]):
        part.setdefault("inputRowsPerSecond", math.nan)
        part.setdefault("processedRowsPerSecond", math.nan)
    return QueryProgressEvent.fromJson({"progress": progress})
