//! The example of a program with a BEF file inside runs.

#[path = "../examples/fib.rs"]
mod fib;

#[test]
fn a_file_inside_a_program_runs() {
    assert_eq!(fib::fib(20), Ok(6765));
    let text = include_str!("../examples/fib/fib.mlir");
    let options = ferroflow_runtime::host::TextOptions::default();
    let bytes = ferroflow_runtime::host::mlir_to_bef(text, "fib.mlir", options, false);
    assert_eq!(
        bytes.as_deref(),
        Ok(&include_bytes!("../examples/fib/fib.bef")[..])
    );
}
