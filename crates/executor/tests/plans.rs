//! Bodies made by hand, run by the engine `dataflow`: every node runs once, whatever the threads.

use ferroflow_base::{Code, Result, invalid_argument};
use ferroflow_executor::{Executor, NodeSpan, RunArgs, TraceSink};
use ferroflow_opdef::{AsyncCall, Cost, KernelCtx, NodeInfo, OpKernel, Resources};
use ferroflow_program::{Action, Body, BodyNode, FrameIdx, KernelEntry, NodeIdx, Source};
use ferroflow_sync::{CancelToken, Pool, Registration};
use ferroflow_tensor::{DType, Tensor};
use ferroflow_testkit::random::Rng;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

/// Runs a step with integers.
fn run(
    executor: &Arc<Executor>,
    pool: &Arc<Pool>,
    args: &[i64],
    cancel: &CancelToken,
) -> Result<Vec<Tensor>> {
    run_traced(executor, pool, args, cancel, None)
}

fn run_traced(
    executor: &Arc<Executor>,
    pool: &Arc<Pool>,
    args: &[i64],
    cancel: &CancelToken,
    trace: Option<&Arc<dyn TraceSink>>,
) -> Result<Vec<Tensor>> {
    executor.run(RunArgs {
        args: args.iter().map(|a| Tensor::scalar(*a)).collect(),
        step_id: None,
        pool,
        resources: &Resources::default(),
        rendezvous: None,
        cancel,
        trace,
        runner: None,
    })
}

/// Watches a step, which then counts all edges: no frame runs by its schedule.
struct Watch;

impl TraceSink for Watch {
    fn span(&self, _: NodeSpan) {}
}

/// A node of one output; kernels are named by their op.
fn node(name: &str, action: Action<Box<KernelEntry>>, inputs: Vec<Source>) -> BodyNode {
    BodyNode {
        info: NodeInfo {
            name: name.to_string(),
            op: "Test".to_string(),
        },
        action,
        inputs,
        controls: Vec::new(),
        n_outputs: 1,
        cost: Cost::Cheap,
    }
}

fn kernel(name: &str, op: &str, inputs: Vec<Source>, cost: Cost) -> BodyNode {
    let entry = KernelEntry {
        op: op.to_string(),
        node: name.to_string(),
        inputs: vec![DType::Int64; inputs.len()],
        outputs: vec![DType::Int64],
        ..KernelEntry::default()
    };
    let action = Action::Kernel(Box::new(entry));
    BodyNode {
        cost,
        ..node(name, action, inputs)
    }
}

type MakeKernel<'a> = dyn Fn(&KernelEntry) -> Box<dyn OpKernel> + 'a;

fn load(body: &Body, make: &MakeKernel) -> Arc<Executor> {
    let plan = body.load_with(&|entry, _| Ok(make(entry)));
    Executor::new(Arc::new(plan.expect("a valid body")))
}

/// A kernel that adds its inputs and one, and counts its calls.
fn sum(calls: Arc<AtomicUsize>) -> Box<dyn OpKernel> {
    Box::new(move |ctx: &mut KernelCtx| {
        calls.fetch_add(1, Ordering::Relaxed);
        let mut total = 1i64;
        for i in 0..ctx.num_inputs() {
            total = total.wrapping_add(ctx.slice::<i64>(i)?[0]);
        }
        ctx.set_output(0, Tensor::scalar(total))
    })
}

/// A random layered graph over two arguments: its executor, its call counter and what the graph
/// computes for arguments `a` and `b`.
fn random_graph(
    seed: u64,
    n: usize,
) -> (Arc<Executor>, Arc<AtomicUsize>, impl Fn(i64, i64) -> i64) {
    let mut r = Rng(seed);
    let calls = Arc::new(AtomicUsize::new(0));
    let mut builder = Body::default();
    let root = builder.function("", 2, 1);
    let constant = builder.constant(Tensor::scalar(7i64).into());
    let mut wiring: Vec<Vec<usize>> = Vec::new();
    for i in 0..n {
        let name = format!("n{i}");
        if i < 2 {
            builder.add(root, node(&name, Action::Arg(i as u32), Vec::new()));
            continue;
        }
        let from: Vec<usize> = (0..1 + r.below(3)).map(|_| r.below(i + 1)).collect();
        wiring.push(from.clone());
        let source = |&f: &usize| match f < i {
            true => Source::Node(NodeIdx::new(f), 0),
            false => Source::Const(constant),
        };
        let cost = [Cost::Cheap, Cost::Expensive, Cost::BySize][r.below(3)];
        let mut node = kernel(&name, "Sum", from.iter().map(source).collect(), cost);
        if r.below(4) == 0 {
            node.controls.push(NodeIdx::new(r.below(i)));
        }
        builder.add(root, node);
    }
    builder
        .result(root, 0, Source::Node(NodeIdx::new(n - 1), 0))
        .expect("one result");
    let executor = load(&builder, &|_| sum(calls.clone()));
    let expected = move |a: i64, b: i64| {
        let mut values = vec![a, b];
        for (i, from) in wiring.iter().enumerate() {
            let value = |&f: &usize| if f < i + 2 { values[f] } else { 7 };
            values.push(from.iter().map(value).fold(1i64, i64::wrapping_add));
        }
        values[values.len() - 1]
    };
    (executor, calls, expected)
}

