//! A Kafka consumer that returns the records of ranges of offsets as record batches.
//!
//! It keeps the positions, and returns every event to its caller, which decides what the event
//! means. librdkafka's threads call no Python: what they report is kept until the caller asks.

use crate::batch::{Columns, Header, Record};
use crate::exchange::{error, guarded, to_python};
use crate::librdkafka::{c_text, copied, loaded, Functions, Message, Pointer, Text};
use arrow_array::{RecordBatch, StructArray};
use pyo3::prelude::*;
use std::collections::{HashMap, HashSet, VecDeque};
use std::ffi::{c_char, c_int, CStr, CString};
use std::mem::take;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Most messages that are taken out of librdkafka's queue at once.
const MOST_MESSAGES: usize = 1024;
/// A batch waits this long for more records, so that a slow broker does not delay its records.
const LONGEST_TAKE: Duration = Duration::from_millis(100);
/// Size of a record, until a batch has been read (bytes).
const FIRST_ROW_BYTES: usize = 512;
/// Most reports of each kind that are kept; later ones are dropped.
const MOST_REPORTS: usize = 1000;
/// Header with the tag of the stage's attempt that has produced a record.
const ATTEMPT: &str = "headrace-batch";

const CONSUMER: c_int = 1; // of rd_kafka_type_t
const NO_CONSUMER_CLOSE: c_int = 8; // There is no group to leave.
const TEXT_BYTES: usize = 512;

/// An error's code and text, topic, partition and offset.
type Event = (i32, String, Option<String>, i32, i64);
/// Level, facility and text.
type Line = (i32, String, String);

type Reported = (Vec<(i32, String)>, Vec<Line>, bool);
type Taken<'py> = (Option<Bound<'py, PyAny>>, Vec<i64>, Vec<Event>, Reported);

/// What the threads of one consumer report.
#[derive(Default)]
struct Reports {
    errors: Mutex<Vec<(i32, String)>>,
    is_token_wanted: AtomicBool,
}

/// Lines of the logs of all consumers: librdkafka logs also before it returns a new consumer.
static LINES: Mutex<Vec<Line>> = Mutex::new(Vec::new());

/// Lock, also after a panic: each value is complete at any time.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn keep<T>(kept: &Mutex<Vec<T>>, report: T) {
    let mut kept = locked(kept);
    if kept.len() < MOST_REPORTS {
        kept.push(report);
    }
}

extern "C" fn on_error(_: Pointer, code: c_int, reason: Text, reports: Pointer) {
    // Sound: `Consumer` keeps its reports until librdkafka has ended all of its threads.
    let reports = unsafe { &*(reports as *const Reports) };
    keep(&reports.errors, (code, copied(reason)));
}

extern "C" fn on_log(_: Pointer, level: c_int, facility: Text, line: Text) {
    keep(&LINES, (level, copied(facility), copied(line)));
}

extern "C" fn on_token(_: Pointer, _: Text, reports: Pointer) {
    // Sound: as in `on_error`.
    let reports = unsafe { &*(reports as *const Reports) };
    reports.is_token_wanted.store(true, Ordering::Relaxed);
}

/// A message that librdkafka has lent; it is given back when this is dropped.
struct Lent {
    functions: &'static Functions,
    message: *mut Message,
}

impl Drop for Lent {
    fn drop(&mut self) {
        // Sound: the message is given back once, here, and no slice of it lives longer.
        unsafe { (self.functions.rd_kafka_message_destroy)(self.message) };
    }
}

impl Lent {
    fn message(&self) -> &Message {
        // Sound: librdkafka lends a valid message, and changes none of these fields.
        unsafe { &*self.message }
    }

    /// Return bytes of the message; None for null, which differs from empty.
    fn bytes(&self, begin: *const u8, size: usize) -> Option<&[u8]> {
        // Sound: librdkafka gives an address with its size, and keeps it as long as the message.
        (!begin.is_null()).then(|| unsafe { std::slice::from_raw_parts(begin, size) })
    }

    fn timestamp(&self) -> (i32, i64) {
        let mut kind = 0;
        // Sound: `kind` is an int for the type.
        let time = unsafe { (self.functions.rd_kafka_message_timestamp)(self.message, &mut kind) };
        (kind, time)
    }

