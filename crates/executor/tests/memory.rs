//! Planned memory: what a step's arena holds, and that no plan changes what steps compute.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_executor::{Executor, MemoryUse, NodeSpan, RunArgs, TraceSink};
use ferroflow_opdef::{Cost, KernelCtx, NodeInfo, OpKernel, Resources};
use ferroflow_program::{Action, Body, BodyNode, KernelEntry, NodeIdx, Source};
use ferroflow_sync::{CancelToken, Pool};
use ferroflow_tensor::{DType, Shape, Tensor};
use ferroflow_testkit::random::Rng;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// What nodes do, by their op.
#[derive(Clone, Default)]
struct Kernels {
    /// What `Keep` and `Nested` keep.
    kept: Arc<Mutex<Vec<Tensor>>>,
    /// What `Nested` runs.
    inner: Option<Arc<Executor>>,
}

impl Kernels {
    fn make(&self, op: &str) -> Box<dyn OpKernel> {
        let kept = self.kept.clone();
        match op {
            "Add" => Box::new(|ctx: &mut KernelCtx| add(ctx, 1.0)),
            // Overwrites an input that has no other reader.
            "InPlace" => Box::new(|ctx: &mut KernelCtx| {
                let mut out = ctx.take_input(0)?;
                out.slice_mut::<f32>()?.iter_mut().for_each(|x| *x += 1.0);
                ctx.set_output(0, out)
            }),
            // Uses memory of its own for a moment.
            "Scratch" => Box::new(|ctx: &mut KernelCtx| {
                let shape = Shape::from(&[ctx.shape(0)?.num_elements() * 2][..]);
                ctx.alloc(DType::Float, shape)?
                    .slice_mut::<f32>()?
                    .fill(9.0);
                add(ctx, 1.0)
            }),
            // Has as many elements as the first one says.
            "Sized" => Box::new(|ctx: &mut KernelCtx| {
                let n = ctx.slice::<f32>(0)?[0] as usize;
                let mut out = ctx.alloc(DType::Float, Shape::from(&[n][..]))?;
                out.slice_mut::<f32>()?.fill(n as f32);
                ctx.set_output(0, out)
            }),
            "Keep" => Box::new(move |ctx: &mut KernelCtx| {
                if ctx.slice::<f32>(0)?[0] < 0.0 {
                    kept.lock().unwrap().push(ctx.input(0)?.clone());
                }
                add(ctx, 1.0)
            }),
            // Runs another executor, and keeps what that returns.
            "Nested" => {
                let inner = self.inner.clone().expect("an executor");
                Box::new(move |ctx: &mut KernelCtx| {
                    let result = run(&inner, ctx.input(0)?.clone())?;
                    kept.lock().unwrap().push(result);
                    add(ctx, 1.0)
                })
            }
            _ => Box::new(|ctx: &mut KernelCtx| match ctx.slice::<f32>(0)?[0] {
                666.0.. => Err(invalid_argument!("told to fail")),
                _ => add(ctx, 1.0),
            }),
        }
    }
}

/// The sum of the inputs and `more`, in new memory; of inputs of several sizes the first one's.
fn add(ctx: &mut KernelCtx, more: f32) -> Result<()> {
    let mut out = ctx.alloc(DType::Float, ctx.shape(0)?.clone())?;
    let sum = out.slice_mut::<f32>()?;
    sum.fill(more);
    for i in 0..ctx.num_inputs() {
        sum.iter_mut()
            .zip(ctx.slice::<f32>(i)?)
            .for_each(|(s, x)| *s += x);
    }
    ctx.set_output(0, out)
}

/// Nodes over one argument, each with its op and the nodes before it that it reads; node 0 is the argument. The last one
/// is fetched.
fn load(nodes: &[(&str, &[usize])], cost: Cost) -> (Arc<Executor>, Kernels) {
    load_with(nodes, cost, Kernels::default())
}

