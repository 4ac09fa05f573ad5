//! [`Captures`]: steps of a device that are enqueued as one graph of operations.

use ferroflow_base::{Code, Result};
use ferroflow_device::{Reclaim, StreamMemory};
use ferroflow_gpu::CapturedStep;
use ferroflow_graph::{Node, NodeClass, PlacedGraph};
use ferroflow_opdef::Cost;
use ferroflow_program::{Action, Plan};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Shapes of arguments that have a graph.
const MAX_CAPTURED: usize = 16;

/// The arguments, and whether products are in TF32.
type Shapes = (Vec<(DType, Shape)>, bool);

/// The graphs of a part, by the shapes of its arguments.
///
/// The first step with some shapes runs as usual: kernels choose algorithms and copy constants. The second one
/// captures, all further ones replay, unless an integer that decides what runs has another value, or a variable is
/// elsewhere.
#[derive(Default)]
pub(crate) struct Captures(Mutex<HashMap<Shapes, State>>);

enum State {
    /// A step ran; captures of earlier steps were of no use.
    Ran {
        useless: usize,
    },
    Captured {
        step: Arc<CapturedStep>,
        uses: Uses,
    },
    /// The step reads from the host, or the device has no graphs.
    Impossible,
}

/// How a graph was used.
#[derive(Clone, Copy, Default)]
struct Uses {
    replays: usize,
    /// Steps since the last replay that had to run otherwise.
    failures: usize,
    /// Graphs before it that were of no use.
    useless: usize,
}

/// Steps in a row that a graph is not for, before there is a new one.
const MAX_FAILURES: usize = 2;
/// Replays of a graph that was worth its capture.
const WORTHWHILE: usize = 8;
/// Graphs in a row that were not, before no more are captured.
const MAX_USELESS: usize = 4;

/// Whether steps of a plan enqueue the same whenever the shapes of their arguments are the same.
pub(crate) fn can_capture(plan: &Plan) -> bool {
    let is_fixed = |action: &Action<_>| {
        matches!(
            action,
            Action::Kernel(_)
                | Action::Arg(_)
                | Action::Const(_)
                | Action::Forward
                | Action::Trigger
        )
    };
    let nodes = &plan.nodes;
    let fixed = nodes
        .iter()
        .all(|n| is_fixed(&n.action) && n.cost != Cost::Async);
    fixed && plan.frames.len() == 1 && plan.functions.is_empty()
}

/// Whether what the nodes of a device keep beyond a step is kept apart from what a replay enqueues.
pub(crate) fn can_replay(graph: &PlacedGraph) -> bool {
    let has_state = |c: NodeClass| matches!(c, NodeClass::Other | NodeClass::ReadVariable);
    let is_stateful = |n: &Node| {
        n.def.flags.stateful
            && has_state(n.class())
            && !ferroflow_gpu::can_replay_state(n.op(), &n.outputs)
    };
    // An index that is with the host picks an element of a list, which need not be that of another step.
    let has_list = |n: &Node| n.outputs.contains(&DType::Variant);
    let mut nodes = graph.graph().iter();
    !nodes.any(|(_, n)| is_stateful(n) || has_list(n))
}

impl Captures {
    fn known(&self) -> MutexGuard<'_, HashMap<Shapes, State>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs a step on the thread that enqueues; `run` enqueues its operations one by one.
    ///
    /// # Errors
    /// Those of `run` and of the device.
    pub(crate) fn run(
        &self,
        memory: &Arc<StreamMemory>,
        args: Vec<Tensor>,
        run: impl Fn(Vec<Tensor>) -> Result<Vec<Tensor>>,
    ) -> Result<Vec<Tensor>> {
        let shape = |t: &Tensor| (t.dtype(), t.shape().clone());
        let shapes: Shapes = (args.iter().map(shape).collect(), ferroflow_gpu::tf32());
        let mut known = self.known();
        let (step, uses) = match known.get(&shapes) {
            Some(State::Captured { step, uses }) => (step.clone(), *uses),
            Some(State::Impossible) => {
                drop(known);
                return run(args);
            }
            Some(State::Ran { useless }) => match CapturedStep::new(memory, &args, &run) {
                Ok(step) => {
                    let uses = Uses {
                        useless: *useless,
                        ..Uses::default()
                    };
                    (Arc::new(step), uses)
                }
                Err(e) => {
                    memory.capture_stats().note(Err(&e));
                    let after = match e.code() {
                        Code::FailedPrecondition | Code::Unimplemented => Some(State::Impossible),
                        // Another time there may be memory, or a value without other owners.
                        Code::ResourceExhausted | Code::Aborted => Some(State::useless(*useless)),
                        _ => None,
                    };
                    if let Some(after) = after {
                        known.insert(shapes, after);
                    }
                    drop(known);
                    return run(args);
                }
            },
            None => {
                drop(known);
                let results = run(args)?;
                self.note_run(shapes);
                return Ok(results);
            }
        };
        drop(known);
        let done = step.replay(&args, &run);
        let is_done = done.is_ok();
        memory.capture_stats().note(done.as_ref().map(drop));
        // Other operations are due, or the step fails as it does now.
        let done = done.unwrap_or_else(|_| run(args));
        if done.is_ok() {
            self.known().insert(shapes, uses.next(step, is_done));
        }
        done
    }

    /// Notes that a step with these shapes ran. Those that ran once, or cannot be captured, give way to others.
    fn note_run(&self, shapes: Shapes) {
        let mut known = self.known();
        if known.len() >= MAX_CAPTURED {
            known.retain(|_, state| matches!(state, State::Captured { .. }));
        }
        if known.len() < MAX_CAPTURED {
            known.insert(shapes, State::Ran { useless: 0 });
        }
    }
}

impl Reclaim for Captures {
    /// Drops all graphs. A step that is captured right now keeps its own.
    fn reclaim(&self) {
        let Ok(mut known) = self.0.try_lock() else {
            return;
        };
        let mut dropped = Vec::new();
        for state in known.values_mut() {
            if let State::Captured { uses, .. } = state {
                let after = State::useless(uses.useless);
                dropped.push(std::mem::replace(state, after));
            }
        }
        // Waits for the device, without the lock.
        drop(known);
        drop(dropped);
    }
}

impl State {
    /// The state after a capture that was of no use, as were `before` others.
    fn useless(before: usize) -> State {
        match before + 1 >= MAX_USELESS {
            true => State::Impossible,
            false => State::Ran {
                useless: before + 1,
            },
        }
    }
}

impl Uses {
    /// The state after a step that was replayed, or could not be.
    fn next(mut self, step: Arc<CapturedStep>, is_replayed: bool) -> State {
        match is_replayed {
            true => {
                self.replays += 1;
                self.failures = 0;
            }
            false => self.failures += 1,
        }
        if self.failures < MAX_FAILURES {
            return State::Captured { step, uses: self };
        }
        match self.replays >= WORTHWHILE {
            true => State::Ran { useless: 0 },
            false => State::useless(self.useless),
        }
    }
}