    fn headers(&self) -> Vec<Header<'_>> {
        let (mut found, mut headers) = (Vec::new(), null_mut());
        // Sound: librdkafka fills `headers`, which it keeps as long as the message.
        if unsafe { (self.functions.rd_kafka_message_headers)(self.message, &mut headers) } != 0 {
            return found;
        }
        let (mut name, mut value, mut size) = (null(), null(), 0);
        let next = self.functions.rd_kafka_header_get_all;
        // Sound: librdkafka fills all three, or returns an error after the last header.
        while unsafe { next(headers, found.len(), &mut name, &mut value, &mut size) } == 0 {
            // Sound: a name ends with NUL, and lives as long as the message.
            let name = unsafe { CStr::from_ptr(name) };
            found.push((name.to_string_lossy(), self.bytes(value, size)));
        }
        found
    }

    fn event(&self) -> Event {
        let message = self.message();
        let name = self.functions.rd_kafka_topic_name;
        // Sound: the message refers to its topic, if it has one.
        let topic = (!message.rkt.is_null()).then(|| copied(unsafe { name(message.rkt) }));
        // Sound: the text lives as long as the message.
        let reason = copied(unsafe { (self.functions.rd_kafka_message_errstr)(self.message) });
        (message.err, reason, topic, message.partition, message.offset)
    }
}

/// A range of a partition's offsets, with the next one to read.
struct Range {
    name: String,
    topic: CString, // the same
    partition: i32,
    next: i64,
    until: i64,
    is_open: bool,
}

/// The address of librdkafka's handle of a topic (0 for none), and a partition.
type Place = (usize, i32);

/// What a batch consists of.
#[derive(Default)]
struct Wanted {
    columns: Vec<String>,
    has_times: bool,
    has_headers: bool,
    batch_bytes: usize,
    aborted: HashSet<Vec<u8>>,
}

struct Consumer {
    functions: &'static Functions,
    handle: Pointer,
    queue: Pointer,
    reports: Arc<Reports>,
    ranges: Vec<Range>,
    open: usize,
    /// For each place whose messages have come, the number of its range.
    places: HashMap<Place, Option<usize>>,
    /// The place of the last message: messages come in runs of one partition.
    recent: (Place, Option<usize>),
    wanted: Wanted,
    row_bytes: usize,
    pending: VecDeque<Lent>,
}

// Sound: librdkafka's handles may be used by any thread, and a lock is held for each use.
unsafe impl Send for Consumer {}

impl Drop for Consumer {
    fn drop(&mut self) {
        self.pending.clear(); // librdkafka waits for every message that it has lent.
        // Sound: both were made in `open`, and nothing uses them after this.
        unsafe {
            (self.functions.rd_kafka_queue_destroy)(self.queue);
            (self.functions.rd_kafka_destroy_flags)(self.handle, NO_CONSUMER_CLOSE);
        }
    }
}

impl Consumer {
    fn open(settings: &[(String, String)], has_tokens: bool) -> Result<Consumer, String> {
        let functions = loaded()?;
        let text = |(name, value): &(String, String)| Ok((c_text(name)?, c_text(value)?));
        let settings = settings.iter().map(text).collect::<Result<Vec<_>, String>>()?;
        let reports = Arc::<Reports>::default();
        let mut reason = [0 as c_char; TEXT_BYTES];
        // Sound: each text ends with NUL, a reason is written into its size, and librdkafka takes
        // the settings over only where it returns a consumer.
        unsafe {
            let conf = (functions.rd_kafka_conf_new)();
            let failed = |reason: &[c_char]| {
                (functions.rd_kafka_conf_destroy)(conf);
                Err(copied(reason.as_ptr()))
            };
            for (name, value) in &settings {
                let set = functions.rd_kafka_conf_set;
                let to = reason.as_mut_ptr();
                if set(conf, name.as_ptr(), value.as_ptr(), to, TEXT_BYTES) != 0 {
                    return failed(&reason);
                }
            }
            (functions.rd_kafka_conf_set_opaque)(conf, Arc::as_ptr(&reports) as Pointer);
            (functions.rd_kafka_conf_set_error_cb)(conf, on_error);
            (functions.rd_kafka_conf_set_log_cb)(conf, on_log);
            if has_tokens {
                (functions.rd_kafka_conf_set_oauthbearer_token_refresh_cb)(conf, on_token);
            }
            let handle =
                (functions.rd_kafka_new)(CONSUMER, conf, reason.as_mut_ptr(), TEXT_BYTES);
            if handle.is_null() {
                return failed(&reason);
            }
            (functions.rd_kafka_poll_set_consumer)(handle);
            let queue = (functions.rd_kafka_queue_get_consumer)(handle);
            if queue.is_null() {
                (functions.rd_kafka_destroy_flags)(handle, NO_CONSUMER_CLOSE);
                return Err("group.id is not set.".into());
            }
            Ok(Consumer {
                functions,
                handle,
                queue,
                reports,
                ranges: Vec::new(),
                open: 0,
                places: HashMap::new(),
                recent: Default::default(),
                wanted: Wanted::default(),
                row_bytes: FIRST_ROW_BYTES,
                pending: VecDeque::new(),
            })
        }
    }

