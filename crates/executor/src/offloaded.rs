//! Nodes that run on other threads, without the step's state.

use crate::kernel::{Env, Place};
use crate::state::{Outputs, TaggedNode};
use ferroflow_base::Result;
use ferroflow_opdef::{AsyncCall, Value};
use ferroflow_program::Action;
use ferroflow_sync::CancelToken;
use ferroflow_tensor::Tensor;
use smallvec::SmallVec;

/// A node whose inputs were taken out of the state.
pub(crate) struct OffloadedNode {
    pub(crate) item: TaggedNode,
    pub(crate) place: Place,
    pub(crate) inputs: SmallVec<[Value; 4]>,
}

impl OffloadedNode {
    /// Calls the kernel.
    pub(crate) fn run(mut self, env: &Env) -> Result<Outputs> {
        let idx = self.item.node;
        let node = &env.plan.nodes[idx.index()];
        let mut outputs: Outputs = smallvec::smallvec![Value::Empty; node.n_outputs as usize];
        if let Action::Kernel(kernel) = &node.action {
            env.compute(&**kernel, idx, self.place, &mut self.inputs, &mut outputs)?;
        }
        Ok(outputs)
    }

    /// Starts an asynchronous kernel in a frame and iteration; `done` receives its outputs, now or later.
    pub(crate) fn start(
        self,
        env: &Env,
        frame: (u64, u64),
        cancel: CancelToken,
        done: impl FnOnce(Result<Vec<Tensor>>) + Send + 'static,
    ) {
        let plan = env.plan;
        let consts = &plan.consts;
        let inputs = self.inputs.into_iter().filter_map(|v| match v {
            Value::Tensor(t) => Some(t),
            Value::Const(c) => consts.get(c as usize).cloned(),
            Value::Empty => None,
        });
        let mut call = AsyncCall::new(inputs.collect(), cancel, done);
        call.step_id = env.services.step_id;
        call.frame = frame;
        if let Action::Kernel(kernel) = &plan.nodes[self.item.node.index()].action {
            kernel.start_with(call, &env.services);
        }
    }
}
