//! The engines of host programs with kernels of their own: values that come at once, later or
//! never, streams, errors, cancellation, synchronous functions; nothing is left behind.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_executor::host::Program;
use ferroflow_host_context::{
    Attr, Attribute, Ctx, ExecutionContext, Frame, HostContext, KernelCost, KernelFrame,
    KernelRegistry, RemainingArgs, RemainingAttrs, RemainingFunctions, Value, Values,
};
use ferroflow_program::{bef, mlir};
use ferroflow_sync::{
    AsyncValue, AsyncValueRef, MultiThreadedWorkQueue, Promise, SingleThreadedWorkQueue, WorkQueue,
};
use ferroflow_tensor::MallocAllocator;
use ferroflow_testkit::random::Random;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

static RUNS: AtomicUsize = AtomicUsize::new(0);
/// Calls that are still allowed: a mangled program may call itself without end.
static CALLS_LEFT: AtomicUsize = AtomicUsize::new(usize::MAX);

fn later(value: i32, ctx: Ctx) -> AsyncValueRef<i32> {
    let (promise, result) = Promise::new();
    ctx.enqueue(move || {
        RUNS.fetch_add(1, Ordering::Relaxed);
        promise.emplace(value);
    });
    result
}

fn call(frame: &mut KernelFrame) -> Result<()> {
    let left = |n: usize| n.checked_sub(1);
    let (set, get) = (Ordering::SeqCst, Ordering::SeqCst);
    CALLS_LEFT
        .fetch_update(set, get, left)
        .map_err(|_| invalid_argument!("too many calls"))?;
    let function = frame.function(0)?;
    let args = frame.take_args();
    let results = function.execute(frame.ctx(), args);
    frame.set_results(results);
    Ok(())
}

fn run_sync(frame: &mut KernelFrame) -> Result<()> {
    let args = vec![Value::new(*frame.arg::<i32>(0)?)];
    let results = frame.function(0)?.execute_sync(frame.ctx(), args)?;
    let number = results.first().and_then(|v| v.get::<i32>()).copied();
    frame.emplace(0, number.unwrap_or(-1));
    Ok(())
}

fn chain_of_calls(x: i32, functions: RemainingFunctions, ctx: Ctx) -> Result<i32> {
    functions.0.iter().try_fold(x, |x, f| {
        let results = f.execute_sync(&ctx, vec![Value::new(x)])?;
        let number = results.first().and_then(|v| v.get::<i32>()).copied();
        number.ok_or_else(|| invalid_argument!("no number"))
    })
}

fn registry() -> KernelRegistry {
    let mut registry = KernelRegistry::default();
    registry
        .with_cost(KernelCost::Inexpensive, |r| {
            r.add("t.const", |value: Attr<i32>| value.0)
                .add("t.plus", |a: i32, b: i32| {
                    RUNS.fetch_add(1, Ordering::Relaxed);
                    a.wrapping_add(b)
                });
        })
        .with_cost(KernelCost::Callees, |r| {
            r.add_raw("t.call", call);
        })
        .add("t.add", |a: i32, b: i32| {
            RUNS.fetch_add(1, Ordering::Relaxed);
            a.wrapping_add(b)
        })
        .add("t.later", later)
        .add("t.fail", |_: i32| Err::<i32, _>(invalid_argument!("bad")))
        .add("t.cancel", |a: i32, ctx: Ctx| {
            ctx.cancel();
            a
        })
        .add("t.sum", |first: i32, rest: RemainingArgs<i32>| {
            rest.0
                .iter()
                .fold(first, |sum: i32, x| sum.wrapping_add(**x))
        })
        .add("t.numbers", |numbers: RemainingAttrs| -> Result<Values> {
            let value = |a: &Attribute| Ok(AsyncValue::new(a.number::<i32>()?));
            numbers.0.iter().map(value).collect()
        })
        .add("t.chain_of_calls", chain_of_calls)
        .add_sync(
            "t.numbers_s",
            |numbers: RemainingAttrs| -> Result<Vec<Value>> {
                let value = |a: &Attribute| Ok(Value::new(a.number::<i32>()?));
                numbers.0.iter().map(value).collect()
            },
        )
        .add("t.halves", |x: i32| -> (Result<i32>, i32) {
            let half = (x % 2 == 0).then_some(x / 2);
            (half.ok_or_else(|| invalid_argument!("odd")), x - x / 2)
        })
        .add_raw("t.run_sync", run_sync)
        .add_sync("t.double_s", |a: i32| a.wrapping_mul(2));
    registry
}

