//! How long the pieces of host programs take, in nanoseconds: `cargo bench -p ferroflow-runtime`.

use ferroflow_runtime::host::{
    AsyncValue, ExecutionContext, HostContext, MallocAllocator, Program, SingleThreadedWorkQueue,
    TextOptions, Values, bef, host_registry, mlir_to_bef,
};
use ferroflow_sync::{IndirectPromise, Promise};
use std::sync::Arc;
use std::time::Instant;

/// The best of some rounds, each of `n` runs, divided by `per_run`.
fn time(what: &str, n: usize, per_run: usize, mut run: impl FnMut()) {
    let mut best = f64::INFINITY;
    for _ in 0..7 {
        let start = Instant::now();
        (0..n).for_each(|_| run());
        best = best.min(start.elapsed().as_nanos() as f64 / (n * per_run) as f64);
    }
    println!("{what:44} {best:8.1} ns");
}

fn program(text: &str) -> Arc<Program> {
    let bytes = mlir_to_bef(text, "bench.mlir", TextOptions::default(), true).expect("valid");
    let file = bef::File::open(Arc::new(bytes)).expect("valid");
    Program::new(file, &host_registry()).unwrap_or_else(|e| panic!("{e}"))
}

fn context() -> ExecutionContext {
    let host = HostContext::new(
        Arc::new(SingleThreadedWorkQueue::new()),
        Arc::new(MallocAllocator),
        Box::new(std::io::sink()),
        Box::new(|e| panic!("{e}")),
    );
    ExecutionContext::new(host)
}

/// Runs `f` of a program, each run to its end.
fn bench(what: &str, text: &str, n: usize, per_run: usize) {
    let (program, ctx) = (program(text), context());
    let function = program.function("f").expect("f");
    time(what, n, per_run, || {
        let results = function.execute(&ctx, Values::new());
        ctx.host().work_queue().await_values(&results);
        ctx.host().work_queue().quiesce();
    });
}

fn values() {
    time("AsyncValue: make, drop", 1 << 20, 1, || {
        drop(AsyncValue::new(1i32))
    });
    time(
        "AsyncValue: make, and_then, emplace, drop",
        1 << 20,
        1,
        || {
            let (promise, value) = Promise::<i32>::new();
            value.and_then(|| {});
            promise.emplace(1);
        },
    );
    time("AsyncValue: indirect, forward", 1 << 20, 1, || {
        let (promise, value) = IndirectPromise::new();
        promise.forward_to(AsyncValue::new(1i32));
        drop(value);
    });
}

fn main() {
    values();
    let chain = |n: usize| {
        let adds: String = (0..n)
            .map(|i| format!("  %v{} = tfrt.add.i32 %v{i}, %v{i}\n", i + 1))
            .collect();
        format!(
            "func @f() -> i32 {{\n  %v0 = tfrt.constant.i32 1\n{adds}  tfrt.return %v{n} : i32\n}}"
        )
    };
    bench(
        "async: a kernel of a chain of 1000",
        &chain(1000),
        200,
        1000,
    );
    let wide: String = (0..1000)
        .map(|i| format!("  %v{i} = tfrt.add.i32 %x, %x\n"))
        .collect();
    let wide = format!(
        "func @f() -> i32 {{\n  %x = tfrt.constant.i32 1\n{wide}  tfrt.return %x : i32\n}}"
    );
    bench("async: one of 1000 independent kernels", &wide, 200, 1000);
    let repeat = |body: &str| {
        format!(
            "func @one(%x: i32) -> i32 {{\n  %y = tfrt.add.i32 %x, %x\n  tfrt.return %y : i32\n}}\n\
             func @f() -> i32 {{\n  %n = tfrt.constant.i32 10000\n  %x = tfrt.constant.i32 1\n  \
             %t = tfrt.constant.i1 true\n  %r:2 = tfrt.repeat.i32 %n, %x, %t : i32, i1 {{\n{body}    \
             tfrt.return %y, %t : i32, i1\n  }}\n  tfrt.return %r#0 : i32\n}}"
        )
    };
    bench(
        "an iteration of tfrt.repeat, one kernel",
        &repeat("    %y = tfrt.add.i32 %x, %x\n"),
        20,
        10000,
    );
    bench(
        "… with a tfrt.call",
        &repeat("    %y = tfrt.call @one(%x) : (i32) -> i32\n"),
        20,
        10000,
    );
    let branch = "    %y = tfrt.if %t, %x : (i32) -> (i32) {\n      %a = tfrt.add.i32 %x, %x\n      \
                  tfrt.return %a : i32\n    } else {\n      tfrt.return %x : i32\n    }\n";
    bench("… with a tfrt.if", &repeat(branch), 20, 10000);
    bench(
        "… with a kernel through the queue",
        &repeat("    %y = \"tfrt_test.async_add.i32\"(%x, %x) : (i32, i32) -> i32\n"),
        20,
        10000,
    );
    let adds: String = (0..1000)
        .map(|i| format!("  %v{} = tfrt.add_s.i32 %v{i}, %v{i}\n", i + 1))
        .collect();
    let text = format!(
        "func @f() -> i32 attributes {{tfrt.sync}} {{\n  %v0 = tfrt.constant_s.i32 1\n{adds}  \
         tfrt.return %v1000 : i32\n}}"
    );
    let (program, ctx) = (program(&text), context());
    let function = program.function("f").expect("f");
    time("sync: a kernel", 200, 1000, || {
        let _ = function.execute_sync(&ctx, Vec::new());
    });
}