    /// Read these ranges from now on, and no other.
    fn begin(&mut self, ranges: Vec<Range>, wanted: Wanted) -> Result<(), String> {
        self.pending.clear();
        (self.places, self.recent) = Default::default();
        (self.open, self.ranges, self.wanted) = (ranges.len(), ranges, wanted);
        self.row_bytes = FIRST_ROW_BYTES;
        let numbers: Vec<usize> = (0..self.ranges.len()).collect();
        self.with_places(&numbers, |functions, handle, places| {
            // Sound: librdkafka copies the list.
            self.result(unsafe { (functions.rd_kafka_assign)(handle, places) })
        })
    }

    /// Call a function with librdkafka's list of these ranges' places.
    fn with_places(
        &self,
        numbers: &[usize],
        call: impl FnOnce(&Functions, Pointer, Pointer) -> Result<(), String>,
    ) -> Result<(), String> {
        let functions = self.functions;
        // Sound: the list is freed once, after the call, and each topic's text ends with NUL.
        unsafe {
            let list = (functions.rd_kafka_topic_partition_list_new)(numbers.len() as c_int);
            for &number in numbers {
                let Range { topic, partition, next, .. } = &self.ranges[number];
                let (topic, partition) = (topic.as_ptr(), *partition);
                (functions.rd_kafka_topic_partition_list_add)(list, topic, partition);
                (functions.rd_kafka_topic_partition_list_set_offset)(list, topic, partition, *next);
            }
            let result = call(functions, self.handle, list);
            (functions.rd_kafka_topic_partition_list_destroy)(list);
            result
        }
    }

    fn result(&self, code: c_int) -> Result<(), String> {
        // Sound: librdkafka has a constant text for each code.
        let reason = || copied(unsafe { (self.functions.rd_kafka_err2str)(code) });
        if code == 0 { Ok(()) } else { Err(reason()) }
    }

    /// Change the assignment by the place of one range.
    fn change(
        &mut self,
        number: usize,
        change: unsafe extern "C" fn(Pointer, Pointer) -> Pointer,
    ) -> Result<(), String> {
        // A topic that is no longer assigned may leave its handle's address to another one.
        (self.places, self.recent) = Default::default();
        self.with_places(&[number], |functions, handle, places| {
            // Sound: librdkafka copies the list, and an error is freed once.
            unsafe {
                let failure = change(handle, places);
                if failure.is_null() {
                    return Ok(());
                }
                let reason = copied((functions.rd_kafka_error_string)(failure));
                (functions.rd_kafka_error_destroy)(failure);
                Err(reason)
            }
        })
    }

    /// Fetch a range anew, from its next offset on.
    fn restart(&mut self, number: usize) -> Result<(), String> {
        self.change(number, self.functions.rd_kafka_incremental_unassign)?;
        self.change(number, self.functions.rd_kafka_incremental_assign)
    }

    /// Continue a range at this offset, or at a later one that it has reached.
    fn advance(&mut self, number: usize, position: i64) -> Result<(), String> {
        let range = &mut self.ranges[number];
        range.next = range.next.max(position);
        if !range.is_open || range.next < range.until {
            return Ok(());
        }
        range.is_open = false;
        self.open -= 1;
        // Stop fetching ahead, and drop the records past the end.
        self.change(number, self.functions.rd_kafka_incremental_unassign)
    }