fn load_with(nodes: &[(&str, &[usize])], cost: Cost, kernels: Kernels) -> (Arc<Executor>, Kernels) {
    let mut body = Body::default();
    let root = body.function("", 1, 1);
    let plain = |name: String, action, inputs| BodyNode {
        info: NodeInfo {
            name,
            op: "Test".to_string(),
        },
        action,
        inputs,
        controls: Vec::new(),
        n_outputs: 1,
        cost,
    };
    let mut last = body.add(root, plain("arg".to_string(), Action::Arg(0), Vec::new()));
    for (i, (op, from)) in nodes.iter().enumerate() {
        let name = format!("n{}", i + 1);
        let entry = KernelEntry {
            op: op.to_string(),
            node: name.clone(),
            inputs: vec![DType::Float; from.len()],
            outputs: vec![DType::Float],
            ..KernelEntry::default()
        };
        let inputs = from.iter().map(|f| Source::Node(NodeIdx::new(*f), 0));
        let action = Action::Kernel(Box::new(entry));
        last = body.add(root, plain(name, action, inputs.collect()));
    }
    let result = body.result(root, 0, Source::Node(last, 0));
    result.expect("one result");
    let plan = body.load_with(&|entry, _| Ok(kernels.make(&entry.op)));
    (Executor::new(Arc::new(plan.expect("valid"))), kernels)
}

/// `n` elements of `value`.
fn filled(n: usize, value: f32) -> Tensor {
    Tensor::from_slice([n], &vec![value; n]).expect("small")
}

fn run_on(
    executor: &Arc<Executor>,
    pool: &Arc<Pool>,
    arg: Tensor,
    trace: Option<&Arc<dyn TraceSink>>,
) -> Result<Tensor> {
    let results = executor.run(RunArgs {
        args: vec![arg],
        step_id: None,
        pool,
        resources: &Resources::default(),
        rendezvous: None,
        cancel: &CancelToken::new(),
        trace,
        runner: None,
    });
    Ok(results?.remove(0))
}

fn run(executor: &Arc<Executor>, arg: Tensor) -> Result<Tensor> {
    run_on(executor, &Arc::new(Pool::new(1)), arg, None)
}

#[track_caller]
fn is_filled(t: &Tensor, n: usize, value: f32) {
    assert_eq!(t.slice::<f32>().expect("floats"), vec![value; n]);
}

/// What is known about steps with `n` elements.
fn memory_of(executor: &Executor, n: usize) -> MemoryUse {
    let mut all = executor.memory().into_iter();
    let of_shape = all.find(|m| m.args[0].1.num_elements() == n);
    of_shape.expect("recorded")
}

/// Where outputs are.
#[derive(Default)]
struct Addresses(Mutex<Vec<(String, Range<usize>)>>);

impl TraceSink for Addresses {
    fn span(&self, span: NodeSpan) {
        let ranges = span.outputs.iter().map(|t| t.address..t.address + t.bytes);
        let named = ranges.map(|range| (span.node.name.clone(), range));
        self.0.lock().unwrap().extend(named);
    }
}

#[test]
fn a_step_stays_within_its_planned_peak() {
    let nodes: &[(&str, &[usize])] = &[
        ("Add", &[0]),
        ("Scratch", &[1]),
        ("Add", &[2, 1]),
        ("Scratch", &[3]),
        ("Add", &[4]),
        ("Add", &[5, 3]),
        ("Add", &[6]),
    ];
    let (executor, _) = load(nodes, Cost::Cheap);
    let n = 1250;
    run(&executor, filled(n, 1.0)).expect("runs");
    for step in 1..4 {
        let addresses = Arc::new(Addresses::default());
        let trace: Arc<dyn TraceSink> = addresses.clone();
        let pool = Arc::new(Pool::new(1));
        let result = run_on(&executor, &pool, filled(n, 1.0), Some(&trace));
        is_filled(&result.expect("runs"), n, 16.0);
        let memory = memory_of(&executor, n);
        assert_eq!((memory.steps, memory.misses), (step, 0));
        // Six outputs and two blocks of twice the size, of which three outputs or one and such a block are in use at once.
        assert_eq!(
            memory.blocks.iter().filter(|b| b.offset.is_some()).count(),
            8
        );
        assert_eq!(
            (memory.arena_bytes, memory.least_bytes),
            (3 * 5056, 3 * 5056)
        );
        let seen = std::mem::take(&mut *addresses.0.lock().unwrap());
        let inner = seen
            .iter()
            .filter(|(name, _)| name != "arg" && name != "n7");
        let (start, end) = inner.fold((usize::MAX, 0), |(start, end), (_, range)| {
            (start.min(range.start), end.max(range.end))
        });
        assert!(end - start <= memory.arena_bytes, "{seen:?}");
    }
}

