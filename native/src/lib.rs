//! Headrace's native engine: Kafka's records and JSON values into Arrow columns.

mod batch;
mod exchange;
mod json;
mod librdkafka;
mod reader;
mod scan;
mod times;

use pyo3::prelude::*;

#[pymodule]
fn headrace_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(librdkafka::load_librdkafka, module)?)?;
    module.add_class::<reader::Reader>()?;
    module.add_class::<json::JsonColumns>()
}
