from typing import get_args

import pytest

from headrace.errors import OptionError
from headrace.gate.control.bisection import IsolationBudget
from headrace.gate.control.hold import OnOutage
from headrace.gate.execution.policy import OnFailure, OutageWord, isolate, parse_on_failure, retry


@pytest.mark.parametrize("word", ["stop", "defer", "isolate"])
def test_a_word_is_a_policy_without_retries(word: str) -> None:
    policy = parse_on_failure(word)
    assert (policy.retries, policy.last) == (0, word)


def test_only_stop_never_skips() -> None:
    assert [parse_on_failure(word).skips for word in ("stop", "defer", "isolate")] == [
        False,
        True,
        True,
    ]


def test_a_retry_waits_twice_as_long_each_time_and_then_does_something_else() -> None:
    policy = retry(3, "200 ms", then="defer")
    assert [policy.backoff.wait_ms(n) for n in (1, 2, 3)] == [200, 400, 800]
    assert policy.last == "defer"


def test_isolation_after_a_retry_keeps_its_budget_and_its_topic() -> None:
    policy = retry(1, then=isolate(max_runs=7, max_time="3 s", topic="orders.dead"))
    assert policy == OnFailure(
        retries=1, last="isolate", budget=IsolationBudget(7, 3_000), topic="orders.dead"
    )


@pytest.mark.parametrize("wrong", ["", "skip", "retry", None, 3])
def test_another_word_is_refused_with_those_there_are(wrong: object) -> None:
    with pytest.raises(OptionError, match=r"on_failure is .*'stop', 'defer', 'isolate'"):
        parse_on_failure(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("attempts", [0, -1])
def test_a_retry_is_at_least_one(attempts: int) -> None:
    with pytest.raises(OptionError, match=r"retry's attempts is .* 1 or more"):
        retry(attempts=attempts)


def test_the_words_that_a_type_checker_knows_are_those_there_are() -> None:
    assert list(get_args(OutageWord)) == [each.value for each in OnOutage]


def test_a_retry_is_not_followed_by_a_retry() -> None:
    with pytest.raises(OptionError, match=r"cannot be followed by a retry"):
        retry(2, then=retry(3))


@pytest.mark.parametrize("wrong", ["soon", "-1 s", ""])
def test_durations_are_checked(wrong: str) -> None:
    with pytest.raises(OptionError, match=r"retry's backoff is"):
        retry(1, wrong)
    with pytest.raises(OptionError, match=r"isolate's max_time is"):
        isolate(max_time=wrong)


@pytest.mark.parametrize("wrong", ["", ".", "..", "a b", "a" * 250, "orders\n"])
def test_the_name_of_a_topic_is_checked(wrong: str) -> None:
    with pytest.raises(OptionError, match=r"isolate's topic is"):
        isolate(topic=wrong)