#[test]
fn outputs_in_place_need_no_memory() {
    let nodes: &[(&str, &[usize])] = &[
        ("Add", &[0]),
        ("InPlace", &[1]),
        ("InPlace", &[2]),
        ("Add", &[3]),
    ];
    let (executor, _) = load(nodes, Cost::Cheap);
    for _ in 0..3 {
        is_filled(&run(&executor, filled(1500, 0.0)).expect("runs"), 1500, 4.0);
    }
    let memory = memory_of(&executor, 1500);
    let shared = memory.shared.iter().map(|s| (&*s.node.0, s.bytes));
    assert_eq!(shared.collect::<Vec<_>>(), [("n2", 6000), ("n3", 6000)]);
    let blocks = memory.blocks.iter().map(|b| (&*b.node.0, b.offset));
    assert_eq!(blocks.collect::<Vec<_>>(), [("n1", Some(0)), ("n4", None)]);
    assert_eq!((memory.arena_bytes, memory.misses), (6016, 0));
}

const CHAIN: &[(&str, &[usize])] = &[
    ("Add", &[0]),
    ("Add", &[1]),
    ("Fail", &[2]),
    ("Keep", &[3]),
    ("Add", &[4]),
];

#[test]
fn shapes_may_alternate() {
    let (executor, _) = load(CHAIN, Cost::Cheap);
    for step in 0..60 {
        let n = [1300, 5000, 10, 1700][step % 4];
        let result = run(&executor, filled(n, step as f32)).expect("runs");
        is_filled(&result, n, step as f32 + 5.0);
    }
    for n in [1300, 5000, 1700] {
        let memory = memory_of(&executor, n);
        assert_eq!((memory.steps, memory.misses), (14, 0), "{n}");
    }
    // Too small for an arena.
    assert_eq!(memory_of(&executor, 10).arena_bytes, 0);
}

#[test]
fn shapes_that_always_change_are_not_all_remembered() {
    let (executor, _) = load(CHAIN, Cost::Cheap);
    for n in 1300..1400 {
        is_filled(&run(&executor, filled(n, 0.0)).expect("runs"), n, 5.0);
    }
    assert_eq!(executor.memory().len(), 16);
    // One that stays is recorded in the second step.
    for _ in 0..4 {
        is_filled(&run(&executor, filled(2000, 0.0)).expect("runs"), 2000, 5.0);
    }
    assert_eq!(
        (memory_of(&executor, 2000).steps, executor.memory().len()),
        (2, 16)
    );
}

#[test]
fn fetched_tensors_survive_later_steps() {
    let (executor, _) = load(CHAIN, Cost::Cheap);
    let fetched: Vec<Tensor> = (0..20)
        .map(|i| run(&executor, filled(1600, i as f32)).expect("runs"))
        .collect();
    for (i, t) in fetched.iter().enumerate() {
        is_filled(t, 1600, i as f32 + 5.0);
    }
}

#[test]
fn what_a_kernel_keeps_is_left_alone() {
    let (executor, kernels) = load(CHAIN, Cost::Cheap);
    run(&executor, filled(1600, 1.0)).expect("runs");
    for i in 1..20 {
        let value = if i % 3 == 0 { -100.0 - i as f32 } else { 1.0 };
        is_filled(
            &run(&executor, filled(1600, value)).expect("runs"),
            1600,
            value + 5.0,
        );
    }
    let kept = kernels.kept.lock().unwrap();
    for (t, i) in kept.iter().zip([3, 6, 9, 12, 15, 18]) {
        is_filled(t, 1600, -97.0 - i as f32);
    }
    // After the first time its place is not used.
    assert_eq!((kept.len(), memory_of(&executor, 1600).misses), (6, 0));
}

#[test]
fn an_error_leaves_no_place_in_use() {
    let (executor, _) = load(CHAIN, Cost::Cheap);
    // Also in the step that would be recorded.
    for value in [700.0, 1.0, 700.0, 1.0, 700.0, 700.0, 1.0] {
        match run(&executor, filled(1600, value)) {
            Ok(t) => is_filled(&t, 1600, value + 5.0),
            Err(e) => assert_eq!((value, e.node()), (700.0, Some("n3"))),
        }
    }
    let memory = memory_of(&executor, 1600);
    assert_eq!((memory.steps, memory.misses), (2, 0));
}

