//! Queues: kernels started directly, and their results in order of completion.
//!
//! A script is a list of calls on one queue, each with the calls that it completes: their numbers
//! and results.

use ferroflow_base::Result;
use ferroflow_opdef::{
    AsyncCall, AttrValue, Attrs, KernelBuild, KernelCtx, NodeInfo, OpKernel, Resources,
    StepServices, Value,
};
use ferroflow_ops::registry;
use ferroflow_sync::{CancelToken, Inline};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

const FLOAT: DType = DType::Float;

fn kernel(op: &str, attrs: Attrs, inputs: &[DType], outputs: &[DType]) -> Box<dyn OpKernel> {
    let def = registry().def(op).expect("parses").expect("registered");
    let mut attrs = attrs;
    def.complete_attrs(&mut attrs).expect("complete");
    let factory = registry().op(op).and_then(|o| o.kernel).expect("a kernel");
    factory(&KernelBuild {
        node: "node",
        device: "",
        def: &def,
        attrs: &attrs,
        inputs,
        outputs,
        constants: &[],
    })
    .expect("builds")
}

fn floats() -> AttrValue {
    AttrValue::List(vec![AttrValue::Type(FLOAT)])
}

/// Creates a queue of float scalars.
fn new_queue(resources: &Resources, capacity: i64) -> Tensor {
    let attrs = Attrs::default()
        .with("component_types", floats())
        .with(
            "shapes",
            AttrValue::List(vec![AttrValue::Shape(PartialShape::scalar())]),
        )
        .with("capacity", AttrValue::Int(capacity));
    let create = kernel("FIFOQueueV2", attrs, &[], &[DType::Resource]);
    let cancel = CancelToken::new();
    let services = StepServices {
        par: &Inline,
        cancel: &cancel,
        resources,
        functions: &(),
        step_id: 0,
    };
    let info = NodeInfo::default();
    let mut outputs = [Value::Empty];
    let mut ctx = KernelCtx::new(&info, &mut [], &[], &mut outputs, &services);
    create.compute(&mut ctx).expect("creates");
    match std::mem::take(&mut outputs[0]) {
        Value::Tensor(handle) => handle,
        _ => panic!("no handle"),
    }
}

struct Script {
    handle: Tensor,
    answers: Sender<(usize, Result<Vec<Tensor>>)>,
    ended: Receiver<(usize, Result<Vec<Tensor>>)>,
    n_calls: usize,
    tokens: Vec<CancelToken>,
}

impl Script {
    fn new(handle: Tensor) -> Self {
        let (answers, ended) = channel();
        Script {
            handle,
            answers,
            ended,
            n_calls: 0,
            tokens: Vec::new(),
        }
    }

    fn start(&mut self, word: &str) {
        let (what, argument) = word.split_once(':').unwrap_or((word, ""));
        let (op, attrs, input) = match what {
            "put" => (
                "QueueEnqueueV2",
                Attrs::default().with("Tcomponents", floats()),
                Some(Tensor::scalar(argument.parse::<f32>().expect("a number"))),
            ),
            "puts" => {
                let values: Vec<f32> = argument
                    .split(',')
                    .map(|v| v.parse().expect("a number"))
                    .collect();
                (
                    "QueueEnqueueManyV2",
                    Attrs::default().with("Tcomponents", floats()),
                    Some(Tensor::vector(&values).expect("small")),
                )
            }
            "take" => (
                "QueueDequeueV2",
                Attrs::default().with("component_types", floats()),
                None,
            ),
            "takes" | "upto" => (
                match what {
                    "takes" => "QueueDequeueManyV2",
                    _ => "QueueDequeueUpToV2",
                },
                Attrs::default().with("component_types", floats()),
                Some(Tensor::scalar(argument.parse::<i32>().expect("a number"))),
            ),
            "close" | "cancel" => (
                "QueueCloseV2",
                Attrs::default().with("cancel_pending_enqueues", AttrValue::Bool(what == "cancel")),
                None,
            ),
            other => panic!("no such word: {other}"),
        };
        let inputs: Vec<Tensor> = std::iter::once(self.handle.clone()).chain(input).collect();
        let dtypes: Vec<DType> = inputs.iter().map(Tensor::dtype).collect();
        let kernel = kernel(op, attrs, &dtypes, &[FLOAT]);
        let token = CancelToken::new();
        self.tokens.push(token.clone());
        let (id, answers) = (self.n_calls, self.answers.clone());
        self.n_calls += 1;
        kernel.start(AsyncCall::new(inputs, token, move |result| {
            let _ = answers.send((id, result));
        }));
    }