    /// Return the number of a message's range; None if no range is of its partition.
    fn number(&mut self, message: &Message) -> Option<usize> {
        let place = (message.rkt as usize, message.partition);
        if self.recent.0 != place {
            let number = self.places.entry(place).or_insert_with(|| {
                // Sound: the message refers to its topic.
                let topic = copied(unsafe { (self.functions.rd_kafka_topic_name)(message.rkt) });
                let is_here = |range: &Range| (&range.name, range.partition) == (&topic, place.1);
                self.ranges.iter().position(is_here)
            });
            self.recent = (place, *number);
        }
        self.recent.1
    }

    /// Take messages out of librdkafka's queue; return whether there were any.
    fn fill(&mut self, wait_ms: c_int, most: usize) -> bool {
        let mut messages = [null_mut(); MOST_MESSAGES];
        let take = self.functions.rd_kafka_consume_batch_queue;
        // Sound: the array has room for `most` messages, which librdkafka lends.
        let count = unsafe { take(self.queue, wait_ms, messages.as_mut_ptr(), most) };
        let functions = self.functions;
        let lent = messages.iter().take(count.max(0) as usize);
        self.pending.extend(lent.map(|&message| Lent { functions, message }));
        count > 0
    }

    /// Return a batch, or None if no record comes within this time, and the events after it.
    fn take(&mut self, poll_ms: c_int) -> Result<(Option<RecordBatch>, Vec<Event>), String> {
        let until = Instant::now() + LONGEST_TAKE;
        let most_rows = self.wanted.batch_bytes / self.row_bytes + 1;
        let open = self.ranges.iter().filter(|range| range.is_open);
        let offsets = open.map(|range| range.until.abs_diff(range.next) as usize);
        let rows = offsets.fold(0, usize::saturating_add).min(most_rows);
        let mut columns = Columns::new(&self.wanted.columns, rows, rows * self.row_bytes)?;
        let mut events = Vec::new();
        while events.is_empty() && self.open > 0 {
            if let Some(message) = self.pending.pop_front() {
                if message.message().err != 0 {
                    events.push(message.event());
                } else if !self.append(&message, &mut columns)? {
                    self.pending.push_front(message);
                    break;
                }
            } else if !self.fill(0, most_rows.min(MOST_MESSAGES)) {
                // Wait for one message: a call that waits for several would wait for the last one.
                if Instant::now() >= until || !self.fill(poll_ms, 1) {
                    break;
                }
            }
        }
        if columns.rows == 0 {
            return Ok((None, events));
        }
        self.row_bytes = columns.bytes / columns.rows + 1;
        Ok((Some(columns.finish(&self.wanted.columns)?), events))
    }

    /// Append a record if a range has it, and move the range's position behind it.
    ///
    /// Return false, and change nothing, if the record does not fit into the batch.
    fn append(&mut self, lent: &Lent, columns: &mut Columns) -> Result<bool, String> {
        let message = lent.message();
        let offset = message.offset;
        let Some(number) = self.number(message) else { return Ok(true) };
        let range = &self.ranges[number];
        let wanted = &self.wanted;
        if (range.next..range.until).contains(&offset) {
            let has_headers = wanted.has_headers || !wanted.aborted.is_empty();
            let record = Record {
                key: lent.bytes(message.key, message.key_len),
                value: lent.bytes(message.payload, message.len),
                topic: &range.name,
                partition: message.partition,
                offset,
                timestamp: if wanted.has_times { lent.timestamp() } else { (0, -1) },
                headers: if has_headers { lent.headers() } else { Vec::new() },
            };
            let is_aborted = record.headers.iter().any(|(name, value)| {
                name == ATTEMPT && value.is_some_and(|tag| wanted.aborted.contains(tag))
            });
            if !is_aborted && !columns.append(&record, wanted.batch_bytes) {
                return Ok(false);
            }
        }
        self.advance(number, offset + 1)?;
        Ok(true)
    }
}

/// Reads ranges of offsets with one consumer.
///
/// Args:
///     settings: librdkafka's settings, as texts.
///     has_tokens: Whether the caller gives tokens for OAUTHBEARER.
#[pyclass(frozen)]
pub struct Reader(Mutex<Option<Consumer>>);

impl Reader {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut Consumer) -> Result<T, String> + Send,
    ) -> PyResult<T> {
        let work = || match locked(&self.0).as_mut() {
            Some(consumer) => work(consumer),
            None => Err("The consumer is closed.".into()),
        };
        py.detach(|| guarded("it read Kafka", work)).map_err(error)
    }
}