#[test]
fn sizes_may_depend_on_values() {
    let (executor, _) = load(
        &[("Add", &[0]), ("Sized", &[1]), ("Add", &[2])],
        Cost::Cheap,
    );
    for n in [1400, 1400, 3000, 1400, 10, 1500] {
        let result = run(&executor, filled(1300, n as f32 - 1.0)).expect("runs");
        is_filled(&result, n, n as f32 + 1.0);
    }
    let memory = memory_of(&executor, 1300);
    assert_eq!((memory.steps, memory.misses), (5, 2));
}

#[test]
fn concurrent_steps_have_an_arena_each() {
    let (executor, _) = load(CHAIN, Cost::Cheap);
    run(&executor, filled(1600, 1.0)).expect("runs");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let executor = &executor;
            scope.spawn(move || {
                for i in 0..100 {
                    let value = (thread * 100 + i) as f32;
                    is_filled(
                        &run(executor, filled(1600, value)).expect("runs"),
                        1600,
                        value + 5.0,
                    );
                }
            });
        }
    });
    let memory = memory_of(&executor, 1600);
    assert_eq!((memory.steps, memory.misses), (400, 0));
}

#[test]
fn the_order_of_nodes_does_not_matter() {
    let mut random = Rng(3);
    let mut below = |n| random.below(n);
    let mut n_sure = 0;
    for round in 0..12 {
        // Whether an input is overwritten depends on which reader comes last, and with it what is allocated.
        let may_differ = round % 2 == 1;
        let ops = ["Add", "Scratch", if may_differ { "InPlace" } else { "Add" }];
        let nodes: Vec<(&str, Vec<usize>)> = (0..40usize)
            .map(|i| {
                // Of four nodes at once, each of which is read.
                let mut from = vec![i.saturating_sub(3)];
                if below(2) == 1 {
                    from.push((i + 1).saturating_sub(1 + below(6)));
                }
                (ops[below(3)], from)
            })
            .collect();
        let mut values = vec![2.0f32];
        for (op, from) in &nodes {
            let sum: f32 = match *op {
                "InPlace" => values[from[0]],
                _ => from.iter().map(|f| values[*f]).sum(),
            };
            values.push(sum + 1.0);
        }
        let nodes: Vec<(&str, &[usize])> =
            nodes.iter().map(|(op, from)| (*op, &from[..])).collect();
        let (executor, _) = load(&nodes, Cost::Expensive);
        let pool = Arc::new(Pool::new(4));
        for _ in 0..30 {
            let result = run_on(&executor, &pool, filled(1400, 2.0), None);
            is_filled(&result.expect("runs"), 1400, values[40]);
        }
        let memory = memory_of(&executor, 1400);
        assert!(memory.arena_bytes >= memory.least_bytes);
        // Other plans may have been made again.
        if memory.in_any_order && !may_differ {
            assert_eq!(memory.misses, 0, "of {} steps", memory.steps);
            n_sure += 1;
        }
    }
    assert!(n_sure > 0);
}

#[test]
fn steps_within_kernels_have_their_own_memory() {
    let (inner, _) = load(&[("Add", &[0])], Cost::Cheap);
    let kernels = Kernels {
        inner: Some(inner),
        ..Kernels::default()
    };
    let (outer, kernels) = load_with(&[("Nested", &[0]), ("Add", &[1])], Cost::Cheap, kernels);
    for value in 0..5 {
        let value = value as f32;
        is_filled(
            &run(&outer, filled(1600, value)).expect("runs"),
            1600,
            value + 2.0,
        );
    }
    for (value, kept) in kernels.kept.lock().unwrap().iter().enumerate() {
        is_filled(kept, 1600, value as f32 + 1.0);
    }
    let memory = memory_of(&outer, 1600);
    let blocks = memory.blocks.iter().map(|b| (&*b.node.0, b.offset));
    assert_eq!(blocks.collect::<Vec<_>>(), [("n1", Some(0)), ("n2", None)]);
    assert_eq!(memory.misses, 0);
}