    /// Returns the calls that completed since the last query, as text, by their numbers.
    fn ended(&self) -> String {
        let mut ended: Vec<_> = self.ended.try_iter().collect();
        ended.sort_by_key(|(id, _)| *id);
        let texts: Vec<String> = ended
            .into_iter()
            .map(|(id, result)| match result {
                Ok(outputs) if outputs.is_empty() => format!("{id}"),
                Ok(outputs) => format!("{id}={}", outputs[0]),
                Err(e) => format!("{id}!{}", e.code().name()),
            })
            .collect();
        texts.join(" ")
    }
}

/// Runs a script: commands and the calls that each completes. `give-up:N` cancels call N.
fn check(capacity: i64, script: &[(&str, &str)]) {
    let resources = Resources::default();
    let mut run = Script::new(new_queue(&resources, capacity));
    for (i, (word, expected)) in script.iter().enumerate() {
        match word.strip_prefix("give-up:") {
            Some(n) => run.tokens[n.parse::<usize>().expect("a number")].cancel(),
            None => run.start(word),
        }
        assert_eq!(run.ended(), *expected, "word {i}, {word}, of {script:?}");
    }
}

#[test]
fn attempts_end_in_their_order() {
    check(
        -1,
        &[
            ("put:1", "0"),
            ("put:2", "1"),
            ("take", "2=1"),
            ("take", "3=2"),
        ],
    );
    check(
        -1,
        &[
            ("take", ""),
            ("take", ""),
            ("put:1", "0=1 2"),
            ("put:2", "1=2 3"),
        ],
    );
    check(
        1,
        &[
            ("put:1", "0"),
            ("put:2", ""),
            ("put:3", ""),
            ("take", "1 3=1"),
            ("take", "2 4=2"),
        ],
    );
    // The first in line keeps its elements, and the second waits for it.
    check(
        -1,
        &[
            ("put:1", "0"),
            ("takes:2", ""),
            ("take", ""),
            ("puts:2,3", "1=[1 2] 2=3 3"),
        ],
    );
    check(
        2,
        &[
            ("puts:1,2,3,4", ""),
            ("takes:3", "0 1=[1 2 3]"),
            ("take", "2=4"),
        ],
    );
    check(
        -1,
        &[("takes:0", "0=[]"), ("takes:-1", "1!INVALID_ARGUMENT")],
    );
}

#[test]
fn closing_lets_puts_finish_and_ends_takes() {
    check(
        1,
        &[
            ("put:1", "0"),
            ("put:2", ""),
            ("close", ""),
            ("take", "1 2 3=1"),
            ("take", "4=2"),
            ("take", "5!OUT_OF_RANGE"),
            ("put:3", "6!CANCELLED"),
            ("close", "7!CANCELLED"),
        ],
    );
    check(
        1,
        &[
            ("put:1", "0"),
            ("put:2", ""),
            ("cancel", "1!CANCELLED 2"),
            ("take", "3=1"),
            ("take", "4!OUT_OF_RANGE"),
            ("cancel", "5!CANCELLED"),
        ],
    );
    check(
        -1,
        &[
            ("take", ""),
            ("take", ""),
            ("close", "0!OUT_OF_RANGE 1!OUT_OF_RANGE 2"),
        ],
    );
    check(
        -1,
        &[
            ("puts:1,2", "0"),
            ("takes:3", ""),
            ("close", "1!OUT_OF_RANGE 2"),
            ("upto:3", "3=[1 2]"),
            ("upto:3", "4!OUT_OF_RANGE"),
        ],
    );
    check(
        -1,
        &[("puts:1,2", "0"), ("upto:3", ""), ("close", "1=[1 2] 2")],
    );
}

