from headrace.decoding.avro_format import avro as avro
from headrace.decoding.decode_option import (
    MODE as MODE,
    OPTION as OPTION,
    Mode as Mode,
    format_of as format_of,
    has_secret as has_secret,
    mode_of as mode_of,
)
from headrace.decoding.decode_task import (
    HEADERS as HEADERS,
    MAX_REPORTED as MAX_REPORTED,
    PLACE as PLACE,
    REPORTS as REPORTS,
    DecodeTask as DecodeTask,
    Reporter as Reporter,
    SessionReporter as SessionReporter,
    decode as decode,
    fitting as fitting,
    link_tasks as link_tasks,
    new_run as new_run,
    open_link as open_link,
    places_of as places_of,
    reads_headers as reads_headers,
    reported_to as reported_to,
    reporter_of as reporter_of,
)
from headrace.decoding.formats import Format as Format, nullable as nullable
from headrace.decoding.json_format import json as json
from headrace.decoding.protobuf_format import protobuf as protobuf
from headrace.decoding.registry import SchemaRegistry as SchemaRegistry

__all__: list[str]