fn context(queue: &Arc<dyn WorkQueue>) -> ExecutionContext {
    ExecutionContext::new(HostContext::new(
        queue.clone(),
        Arc::new(MallocAllocator),
        Box::new(std::io::sink()),
        Box::new(|_| {}),
    ))
}

fn queues() -> Vec<Arc<dyn WorkQueue>> {
    vec![
        Arc::new(SingleThreadedWorkQueue::new()),
        Arc::new(MultiThreadedWorkQueue::new(1, 1)),
        Arc::new(MultiThreadedWorkQueue::new(3, 1)),
    ]
}

fn program(text: &str, streams: bool) -> Arc<Program> {
    let module = mlir::parse(text, "t.mlir", 0).unwrap_or_else(|e| panic!("{e:?}"));
    let options = bef::WriteOptions {
        streams,
        ..Default::default()
    };
    let bytes = bef::write_with(&module, options).unwrap_or_else(|e| panic!("{e:?}"));
    let file = bef::File::open(Arc::new(bytes)).expect("valid");
    file.verify().expect("valid");
    Program::new(file, &registry()).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs `f` of the program on all queues, with streams and without: its results as text.
fn check(text: &str, want: &str) {
    for streams in [false, true] {
        let program = program(text, streams);
        for queue in queues() {
            let function = program.function("f").expect("f");
            let ctx = context(&queue);
            let results = function.execute(&ctx, Values::new());
            queue.await_values(&results);
            queue.quiesce();
            let show = |value: &AsyncValue| match (value.get::<i32>(), value.error()) {
                (Some(n), _) => n.to_string(),
                (None, Some(e)) => format!("<{}>", e.status.message()),
                (None, None) => "?".to_string(),
            };
            let shown: Vec<String> = results.iter().map(show).collect();
            let name = queue.name();
            assert_eq!(shown.join(","), want, "{name}, streams: {streams}\n{text}");
        }
    }
}

/// Functions of two numbers: inexpensive, expensive, pending, and one that has work to do without
/// its first argument.
const SUMS: &str = "
func @cheap(%a: i32, %b: i32) -> i32 {
  %c = \"t.plus\"(%a, %b) : (i32, i32) -> i32
  tfrt.return %c : i32
}
func @dear(%a: i32, %b: i32) -> i32 {
  %c = \"t.add\"(%a, %b) : (i32, i32) -> i32
  tfrt.return %c : i32
}
func @pending(%a: i32, %b: i32) -> i32 {
  %c = \"t.plus\"(%a, %b) : (i32, i32) -> i32
  %d = \"t.later\"(%c) : (i32) -> i32
  tfrt.return %d : i32
}
func @early(%a: i32, %b: i32) -> i32 {
  %c = \"t.add\"(%b, %b) : (i32, i32) -> i32
  %d = \"t.later\"(%c) : (i32) -> i32
  %e = \"t.plus\"(%a, %b) : (i32, i32) -> i32
  tfrt.return %e : i32
}
func @nested(%a: i32, %b: i32) -> i32 {
  %c = \"t.call\"(%a, %b) {bef.nonstrict, callee = @cheap} : (i32, i32) -> i32
  tfrt.return %c : i32
}";
const FUNCTIONS: [&str; 5] = ["cheap", "dear", "pending", "early", "nested"];

const ONE: &str = "  %one = \"t.const\"() {value = 1 : i32} : () -> i32\n";

fn rows() -> Vec<(String, String)> {
    let row = |body: &str, results: &str, want: &str| {
        let types = vec!["i32"; results.split(",").count()].join(", ");
        let text = format!(
            "func @f() -> ({types}) {{\n{ONE}{body}\n  tfrt.return {results} : {types}\n}}\n\
             func @g(%a: i32) -> i32 {{\n  %b = \"t.later\"(%a) : (i32) -> i32\n  \
             tfrt.return %b : i32\n}}\n\
             func @h(%a: i32) -> i32 attributes {{tfrt.sync}} {{\n  \
             %b = \"t.double_s\"(%a) : (i32) -> i32\n  tfrt.return %b : i32\n}}\n\
             func @k(%a: i32) -> i32 attributes {{tfrt.sync}} {{\n  \
             %b:2 = \"t.numbers_s\"() {{x = 20 : i32, y = 3 : i32}} : () -> (i32, i32)\n  \
             tfrt.return %b#0 : i32\n}}{SUMS}"
        );
        (text, want.to_string())
    };
    let add = "  %a = \"t.add\"(%one, %one) : (i32, i32) -> i32\n";
    let late = "  %l = \"t.later\"(%a) : (i32) -> i32\n";
    let fail = "  %e = \"t.fail\"(%a) : (i32) -> i32\n";
    // Calls in a row, of which each is ready with its second argument alone.
    let calls = |first: &str, callees: &[&str]| -> String {
        let mut text = format!("{add}{late}{fail}");
        let mut arg = first.to_string();
        for (i, callee) in callees.iter().enumerate() {
            text += &format!(
                "  %c{i} = \"t.call\"({arg}, %one) {{bef.nonstrict, callee = @{callee}}} : (i32, i32) \
                 -> i32\n"
            );
            arg = format!("%c{i}");
        }
        text
    };
    let mut rows: Vec<_> = FUNCTIONS
        .iter()
        .flat_map(|callee| {
            let text = |first| calls(first, &[*callee; 4]);
            [
                row(&text("%a"), "%c3, %c0, %l", "6,3,2"),
                row(&text("%l"), "%c3, %c1", "6,4"),
                row(&text("%e"), "%c3, %a", "<bad>,2"),
            ]
        })
        .collect();
    rows.push(row(&calls("%l", &FUNCTIONS), "%c4, %c2", "7,5"));
    rows.extend([
        row("", "%one", "1"),
        row(add, "%a, %a, %one", "2,2,1"),
        row(&format!("{add}{late}"), "%l, %a", "2,2"),
        // An error reaches its readers only.
        row(
            &format!("{add}{fail}{late}  %x = \"t.add\"(%e, %l) : (i32, i32) -> i32"),
            "%x, %l, %e",
            "<bad>,2,<bad>",
        ),
        // What starts after a cancellation gets an error.
        row(
            &format!(
                "{add}  %c = \"t.cancel\"(%a) : (i32) -> i32\n  \
                 %x = \"t.add\"(%c, %one) : (i32, i32) -> i32"
            ),
            "%x, %a",
            "<Cancelled>,2",
        ),
        row(
            &format!("{add}  %x = \"t.call\"(%a) {{callee = @g}} : (i32) -> i32"),
            "%x",
            "2",
        ),
        row(
            &format!("{add}  %x = \"t.run_sync\"(%a) {{callee = @h}} : (i32) -> i32"),
            "%x",
            "4",
        ),
        // All that is left, and results as many as the program asks for.
        row(
            &format!("{add}  %x = \"t.sum\"(%a, %one, %a) : (i32, i32, i32) -> i32"),
            "%x",
            "5",
        ),
        row(
            "  %x:2 = \"t.numbers\"() {a = 7 : i32, b = 8 : i32} : () -> (i32, i32)",
            "%x#0, %x#1",
            "7,8",
        ),
        row(
            "  %x = \"t.numbers\"() {a = 7 : i32, b = 8 : i32} : () -> i32",
            "%x",
            "<kernel returns 2 results, not 1>",
        ),
        row(
            &format!(
                "{add}  %x = \"t.chain_of_calls\"(%a) {{a = @h, b = @h, c = @k}} : (i32) -> i32"
            ),
            "%x",
            "20",
        ),
        // One of two results is an error.
        row(
            "  %x:2 = \"t.halves\"(%one) : (i32) -> (i32, i32)",
            "%x#1, %x#0",
            "1,<odd>",
        ),
        // A function that does not take what it is given.
        row(
            &format!("{add}  %x = \"t.call\"(%a, %a) {{callee = @g}} : (i32, i32) -> i32"),
            "%x",
            "<function 'g' takes 1 arguments, not 2>",
        ),
        // A result that is not set, and one of another type.
        row(
            &format!("{add}  %x:2 = \"t.call\"(%a) {{callee = @g}} : (i32) -> (i32, i32)"),
            "%x#1",
            "<kernel did not set a result>",
        ),
    ]);
    rows
}

/// A random graph of late and immediate kernels, what it computes, and how many kernels it has.
fn random(seed: u64, n: usize) -> (String, i32, usize) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut next = |below| random.below(below);
    let mut text = format!("func @f() -> i32 {{\n{}", ONE.replace("%one", "%v0"));
    let mut values = vec![1i32];
    for i in 1..n {
        let (a, b) = (next(i), next(i));
        let value = match next(4) {
            0 => {
                text.push_str(&format!("  %v{i} = \"t.later\"(%v{a}) : (i32) -> i32\n"));
                values[a]
            }
            1 => {
                let callee = ["cheap", "dear"][next(2)];
                text.push_str(&format!(
                    "  %v{i} = \"t.call\"(%v{a}, %v{b}) {{bef.nonstrict, callee = @{callee}}} : (i32, \
                     i32) -> i32\n"
                ));
                values[a].wrapping_add(values[b])
            }
            _ => {
                let kernel = ["add", "plus"][next(2)];
                text.push_str(&format!(
                    "  %v{i} = \"t.{kernel}\"(%v{a}, %v{b}) {{_tfrt_cost = {} : i64}} : (i32, i32) -> i32\n",
                    next(30) + 1
                ));
                values[a].wrapping_add(values[b])
            }
        };
        values.push(value);
    }
    let last = n - 1;
    text.push_str(&format!("  tfrt.return %v{last} : i32\n}}{SUMS}"));
    (text, values[last], last)
}

