//! The host runtime alone: a BEF file inside the program runs with the kernels of numbers and
//! control flow, without the reader of MLIR text, models or ops of tensors. It shows how small such
//! a program is:
//!
//!     cargo run --release --example fib -- 25

use ferroflow_runtime::host::{
    AsyncValue, ExecutionContext, HostContext, MallocAllocator, Program, SingleThreadedWorkQueue,
    Values, WorkQueue, basic_registry, bef,
};
use std::sync::Arc;

/// `fib/fib.mlir`, by `ferroflow translate --mlir-to-bef --disable-optional-sections`.
static FIB: &[u8] = include_bytes!("fib/fib.bef");

/// The Fibonacci number `n`, which is `n` itself below two.
pub fn fib(n: i32) -> Result<i32, String> {
    let file = bef::File::open(Arc::new(FIB)).map_err(|e| e.to_string())?;
    let program = Program::new(file, &basic_registry()).map_err(|e| e.to_string())?;
    let function = program.function("fib").ok_or("the file has no 'fib'")?;
    let queue = Arc::new(SingleThreadedWorkQueue::new());
    let (out, allocator) = (Box::new(std::io::stdout()), Arc::new(MallocAllocator));
    let host = HostContext::new(queue.clone(), allocator, out, Box::new(|_| {}));
    let args = Values::from_iter([AsyncValue::new(n)]);
    let results = function.execute(&ExecutionContext::new(host), args);
    queue.await_values(&results);
    let result = results.first().ok_or("'fib' has no result")?;
    result.expect::<i32>().copied().map_err(|e| e.to_string())
}

#[allow(dead_code, reason = "the tests take only `fib`")]
fn main() -> Result<(), String> {
    let n = std::env::args().nth(1);
    let n = n.map_or(Ok(25), |n| n.parse().map_err(|e| format!("'{n}': {e}")))?;
    println!("fib({n}) = {}", fib(n)?);
    Ok(())
}
