"""Decodes records' values into typed columns, and has the gate reject those that do not fit."""

from headrace.decoding.avro_format import avro
from headrace.decoding.decode import decode
from headrace.decoding.json_format import json
from headrace.decoding.protobuf_format import protobuf
from headrace.decoding.registry import SchemaRegistry

__all__ = ["SchemaRegistry", "avro", "decode", "json", "protobuf"]