/// Values and runs belong to the whole process: one test after the other counts them.
static COUNTING: Mutex<()> = Mutex::new(());

#[test]
#[ignore = "takes a minute: cargo xtask soak"]
fn ten_million_kernels_run_once_each() {
    let _guard = COUNTING.lock();
    let before = AsyncValue::live();
    let (mut total, mut seed) = (0, 0);
    while total < 10_000_000 {
        for n_threads in 1..=8 {
            seed += 1;
            let (text, want, n_kernels) = random(seed, 4000);
            let program = program(&text, seed % 2 == 0);
            let queue: Arc<dyn WorkQueue> = Arc::new(MultiThreadedWorkQueue::new(n_threads, 1));
            let (function, ctx) = (program.function("f").expect("f"), context(&queue));
            for _ in 0..50 {
                let runs = RUNS.load(Ordering::SeqCst);
                let results = function.execute(&ctx, Values::new());
                queue.await_values(&results);
                queue.quiesce();
                assert_eq!(
                    results[0].get(),
                    Some(&want),
                    "seed {seed}, {n_threads} threads"
                );
                let runs = RUNS.load(Ordering::SeqCst) - runs;
                assert_eq!(runs, n_kernels, "seed {seed}, {n_threads} threads");
                total += runs;
            }
        }
    }
    assert_eq!(before, AsyncValue::live(), "values were left behind");
}

