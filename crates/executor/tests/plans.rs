//! Plans made by hand, run by the engine `dataflow` and as host programs: every node runs once,
//! whatever the threads.

use ferroflow_base::{Code, Result, invalid_argument};
use ferroflow_executor::Executor;
use ferroflow_executor::host::HostExecutor;
use ferroflow_host_context::{Frame, KernelRegistry};
use ferroflow_opdef::{AsyncCall, Cost, KernelCtx, NodeInfo, OpKernel};
use ferroflow_program::bef::{self, File};
use ferroflow_program::{
    Action, BuildNode, NodeIdx, Plan, PlanBuilder, Source, mlir, to_host_program,
};
use ferroflow_sync::{CancelToken, Pool, Registration};
use ferroflow_tensor::Tensor;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// What runs a plan.
enum Engine {
    Dataflow(Executor),
    Host(HostExecutor),
}

/// A host program as an executor of `plan`.
fn host(plan: &Arc<Plan>, program: &mlir::Module) -> Result<HostExecutor> {
    let file = bef::write(program, true).expect("can be written");
    let mut kernels = KernelRegistry::default();
    kernels.add_raw("tfrt.merge.chains", |frame| {
        let chain = frame.arg_value(0)?;
        frame.set_result(0, chain);
        Ok(())
    });
    kernels.add_raw("tfrt.call", |frame| {
        let function = frame.function(0)?;
        let args = frame.take_args();
        let results = function.execute(frame.ctx(), args);
        frame.set_results(results);
        Ok(())
    });
    HostExecutor::new(plan.clone(), File::open(Arc::new(file))?, kernels)
}

fn engines(plan: Plan) -> [Engine; 2] {
    let plan = Arc::new(plan);
    let program = to_host_program(&plan).expect("no dead values");
    let host = host(&plan, &program).expect("the program of the plan");
    [Engine::Dataflow(Executor::new(plan)), Engine::Host(host)]
}

