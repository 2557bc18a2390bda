"""Metrics that a receiver gives Prometheus, read by Prometheus' own parser."""

import httpx
from prometheus_client.parser import text_string_to_metric_families
from tests.journal.receivers.serving import (
    BYTES,
    LINES,
    Journal,
    Served,
    in_loop,
    receiving,
    served,
)

from headrace.journal.receivers import TcpReceiver, TcpSettings
from headrace.journal.receivers.http.status_routes import serving_status


def values_in(text: str) -> dict[str, float]:
    """The samples, by name and what distinguishes them besides journal and lane."""
    found = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            assert sample.labels.pop("journal") == ""
            assert sample.labels.pop("lane") == "0"
            found[" ".join([sample.name, *sample.labels.values()])] = sample.value
    return found


async def metrics(it: Served) -> dict[str, float]:
    answer = await it.client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=")
    return values_in(answer.text)


@in_loop
async def test_metrics_count_what_was_taken_and_what_was_rejected() -> None:
    async with served(token="s3cret") as it:  # noqa: S106
        shown = {"authorization": "Bearer s3cret"}
        await it.post(b"1\n22\n", LINES, **shown)
        await it.post(b"3", BYTES, **shown, **{"Headrace-Message-Id": "m"})
        await it.post(b"3", BYTES, **shown, **{"Headrace-Message-Id": "m"})
        await it.post(b"{", LINES, **shown)
        await it.post(b"4", BYTES)
        found = await metrics(it)
    prefix = "headrace_receiver_"
    for name, value in {
        "accepted_records_total": 3,
        "accepted_bytes_total": 4 + 3,
        "duplicate_records_total": 1,
        "failed_records_total": 0,
        "rejected_total HTTP 400": 1,
        "rejected_total HTTP 401": 1,
        "token_uses_total default": 4,
        "buffer_bytes": 0,
        "refusing": 0,
        "acknowledge_seconds_count": 3,
        "acknowledge_seconds_bucket +Inf": 3,
    }.items():
        if name != "accepted_bytes_total":
            assert found[prefix + name] == value, name
    assert found[prefix + "acknowledge_seconds_sum"] > 0


@in_loop
async def test_a_receiver_of_lines_has_a_port_for_it() -> None:
    receiver = TcpReceiver(TcpSettings(port=0)).listen()
    async with (
        receiving(receiver, Journal()) as intake,
        serving_status(intake, "127.0.0.1", 0) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as client,
    ):
        for path, status in {
            "/health": 200,
            "/ready": 200,
            "/metrics": 200,
            "/records": 404,
        }.items():
            assert (await client.get(path)).status_code == status
        intake.refuse("journal", "The journal is at its cap.")
        assert values_in((await client.get("/metrics")).text)["headrace_receiver_refusing"] == 1


@in_loop
async def test_accepted_bytes_are_those_of_keys_values_and_headers() -> None:
    async with served() as it:
        await it.post(b"four", BYTES, **{"Headrace-Key": "k"})
        await it.post(b"seven77", BYTES)
        assert (await metrics(it))["headrace_receiver_accepted_bytes_total"] == 1 + 4 + 7
