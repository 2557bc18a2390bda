"""Tasks ask the process of their handler, and nobody else is answered."""

import socket
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from headrace.errors import READ, SetupError
from headrace.flow.kafka_channel import Claims
from headrace.task_link import TaskLink


class Asked:
    """Keeps the questions."""

    def __init__(self) -> None:
        self.questions: list[Any] = []

    def answer(self, question: Any) -> Any:
        self.questions.append(question)
        return {"number": len(self.questions)}


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def link(spark: SparkSession, asked: Asked) -> Iterator[TaskLink]:
    with TaskLink(spark, asked.answer) as opened:
        yield opened


def test_a_question_is_known_when_its_answer_is_there(link: TaskLink, asked: Asked) -> None:
    assert link.address.ask([["run", "orders", 0, 7, "no JSON"]]) == {"number": 1}
    assert asked.questions == [[["run", "orders", 0, 7, "no JSON"]]]


def test_whoever_has_not_the_token_gets_no_answer(link: TaskLink, asked: Asked) -> None:
    with pytest.raises(SetupError, match="does not answer a task"):
        replace(link.address, token=link.address.token[1:]).ask("anything")
    with socket.create_connection((link.address.host, link.address.port)) as client:
        client.sendall(b"GET / HTTP/1.1\r\n\r\n")
        assert client.recv(100) == b""
    assert asked.questions == []
    assert link.address.token not in repr(link.address)


def test_a_handler_that_is_gone_is_no_fault_of_the_records(spark: SparkSession) -> None:
    with TaskLink(spark, lambda _: True) as link:
        address = link.address
    with pytest.raises(SetupError, match="let executors connect") as raised:
        address.ask("anything")
    assert READ in raised.value.__notes__


def test_tasks_of_executors_reach_it(spark: SparkSession, link: TaskLink, asked: Asked) -> None:
    address = link.address
    spark.sparkContext.parallelize(range(4), 2).foreach(address.ask)
    assert sorted(asked.questions) == [0, 1, 2, 3]


def test_a_partition_of_an_attempt_has_one_task() -> None:
    claims = Claims()
    assert [claims.take(number) for number in (0, 1, 0, 1, 2)] == [True, True, False, False, True]
