"""How a gate fares, in one sentence."""

from typing import Final

from headrace.cli.lag import Trend
from headrace.cli.snapshot import GateSnapshot, State
from headrace.cli.words import UNKNOWN, count, duration, plural

_STYLES: Final = {
    State.KEEPING_UP: "green",
    State.DRAINING: "green",
    State.HOLDING: "yellow",
    State.FALLING_BEHIND: "yellow",
    State.INTERRUPTED: "yellow",
    State.STALLED: "red",
    State.OVERDUE: "red",
    State.FAILED: "red",
}

_HEADLINES: Final = {
    State.NEW: "No batch yet.",
    State.KEEPING_UP: "Keeping up: all that was waiting is admitted.",
    State.DRAINING: "Draining: {waiting}, {to_go}.",
    State.HOLDING: "Holding back: {waiting}.",
    State.FALLING_BEHIND: "Falling behind: {waiting}, {growth} more each second.",
    State.IDLE: "Idle: no batch for {silence}; {nothing_new}.",
    State.STALLED: "Stalled: no batch for {silence}, with {waiting}.",
    State.OVERDUE: "Overdue: a batch has run for {running}; it hangs, or its process died.",
    State.INTERRUPTED: "Interrupted: the query was stopped; its next start runs the batch again.",
    State.FAILED: "Failed: {error}",
}


def style_of(state: State) -> str:
    """The colour of a state: green is fine, yellow is to be watched, red is somebody's work."""
    return _STYLES.get(state, "default")


def headline(snapshot: GateSnapshot) -> str:
    """What somebody who is woken at night wants to know first."""
    return _HEADLINES[snapshot.state].format(
        waiting=_waiting(snapshot),
        nothing_new="nothing new, or the query has stopped"
        if snapshot.lag_now is None
        else "nothing waits",
        to_go=_to_go(snapshot),
        growth=count(snapshot.lag_change_per_s),
        silence=_silence(snapshot),
        running=duration(snapshot.batches[0].duration_ms if snapshot.batches else None),
        error=snapshot.error or "the last batch",
    )


def _waiting(snapshot: GateSnapshot) -> str:
    if snapshot.lag_now is not None:
        return f"{plural(snapshot.lag_now, 'record')} waiting now"
    return f"{plural(snapshot.left_over or 0, 'record')} left waiting"


def _to_go(snapshot: GateSnapshot) -> str:
    if snapshot.drain_s is None:
        return "fewer each time"
    trend = ", getting longer" if snapshot.drain_trend is Trend.RISING else ""
    return f"about {duration(max(round(snapshot.drain_s), 1) * 1000)} to go{trend}"


def _silence(snapshot: GateSnapshot) -> str:
    if not snapshot.batches:
        return UNKNOWN
    newest = snapshot.batches[0]
    return duration(max(snapshot.time_ms - newest.planned_ms - newest.duration_ms, 0))
