//! `tfrt_test.*` and `tfrt_tutorial.*`: kernels that demonstrate one feature each.

use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_host_context::{
    Arg, Attr, Ctx, ExecutionContext, Frame, Function, HostContext, HostValue, KernelFrame,
    KernelRegistry, LocationId, StrAttr, SyncKernelFrame, TypedAttr, TypedAttribute, Value, Values,
};
use ferroflow_sync::{AsyncValue, AsyncValueRef, Chain, IndirectPromise, Promise};
use std::collections::HashMap;
use std::sync::atomic::{AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::basic::scientific;

fn bad() -> Status {
    Status::new(ferroflow_base::Code::Unknown, "something bad happened")
}

fn bad_asynchronously() -> Status {
    let message = "something bad happened asynchronously";
    Status::new(ferroflow_base::Code::Unknown, message)
}

/// Returns a result that a task computes.
fn later<T: Send + Sync + 'static>(
    ctx: &ExecutionContext,
    work: impl FnOnce() -> T + Send + 'static,
) -> AsyncValueRef<T> {
    let (promise, value) = Promise::new();
    ctx.enqueue(move || promise.emplace(work()));
    value
}

fn sleep_a_little() {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let n = COUNT.fetch_add(7, Ordering::Relaxed) % 10;
    std::thread::sleep(Duration::from_millis(n as u64 + 1));
}

fn print_hello(ctx: Ctx) -> Chain {
    ctx.host().print("hello host executor!\n");
    Chain
}

fn do_async(frame: &mut KernelFrame) -> Result<()> {
    let body = frame.function(0)?;
    body.check_arity(frame.n_args(), frame.n_results())?;
    let promises = frame.allocate_all();
    let (args, ctx) = (frame.take_args(), frame.ctx().clone());
    frame.ctx().enqueue(move || {
        super::control::forward_all(promises, body.execute(&ctx, args));
    });
    Ok(())
}

fn slept(host: &HostContext, micros: i32) {
    std::thread::sleep(Duration::from_micros(micros.max(0) as u64));
    host.print(&format!("Slept for {micros} microseconds\n"));
}

fn usleep(micros: i32, ctx: Ctx) -> Result<()> {
    let host = ctx.host().clone();
    super::blocking(&ctx, move || slept(&host, micros))
}

fn blocking_usleep(micros: i32, ctx: Ctx) -> Result<AsyncValueRef<Chain>> {
    let (promise, value) = Promise::new();
    let host = ctx.host().clone();
    super::blocking(&ctx, move || {
        slept(&host, micros);
        promise.emplace(Chain);
    })?;
    Ok(value)
}

fn as_chain(frame: &mut KernelFrame) -> Result<()> {
    let promise = frame.allocate::<Chain>(0);
    let args = frame.take_args();
    wait_for_all(args, 0, promise);
    Ok(())
}

/// Sets the promise when all values from `i` on are available.
fn wait_for_all(values: Values, mut i: usize, promise: Promise<Chain>) {
    while let Some(value) = values.get(i) {
        i += 1;
        if !value.is_available() {
            let value = value.clone();
            return value.and_then(move || wait_for_all(values, i, promise));
        }
    }
    promise.emplace(Chain);
}

fn report_error_concrete(frame: &mut KernelFrame) -> Result<()> {
    let input = *frame.arg::<i32>(0)?;
    let (promise, reporter) = (frame.allocate::<i32>(0), frame.reporter());
    frame.ctx().enqueue(move || {
        let result = if input == 0 {
            Ok(input)
        } else {
            Err(bad_asynchronously())
        };
        reporter.fulfill(promise, result);
    });
    Ok(())
}

fn report_error_indirect(frame: &mut KernelFrame) -> Result<()> {
    let input = *frame.arg::<i32>(0)?;
    let (promise, reporter) = (frame.allocate_indirect(0), frame.reporter());
    frame.ctx().enqueue(move || match input {
        0 => promise.forward_to(AsyncValue::new(0i32)),
        _ => promise.set_error(reporter.report(bad_asynchronously())),
    });
    Ok(())
}

fn report_error(frame: &mut KernelFrame) -> Result<()> {
    let (promise, reporter) = (frame.allocate::<i32>(0), frame.reporter());
    frame
        .ctx()
        .enqueue(move || promise.set_error(reporter.report(bad_asynchronously())));
    Ok(())
}

