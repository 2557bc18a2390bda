"""The codes, names and texts by which drivers and Java say that something cannot be reached.

Each question has three answers: True, it is away; False, it is there and refuses (or Spark lost a
process of its own); None, this sign says neither, and what led to it may.
"""

import errno
import re
import sqlite3
from typing import Final

from confluent_kafka import KafkaError

ERRNOS: Final = frozenset(
    {
        *(errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.ESTALE),
        *(errno.ENETDOWN, errno.ENETUNREACH, errno.EHOSTDOWN, errno.EHOSTUNREACH),
        *(errno.ETIMEDOUT, errno.ECONNREFUSED, errno.ECONNRESET, errno.ECONNABORTED),
        errno.ENOTCONN,  # also of a FUSE mount whose process is gone
    }
)
"""Codes of an ``OSError``. EACCES counts if it names a path; EMFILE, ENAMETOOLONG and EPERM do not.
"""

HTTP_STATUSES: Final = frozenset({408, 425, 429, 502, 503, 504, 529})
"""Too slow, too early, too many requests, a gateway's, unavailable, overloaded."""

STORE_STATUSES: Final = HTTP_STATUSES | {500}
"""Object stores answer 500 for faults of their own, and ask for a retry (Amazon S3's "Error
responses", Google Cloud Storage's "Retry strategy")."""

# https://www.postgresql.org/docs/current/errcodes-appendix.html
_SQLSTATE_AWAY: Final = re.compile(
    r"08...|53[0-3]..|57P0[123]|25006|58000|58030"  # not 53400: a limit of the statement's own
)

_POSTGRESQL_AWAY: Final = frozenset(
    {
        *("ConnectionException", "ConnectionDoesNotExist", "ConnectionFailure"),  # 08
        *("SqlclientUnableToEstablishSqlconnection", "TransactionResolutionUnknown"),
        *("SqlserverRejectedEstablishmentOfSqlconnection", "ProtocolViolation"),
        *("InsufficientResources", "DiskFull", "OutOfMemory", "TooManyConnections"),  # 53
        *("AdminShutdown", "CrashShutdown", "CannotConnectNow"),  # 57
        *("ReadOnlySqlTransaction", "SystemError", "IoError"),  # 25006, 58000, 58030
        *("OperationalError", "ConnectionTimeout"),  # without a SQLSTATE: the connection's
    }
)
"""The same states, by the classes of psycopg and psycopg2, which are all that a task leaves."""

# https://dev.mysql.com/doc/mysql-errors/8.4/en/: client 2xxx, server 1xxx.
_MYSQL_AWAY: Final = frozenset({2002, 2003, 2005, 2006, 2013, 2055, 1021, 1040, 1053, 1290, 1836})
_MYSQL_DRIVERS: Final = frozenset({"MySQLdb", "aiomysql", "asyncmy", "mariadb", "mysql", "pymysql"})

# https://www.sqlite.org/rescode.html, primary codes
_SQLITE_AWAY: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
    }
)
_SQLITE_TEXT: Final = re.compile(
    r"database is locked|unable to open database file|database or disk is full|disk I/O error"
    r"|attempt to write a readonly database"
)

# librdkafka's rdkafka.h; broker codes from https://kafka.apache.org/protocol#protocol_error_codes
_KAFKA_AWAY: Final = frozenset(
    {
        *(KafkaError._ALL_BROKERS_DOWN, KafkaError._TRANSPORT, KafkaError._RESOLVE),
        *(KafkaError._MSG_TIMED_OUT, KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE),
        KafkaError._ISR_INSUFF,
        *(KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION),
        *(KafkaError.REQUEST_TIMED_OUT, KafkaError.BROKER_NOT_AVAILABLE),
        *(KafkaError.REPLICA_NOT_AVAILABLE, KafkaError.NETWORK_EXCEPTION),
        *(KafkaError.COORDINATOR_LOAD_IN_PROGRESS, KafkaError.COORDINATOR_NOT_AVAILABLE),
        *(KafkaError.NOT_COORDINATOR, KafkaError.NOT_CONTROLLER),
        *(KafkaError.NOT_ENOUGH_REPLICAS, KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND),
        *(KafkaError.KAFKA_STORAGE_ERROR, KafkaError.THROTTLING_QUOTA_EXCEEDED),
    }
)

