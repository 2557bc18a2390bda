//! Headrace's native engine: JSON values into Arrow columns.

mod exchange;
mod json;
mod scan;
mod times;

use pyo3::prelude::*;

#[pymodule]
fn headrace_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<json::JsonColumns>()
}
