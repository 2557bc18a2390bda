//! Arrays and batches to and from pyarrow, over Arrow's C data interface, without a copy; and errors.

use arrow_array::ffi::{from_ffi, to_ffi, FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{make_array, Array, ArrayRef};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;
use std::panic::{catch_unwind, AssertUnwindSafe};

/// Return an array as a value of this class of pyarrow, an `Array` or `RecordBatch`.
pub fn to_python<'py>(py: Python<'py>, class: &str, array: &dyn Array) -> PyResult<Bound<'py, PyAny>> {
    let (array, schema) = to_ffi(&array.to_data()).map_err(error)?;
    // pyarrow moves the content out of both structs and marks them as released.
    let addresses = (&array as *const FFI_ArrowArray as usize, &schema as *const FFI_ArrowSchema as usize);
    py.import("pyarrow")?.getattr(class)?.call_method1("_import_from_c", addresses)
}

/// Return the array of a `pyarrow.Array`.
pub fn from_python(array: &Bound<'_, PyAny>) -> PyResult<ArrayRef> {
    let (mut data, mut schema) = (FFI_ArrowArray::empty(), FFI_ArrowSchema::empty());
    let addresses = (&mut data as *mut FFI_ArrowArray as usize, &mut schema as *mut FFI_ArrowSchema as usize);
    array.call_method1("_export_to_c", addresses)?;
    // Sound: pyarrow has filled both structs by the C data interface, which keeps the buffers alive
    // until `data` is dropped.
    let data = unsafe { from_ffi(data, &schema) }.map_err(error)?;
    Ok(make_array(data))
}

/// Return a Python RuntimeError with the text of an error.
pub fn error(error: impl std::fmt::Display) -> PyErr {
    PyRuntimeError::new_err(error.to_string())
}

/// Turn a panic into an error: a panic is no `Exception` in Python. `doing` completes the sentence.
pub fn guarded<T>(doing: &str, work: impl FnOnce() -> Result<T, String>) -> Result<T, String> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(format!("The native engine has failed while {doing}.")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let failed = guarded::<()>("it decoded JSON", || panic!("out of range"));
        assert_eq!(failed.unwrap_err(), "The native engine has failed while it decoded JSON.");
        assert_eq!(guarded("it decoded JSON", || Ok(1)), Ok(1));
    }
}