#[pymethods]
impl Reader {
    #[new]
    fn new(py: Python<'_>, settings: Vec<(String, String)>, has_tokens: bool) -> PyResult<Self> {
        let open = || Consumer::open(&settings, has_tokens);
        let consumer = py.detach(|| guarded("it opened a consumer", open)).map_err(error)?;
        Ok(Reader(Mutex::new(Some(consumer))))
    }

    /// Read ranges from now on: for each its topic, partition, next offset and end.
    ///
    /// No two ranges may be of the same partition. Records with one of the `aborted` tags are
    /// left out.
    fn begin(
        &self,
        py: Python<'_>,
        ranges: Vec<(String, i32, i64, i64)>,
        columns: Vec<String>,
        batch_bytes: usize,
        aborted: HashSet<Vec<u8>>,
    ) -> PyResult<()> {
        self.with(py, move |consumer| {
            let range = |(name, partition, next, until): (String, i32, i64, i64)| {
                Ok(Range { topic: c_text(&name)?, name, partition, next, until, is_open: true })
            };
            let ranges = ranges.into_iter().map(range).collect::<Result<_, String>>()?;
            let has_headers = columns.iter().any(|name| name == "headers");
            let has_times = columns.iter().any(|name| name.starts_with("timestamp"));
            let wanted = Wanted { columns, has_times, has_headers, batch_bytes, aborted };
            consumer.begin(ranges, wanted)
        })
    }

    /// Stop reading, so that an idle consumer fetches nothing.
    fn unassign(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |consumer| consumer.begin(Vec::new(), Wanted::default()))
    }

    /// Return a record batch or None, the next offset of each range, the events, and the reports.
    ///
    /// An event comes after the batch's records. The reports since the last call are the errors of
    /// connections, the lines of the log, and whether a token is wanted.
    fn take<'py>(&self, py: Python<'py>, poll_ms: i32) -> PyResult<Taken<'py>> {
        let (batch, positions, events, reports) = self.with(py, |consumer| {
            let (batch, events) = consumer.take(poll_ms)?;
            let positions = consumer.ranges.iter().map(|range| range.next).collect::<Vec<_>>();
            let errors = take(&mut *locked(&consumer.reports.errors));
            let is_token_wanted = consumer.reports.is_token_wanted.swap(false, Ordering::Relaxed);
            Ok((batch, positions, events, (errors, take(&mut *locked(&LINES)), is_token_wanted)))
        })?;
        let import = |batch: RecordBatch| to_python(py, "RecordBatch", &StructArray::from(batch));
        let batch = batch.map(import).transpose()?;
        Ok((batch, positions, events, reports))
    }

    /// Continue a range at this offset; at its end, stop fetching it.
    fn advance(&self, py: Python<'_>, number: usize, position: i64) -> PyResult<()> {
        self.with(py, |consumer| consumer.advance(number, position))
    }

    /// Fetch a range anew, from its next offset on.
    fn restart(&self, py: Python<'_>, number: usize) -> PyResult<()> {
        self.with(py, |consumer| consumer.restart(number))
    }

    /// Use a token until this time (ms since the epoch).
    fn set_token(&self, py: Python<'_>, token: &str, until: i64, principal: &str) -> PyResult<()> {
        self.with(py, |consumer| {
            let (token, principal) = (c_text(token)?, c_text(principal)?);
            let (token, principal) = (token.as_ptr(), principal.as_ptr());
            let mut reason = [0 as c_char; TEXT_BYTES];
            let (to, handle) = (reason.as_mut_ptr(), consumer.handle);
            let set = consumer.functions.rd_kafka_oauthbearer_set_token;
            // Sound: librdkafka copies the texts, and writes a reason into its size.
            let code = unsafe { set(handle, token, until, principal, null(), 0, to, TEXT_BYTES) };
            if code == 0 { Ok(()) } else { Err(copied(reason.as_ptr())) }
        })
    }

    fn fail_token(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        self.with(py, |consumer| {
            let reason = c_text(reason)?;
            let fail = consumer.functions.rd_kafka_oauthbearer_set_token_failure;
            // Sound: librdkafka copies the text.
            consumer.result(unsafe { fail(consumer.handle, reason.as_ptr()) })
        })
    }

    /// Close the consumer; a closed one may be closed again.
    fn close(&self, py: Python<'_>) {
        py.detach(|| drop(locked(&self.0).take()));
    }
}