#[test]
fn programs_compute_and_leave_nothing_behind() {
    let _guard = COUNTING.lock();
    let before = AsyncValue::live();
    for (text, want) in rows() {
        check(&text, &want);
    }
    for seed in 0..40 {
        let (text, want, n_kernels) = random(seed, 50 + 10 * seed as usize);
        let runs = RUNS.load(Ordering::SeqCst);
        check(&text, &want.to_string());
        let runs = RUNS.load(Ordering::SeqCst) - runs;
        assert_eq!(runs, n_kernels * 2 * queues().len(), "seed {seed}");
    }
    assert_eq!(before, AsyncValue::live(), "values were left behind");
    mangled_programs();
    assert_eq!(before, AsyncValue::live(), "values were left behind");
}

/// Changes bytes of a file, cuts it, or copies a part of it over another.
fn mangle(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at.max(1)),
            1 => {
                let (from, n) = (random.below(bytes.len()), random.below(16));
                let part: Vec<u8> = bytes.iter().skip(from).take(n).copied().collect();
                for (to, from) in bytes.iter_mut().skip(at).zip(part) {
                    *to = from;
                }
            }
            2 => bytes[at] ^= 1 << random.below(8),
            3 => bytes[at] = bytes[at].wrapping_add(1),
            _ => bytes[at] = random.below(256) as u8,
        }
    }
}

