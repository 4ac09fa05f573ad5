//! Random programs of plain and asynchronous kernels give what they must, on any number of threads,
//! and leave no value behind.

use ferroflow_runtime::host::{
    AsyncValue, ExecutionContext, HostContext, MallocAllocator, MultiThreadedWorkQueue, Program,
    SingleThreadedWorkQueue, TextOptions, Values, WorkQueue, bef, host_registry, mlir_to_bef,
};
use ferroflow_testkit::random::Random;
use std::fmt::Write;
use std::sync::Arc;

/// A program of `n` kernels, and what it returns.
fn program(random: &mut Random, n: usize) -> (String, [i32; 3]) {
    let mut text = "func @twice(%x: i32) -> i32 {\n  %y = tfrt.add.i32 %x, %x\n  \
                    tfrt.return %y : i32\n}\nfunc @f() -> (i32, i32, i32) {\n"
        .to_string();
    let mut values: Vec<i32> = Vec::new();
    for i in 0..3 {
        let _ = writeln!(text, "  %v{i} = tfrt.constant.i32 {i}");
        values.push(i);
    }
    for i in 3..n {
        // Near values make chains, far ones make wide graphs.
        let reach = if random.below(2) == 0 { 4 } else { i };
        let (a, b) = (
            i - 1 - random.below(reach.min(i)),
            i - 1 - random.below(reach.min(i)),
        );
        let (x, y) = (values[a], values[b]);
        let (line, value) = match random.below(4) {
            0 => (
                format!("\"tfrt_test.async_add.i32\"(%v{a}, %v{b}) : (i32, i32) -> i32"),
                x.wrapping_add(y),
            ),
            1 => (
                format!("tfrt.call @twice(%v{a}) : (i32) -> i32"),
                x.wrapping_mul(2),
            ),
            2 => (format!("tfrt.mul.i32 %v{a}, %v{b}"), x.wrapping_mul(y)),
            _ => (format!("tfrt.add.i32 %v{a}, %v{b}"), x.wrapping_add(y)),
        };
        let _ = writeln!(text, "  %v{i} = {line}");
        values.push(value);
    }
    let last = [n - 1, n - 2, n / 2];
    let [a, b, c] = last;
    let _ = writeln!(
        text,
        "  tfrt.return %v{a}, %v{b}, %v{c} : i32, i32, i32\n}}"
    );
    (text, last.map(|i| values[i]))
}

fn check(program: &Arc<Program>, queue: Arc<dyn WorkQueue>, wanted: [i32; 3], n_runs: usize) {
    let host = HostContext::new(
        queue,
        Arc::new(MallocAllocator),
        Box::new(std::io::sink()),
        Box::new(|e| panic!("{e}")),
    );
    let function = program.function("f").expect("f");
    for _ in 0..n_runs {
        let ctx = ExecutionContext::new(host.clone());
        let results = function.execute(&ctx, Values::new());
        host.work_queue().await_values(&results);
        let found: Vec<Option<i32>> = results.iter().map(|r| r.get::<i32>().copied()).collect();
        assert_eq!(found, wanted.map(Some));
        drop(results);
        host.work_queue().quiesce();
    }
}

#[test]
fn random_programs_give_what_they_must() {
    let before = AsyncValue::live();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    for round in 0..40 {
        let n = 10 + random.below(300);
        let (text, wanted) = program(&mut random, n);
        let bytes = mlir_to_bef(&text, "random.mlir", TextOptions::default(), round % 2 == 0);
        let file = bef::File::open(Arc::new(bytes.expect("valid"))).expect("valid");
        let program = Program::new(file, &host_registry()).unwrap_or_else(|e| panic!("{e}"));
        check(
            &program,
            Arc::new(SingleThreadedWorkQueue::new()),
            wanted,
            3,
        );
        for n_threads in [1, 2, 4, 8] {
            let queue = Arc::new(MultiThreadedWorkQueue::new(n_threads, 0));
            check(&program, queue, wanted, 10);
        }
    }
    assert_eq!(before, AsyncValue::live(), "values were left behind");
}