#[test]
fn random_graphs_on_many_threads() {
    for seed in 0..30 {
        let n = 3 + Rng(seed).below(200);
        let (executor, calls, expected) = random_graph(seed, n);
        for threads in [1, 2, 4, 8] {
            let pool = Arc::new(Pool::new(threads));
            for step in 0..20 {
                calls.store(0, Ordering::Relaxed);
                let out = run(&executor, &pool, &[step, step * 3], &CancelToken::new());
                let out = out.expect("runs")[0].to_scalar::<i64>();
                assert_eq!(out.expect("scalar"), expected(step, step * 3));
                assert_eq!(calls.load(Ordering::Relaxed), n - 2, "each node once");
            }
        }
    }
}

#[test]
fn concurrent_steps_do_not_mix() {
    let (executor, _, expected) = random_graph(99, 150);
    let pool = Arc::new(Pool::new(3));
    std::thread::scope(|scope| {
        for t in 0..6i64 {
            let (executor, pool, expected) = (&executor, &pool, &expected);
            scope.spawn(move || {
                for i in 0..50 {
                    let out = run(executor, pool, &[t, i], &CancelToken::new());
                    let out = out.expect("runs")[0].to_scalar::<i64>();
                    assert_eq!(out.expect("scalar"), expected(t, i));
                }
            });
        }
    });
}

/// The kernel of an op of the bodies with control flow.
fn not_zero_or_sum(entry: &KernelEntry) -> Box<dyn OpKernel> {
    match &*entry.op {
        "NotZero" => Box::new(|ctx: &mut KernelCtx| {
            let is_set = ctx.slice::<i64>(0)?[0] != 0;
            ctx.set_output(0, Tensor::scalar(is_set))
        }),
        _ => sum(Arc::default()),
    }
}

/// Bodies with control flow: arguments and results.
#[test]
fn control_flow() {
    let check = |what: &str, body: Body, rows: &[(i64, i64)]| {
        let executor = load(&body, &not_zero_or_sum);
        for threads in [1, 4] {
            let pool = Arc::new(Pool::new(threads));
            let watch: Arc<dyn TraceSink> = Arc::new(Watch);
            for ((arg, want), trace) in rows.iter().flat_map(|r| [(r, None), (r, Some(&watch))]) {
                let out = run_traced(&executor, &pool, &[*arg], &CancelToken::new(), trace);
                let out = out.unwrap_or_else(|e| panic!("{what}: {e}"))[0].to_scalar::<i64>();
                assert_eq!(out.expect("scalar"), *want, "{what} of {arg}");
            }
        }
    };
    check("call", calls(false), &[(1, 4), (5, 8)]);
    check("if", calls(true), &[(0, 1), (5, 8)]);
    check("switch and merge", switch(), &[(0, 1), (5, 6)]);
    check("dead behind a call", dead_behind_call(), &[(0, 1), (5, 6)]);
}

/// What a body makes of a variable of a loop.
#[derive(Clone, Copy)]
enum Update {
    /// The value of a variable, perhaps another one.
    Variable(usize),
    Constant,
    /// The sum of two variables and one.
    Sum(usize, usize),
}