/// A counter that several kernels share.
struct Atomic(AtomicI32);

impl HostValue for Atomic {}

fn unique_location(name: StrAttr, id: LocationId, ctx: Ctx) -> Result<Chain> {
    type Seen = Mutex<HashMap<LocationId, String>>;
    let seen = ctx.host().shared(Seen::default);
    let mut seen = seen.lock().unwrap_or_else(PoisonError::into_inner);
    let known = seen.entry(id).or_insert_with(|| name.0.to_string());
    match known == name.0 {
        true => Ok(Chain),
        false => Err(invalid_argument!("duplicate locations {}", id.0)),
    }
}

/// Prints when it is created and destroyed.
struct TestResource(Mutex<Option<Announced>>);

struct Announced(Arc<HostContext>);

impl HostValue for TestResource {}

impl Drop for Announced {
    fn drop(&mut self) {
        self.0.print("Destroyed TestResource\n");
    }
}

fn allocate_resource(ctx: Ctx) -> (TestResource, Chain) {
    ctx.host().print("Allocated TestResource\n");
    let announced = Announced(ctx.host().clone());
    (TestResource(Mutex::new(Some(announced))), Chain)
}

fn deallocate_resource(resource: Arg<TestResource>, ctx: Ctx) -> Chain {
    drop(
        resource
            .0
            .0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take(),
    );
    ctx.host().print("tfrt_test.deallocate_resource done\n");
    Chain
}

fn flat(list: TypedAttribute) -> Result<(String, i32, i32, f32)> {
    let wrong = || invalid_argument!("tfrt_test.flat got another attribute");
    let [first, second] = list.0.elements()? else {
        return Err(wrong());
    };
    let [text, numbers] = first.elements()? else {
        return Err(wrong());
    };
    let numbers_of = |attr: &TypedAttr| match attr {
        TypedAttr::Array { bytes, .. } => {
            let words = bytes.chunks(4).filter_map(|b| b.try_into().ok());
            Ok(words.map(u32::from_le_bytes).collect::<Vec<_>>())
        }
        _ => Err(wrong()),
    };
    match (&numbers_of(numbers)?[..], &numbers_of(second)?[..]) {
        ([a, b], [f, ..]) => Ok((
            text.string()?.to_string(),
            *a as i32,
            *b as i32,
            f32::from_bits(*f),
        )),
        _ => Err(wrong()),
    }
}

/// Tests that values of several types keep their type.
fn async_value_get() -> Result<String> {
    let values = ["base1", "base2", "final_class"].map(|s| AsyncValue::new(s.to_string()));
    let mut text = Vec::new();
    for value in &values {
        text.push(value.expect::<String>()?.clone());
    }
    text.push(AsyncValue::new(3i32).expect::<i32>()?.to_string());
    Ok(text.join(":"))
}

/// Tests a value before and after it is set, and its waiters.
fn async_value_ref() -> String {
    let show = |value: &AsyncValueRef<i32>| match value.get() {
        Some(n) => format!("available:{n}"),
        None => "unavailable".to_string(),
    };
    let log = Arc::new(Mutex::new(String::new()));
    let write = |text: String| {
        log.lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push_str(&text);
    };
    write(show(&AsyncValueRef::new(2)));
    let (promise, three) = Promise::<i32>::new();
    write(format!(";{};", show(&three)));
    let (shared, seen) = (log.clone(), three.clone());
    three.and_then(move || {
        let text = format!("({})", seen.get().copied().unwrap_or(0));
        let mut log = shared.lock().unwrap_or_else(PoisonError::into_inner);
        log.push_str(&text);
    });
    promise.emplace(3);
    write(format!(";{}", show(&three)));
    let (promise, four) = Promise::<i32>::new();
    write(format!(";{}", show(&four)));
    let set = move || promise.emplace(4);
    set();
    write(format!(";{}", show(&four)));
    let log = log.lock().unwrap_or_else(PoisonError::into_inner);
    log.clone()
}

fn logging(text: Arg<String>) -> Chain {
    for macro_name in ["TFRT_LOG", "TFRT_LOG_IF"] {
        for severity in ["INFO", "WARNING", "ERROR"] {
            let condition = if macro_name == "TFRT_LOG_IF" {
                ", true"
            } else {
                ""
            };
            let letter = severity.chars().next().unwrap_or(' ');
            eprintln!(
                "{letter} from {macro_name}({severity}{condition}): {}",
                *text
            );
        }
    }
    Chain
}

