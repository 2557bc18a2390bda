"""What a request holds, as records."""

from typing import Final

import pyarrow as pa
from starlette.requests import Request

from headrace.journal.records import SCHEMA, Records
from headrace.receivers.json_text import MalformedError, check_lines, values_of
from headrace.receivers.once import LONGEST_ID, is_message_id, record_ids
from headrace.receivers.refusal import Refusal

KEY_HEADER: Final = "headrace-key"
ID_HEADER: Final = "headrace-message-id"

_LINES: Final = "application/x-ndjson"
_JSON: Final = "application/json"
_ONE: Final = ("application/octet-stream", "text/plain")


class Content:
    """How the body of a request is to be read, as its headers say.

    Args:
        request: The request.
        check_json: Whether each line of NDJSON must be JSON.

    Raises:
        Refusal: Its content type is not understood (415), or its message id is empty or too long,
            or it has more than one, or more than one key (400).
    """

    def __init__(self, request: Request, check_json: bool) -> None:
        self._check_json = check_json
        self._kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if self._kind not in (_LINES, _JSON, *_ONE):
            raise Refusal(415, f"Content-Type must be {_JSON}, {_LINES}, {' or '.join(_ONE)}.")
        self._key = _only(request, KEY_HEADER)
        self._id = _only(request, ID_HEADER)
        if self._id is not None and not is_message_id(self._id):
            raise Refusal(400, f"{ID_HEADER} must have 1 to {LONGEST_ID} characters.")

    def records(self, body: bytes, timestamp_ms: int) -> Records:
        """The records of a body, 1 or more.

        Raises:
            Refusal: It is malformed, or has none (400).
        """
        try:
            records = self._values(body, timestamp_ms)
        except MalformedError as error:
            raise Refusal(400, str(error)) from error
        if not records.count:
            raise Refusal(400, "The body has no records; send one or more.")
        return self._named(records)

    def _values(self, body: bytes, timestamp_ms: int) -> Records:
        if self._kind in _ONE:
            return Records.of([body], timestamp_ms=timestamp_ms)
        if self._kind == _JSON:
            return Records.of(values_of(body), timestamp_ms=timestamp_ms)
        if self._check_json:
            check_lines(body)
        return Records.of_lines(body, timestamp_ms=timestamp_ms)

    def _named(self, records: Records) -> Records:
        """With the key, and with the message's id: of several records, each has its own."""
        batch, count = records.batch, records.count
        if self._key is not None:
            key = pa.scalar(self._key.encode("latin-1"), pa.binary())
            batch = _with(batch, "key", pa.repeat(key, count))
        if self._id is not None:
            ids = pa.array(record_ids(self._id, count), pa.string())
            batch = _with(batch, "id", ids)
        return Records(batch)


def _only(request: Request, name: str) -> str | None:
    """A header that a request may have once."""
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise Refusal(400, f"{name} is there {len(values)} times; send it once.")
    return values[0] if values else None


def _with(batch: pa.RecordBatch, name: str, column: pa.Array) -> pa.RecordBatch:
    return batch.set_column(SCHEMA.get_field_index(name), SCHEMA.field(name), column)
