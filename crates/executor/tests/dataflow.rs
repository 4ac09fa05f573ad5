//! The engine `dataflow` on plans made by hand: every node runs once, whatever the threads.

use ferroflow_base::{Code, invalid_argument};
use ferroflow_executor::Executor;
use ferroflow_opdef::{Cost, KernelCtx, NodeInfo};
use ferroflow_program::{Action, BuildNode, NodeIdx, PlanBuilder, Source};
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::Tensor;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

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

/// A random layered graph over two arguments; gives the executor, its call counter and what the
/// graph computes for arguments `a` and `b`.
fn random_graph(seed: u64, n: usize) -> (Executor, Arc<AtomicUsize>, impl Fn(i64, i64) -> i64) {
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
    (Executor::new(Arc::new(plan)), calls, expected)
}

#[test]
fn random_graphs_on_many_threads() {
    for seed in 0..30 {
        let n = 3 + Random(seed).below(200);
        let (executor, calls, expected) = random_graph(seed, n);
        for threads in [1, 2, 4, 8] {
            let pool = Arc::new(Pool::new(threads));
            for step in 0..20 {
                calls.store(0, Ordering::Relaxed);
                let args = vec![Tensor::scalar(step), Tensor::scalar(step * 3)];
                let out = executor
                    .run(&pool, &Default::default(), args, &CancelToken::new(), None)
                    .expect("runs");
                assert_eq!(
                    out[0].to_scalar::<i64>().expect("scalar"),
                    expected(step, step * 3)
                );
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
                    let args = vec![Tensor::scalar(t), Tensor::scalar(i)];
                    let out = executor
                        .run(pool, &Default::default(), args, &CancelToken::new(), None)
                        .expect("runs");
                    assert_eq!(out[0].to_scalar::<i64>().expect("scalar"), expected(t, i));
                }
            });
        }
    });
}

/// `width` expensive nodes that fail when told to.
fn failing(width: usize, panics: bool) -> Executor {
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
    Executor::new(Arc::new(builder.finish().expect("valid")))
}

#[test]
fn errors_name_the_node_and_the_next_step_runs() {
    for threads in [1, 2, 4] {
        let pool = Arc::new(Pool::new(threads));
        let executor = failing(6, false);
        for i in 0..6i64 {
            let run = |v: i64| {
                executor.run(
                    &pool,
                    &Default::default(),
                    vec![Tensor::scalar(v)],
                    &CancelToken::new(),
                    None,
                )
            };
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
        let run = |v: i64| {
            executor.run(
                &pool,
                &Default::default(),
                vec![Tensor::scalar(v)],
                &CancelToken::new(),
                None,
            )
        };
        assert_eq!(run(2).expect_err("panics").code(), Code::Internal);
        assert_eq!(run(-1).expect("runs").len(), 4);
    }
}

#[test]
fn a_cancelled_step_ends() {
    let (executor, _, _) = random_graph(5, 50);
    let cancel = CancelToken::new();
    cancel.cancel();
    let args = vec![Tensor::scalar(1i64), Tensor::scalar(1i64)];
    let e = executor
        .run(
            &Arc::new(Pool::new(2)),
            &Default::default(),
            args,
            &cancel,
            None,
        )
        .expect_err("cancelled");
    assert_eq!(e.code(), Code::Cancelled);
}
