//! Arrays to and from pyarrow, over Arrow's C data interface, without a copy.

use arrow_array::ffi::{from_ffi, to_ffi, FFI_ArrowArray, FFI_ArrowSchema};
use arrow_array::{make_array, Array, ArrayRef};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// Return an array as a `pyarrow.Array`.
pub fn to_python<'py>(py: Python<'py>, array: &dyn Array) -> PyResult<Bound<'py, PyAny>> {
    let (array, schema) = to_ffi(&array.to_data()).map_err(error)?;
    // pyarrow moves the content out of both structs and marks them as released.
    let addresses = (&array as *const FFI_ArrowArray as usize, &schema as *const FFI_ArrowSchema as usize);
    py.import("pyarrow")?.getattr("Array")?.call_method1("_import_from_c", addresses)
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
