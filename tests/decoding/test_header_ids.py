"""Confluent's producers can put a schema's id into a record's header, not before its value."""

import json
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from tests.decoding.test_avro_format import ORDER, written
from tests.decoding.test_decoded_source import bounded
from tests.decoding.test_protobuf_format import FILES, SHOP, order
from tests.services.kafka import TopicFactory
from tests.services.registry import RegistryServer, framed, guid_of

import headrace
from headrace.decoding.decode_task import DecodeTask
from headrace.decoding.formats import Format
from headrace.decoding.registry import NO_ID, VALUE_SCHEMA_ID
from headrace.errors import RegistryError
from headrace.gate.source.log import ARROW_SCHEMA

Headers = list[tuple[str, bytes | None]]


def guid_header(number: int, more: bytes = b"") -> bytes:
    return b"\x01" + guid_of(number).bytes + more


def decoded(
    form: Format, *rows: tuple[bytes | None, Headers | None]
) -> tuple[list[Any], dict[int, str]]:
    """The values of records with headers, and why some are rejected."""
    kinds = [ARROW_SCHEMA.field(name) for name in ("value", "headers")]
    values = [value for value, _ in rows]
    headers = [
        None if of is None else [{"key": name, "value": value} for name, value in of]
        for _, of in rows
    ]
    arrays = [pa.array(values, kinds[0].type), pa.array(headers, kinds[1].type)]
    batch = pa.RecordBatch.from_arrays(arrays, schema=pa.schema(kinds))
    result, reasons = DecodeTask(form, form.columns(None), None).decoded(batch)
    return result.column(0).to_pylist(), reasons


def test_a_value_is_read_by_the_schema_that_its_header_names(registry: RegistryServer) -> None:
    number = registry.register("orders-value", ORDER)
    plain = [written(ORDER, {"id": n, "name": None})[0] for n in range(5)]
    other = ("trace", b"\x00\x00\x00\x00\x01")
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    rows: list[tuple[bytes | None, Headers | None]] = [
        (plain[0], [other, (VALUE_SCHEMA_ID, guid_header(number)), other]),
        (framed(number, plain[1]), None),
        (plain[2], [(VALUE_SCHEMA_ID, b"\x00" + number.to_bytes(4, "big"))]),
        (None, [(VALUE_SCHEMA_ID, guid_header(number))]),
        (framed(number, plain[3]), [other]),
        (guid_header(number) + plain[4], []),
    ]
    for _ in range(2):  # the second time column by column
        values, reasons = decoded(form, *rows)
        assert reasons == {}
        assert [value and value["id"] for value in values] == [0, 1, 2, None, 3, 4]
    assert sorted(registry.asked) == [f"/schemas/guids/{guid_of(number)}", f"/schemas/ids/{number}"]


def test_a_message_s_header_says_which_of_its_schema_it_is(registry: RegistryServer) -> None:
    number = registry.register("orders-value", SHOP, kind="PROTOBUF")
    form = headrace.protobuf(FILES, "shop.Order", registry=registry.client())
    header = guid_header(number, b"\x02\x02")
    values, reasons = decoded(form, (order(id=7), [(VALUE_SCHEMA_ID, header)]))
    assert reasons == {}
    assert values[0]["id"] == 7


@pytest.mark.parametrize("header", [None, b"", b"\x02" + bytes(16), b"\x01\x02", b"\x00\x01"])
def test_a_header_of_another_form_names_no_schema(
    registry: RegistryServer, header: bytes | None
) -> None:
    number = registry.register("orders-value", ORDER)
    (value,) = written(ORDER, {"id": 1, "name": None})
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    _, reasons = decoded(form, (framed(number, value), [(VALUE_SCHEMA_ID, header)]))
    assert reasons == {0: NO_ID}


def test_a_guid_that_the_registry_does_not_know_rejects_the_record(
    registry: RegistryServer,
) -> None:
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    _, reasons = decoded(form, (b"\x02\x00", [(VALUE_SCHEMA_ID, guid_header(9))]))
    assert reasons == {0: f"the schema registry does not know the id {UUID(int=9)}"}


def test_a_registry_that_has_no_guids_rejects_nothing(
    registry: RegistryServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "answer", lambda _path: (404, {"error_code": 404}))
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    with pytest.raises(RegistryError, match="answers 404 to GET /schemas/guids/"):
        decoded(form, (b"\x02\x00", [(VALUE_SCHEMA_ID, guid_header(1))]))


def test_without_headers_the_reason_names_the_option(registry: RegistryServer) -> None:
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    batch = pa.record_batch({"value": pa.array([b"\x02\x00", b"\x00" * 6], pa.binary())})
    _, reasons = DecodeTask(form, form.columns(None), None).decoded(batch)
    hint = (
        "; if its header __value_schema_id has the id, set the source's option includeHeaders to"
        " true, and keep the column headers in the rows to decode"
    )
    assert reasons == {
        0: NO_ID + hint,
        1: "the schema registry does not know the id 0" + hint,
    }


def test_a_source_reads_the_headers_though_they_are_no_column(
    spark: SparkSession, registry: RegistryServer, topic: TopicFactory
) -> None:
    number = registry.register("orders-value", ORDER)
    orders = topic()
    (value,) = written(ORDER, {"id": 7, "name": "tea"})
    orders.produce(value, headers=[(VALUE_SCHEMA_ID, guid_header(number))])
    orders.produce(framed(number, value))
    form = headrace.avro(json.dumps(ORDER), registry=registry.client())
    df = bounded(spark, orders, decode=str(form), mode="FAILFAST")
    assert "headers" not in df.columns
    assert [row.id for row in df.select("value.id").collect()] == [7, 7]