impl Engine {
    fn run(&self, pool: &Arc<Pool>, args: &[i64], cancel: &CancelToken) -> Result<Vec<Tensor>> {
        let args = args.iter().map(|a| Tensor::scalar(*a)).collect();
        match self {
            Engine::Dataflow(e) => e.run(pool, &Default::default(), args, cancel, None),
            Engine::Host(e) => e.run(pool, &Default::default(), args, cancel, None),
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % n
    }
}

fn info(name: String) -> NodeInfo {
    NodeInfo {
        name,
        op: "Sum".to_string(),
    }
}

/// A kernel that adds its inputs and one, and counts its calls.
fn sum(calls: Arc<AtomicUsize>) -> Action {
    Action::Kernel(Box::new(move |ctx: &mut KernelCtx| {
        calls.fetch_add(1, Ordering::Relaxed);
        let mut total = 1i64;
        for i in 0..ctx.num_inputs() {
            total = total.wrapping_add(ctx.slice::<i64>(i)?[0]);
        }
        ctx.set_output(0, Tensor::scalar(total))
    }))
}

/// A random layered graph over two arguments; gives its engines, its call counter and what the
/// graph computes for arguments `a` and `b`.
fn random_graph(seed: u64, n: usize) -> ([Engine; 2], Arc<AtomicUsize>, impl Fn(i64, i64) -> i64) {
    let mut r = Random(seed);
    let calls = Arc::new(AtomicUsize::new(0));
    let mut builder = PlanBuilder::new();
    let root = builder.function("", 2, 1);
    let constant = builder.constant(Tensor::scalar(7i64));
    let mut wiring: Vec<Vec<usize>> = Vec::new();
    for i in 0..n {
        let (action, inputs, controls) = if i < 2 {
            (Action::Arg(i as u32), Vec::new(), Vec::new())
        } else {
            let from: Vec<usize> = (0..1 + r.below(3)).map(|_| r.below(i + 1)).collect();
            wiring.push(from.clone());
            let source = |&f: &usize| match f < i {
                true => Source::Node(NodeIdx::new(f), 0),
                false => Source::Const(constant),
            };
            let controls = if r.below(4) == 0 {
                vec![NodeIdx::new(r.below(i))]
            } else {
                vec![]
            };
            (
                sum(calls.clone()),
                from.iter().map(source).collect(),
                controls,
            )
        };
        let cost = [Cost::Cheap, Cost::Expensive, Cost::BySize][r.below(3)];
        let info = info(format!("n{i}"));
        builder.add(
            root,
            BuildNode {
                info,
                action,
                inputs,
                controls,
                n_outputs: 1,
                cost,
            },
        );
    }
    builder
        .result(root, 0, Source::Node(NodeIdx::new(n - 1), 0))
        .expect("one result");
    let plan = builder.finish().expect("a valid plan");
    let expected = move |a: i64, b: i64| {
        let mut values = vec![a, b];
        for (i, from) in wiring.iter().enumerate() {
            let value = |&f: &usize| if f < i + 2 { values[f] } else { 7 };
            values.push(from.iter().map(value).fold(1i64, i64::wrapping_add));
        }
        values[values.len() - 1]
    };
    (engines(plan), calls, expected)
}

#[test]
fn random_graphs_on_many_threads() {
    for seed in 0..30 {
        let n = 3 + Random(seed).below(200);
        let (engines, calls, expected) = random_graph(seed, n);
        for threads in [1, 2, 4, 8] {
            let pool = Arc::new(Pool::new(threads));
            for (engine, step) in engines.iter().flat_map(|e| (0..20).map(move |s| (e, s))) {
                calls.store(0, Ordering::Relaxed);
                let out = engine.run(&pool, &[step, step * 3], &CancelToken::new());
                let out = out.expect("runs")[0].to_scalar::<i64>();
                assert_eq!(out.expect("scalar"), expected(step, step * 3));
                assert_eq!(calls.load(Ordering::Relaxed), n - 2, "each node once");
            }
        }
    }
}

#[test]
fn concurrent_steps_do_not_mix() {
    let (engines, _, expected) = random_graph(99, 150);
    let pool = Arc::new(Pool::new(3));
    std::thread::scope(|scope| {
        for t in 0..6i64 {
            let (engines, pool, expected) = (&engines, &pool, &expected);
            scope.spawn(move || {
                for i in 0..50 {
                    for engine in engines {
                        let out = engine.run(pool, &[t, i], &CancelToken::new());
                        let out = out.expect("runs")[0].to_scalar::<i64>();
                        assert_eq!(out.expect("scalar"), expected(t, i));
                    }
                }
            });
        }
    });
}

/// `width` expensive nodes that fail when told to.
fn failing(width: usize, panics: bool) -> [Engine; 2] {
    let mut builder = PlanBuilder::new();
    let root = builder.function("", 1, width);
    let node = |name: String, action, inputs, cost, n_outputs| BuildNode {
        info: info(name),
        action,
        inputs,
        controls: Vec::new(),
        n_outputs,
        cost,
    };
    let arg = builder.add(
        root,
        node("arg".into(), Action::Arg(0), vec![], Cost::Cheap, 1),
    );
    for i in 0..width {
        let action = Action::Kernel(Box::new(move |ctx: &mut KernelCtx| {
            if ctx.slice::<i64>(0)?[0] == i as i64 {
                assert!(!panics, "told to");
                return Err(invalid_argument!("node {i} was told to fail"));
            }
            ctx.set_output(0, Tensor::scalar(i as i64))
        }));
        let inputs = vec![Source::Node(arg, 0)];
        let n = builder.add(
            root,
            node(format!("n{i}"), action, inputs, Cost::Expensive, 1),
        );
        builder
            .result(root, i, Source::Node(n, 0))
            .expect("width results");
    }
    engines(builder.finish().expect("valid"))
}

#[test]
fn errors_name_the_node_and_the_next_step_runs() {
    for threads in [1, 2, 4] {
        let pool = Arc::new(Pool::new(threads));
        for engine in failing(6, false) {
            for i in 0..6i64 {
                let run = |v: i64| engine.run(&pool, &[v], &CancelToken::new());
                let e = run(i).expect_err("fails");
                assert_eq!(
                    (e.code(), e.node()),
                    (Code::InvalidArgument, Some(format!("n{i}").as_str()))
                );
                assert_eq!(run(-1).expect("runs").len(), 6);
            }
        }
    }
}

#[test]
fn a_panicking_kernel_ends_its_step_only() {
    for threads in [1, 2] {
        let pool = Arc::new(Pool::new(threads));
        for engine in failing(4, true) {
            let run = |v: i64| engine.run(&pool, &[v], &CancelToken::new());
            assert_eq!(run(2).expect_err("panics").code(), Code::Internal);
            assert_eq!(run(-1).expect("runs").len(), 4);
        }
    }
}

#[test]
fn a_cancelled_step_ends() {
    for engine in random_graph(5, 50).0 {
        let cancel = CancelToken::new();
        cancel.cancel();
        let e = engine.run(&Arc::new(Pool::new(2)), &[1, 1], &cancel);
        assert_eq!(e.expect_err("cancelled").code(), Code::Cancelled);
    }
}

/// What an asynchronous kernel does, by its input.
#[derive(Default)]
struct Waits {
    held: Arc<Mutex<Vec<AsyncCall>>>,
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
                std::thread::sleep(Duration::from_millis(2));
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
            }
        }
    }
}

