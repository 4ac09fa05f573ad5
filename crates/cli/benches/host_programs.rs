//! Time of parts of host programs in nanoseconds: `cargo bench --bench host_programs`.
//! Words behind `--` choose the lines that contain one of them.

use ferroflow_runtime::Tensor;
use ferroflow_runtime::eager::{Attrs, Eager, TensorHandle};
use ferroflow_runtime::host::{
    AsyncValue, ExecutionContext, HostContext, IndirectPromise, MallocAllocator,
    MultiThreadedWorkQueue, Program, Promise, SingleThreadedWorkQueue, TextOptions, Values, bef,
    host_registry, mlir_to_bef,
};
use std::sync::Arc;
use std::time::Instant;

/// The allocator of the program `ferroflow`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Returns whether the filters of the command line select a line.
fn is_wanted(what: &str) -> bool {
    let mut words = std::env::args()
        .skip(1)
        .filter(|a| !a.starts_with("--"))
        .peekable();
    words.peek().is_none() || words.any(|word| what.contains(&word))
}

/// Prints the best time of several rounds, each of `n` runs, divided by `per_run`.
fn time(what: &str, n: usize, per_run: usize, mut run: impl FnMut()) {
    if !is_wanted(what) {
        return;
    }
    // As a test, it only has to work.
    let is_bench = std::env::args().any(|a| a == "--bench");
    let (n, rounds) = if is_bench { (n, 7) } else { (1, 1) };
    let mut best = f64::INFINITY;
    for _ in 0..rounds {
        let start = Instant::now();
        (0..n).for_each(|_| run());
        best = best.min(start.elapsed().as_nanos() as f64 / (n * per_run) as f64);
    }
    println!("{what:56} {best:8.1} ns");
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

/// Returns a context with this many worker threads.
fn parallel_context(n_threads: usize) -> ExecutionContext {
    ExecutionContext::new(HostContext::new(
        Arc::new(MultiThreadedWorkQueue::new(n_threads, 1)),
        Arc::new(MallocAllocator),
        Box::new(std::io::sink()),
        Box::new(|e| panic!("{e}")),
    ))
}

/// Runs `f` of a program repeatedly, each run to its end.
fn bench(what: &str, text: &str, n: usize, per_run: usize) {
    bench_in(&context(), what, text, n, per_run);
}

fn bench_in(ctx: &ExecutionContext, what: &str, text: &str, n: usize, per_run: usize) {
    let program = program(text);
    let function = program.function("f").expect("f");
    time(what, n, per_run, || {
        let results = function.execute(ctx, Values::new());
        ctx.host().work_queue().await_values(&results);
        ctx.host().work_queue().quiesce();
    });
}

/// Like [`bench`], on one thread and on two.
fn bench_on_both(what: &str, text: &str, n: usize, per_run: usize) {
    bench(what, text, n, per_run);
    let two = parallel_context(2);
    bench_in(&two, &format!("{what}, two threads"), text, n, per_run);
}

/// Returns a function `f` of kernels in a row, each of which reads the result of the one before:
/// `site` writes a kernel for its number.
fn in_a_row(functions: &str, n: usize, site: impl Fn(usize) -> String) -> String {
    let sites: String = (0..n).map(site).collect();
    format!(
        "{functions}func @f() -> i32 {{\n  %one = tfrt.constant.i32 1\n  %yes = tfrt.constant.i1 1\n  \
         %v0 = tfrt.constant.i32 1\n{sites}  tfrt.return %v{n} : i32\n}}"
    )
}

/// Calls and conditionals in a row, each at its own call site.
fn call_sites() {
    for n_kernels in [1, 8, 50] {
        let adds: String = (0..n_kernels)
            .map(|i| format!("  %x{} = {ADD} %x{i}, %y\n", i + 1))
            .collect();
        let callee = format!(
            "func @callee(%x0: i32, %y: i32) -> i32 {{\n{adds}  tfrt.return %x{n_kernels} : i32\n}}\n"
        );
        let text = in_a_row(&callee, 1000, |i| {
            let next = i + 1;
            format!("  %v{next} = tfrt.call @callee(%v{i}, %one) : (i32, i32) -> (i32)\n")
        });
        let what = format!("one of 1000 calls of {n_kernels} kernels");
        bench_on_both(&what, &text, 100, 1000);
    }
    let names = |n: usize| vec!["%one"; n].join(", ");
    let types = ["i32"; 12].join(", ");
    let args: String = (0..12).map(|i| format!("%x{i}: i32, ")).collect();
    let callee = format!(
        "func @callee({}) -> i32 {{\n  %s = {ADD} %x0, %x11\n  tfrt.return %s : i32\n}}\n",
        args.trim_end_matches(", ")
    );
    let text = in_a_row(&callee, 1000, |i| {
        let (next, ones) = (i + 1, names(11));
        format!("  %v{next} = tfrt.call @callee(%v{i}, {ones}) : ({types}) -> (i32)\n")
    });
    bench_on_both("one of 1000 calls with 12 arguments", &text, 100, 1000);
    let text = in_a_row("", 1000, |i| {
        let next = i + 1;
        format!(
            "  %v{next} = tfrt.if %yes, %v{i}, %one : (i32, i32) -> (i32) {{\n    %y{i} = {ADD} %v{i}, \
             %one\n    tfrt.return %y{i} : i32\n  }} else {{\n    tfrt.return %v{i} : i32\n  }}\n"
        )
    });
    bench_on_both("one of 1000 conditionals", &text, 100, 1000);
}

/// Core runtime ops in a row, on one-element tensors.
fn core_runtime_ops() {
    let attrs = "{transpose_a = false, transpose_b = false}";
    for (op, args, attrs) in [
        ("tfrt_test.identity", "", ""),
        ("tfrt_test.add", ", %h0", ""),
        ("tfrt_test.matmul", ", %h0", attrs),
        ("tf.AddV2", ", %h0", ""),
    ] {
        let ops: String = (0..1000)
            .map(|i| {
                let next = i + 1;
                format!("  %h{next} = corert.executeop(%cpu) \"{op}\"(%h{i}{args}) {attrs}: 1\n")
            })
            .collect();
        let text = format!(
            "func @f() -> !corert.tensorhandle {{\n  %null = \"corert.create_null_op_handler\"() : () -> \
             !corert.ophandler\n  %cpu = \"corert.create_cpu_op_handler\"(%null) : (!corert.ophandler) -> \
             !corert.ophandler\n  %h0 = corert.executeop(%cpu) \"tfrt_test.create_dense_tensor\"() {{shape = \
             [1, 1], values = [2.0 : f32]}} : 1\n{ops}  tfrt.return %h1000 : !corert.tensorhandle\n}}"
        );
        bench_on_both(&format!("one of 1000 {op}"), &text, 50, 1000);
    }
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
    time("synchronous: a kernel", 200, 1000, || {
        let _ = function.execute_sync(&ctx, Vec::new());
    });
    call_sites();
    core_runtime_ops();
    graphs();
    loops_and_threads();
    opening();
    ops_at_once();
    hand_over("hand-over to a waiter, after 20 µs (median)", 20);
    hand_over("hand-over to a sleeping waiter (median)", 250);
}

const ADD: &str = "tfrt.add.i32";

/// Layers whose kernels read two of the previous layer, and a tree of sums.
fn graphs() {
    let mut text = String::from("func @f() -> i32 {\n  %v0 = tfrt.constant.i32 1\n");
    for i in 0..1000 {
        let next = i + 1;
        text += &format!(
            "  %v{next} = \"tfrt_test.async_add.i32\"(%v{i}, %v{i}) : (i32, i32) -> i32\n"
        );
    }
    text += "  tfrt.return %v1000 : i32\n}";
    bench(
        "a kernel through the queue, a chain of 1000",
        &text,
        100,
        1000,
    );
    let (layers, width) = (64usize, 64usize);
    let mut seed = 1u64;
    let mut any = |n: usize| {
        seed = seed
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (seed >> 33) as usize % n
    };
    let mut text = String::from("func @f() -> i32 {\n");
    (0..width).for_each(|i| text += &format!("  %v0_{i} = tfrt.constant.i32 {i}\n"));
    for layer in 1..=layers {
        for i in 0..width {
            let (a, b, before) = (any(width), any(width), layer - 1);
            text += &format!("  %v{layer}_{i} = {ADD} %v{before}_{a}, %v{before}_{b}\n");
        }
    }
    text += &format!("  tfrt.return %v{layers}_0 : i32\n}}");
    bench_on_both(
        "async: a kernel of a 64x64 random graph",
        &text,
        100,
        layers * width,
    );
    let leaves = 1024usize;
    let mut text = String::from("func @f() -> i32 {\n");
    (0..leaves).for_each(|i| text += &format!("  %v{i} = tfrt.constant.i32 1\n"));
    let (mut from, mut next) = (0, leaves);
    while from + 1 < next {
        text += &format!("  %v{next} = {ADD} %v{from}, %v{}\n", from + 1);
        (from, next) = (from + 2, next + 1);
    }
    text += &format!("  tfrt.return %v{from} : i32\n}}");
    bench_on_both(
        "async: a kernel of a tree of 1024 leaves",
        &text,
        200,
        leaves * 2 - 1,
    );
}

fn loops_and_threads() {
    let text = "func @body(%n: i32) -> (i32, i1) {\n  %minus = tfrt.constant.i32 -1\n  %zero = \
                tfrt.constant.i32 1\n  %m = tfrt.add.i32 %n, %minus\n  %more = \
                \"tfrt.lessequal.i32\"(%zero, %m) : (i32, i32) -> i1\n  tfrt.return %m, %more : i32, \
                i1\n}\nfunc @f() -> i32 {\n  %n = tfrt.constant.i32 10000\n  %true = tfrt.constant.i1 \
                true\n  %r = tfrt.while %true @body(%n) parallel_iterations(1) : (i32) -> (i32)\n  \
                tfrt.return %r : i32\n}";
    bench("an iteration of tfrt.while", text, 20, 10000);
    let text = "func @fib(%n: i32) -> i32 {\n  %one = tfrt.constant.i32 1\n  %small = \
                \"tfrt.lessequal.i32\"(%n, %one) : (i32, i32) -> i1\n  %res = tfrt.if %small, %n : \
                (i32) -> (i32) {\n    tfrt.return %n : i32\n  } else {\n    %minus = tfrt.constant.i32 \
                -1\n    %a = tfrt.add.i32 %n, %minus\n    %b = tfrt.add.i32 %a, %minus\n    %fa = \
                tfrt.call @fib(%a) : (i32) -> i32\n    %fb = tfrt.call @fib(%b) : (i32) -> i32\n    \
                %sum = tfrt.add.i32 %fa, %fb\n    tfrt.return %sum : i32\n  }\n  tfrt.return %res : \
                i32\n}\nfunc @f() -> i32 {\n  %n = tfrt.constant.i32 20\n  %f = tfrt.call @fib(%n) : \
                (i32) -> i32\n  tfrt.return %f : i32\n}";
    bench_on_both("a call of a recursive fib(20)", text, 5, 21891);
    let asynchronous: String = (0..1000)
        .map(|i| format!("  %v{i} = \"tfrt_test.async_add.i32\"(%x, %x) : (i32, i32) -> i32\n"))
        .collect();
    let text = format!(
        "func @f() -> i32 {{\n  %x = tfrt.constant.i32 1\n{asynchronous}  tfrt.return %v999 : i32\n}}"
    );
    let two = parallel_context(2);
    let what = "a kernel through the queue, 1000, two threads";
    bench_in(&two, what, &text, 100, 1000);
    let text = "func @f() -> !tfrt.chain {\n  %start = tfrt.constant.i32 0\n  %end = \
                tfrt.constant.i32 10000\n  %size = tfrt.constant.i32 1\n  %done = \
                tfrt.parallel_for.i32 %start to %end fixed %size {\n    %ch = tfrt.new.chain\n    \
                tfrt.return %ch : !tfrt.chain\n  }\n  tfrt.return %done : !tfrt.chain\n}";
    bench_in(
        &two,
        "a block of tfrt.parallel_for, two threads",
        text,
        20,
        10000,
    );
}

/// Opens a file in memory, small and large.
fn opening() {
    for kernels in [10, 10_000] {
        let adds: String = (0..kernels)
            .map(|i| format!("  %v{} = {ADD} %v{i}, %v{i}\n", i + 1))
            .collect();
        let text = format!(
            "func @f() -> i32 {{\n  %v0 = tfrt.constant.i32 1\n{adds}  tfrt.return %v{kernels} : i32\n}}"
        );
        let bytes = mlir_to_bef(&text, "bench.mlir", TextOptions::default(), true).expect("valid");
        let bytes: bef::FileBytes = Arc::new(bytes);
        time(
            &format!("opening a BEF of {kernels} kernels"),
            10_000,
            1,
            || {
                let _ = std::hint::black_box(bef::File::open(bytes.clone()));
            },
        );
    }
}

fn ops_at_once() {
    let eager = Eager::new(1);
    let handle = |dims: &[usize], values: &[f32]| {
        let tensor = Tensor::from_slice(ferroflow_runtime::Shape::from(dims), values);
        TensorHandle::from(tensor.expect("fits"))
    };
    let one = handle(&[1], &[1.0]);
    let square = handle(&[2, 2], &[1.0, 2.0, 3.0, 4.0]);
    let none = Attrs::default();
    time("eager: add of one element, by name", 1 << 17, 1, || {
        let _ = std::hint::black_box(eager.execute("AddV2", [&one, &one], &none));
    });
    time("eager: matmul 2x2, by name", 1 << 17, 1, || {
        let _ = std::hint::black_box(eager.execute("MatMul", [&square, &square], &none));
    });
    let (add, product) = (eager.op("AddV2", &none), eager.op("MatMul", &none));
    time(
        "eager: add of one element, op made once",
        1 << 17,
        1,
        || {
            let _ = std::hint::black_box(add.execute([&one, &one]));
        },
    );
    time("eager: matmul 2x2, op made once", 1 << 17, 1, || {
        let _ = std::hint::black_box(product.execute([&square, &square]));
    });
}

/// From a worker that sets a value, some microseconds after the request, to a waiting thread.
fn hand_over(what: &str, micros: u128) {
    if !is_wanted(what) {
        return;
    }
    let ctx = parallel_context(1);
    let queue = ctx.host().work_queue();
    let mut nanos = Vec::new();
    for _ in 0..2000 {
        let (promise, value) = Promise::<Instant>::new();
        queue.add_task(Box::new(move || {
            let start = Instant::now();
            while start.elapsed().as_micros() < micros {
                std::hint::spin_loop();
            }
            promise.emplace(Instant::now());
        }));
        let value: AsyncValue = value.into();
        queue.await_values(std::slice::from_ref(&value));
        if let Some(set) = value.get::<Instant>() {
            nanos.push(set.elapsed().as_nanos() as f64);
        }
    }
    nanos.sort_by(f64::total_cmp);
    let median = nanos.get(nanos.len() / 2).copied().unwrap_or(0.0);
    println!("{what:56} {median:8.1} ns");
}
