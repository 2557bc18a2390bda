//! librdkafka's functions, from the library that the Python package confluent-kafka brings.
//!
//! One librdkafka in a process has one set of protocols, and one set of settings to check.

use crate::exchange::error;
use pyo3::prelude::*;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::sync::OnceLock;

pub type Pointer = *mut c_void;
pub type Text = *const c_char;
pub type OnError = extern "C" fn(Pointer, c_int, Text, Pointer);
pub type OnLog = extern "C" fn(Pointer, c_int, Text, Text);
pub type OnToken = extern "C" fn(Pointer, Text, Pointer);

/// librdkafka's `rd_kafka_message_t`: a record, or an event if `err` is not 0.
#[repr(C)]
pub struct Message {
    pub err: c_int,
    pub rkt: Pointer,
    pub partition: i32,
    pub payload: *const u8,
    pub len: usize,
    pub key: *const u8,
    pub key_len: usize,
    pub offset: i64,
    _private: Pointer,
}

macro_rules! functions {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
            /// The functions are valid as long as the library is open.
            _library: libloading::Library,
        }

        impl Functions {
            fn of(path: &str) -> Result<Functions, libloading::Error> {
                // Sound: Python has run the library's initializers already, and the types here are
                // those of rdkafka.h, which no later version of librdkafka 2 changes.
                unsafe {
                    let library = libloading::Library::new(path)?;
                    Ok(Functions {
                        $($name: *library.get(concat!(stringify!($name), "\0").as_bytes())?,)*
                        _library: library,
                    })
                }
            }
        }
    };
}

functions! {
    fn rd_kafka_conf_new() -> Pointer;
    fn rd_kafka_conf_destroy(Pointer);
    fn rd_kafka_conf_set(Pointer, Text, Text, *mut c_char, usize) -> c_int;
    fn rd_kafka_conf_set_opaque(Pointer, Pointer);
    fn rd_kafka_conf_set_error_cb(Pointer, OnError);
    fn rd_kafka_conf_set_log_cb(Pointer, OnLog);
    fn rd_kafka_conf_set_oauthbearer_token_refresh_cb(Pointer, OnToken);
    fn rd_kafka_new(c_int, Pointer, *mut c_char, usize) -> Pointer;
    fn rd_kafka_destroy_flags(Pointer, c_int);
    fn rd_kafka_poll_set_consumer(Pointer) -> c_int;
    fn rd_kafka_queue_get_consumer(Pointer) -> Pointer;
    fn rd_kafka_queue_destroy(Pointer);
    fn rd_kafka_consume_batch_queue(Pointer, c_int, *mut *mut Message, usize) -> isize;
    fn rd_kafka_message_destroy(*mut Message);
    fn rd_kafka_message_timestamp(*const Message, *mut c_int) -> i64;
    fn rd_kafka_message_headers(*const Message, *mut Pointer) -> c_int;
    fn rd_kafka_message_errstr(*const Message) -> Text;
    fn rd_kafka_header_get_all(
        Pointer, usize, *mut Text, *mut *const u8, *mut usize
    ) -> c_int;
    fn rd_kafka_topic_name(Pointer) -> Text;
    fn rd_kafka_topic_partition_list_new(c_int) -> Pointer;
    fn rd_kafka_topic_partition_list_add(Pointer, Text, i32) -> Pointer;
    fn rd_kafka_topic_partition_list_set_offset(Pointer, Text, i32, i64) -> c_int;
    fn rd_kafka_topic_partition_list_destroy(Pointer);
    fn rd_kafka_assign(Pointer, Pointer) -> c_int;
    fn rd_kafka_incremental_assign(Pointer, Pointer) -> Pointer;
    fn rd_kafka_incremental_unassign(Pointer, Pointer) -> Pointer;
    fn rd_kafka_error_string(Pointer) -> Text;
    fn rd_kafka_error_destroy(Pointer);
    fn rd_kafka_err2str(c_int) -> Text;
    fn rd_kafka_oauthbearer_set_token(
        Pointer, Text, i64, Text, *const Text, usize, *mut c_char, usize
    ) -> c_int;
    fn rd_kafka_oauthbearer_set_token_failure(Pointer, Text) -> c_int;
}

static LOADED: OnceLock<Functions> = OnceLock::new();

/// Load the functions from a shared library, or from a library that it is linked with.
///
/// Later calls keep the first library: a process has one.
#[pyfunction]
pub fn load_librdkafka(path: &str) -> PyResult<()> {
    if LOADED.get().is_none() {
        let functions = Functions::of(path).map_err(error)?;
        LOADED.get_or_init(|| functions);
    }
    Ok(())
}

/// Return the functions that `load_librdkafka` has loaded.
pub fn loaded() -> Result<&'static Functions, String> {
    LOADED.get().ok_or_else(|| "No librdkafka is loaded.".into())
}

/// Return a copy of a text of librdkafka; empty if there is none.
pub fn copied(text: Text) -> String {
    if text.is_null() {
        return String::new();
    }
    // Sound: librdkafka ends its texts with NUL, and frees none of them during a call to it.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// Return a text for librdkafka.
pub fn c_text(text: &str) -> Result<CString, String> {
    CString::new(text).map_err(|_| "A text for librdkafka contains a NUL.".into())
}