/// A While that runs as often as its first argument says, with further variables that begin as the other arguments.
fn random_loop(updates: &[Update]) -> Body {
    let n = updates.len() + 1;
    let mut b = Body::default();
    let main = b.function("", n, n);
    let cond = b.function("cond", n, 1);
    let body = b.function("body", n, n);
    let [minus_two, seven] = [-2i64, 7].map(|c| b.constant(Tensor::scalar(c).into()));
    let [args, in_cond, in_body] = [main, cond, body].map(|frame| {
        let arg = |i: usize| node(&format!("x{i}"), Action::Arg(i as u32), Vec::new());
        (0..n).map(|i| b.add(frame, arg(i))).collect::<Vec<_>>()
    });
    let of = |n: NodeIdx| Source::Node(n, 0);
    let is_left = kernel("left", "NotZero", vec![of(in_cond[0])], Cost::Cheap);
    let is_left = b.add(cond, is_left);
    b.result(cond, 0, of(is_left)).expect("a condition");
    let less = vec![of(in_body[0]), Source::Const(minus_two)];
    let less = b.add(body, kernel("less", "Sum", less, Cost::Cheap));
    b.result(body, 0, of(less)).expect("a counter");
    for (i, update) in updates.iter().enumerate() {
        let source = match *update {
            Update::Variable(v) => of(in_body[v + 1]),
            Update::Constant => Source::Const(seven),
            Update::Sum(v, w) => {
                let inputs = vec![of(in_body[v + 1]), of(in_body[w + 1])];
                of(b.add(body, kernel(&format!("sum{i}"), "Sum", inputs, Cost::Cheap)))
            }
        };
        b.result(body, i + 1, source).expect("a variable");
    }
    let inputs = args.into_iter().map(of).collect();
    let mut looped = node("while", Action::While { cond, body }, inputs);
    looped.n_outputs = n;
    let looped = b.add(main, looped);
    for i in 0..n {
        let output = Source::Node(looped, i as u16);
        b.result(main, i, output).expect("a result");
    }
    b
}

#[test]
fn variables_of_loops_change_places() {
    for seed in 0..200 {
        let mut r = Rng(seed);
        let n = 1 + r.below(5);
        let update = |_| match r.below(5) {
            0 => Update::Constant,
            1 => Update::Sum(r.below(n), r.below(n)),
            _ => Update::Variable(r.below(n)),
        };
        let updates: Vec<Update> = (0..n).map(update).collect();
        let executor = load(&random_loop(&updates), &not_zero_or_sum);
        for (threads, times) in [(1, 0), (1, 1), (1, 5), (4, 3)] {
            let mut expected: Vec<i64> = (0..n as i64).map(|i| 100 + i).collect();
            let args: Vec<i64> = [times]
                .into_iter()
                .chain(expected.iter().copied())
                .collect();
            for _ in 0..times {
                let old = expected.clone();
                let new = updates.iter().map(|update| match *update {
                    Update::Variable(v) => old[v],
                    Update::Constant => 7,
                    Update::Sum(v, w) => old[v].wrapping_add(old[w]).wrapping_add(1),
                });
                expected = new.collect();
            }
            let pool = Arc::new(Pool::new(threads));
            for _ in 0..2 {
                let out = run(&executor, &pool, &args, &CancelToken::new()).expect("runs");
                let out = out[1..]
                    .iter()
                    .map(|t| t.to_scalar::<i64>().expect("scalar"));
                assert_eq!(
                    out.collect::<Vec<_>>(),
                    expected,
                    "seed {seed}, {times} times"
                );
            }
        }
    }
}

/// A function that adds 1 twice; called with an argument plus 1, or only if that is true.
fn calls(conditional: bool) -> Body {
    let mut b = Body::default();
    let main = b.function("", 1, 1);
    let twice = b.function("twice", 1, 1);
    let once = b.function("once", 1, 1);
    let of = |n| vec![Source::Node(n, 0)];
    let mut add = |frame, times: usize, call: Option<FrameIdx>| {
        let arg = b.add(frame, node("x", Action::Arg(0), Vec::new()));
        let mut last = arg;
        for i in 0..times {
            let name = format!("add{i}");
            last = b.add(frame, kernel(&name, "Sum", of(last), Cost::Cheap));
        }
        if let Some(then_branch) = call {
            let action = Action::If {
                then_branch,
                else_branch: once,
            };
            last = match conditional {
                true => b.add(frame, node("if", action, [of(arg), of(last)].concat())),
                false => b.add(frame, node("call", Action::Call(then_branch), of(last))),
            };
        }
        let set = b.result(frame, 0, Source::Node(last, 0));
        set.expect("one result");
    };
    add(main, 1, Some(twice));
    add(twice, 2, None);
    add(once, 0, None);
    b
}

/// `x + 1`, by way of both branches of a Switch on whether `x` is not zero.
fn switch() -> Body {
    let mut b = Body::default();
    let main = b.function("", 1, 1);
    let of = |n, output| Source::Node(n, output);
    let x = b.add(main, node("x", Action::Arg(0), Vec::new()));
    let p = kernel("p", "NotZero", vec![of(x, 0)], Cost::Cheap);
    let p = b.add(main, p);
    let mut switch = node("switch", Action::Switch, vec![of(x, 0), of(p, 0)]);
    switch.n_outputs = 2;
    let switch = b.add(main, switch);
    let mut branch = |output| {
        let inputs = vec![of(switch, output)];
        b.add(main, kernel("branch", "Sum", inputs, Cost::Expensive))
    };
    let inputs = vec![of(branch(0), 0), of(branch(1), 0)];
    let merge = b.add(main, node("merge", Action::Merge, inputs));
    b.result(main, 0, of(merge, 0)).expect("one result");
    b
}