NETWORK_NAMES: Final = frozenset(
    {
        *("ConnectionError", "TimeoutError"),  # Python, urllib3, botocore, redis, elastic_transport
        *("ConnectionRefusedError", "ConnectionResetError", "ConnectionAbortedError"),
        *("BrokenPipeError", "RemoteDisconnected", "gaierror", "herror"),
        *("Timeout", "ConnectTimeout", "ReadTimeout", "RetryError", "ChunkedEncodingError"),
        *("NewConnectionError", "ConnectTimeoutError", "ReadTimeoutError"),  # urllib3
        *("NameResolutionError", "ProxyError"),
        *("TimeoutException", "NetworkError", "RemoteProtocolError"),  # httpx, httpcore
        *("ConnectError", "ReadError", "WriteError", "WriteTimeout", "PoolTimeout"),
        *("ClientConnectionError", "ClientConnectorError", "ServerDisconnectedError"),  # aiohttp
        *("ServerTimeoutError", "ConnectionTimeoutError"),
        *("HTTPClientError", "EndpointConnectionError", "ConnectionClosedError"),  # botocore
        *("ConnectionFailure", "AutoReconnect", "ServerSelectionTimeoutError"),  # pymongo
        *("NoHostAvailable", "OperationTimedOut"),  # cassandra
        *("IncompleteRead", "ProtocolError"),  # http.client, urllib3: an answer that broke off
        *("SMTPServerDisconnected", "SMTPConnectError"),
        *("NoBrokersAvailable", "KafkaTimeoutError", "KafkaConnectionError"),  # kafka-python
        *("NodeNotReadyError", "NotEnoughReplicasError", "NotEnoughReplicasAfterAppendError"),
        *("LeaderNotAvailableError", "NotLeaderForPartitionError", "RequestTimedOutError"),
    }
)
"""Names of exceptions in Python itself and in clients, none of which has a code that says more."""

_NOT_REACHED_BY_OURSELVES: Final = frozenset({"multiprocessing", "py4j", "pyspark", "sqlalchemy"})
"""Packages in which such a name means a process or a pool of the program's own."""

REFUSALS: Final = frozenset(
    {"DataError", "IntegrityError", "NotSupportedError", "ProgrammingError"}
)
"""PEP 249's: the database answered, and what it was given is at fault."""


def sqlstate_says(state: str) -> bool:
    """Whether an SQLSTATE says that the database is away."""
    return _SQLSTATE_AWAY.fullmatch(state) is not None


def mysql_says(package: str, number: object) -> bool | None:
    """The verdict of an error number; None if the package is no driver of MySQL's."""
    if package not in _MYSQL_DRIVERS or not isinstance(number, int):
        return None
    return number in _MYSQL_AWAY


def sqlite_says(code: int) -> bool:
    """Whether one of SQLite's result codes, extended or not, says that the file is away."""
    return code & 0xFF in _SQLITE_AWAY


def kafka_says(code: int) -> bool:
    """Whether one of librdkafka's or Kafka's codes says that the brokers are away."""
    return code in _KAFKA_AWAY


def aws_says(code: str) -> bool:
    """Whether a code of AWS says that the service is away, or throttles its callers."""
    return code in _AWS_AWAY


def name_says(module: str, name: str) -> bool | None:
    """The verdict of a class's name, for exceptions that have no code."""
    if module.partition(".")[0] in _NOT_REACHED_BY_OURSELVES:
        return None
    return True if name in NETWORK_NAMES else None