#[test]
fn given_up_attempts_leave_the_line() {
    check(
        -1,
        &[
            ("take", ""),
            ("take", ""),
            ("give-up:0", "0!CANCELLED"),
            ("put:1", "1=1 2"),
        ],
    );
    check(
        1,
        &[
            ("put:1", "0"),
            ("put:2", ""),
            ("put:3", ""),
            ("give-up:1", "1!CANCELLED"),
            ("take", "2 3=1"),
            ("take", "4=3"),
        ],
    );
    // The elements of a cancelled batch go back, in order, to the next waiting dequeues.
    check(
        -1,
        &[
            ("puts:1,2", "0"),
            ("takes:3", ""),
            ("take", ""),
            ("give-up:1", "1!CANCELLED 2=1"),
            ("take", "3=2"),
        ],
    );
    // Cancelling a completed call does nothing.
    check(
        -1,
        &[
            ("take", ""),
            ("put:1", "0=1 1"),
            ("give-up:0", ""),
            ("put:2", "2"),
            ("take", "3=2"),
        ],
    );
    check(
        2,
        &[
            ("puts:1,2,3", ""),
            ("give-up:0", "0!CANCELLED"),
            ("takes:2", "1=[1 2]"),
        ],
    );
}

#[test]
fn deadlines_end_waiting_attempts() {
    let resources = Resources::default();
    let handle = new_queue(&resources, -1);
    let take = kernel(
        "QueueDequeueV2",
        Attrs::default().with("component_types", floats()),
        &[DType::Resource],
        &[FLOAT],
    );
    let (sender, receiver) = channel();
    let token = CancelToken::new().with_timeout(Duration::from_millis(20));
    take.start(AsyncCall::new(vec![handle], token, move |result| {
        let _ = sender.send(result);
    }));
    let answer = receiver
        .recv_timeout(Duration::from_secs(30))
        .expect("ends");
    let error = answer.expect_err("nothing was put in");
    assert_eq!(
        error.code(),
        ferroflow_base::Code::DeadlineExceeded,
        "{error}"
    );
}

#[test]
fn many_threads_lose_nothing() {
    const N: usize = 400;
    let resources = Resources::default();
    let handle = new_queue(&resources, 3);
    let run = |script: &mut Script, word: &str| {
        script.start(word);
        let (_, result) = script
            .ended
            .recv_timeout(Duration::from_secs(60))
            .expect("ends");
        result.expect("runs")
    };
    let taken: Vec<f32> = std::thread::scope(|s| {
        for t in 0..2 {
            let mut script = Script::new(handle.clone());
            s.spawn(move || {
                (0..N).for_each(|i| drop(run(&mut script, &format!("put:{}", t * N + i))))
            });
        }
        let takers: Vec<_> = (0..2)
            .map(|_| {
                let mut script = Script::new(handle.clone());
                s.spawn(move || {
                    let take = |_| {
                        run(&mut script, "take")[0]
                            .to_scalar::<f32>()
                            .expect("a float")
                    };
                    (0..N).map(take).collect::<Vec<_>>()
                })
            })
            .collect();
        takers
            .into_iter()
            .flat_map(|t| t.join().expect("no panic"))
            .collect()
    });
    let mut sorted = taken;
    sorted.sort_by(f32::total_cmp);
    assert_eq!(sorted, (0..2 * N).map(|i| i as f32).collect::<Vec<_>>());
}
