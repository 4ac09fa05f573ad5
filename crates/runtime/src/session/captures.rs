//! [`Captures`]: steps of a device that are enqueued as one graph of operations.

use ferroflow_base::{Code, Result};
use ferroflow_device::{Captured, StreamMemory};
use ferroflow_opdef::Cost;
use ferroflow_program::{Action, Plan};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Shapes of arguments that have a graph.
const MAX_CAPTURED: usize = 16;

/// The arguments, and whether products are in TF32.
type Shapes = (Vec<(DType, Shape)>, bool);

/// The graphs of a part, by the shapes of its arguments.
///
/// The first step with some shapes runs as usual: kernels choose algorithms and copy constants. The second one
/// captures, all further ones replay, unless an integer that decides what runs has another value.
#[derive(Default)]
pub(crate) struct Captures(Mutex<HashMap<Shapes, State>>);

enum State {
    RanOnce,
    Captured(Arc<Captured>),
    /// The step reads from the host, or the device has no graphs.
    Impossible,
}

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

impl Captures {
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
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let captured = match known.get(&shapes) {
            Some(State::Captured(captured)) => captured.clone(),
            Some(State::Impossible) => {
                drop(known);
                return run(args);
            }
            Some(State::RanOnce) => match memory.capture(&args, &run) {
                Ok(captured) => {
                    let captured = Arc::new(captured);
                    known.insert(shapes, State::Captured(captured.clone()));
                    captured
                }
                Err(e) => {
                    if matches!(e.code(), Code::FailedPrecondition | Code::Unimplemented) {
                        known.insert(shapes, State::Impossible);
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
        match captured.replay(&args, &run) {
            // Other operations are due, or the step fails as it does now.
            Err(_) => run(args),
            done => done,
        }
    }

    /// Notes that a step with these shapes ran. Those that ran once, or cannot be captured, give way to others.
    fn note_run(&self, shapes: Shapes) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= MAX_CAPTURED {
            known.retain(|_, state| matches!(state, State::Captured(_)));
        }
        if known.len() < MAX_CAPTURED {
            known.insert(shapes, State::RanOnce);
        }
    }
}