/// `x + 1`, once it is known that what reads the untaken side of a Switch is dead, of which a call that runs no node is the
/// last input.
fn dead_behind_call() -> Body {
    let mut b = Body::default();
    let main = b.function("", 1, 1);
    let same = b.function("same", 1, 1);
    let of = |n, output| Source::Node(n, output);
    let arg = b.add(same, node("x", Action::Arg(0), Vec::new()));
    b.result(same, 0, of(arg, 0)).expect("one result");
    let x = b.add(main, node("x", Action::Arg(0), Vec::new()));
    let p = kernel("p", "NotZero", vec![of(x, 0)], Cost::Cheap);
    let p = b.add(main, p);
    let mut switch = node("switch", Action::Switch, vec![of(x, 0), of(p, 0)]);
    switch.n_outputs = 2;
    let switch = b.add(main, switch);
    let mut call = node("call", Action::Call(same), vec![of(x, 0)]);
    call.controls.push(switch);
    let call = b.add(main, call);
    let inputs = vec![of(call, 0), of(switch, 0)];
    let reader = b.add(main, kernel("reader", "Sum", inputs, Cost::Cheap));
    let mut trigger = node("trigger", Action::Trigger, Vec::new());
    (trigger.n_outputs, trigger.controls) = (0, vec![reader]);
    let trigger = b.add(main, trigger);
    let mut last = kernel("last", "Sum", vec![of(x, 0)], Cost::Cheap);
    last.controls.push(trigger);
    let last = b.add(main, last);
    b.result(main, 0, of(last, 0)).expect("one result");
    b
}

/// `width` expensive nodes that fail when told to.
fn failing(width: usize, panics: bool) -> Arc<Executor> {
    let mut builder = Body::default();
    let root = builder.function("", 1, width);
    let arg = builder.add(root, node("arg", Action::Arg(0), vec![]));
    for i in 0..width {
        let inputs = vec![Source::Node(arg, 0)];
        let n = kernel(&format!("n{i}"), &i.to_string(), inputs, Cost::Expensive);
        let n = builder.add(root, n);
        builder
            .result(root, i, Source::Node(n, 0))
            .expect("width results");
    }
    load(&builder, &|entry| {
        let number: i64 = entry.op.parse().expect("a number");
        Box::new(move |ctx: &mut KernelCtx| {
            if ctx.slice::<i64>(0)?[0] == number {
                assert!(!panics, "told to");
                return Err(invalid_argument!("node {number} was told to fail"));
            }
            ctx.set_output(0, Tensor::scalar(number))
        })
    })
}

#[test]
fn errors_name_the_node_and_the_next_step_runs() {
    for threads in [1, 2, 4] {
        let pool = Arc::new(Pool::new(threads));
        let executor = failing(6, false);
        for i in 0..6i64 {
            let run = |v: i64| run(&executor, &pool, &[v], &CancelToken::new());
            let e = run(i).expect_err("fails");
            assert_eq!(
                (e.code(), e.node()),
                (Code::InvalidArgument, Some(format!("n{i}").as_str()))
            );
            assert_eq!(run(-1).expect("runs").len(), 6);
        }
    }
}

#[test]
fn a_panicking_kernel_ends_its_step_only() {
    for threads in [1, 2] {
        let pool = Arc::new(Pool::new(threads));
        let executor = failing(4, true);
        let run = |v: i64| run(&executor, &pool, &[v], &CancelToken::new());
        assert_eq!(run(2).expect_err("panics").code(), Code::Internal);
        assert_eq!(run(-1).expect("runs").len(), 4);
    }
}

#[test]
fn a_cancelled_step_ends() {
    let cancel = CancelToken::new();
    cancel.cancel();
    let e = run(
        &random_graph(5, 50).0,
        &Arc::new(Pool::new(2)),
        &[1, 1],
        &cancel,
    );
    assert_eq!(e.expect_err("cancelled").code(), Code::Cancelled);
}

/// What an asynchronous kernel does, by its input.
#[derive(Default)]
struct Waits {
    held: Arc<Mutex<Vec<AsyncCall>>>,
    /// Receives a message when a call waits.
    waits: Option<mpsc::Sender<()>>,
    registrations: Mutex<Vec<Registration>>,
}

