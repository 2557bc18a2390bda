"""A receiver's tasks as Spark jobs, each of one task."""

import secrets
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from pyspark import SparkContext

from headrace.tracker.task import Assignment, Outcome, work

_MOST_SHOWN: Final = 300


class SparkJobs:
    """Runs the tasks of one receiver; called from a thread of its own.

    Args:
        context: Where.
        assignment: What the tasks are to do; its token is replaced by each task's own.
        description: What Spark's pages show.
    """

    def __init__(self, context: SparkContext, assignment: Assignment, description: str) -> None:
        self._context = context
        self._assignment = assignment
        self._description = description
        self._group = f"headrace-receiver-{secrets.token_hex(8)}"
        self._cancelled = False

    def run(self, token: str) -> Outcome:
        """Run a task that shows this token, and wait until it has ended, however that is."""
        assignment = replace(self._assignment, token=token)
        try:
            self._context.setJobGroup(self._group, self._description)
            # It goes into the task's closure, and so through no file on the driver's disk.
            one = self._context.parallelize(range(1), 1)
            (outcome,) = one.mapPartitions(partial(_in_task, assignment)).collect()
        except Exception as error:  # noqa: BLE001  # a Java exception, or PySpark's own
            if self._cancelled:
                return Outcome()
            if self._has_stopped():
                return Outcome(
                    "The Spark application has been stopped under it; stop receivers first.",
                    lasting=True,
                )
            return Outcome(f"Its task has died: {last_words(str(error))}")
        return outcome

    def cancel(self) -> None:
        """Have the task killed that runs, if one does: `run` has no error to tell then."""
        self._cancelled = True
        if not self._has_stopped():
            self._context.cancelJobGroup(self._group)

    def _has_stopped(self) -> bool:
        """PySpark has no public name for it."""
        return self._context._jsc is None or self._context._jsc.sc().isStopped()


def _in_task(assignment: Assignment, _: Iterable[int]) -> Iterable[Outcome]:
    return [work(assignment)]


def last_words(text: str) -> str:
    r"""The line of a Java exception's text that says why.

    Of a Python exception in the task it is the last of its trace, else the reason of the job's end.

    >>> last_words("An error occurred while calling x.\n: Job aborted: exit code 137\n\tat y.z")
    'Job aborted: exit code 137'
    """
    lines = [line.strip() for line in text.partition("\n\tat ")[0].splitlines() if line.strip()]
    if not lines:
        return "nothing is known of why"
    if not any("Traceback (most recent call last)" in line for line in lines):
        lines = [line for line in lines if line.startswith(": ")][:1] or lines
    return lines[-1].removeprefix(": ")[:_MOST_SHOWN]