/// A shared object of a host.
struct Sample(String);

fn shared_context(ctx: Ctx) -> (String, Chain) {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let sample = ctx.host().shared(|| {
        let n = COUNT.fetch_add(1, Ordering::Relaxed);
        Sample(format!("sample_shared_context{n}"))
    });
    (sample.0.clone(), Chain)
}

fn cancel(ctx: Ctx) -> (i32, Chain) {
    ctx.cancel();
    (0, Chain)
}

fn partial_fail() -> (i32, Result<i32>) {
    (1, Err(bad()))
}

/// Returns all arguments from `first` on.
fn pass(frame: &mut KernelFrame, first: usize) -> Result<()> {
    for i in 0..frame.n_results() {
        let value = frame.arg_value(first + i)?;
        frame.set_result(i, value);
    }
    Ok(())
}

fn print_typed_attr(frame: &mut KernelFrame) -> Result<()> {
    for i in 0..frame.n_attributes() {
        let attr = frame.attribute(i)?.typed()?;
        let text = if let Ok(n) = attr.number::<i64>() {
            format!("I64: {n}\n")
        } else if let Ok(n) = attr.number::<f32>() {
            format!("F32: {}\n", scientific(n.into()))
        } else if let Ok(b) = attr.number::<bool>() {
            format!("I1: {}\n", u8::from(b))
        } else {
            "unknown attr\n".to_string()
        };
        frame.ctx().host().print(&text);
    }
    frame.emplace(0, Chain);
    Ok(())
}

/// Returns the number of the kernel; its cost is for the translator.
fn cost(frame: &mut KernelFrame) -> Result<()> {
    let id = frame.attribute(0)?.typed()?.number::<i64>()?;
    frame.ctx().host().print(&format!("id: {id}\n"));
    frame.emplace(0, 0i32);
    Ok(())
}

fn print_debug_info(frame: &mut KernelFrame) -> Result<()> {
    let name = frame.location_name().unwrap_or("Kernel has no debug info");
    frame.ctx().host().print(&format!("{name}\n"));
    frame.emplace(0, Chain);
    Ok(())
}

/// Returns whether the kernel has the only reference to the argument.
fn uniqueness(frame: &mut KernelFrame) -> Result<()> {
    for i in 0..frame.n_args() {
        let is_unique = frame.is_unique_arg(i);
        frame.emplace(i, is_unique);
    }
    Ok(())
}

fn make_indirect(frame: &mut KernelFrame) -> Result<()> {
    for (i, value) in frame.take_args().into_iter().enumerate() {
        let (promise, indirect) = IndirectPromise::new();
        promise.forward_to(value);
        frame.set_result(i, indirect);
    }
    Ok(())
}

fn error_chain(_: Chain) -> Result<Chain> {
    Err(invalid_argument!("error chain"))
}

fn print_bool(_: Chain, value: bool, ctx: Ctx) -> Chain {
    ctx.host().print(&format!("{value}\n"));
    Chain
}

fn sync_sum(frame: &mut SyncKernelFrame) -> Result<()> {
    let mut sum = 0i32;
    for i in 0..frame.n_args() {
        sum = sum.wrapping_add(*frame.arg::<i32>(i)?);
    }
    frame.set_result(0, Value::new(sum));
    Ok(())
}

fn sync_sum_attributes(frame: &mut SyncKernelFrame) -> Result<()> {
    let mut sum = 0i32;
    for i in 0..frame.n_attributes() {
        sum = sum.wrapping_add(frame.attribute(i)?.number::<i32>()?);
    }
    frame.set_result(0, Value::new(sum));
    Ok(())
}

fn invoke_sync(a: i32, b: i32, function: &Function, ctx: &ExecutionContext) -> Result<Vec<i32>> {
    let results = function.execute_sync(ctx, vec![Value::new(a), Value::new(b)])?;
    let number = |v: &Value| {
        v.get::<i32>()
            .copied()
            .ok_or_else(|| invalid_argument!("result of '{}' is not an i32", function.name()))
    };
    results.iter().map(number).collect()
}