#[test]
fn asynchronous_kernels_end_in_every_way() {
    let plan = || {
        let mut builder = PlanBuilder::new();
        let root = builder.function("", 1, 1);
        let mut add = |name: &str, action, inputs, cost| {
            let node = BuildNode {
                info: info(name.to_string()),
                action,
                inputs,
                controls: Vec::new(),
                n_outputs: 1,
                cost,
            };
            builder.add(root, node)
        };
        let arg = add("arg", Action::Arg(0), vec![], Cost::Cheap);
        let (kernel, inputs) = (Box::new(Waits::default()), vec![Source::Node(arg, 0)]);
        let late = add("late", Action::Kernel(kernel), inputs, Cost::Async);
        let after = sum(Arc::default());
        let after = add("sum", after, vec![Source::Node(late, 0)], Cost::Cheap);
        let result = builder.result(root, 0, Source::Node(after, 0));
        result.expect("one result");
        builder.finish().expect("valid")
    };
    for threads in [1, 2] {
        let pool = Arc::new(Pool::new(threads));
        for engine in engines(plan()) {
            let run = |v: i64, token: &CancelToken| {
                let out = engine.run(&pool, &[v], token);
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
            let token = CancelToken::new();
            let other = token.clone();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                other.cancel();
            });
            let e = run(5, &token).expect_err("cancelled");
            assert_eq!(e.code(), Code::Cancelled, "{e}");
            thread.join().expect("no panic");
        }
    }
}

/// Programs that are not those of the plan are errors, here or in the step.
#[test]
fn other_programs_are_refused() {
    let plan = || {
        let mut builder = PlanBuilder::new();
        let root = builder.function("", 1, 1);
        let node = |op: &str, action, inputs| BuildNode {
            info: NodeInfo {
                name: op.to_lowercase(),
                op: op.to_string(),
            },
            action,
            inputs,
            controls: Vec::new(),
            n_outputs: 1,
            cost: Cost::Cheap,
        };
        let arg = builder.add(root, node("Arg", Action::Arg(0), vec![]));
        let add = node("Sum", sum(Arc::default()), vec![Source::Node(arg, 0)]);
        let add = builder.add(root, add);
        builder.result(root, 0, Source::Node(add, 0)).expect("one");
        Arc::new(builder.finish().expect("valid"))
    };
    let plan = plan();
    let head = "func @main(%c: !tfrt.chain, %x: !tf.tensor) -> (!tfrt.chain, !tf.tensor) {";
    let node = |call: &str| {
        format!(
            "{head}\n %y = {call} : (!tf.tensor) -> !tf.tensor\n tfrt.return %c, %y : !tfrt.chain, \
             !tf.tensor\n}}"
        )
    };
    let run = |text: &str| {
        let module = mlir::parse(text, "x.mlir", 0).expect(text);
        let executor = host(&plan, &module)?;
        let (pool, token) = (Arc::new(Pool::new(1)), CancelToken::new());
        let args = vec![Tensor::scalar(1i64)];
        executor.run(&pool, &Default::default(), args, &token, None)
    };
    let right = node("\"tf.Sum\"(%x) {name = \"sum\", node = 1 : i32}");
    assert_eq!(
        run(&right).expect("runs")[0]
            .to_scalar::<i64>()
            .expect("one"),
        2
    );
    let calls_itself = format!(
        "{head}\n %r:2 = tfrt.call @main(%c, %x) : (!tfrt.chain, !tf.tensor) -> (!tfrt.chain, \
         !tf.tensor)\n tfrt.return %r#0, %r#1 : !tfrt.chain, !tf.tensor\n}}"
    );
    for text in [
        node("\"tf.Sum\"(%x) {name = \"sum\", node = 7 : i32}"),
        node("\"tf.Sum\"(%x) {name = \"sum\", node = -1 : i32}"),
        node("\"tf.Mul\"(%x) {name = \"sum\", node = 1 : i32}"),
        node("\"tf.Sum\"(%x) {node = 1 : i32}"),
        node("\"tf.constant\"(%x) {index = 0 : i32}"),
        node("\"other.kernel\"(%x)"),
        calls_itself,
        "func @main() {\n tfrt.return\n}".to_string(),
        "func @f() {\n tfrt.return\n}".to_string(),
    ] {
        assert!(run(&text).is_err(), "{text}");
    }
}