#[test]
fn independent_branches_need_no_more_than_twice_the_recorded_order() {
    for branches in [4, 16, 64] {
        let mut nodes: Vec<(&str, Vec<usize>)> = Vec::new();
        let mut ends = Vec::new();
        for _ in 0..branches {
            let first = nodes.len() + 1;
            nodes.extend([
                ("Add", vec![0]),
                ("Add", vec![first]),
                ("Sized", vec![first + 1]),
            ]);
            ends.push(first + 2);
        }
        nodes.push(("Add", ends));
        let nodes: Vec<(&str, &[usize])> =
            nodes.iter().map(|(op, from)| (*op, &from[..])).collect();
        let (executor, _) = load(&nodes, Cost::Expensive);
        let pool = Arc::new(Pool::new(2));
        for _ in 0..5 {
            let result = run_on(&executor, &pool, filled(10_000, 2.0), None);
            is_filled(&result.expect("runs"), 4, branches as f32 * 4.0 + 1.0);
        }
        let memory = memory_of(&executor, 10_000);
        assert!(
            memory.arena_bytes <= 2 * memory.least_bytes,
            "{branches}: {}",
            memory.arena_bytes
        );
    }
}

#[test]
fn what_a_failed_step_leaves_is_left_alone() {
    let nodes: &[(&str, &[usize])] =
        &[("Add", &[0]), ("Keep", &[1]), ("Add", &[2]), ("Fail", &[0])];
    let (executor, kernels) = load(nodes, Cost::Cheap);
    // The recorded step fails, too.
    for value in [-700.0f32, 700.0, -2.0, 1.0, 700.0, -3.0, 1.0] {
        match run(&executor, filled(1600, value)) {
            Ok(result) => is_filled(&result, 1600, value + 1.0),
            Err(error) => assert_eq!((value, error.node()), (700.0, Some("n4"))),
        }
    }
    let kept = kernels.kept.lock().unwrap();
    for (t, value) in kept.iter().zip([-699.0, -1.0, -2.0]) {
        is_filled(t, 1600, value);
    }
    assert_eq!(kept.len(), 3);
}

#[test]
fn a_plan_that_steps_do_not_follow_is_made_again() {
    let nodes: &[(&str, &[usize])] = &[
        ("Sized", &[0]),
        ("Add", &[1]),
        ("Sized", &[0]),
        ("Add", &[3, 2]),
    ];
    let (executor, _) = load(nodes, Cost::Cheap);
    // The recorded step has other sizes than all later ones.
    for n in std::iter::once(5000).chain([2000; 60]) {
        let result = run(&executor, filled(1300, n as f32)).expect("runs");
        is_filled(&result, n, 2.0 * n as f32 + 2.0);
    }
    let memory = memory_of(&executor, 1300);
    assert!(
        memory.misses == 0 && memory.steps >= 40,
        "{} {}",
        memory.misses,
        memory.steps
    );
    assert_eq!(memory.blocks[0].bytes, 8000);
    // Sizes that are never the same need no further plans.
    for n in 1500..1700 {
        run(&executor, filled(1300, n as f32)).expect("runs");
    }
    assert_eq!(memory_of(&executor, 1300).arena_bytes, 0);
}

#[test]
fn larger_arguments_are_planned_though_small_ones_need_no_arena() {
    let (executor, _) = load(CHAIN, Cost::Cheap);
    for n in [1, 2, 3, 4, 5, 1500, 1500, 1] {
        is_filled(&run(&executor, filled(n, 0.0)).expect("runs"), n, 5.0);
    }
    assert_eq!(memory_of(&executor, 1500).steps, 1);
}

#[test]
fn many_shapes_in_pairs_are_not_recorded_for_ever() {
    let (executor, _) = load(CHAIN, Cost::Cheap);
    let mut recorded = 0;
    for round in 0..6 {
        for n in 1300..1340 {
            for _ in 0..2 {
                is_filled(&run(&executor, filled(n, 0.0)).expect("runs"), n, 5.0);
            }
        }
        let known: Vec<usize> = executor
            .memory()
            .iter()
            .map(|m| m.args[0].1.num_elements())
            .collect();
        // Those of the first round that replaced others were too many; then they stay.
        if round > 0 {
            assert_eq!(known.iter().sum::<usize>(), recorded);
        }
        recorded = known.iter().sum();
    }
}