_OS_ERROR: Final = re.compile(r"\[Errno (\d+)\] ")
_KAFKA_ERROR: Final = re.compile(r"KafkaError\{(?:[A-Z,]+,)?code=\w+,val=(-?\d+),")
_MYSQL_ERROR: Final = re.compile(r"\(?(\d{4})(?:, | \(|: )")
_HTTP_ERROR: Final = re.compile(
    r"(?P<requests>\d{3}) (?:Client|Server) Error: |HTTP Error (?P<urllib>\d{3}): "
    r"|(?:Client|Server) error '(?P<httpx>\d{3}) |(?P<aiohttp>\d{3}), message="
)
_HTTP_CLASSES: Final = frozenset({"HTTPError", "HTTPStatusError", "ClientResponseError"})
_AWS_ERROR: Final = re.compile(r"An error occurred \((\w{1,40})\) when calling the \w+ operation")
# https://docs.aws.amazon.com/AmazonS3/latest/API/ErrorResponses.html, and the SDKs' own lists of
# codes to retry; most come with HTTP 400. A service's limit of its own, such as
# LimitExceededException, is none: it may stay.
_AWS_AWAY: Final = frozenset(
    {
        *("503", "SlowDown", "InternalError", "ServiceUnavailable", "RequestLimitExceeded"),
        *("Throttling", "ThrottlingException", "ThrottledException", "RequestThrottled"),
        *("RequestThrottledException", "TooManyRequestsException", "EC2ThrottledException"),
        *("ProvisionedThroughputExceededException", "TransactionInProgressException"),
        *("BandwidthLimitExceeded", "PriorRequestNotComplete", "RequestTimeoutException"),
    }
)


def python_says(name: str, message: str) -> bool | None:
    """The verdict of an exception of Python's that a task has left as text.

    Args:
        name: its class, with its module unless that is ``builtins``.
        message: its message, of which only what its package writes before any value is read.
    """
    module, _, short = name.rpartition(".")
    package = module.partition(".")[0]
    verdict: bool | None
    if package in {"psycopg", "psycopg2"}:
        verdict = short in _POSTGRESQL_AWAY
    elif package in _MYSQL_DRIVERS:
        number = _MYSQL_ERROR.match(message)
        verdict = None if number is None else mysql_says(package, int(number[1]))
    elif package == "sqlite3":
        verdict = short == "OperationalError" and _SQLITE_TEXT.match(message) is not None
    elif short in _HTTP_CLASSES and (status := _HTTP_ERROR.match(message)) is not None:
        verdict = int(status[status.lastgroup or 0]) in HTTP_STATUSES
    elif short == "ClientError" and (code := _AWS_ERROR.match(message)) is not None:
        verdict = aws_says(code[1])
    elif short == "KafkaException":
        number = _KAFKA_ERROR.match(message)
        verdict = None if number is None else kafka_says(int(number[1]))
    elif short in REFUSALS:
        verdict = False
    elif short == "OSError" and (number := _OS_ERROR.match(message)) is not None:
        verdict = int(number[1]) in ERRNOS
    elif (name, message[:11]) == ("PermissionError", "[Errno 13] "):
        verdict = "'" in message  # of a path
    elif short == "OperationalError" and package != "sqlalchemy":
        verdict = True
    else:
        verdict = name_says(module, short)
    return verdict


_JAVA_AWAY: Final = re.compile(
    r"java\.net\.(?:Connect|Socket|SocketTimeout|UnknownHost|NoRouteToHost|PortUnreachable)Exception"
    r"|java\.net\.http\.Http(?:Connect)?TimeoutException"
    r"|java\.nio\.channels\.UnresolvedAddressException"
    r"|java\.nio\.file\.AccessDeniedException"
    r"|java\.sql\.SQL(?:NonTransientConnection|TransientConnection|Recoverable)Exception"
    r"|org\.apache\.http\.(?:NoHttpResponse|conn\.(?:HttpHostConnect|ConnectTimeout))Exception"
    r"|org\.apache\.hadoop\.net\.ConnectTimeoutException"
    r"|org\.apache\.hadoop\.security\.AccessControlException"
    r"|org\.apache\.hadoop\.ipc\.(?:Standby|Retriable)Exception"
    r"|org\.apache\.hadoop\.hdfs\.server\.namenode\.SafeModeException"
    r"|org\.apache\.hadoop\.hdfs\.protocol\.(?:DS|NS)?QuotaExceededException"
    r"|org\.apache\.hadoop\.fs\.s3a\.AWS(?:ServiceThrottled|Status500)Exception"
    r"|org\.apache\.kafka\.common\.errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable"
    r"|CoordinatorNotAvailable|CoordinatorLoadInProgress|LeaderNotAvailable|NotLeaderOrFollower"
    r"|NotEnoughReplicas|NotEnoughReplicasAfterAppend|KafkaStorage|ThrottlingQuotaExceeded"
    r"|BootstrapResolution)Exception"
    r"|com\.mongodb\.Mongo(?:Timeout|Socket\w*|NodeIsRecovering|NotPrimary)Exception"
    r"|com\.datastax\.oss\.driver\.api\.core\.AllNodesFailedException"
    r"|redis\.clients\.jedis\.exceptions\.JedisConnectionException"
    r"|org\.elasticsearch\.hadoop\.rest\.EsHadoopNoNodesLeftException"
)