fn invoke_sync_one(a: i32, b: i32, function: Function, ctx: Ctx) -> Result<i32> {
    match invoke_sync(a, b, &function, &ctx)?[..] {
        [x] => Ok(x),
        _ => Err(invalid_argument!(
            "'{}' must return one result",
            function.name()
        )),
    }
}

fn invoke_sync_two(a: i32, b: i32, function: Function, ctx: Ctx) -> Result<(i32, i32)> {
    match invoke_sync(a, b, &function, &ctx)?[..] {
        [x, y] => Ok((x, y)),
        _ => Err(invalid_argument!(
            "'{}' must return two results",
            function.name()
        )),
    }
}

fn thread_id() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    thread_local! {
        static MINE: i32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    MINE.with(|id| *id)
}

/// Leaks four bytes.
fn leak(ctx: Ctx) -> Result<()> {
    ctx.host().allocator().allocate(4)
}

/// A point, for the tutorial.
#[derive(Clone, Copy)]
struct Coordinate {
    x: i32,
    y: i32,
}

impl HostValue for Coordinate {}

fn print_coordinate(c: Arg<Coordinate>, ctx: Ctx) -> Chain {
    ctx.host().print(&format!("({}, {})\n", c.x, c.y));
    Chain
}

fn sum_of(args: &Values) -> i32 {
    let numbers = args.iter().filter_map(|v| v.get::<i32>());
    numbers.fold(0, |a, b| a.wrapping_add(*b))
}

fn register_natives(registry: &mut KernelRegistry) {
    registry
        .add_native("native_sink", |_, _, _| Values::new())
        .add_native("native_async_sink", |_, _, _| {
            std::iter::once(AsyncValue::new(Chain)).collect()
        })
        .add_native("native_add", |_, args, _| {
            std::iter::once(AsyncValue::new(sum_of(args))).collect()
        })
        .add_native("native_async_add", |ctx, args, _| {
            let sum = sum_of(args);
            std::iter::once(later(ctx, move || sum).into()).collect()
        })
        .add_native("native_error", |_, _, _| {
            std::iter::once(AsyncValue::new_error(bad())).collect()
        });
}

/// Returns a value that a task forwards later, for tests of unavailable values.
fn late_copy(value: AsyncValue, ctx: &ExecutionContext) -> AsyncValue {
    let (promise, copy): (IndirectPromise, AsyncValue) = IndirectPromise::new();
    ctx.enqueue(move || promise.forward_to(value));
    copy
}

fn async_copy(frame: &mut KernelFrame) -> Result<()> {
    let copy = late_copy(frame.arg_value(0)?, frame.ctx());
    frame.set_result(0, copy);
    Ok(())
}

fn async_copy_with_delay(frame: &mut KernelFrame) -> Result<()> {
    let (value, promise) = (frame.arg_value(0)?, frame.allocate_indirect(0));
    frame.ctx().enqueue(move || {
        sleep_a_little();
        promise.forward_to(value);
    });
    Ok(())
}

fn copy_with_delay(frame: &mut KernelFrame) -> Result<()> {
    sleep_a_little();
    pass(frame, 0)
}

fn sum(frame: &mut KernelFrame) -> Result<()> {
    let numbers = (0..frame.n_args()).map(|i| frame.arg::<i32>(i).copied());
    let total = numbers.sum::<Result<i32>>()?;
    frame.emplace(0, total);
    Ok(())
}