/// Mangled files are refused, or run to some end. `MANGLED=1000000` does it more often than the
/// tests have time for.
fn mangled_programs() {
    let n: usize = std::env::var("MANGLED")
        .map_or(Ok(3000), |n| n.parse())
        .expect("a number");
    let mut files: Vec<Vec<u8>> = Vec::new();
    let texts = rows().into_iter().map(|(text, _)| text);
    for text in texts.chain([random(1, 20).0, random(2, 40).0]) {
        for streams in [false, true] {
            let module = mlir::parse(&text, "t.mlir", 0).expect("valid");
            let options = bef::WriteOptions {
                streams,
                ..Default::default()
            };
            files.push(bef::write_with(&module, options).expect("valid"));
        }
    }
    let (mut random, registry) = (Random(7), registry());
    let (mut n_opened, mut n_run) = (0, 0);
    for i in 0..n {
        let mut bytes = files[i % files.len()].clone();
        mangle(&mut bytes, &mut random);
        let Ok(file) = bef::File::open(Arc::new(bytes)) else {
            continue;
        };
        n_opened += 1;
        if let Ok((module, _)) = bef::to_mlir(&file) {
            let _ = mlir::parse(&mlir::print(&module, Default::default()), "t.mlir", 0);
        }
        let Ok(program) = Program::new(file, &registry) else {
            continue;
        };
        // Not checked as a whole: calls find what is wrong.
        for index in 0..program.file().functions().len() {
            CALLS_LEFT.store(100, Ordering::SeqCst);
            let queue: Arc<dyn WorkQueue> = Arc::new(SingleThreadedWorkQueue::new());
            let (ctx, function) = (context(&queue), program.function_at(index));
            let n_args = function.arity().0;
            let args = (0..n_args).map(|i| AsyncValue::new(i as i32)).collect();
            drop(function.execute(&ctx, args));
            let args = (0..n_args).map(|i| Value::new(i as i32)).collect();
            let _ = function.execute_sync(&ctx, args);
            queue.quiesce();
            n_run += 1;
        }
    }
    CALLS_LEFT.store(usize::MAX, Ordering::SeqCst);
    assert!(
        n_opened > n / 10 && n_run > n / 10,
        "{n_opened} opened, {n_run} run"
    );
}