impl OpKernel for Waits {
    fn compute(&self, _: &mut KernelCtx) -> Result<()> {
        unreachable!("it is asynchronous")
    }

    fn start(&self, call: AsyncCall) {
        match call.inputs[0].to_scalar::<i64>() {
            Ok(0) => call.finish(Ok(vec![Tensor::scalar(10i64)])),
            Ok(1) => drop(std::thread::spawn(|| {
                call.finish(Ok(vec![Tensor::scalar(11i64)]));
            })),
            Ok(2) => call.finish(Err(invalid_argument!("told to"))),
            Ok(3) => drop(call),
            Ok(4) => panic!("told to"),
            // Until the step is given up.
            _ => {
                let (held, token) = (self.held.clone(), call.cancel.clone());
                held.lock().expect("no panic").push(call);
                let registration = token.clone().on_cancel(move || {
                    let calls = std::mem::take(&mut *held.lock().expect("no panic"));
                    for call in calls {
                        let error = token.check().expect_err("given up");
                        call.finish(Err(error));
                    }
                });
                let mut kept = self.registrations.lock().expect("no panic");
                kept.push(registration);
                if let Some(waits) = &self.waits {
                    waits.send(()).expect("the test receives it");
                }
            }
        }
    }
}

/// Runs a step through `run_async` and waits for it.
fn run_async(
    executor: &Arc<Executor>,
    pool: &Arc<Pool>,
    args: &[i64],
    cancel: &CancelToken,
) -> Result<Vec<Tensor>> {
    let outcome = Arc::new(Mutex::new(None));
    let (of_step, notified) = (outcome.clone(), pool.clone());
    let with = RunArgs {
        args: args.iter().map(|a| Tensor::scalar(*a)).collect(),
        step_id: None,
        pool,
        resources: &Resources::default(),
        rendezvous: None,
        cancel,
        trace: None,
        runner: None,
    };
    executor.run_async(with, move |result| {
        *of_step.lock().expect("no panic") = Some(result);
        notified.notify();
    });
    pool.help_until(&|| outcome.lock().expect("no panic").is_some());
    let mut outcome = outcome.lock().expect("no panic");
    outcome.take().expect("it is over")
}

#[test]
fn asynchronous_kernels_end_in_every_way() {
    let (sender, receiver) = mpsc::channel();
    let receiver = Mutex::new(receiver);
    let body = {
        let mut builder = Body::default();
        let root = builder.function("", 1, 1);
        let arg = builder.add(root, node("arg", Action::Arg(0), vec![]));
        let late = kernel("late", "Waits", vec![Source::Node(arg, 0)], Cost::Async);
        let late = builder.add(root, late);
        let after = kernel("sum", "Sum", vec![Source::Node(late, 0)], Cost::Cheap);
        let after = builder.add(root, after);
        let result = builder.result(root, 0, Source::Node(after, 0));
        result.expect("one result");
        builder
    };
    let executor = load(&body, &|entry| match &*entry.op {
        "Waits" => Box::new(Waits {
            waits: Some(sender.clone()),
            ..Default::default()
        }),
        _ => sum(Arc::default()),
    });
    type Run = fn(&Arc<Executor>, &Arc<Pool>, &[i64], &CancelToken) -> Result<Vec<Tensor>>;
    for (threads, run) in [(1, run as Run), (2, run), (1, run_async), (2, run_async)] {
        let pool = Arc::new(Pool::new(threads));
        let run = |v: i64, token: &CancelToken| {
            let out = run(&executor, &pool, &[v], token);
            out.and_then(|t| t[0].to_scalar::<i64>())
        };
        let never = CancelToken::new();
        assert_eq!(run(0, &never).expect("runs"), 11);
        assert_eq!(run(1, &never).expect("runs"), 12);
        for (v, code) in [(2, Code::InvalidArgument), (3, Code::Cancelled)] {
            let e = run(v, &never).expect_err("fails");
            assert_eq!((e.code(), e.node()), (code, Some("late")), "{e}");
        }
        assert!(run(4, &never).is_err(), "a panic");
        let soon = never.with_timeout(Duration::from_millis(5));
        let e = run(5, &soon).expect_err("late");
        assert_eq!(e.code(), Code::DeadlineExceeded, "{e}");
        while receiver.lock().expect("no panic").try_recv().is_ok() {}
        let token = CancelToken::new();
        std::thread::scope(|s| {
            s.spawn(|| {
                let waits = receiver.lock().expect("no panic").recv();
                waits.expect("a call waits");
                token.cancel();
            });
            let e = run(5, &token).expect_err("cancelled");
            assert_eq!(e.code(), Code::Cancelled, "{e}");
        });
    }
}