pub(super) fn register(registry: &mut KernelRegistry) {
    register_natives(registry);
    registry
        .add("tfrt_test.print_hello", print_hello)
        .add_raw("tfrt_test.do.async", do_async)
        .add("tfrt_test.usleep", usleep)
        .add("tfrt_test.blocking.usleep", blocking_usleep)
        .add_raw("tfrt_test.as_chain", as_chain)
        .add_raw(
            "tfrt_test.report_error_concrete_async",
            report_error_concrete,
        )
        .add_raw(
            "tfrt_test.report_error_indirect_async",
            report_error_indirect,
        )
        .add_raw("tfrt_test.report_error_async", report_error)
        .add("tfrt_test.async_add.i32", |a: i32, b: i32, ctx: Ctx| {
            later(&ctx, move || a.wrapping_add(b))
        })
        .add("tfrt_test.async_constant.i1", |v: Attr<bool>, ctx: Ctx| {
            later(&ctx, move || v.0)
        })
        .add("tfrt_test.async_constant.i32", |v: Attr<i32>, ctx: Ctx| {
            later(&ctx, move || v.0)
        })
        .add_raw("tfrt_test.async_copy.i32", async_copy)
        .add_raw("tfrt_test.async_copy_2.i32", async_copy)
        .add_raw("tfrt_test.async_copy.with_delay.i32", async_copy_with_delay)
        .add_raw("tfrt_test.async_copy.with_delay.i64", async_copy_with_delay)
        .add_raw("tfrt_test.copy.with_delay.i32", copy_with_delay)
        .add_raw("tfrt_test.copy.with_delay.i64", copy_with_delay)
        .add("tfrt_test.atomic.create.i32", || Atomic(AtomicI32::new(0)))
        .add("tfrt_test.atomic.inc.i32", |a: Arg<Atomic>| {
            a.0.0.fetch_add(1, Ordering::AcqRel);
            Chain
        })
        .add("tfrt_test.atomic.add.i32", |a: Arg<Atomic>, n: i32| {
            a.0.0.fetch_add(n, Ordering::AcqRel);
            Chain
        })
        .add("tfrt_test.atomic.get.i32", |a: Arg<Atomic>| {
            (a.0.0.load(Ordering::Acquire), Chain)
        })
        .add("tfrt_test.fail", || Err::<i32, _>(bad()))
        .add("tfrt_test.partial_fail", partial_fail)
        .add("tfrt_test.cancel", cancel)
        .add("tfrt_test.flat", flat)
        .add("tfrt_test.async_value_get", async_value_get)
        .add("tfrt_test.async_value_ref", async_value_ref)
        .add("tfrt_test.logging", logging)
        .add("tfrt_test.allocate_resource", allocate_resource)
        .add("tfrt_test.deallocate_resource", deallocate_resource)
        .add("tfrt_test.use_sample_shared_context", shared_context)
        .add("tfrt_test.unique_loc", unique_location)
        .add_raw("tfrt_test.print_typed_attr", print_typed_attr)
        .add_raw("tfrt_test.multi_arg_result", |frame| pass(frame, 0))
        .add_raw("tfrt_test.identity", |frame| pass(frame, 1))
        .add(
            "tfrt_test.invoke_sync_function.i32_i32.i32",
            invoke_sync_one,
        )
        .add(
            "tfrt_test.invoke_sync_function.i32_i32.i32_i32",
            invoke_sync_two,
        )
        .add(
            "tfrt_test.sync_function_runner.i32_i32.i32",
            invoke_sync_one,
        )
        .add(
            "tfrt_test.sync_function_runner.i32_i32.i32_i32",
            invoke_sync_two,
        )
        .add_raw("tfrt_test.test_cost", cost)
        .add_raw("tfrt_test.print_debug_info", print_debug_info)
        .add_raw("tfrt_test.get_uniqueness", uniqueness)
        .add_raw("tfrt_test.sum", sum)
        .add_raw("tfrt_test.make_indirect", make_indirect)
        .add("tfrt_test.error_chain", error_chain)
        .add("tfrt_test.print_bool", print_bool)
        .add("tfrt_test.get_thread_id", thread_id)
        .add("tfrt_test.memory_leak_one_int32", leak)
        .add("tfrt_test.count3.i32", |x: i32| {
            (x.wrapping_add(1), x.wrapping_add(2), x.wrapping_add(3))
        })
        .add("tfrt_test.count3.i64", |x: i64| {
            (x.wrapping_add(1), x.wrapping_add(2), x.wrapping_add(3))
        })
        .add_sync("tfrt_test.fail_s", || Err::<i32, _>(bad()))
        .add_sync("tfrt_test.error_s", || Err::<(), _>(bad()))
        .add_raw_sync("tfrt_test.sync_sum", sync_sum)
        .add_raw_sync("tfrt_test.sync_sum2", sync_sum)
        .add_raw_sync("tfrt_test.sync_sum_attributes", sync_sum_attributes)
        .add("tfrt_tutorial.create_coordinate", |x: i32, y: i32| {
            Coordinate { x, y }
        })
        .add("tfrt_tutorial.print_coordinate", print_coordinate);
}