_OS_TEXT: Final = (
    r"(?:No space left on device|Disk quota exceeded|Read-only file system|Input/output error"
    r"|Stale file handle|Transport endpoint is not connected|Permission denied)"
)
_OUTPUT_TEXT: Final = {
    "java.io.IOException": re.compile(
        rf"{_OS_TEXT}|Mkdirs failed to create \S+"
        r"/_temporary/\d+/_temporary/attempt_\w+ \(exists=.*"
    ),
    "java.io.FileNotFoundException": re.compile(rf".*\({_OS_TEXT}\)", re.DOTALL),
    "java.nio.file.FileSystemException": re.compile(rf".*: {_OS_TEXT}", re.DOTALL),
    "org.apache.hadoop.fs.FSError": re.compile(rf"java\.io\.IOException: {_OS_TEXT}"),
    "org.apache.spark.sql.delta.DeltaIOException": re.compile(
        r"\[DELTA_CANNOT_CREATE_LOG_PATH\].*", re.DOTALL
    ),
    "org.apache.kafka.common.config.ConfigException": re.compile(
        r"No resolvable bootstrap urls given in .*"
    ),
    "org.postgresql.util.PSQLException": re.compile(
        r"Connection to \S+ refused\..*|An I/O error occurred while sending to the backend\."
        r"|FATAL: (?:terminating connection(?! due to [\w-]+ timeout)|the database system is"
        r"|sorry, too many clients|remaining connection slots).*",
        re.DOTALL,
    ),
}
"""Messages of classes that say nothing by themselves. ``Mkdirs failed`` in the folder of a task's
attempt: below it stand the values of partition columns, which may be what cannot be a name."""

_STORE_TEXT: Final = re.compile(
    r"[^()\n]{0,500}\(Service: [\w ]{1,40}[;,] Status Code: (?P<amazon>\d{3})\b"
    r"|(?:Status code: -?\d+ .{0,80})?Operation failed: \"[^\"\n]{0,500}\", (?P<azure>\d{3}), "
    r"|(?P<google>\d{3}) [A-Z]"
)
_STORES: Final = re.compile(
    r"software\.amazon\.awssdk\..*Exception|com\.amazonaws\..*Exception"
    r"|org\.apache\.hadoop\.fs\.s3a\.AWS\w+Exception"
    r"|org\.apache\.hadoop\.fs\.azurebfs\..*AbfsRestOperationException"
    r"|com\.google\..*GoogleJsonResponseException"
)

_SPARK_LOST: Final = re.compile(
    r"java\.lang\.(?:OutOfMemoryError|InterruptedException)|java\.io\.EOFException"
    r"|java\.nio\.channels\.ClosedByInterruptException"
    r"|org\.apache\.spark\.shuffle\.(?:Metadata)?FetchFailedException"
    r"|org\.apache\.spark\.\w+: (?:Python worker exited unexpectedly|.{0,200}ExecutorLostFailure)"
)
"""A process of Spark's own is gone, be it by a record that ends whatever reads it."""

_SPARK_LINKS: Final = re.compile(
    r"org\.apache\.spark\.(?:api\.python|sql\.execution\.python|network|rpc)\."
)
"""Frames of Spark's connections to its Python workers and between its own processes."""


def java_says(name: str, message: str) -> bool | None:
    """The verdict of the class and the message of one exception of Java's."""
    if _SPARK_LOST.match(f"{name}: {message}"):
        return False
    if _JAVA_AWAY.fullmatch(name):
        return True
    if _STORES.fullmatch(name) and (status := _STORE_TEXT.match(message)) is not None:
        return int(status[status.lastgroup or 0]) in STORE_STATUSES
    known = _OUTPUT_TEXT.get(name)
    return True if known is not None and known.fullmatch(message) else None


def is_sparks_own_link(frames: str) -> bool:
    """Whether a stack of Java's is that of a connection between processes of Spark's own."""
    return _SPARK_LINKS.search(frames) is not None
