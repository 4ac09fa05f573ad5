//! A node that runs away from the step's state.

use crate::state::{Env, Item, Outputs, Place};
use ferroflow_base::Result;
use ferroflow_opdef::{AsyncCall, KernelCtx, Value};
use ferroflow_program::Action;
use ferroflow_sync::CancelToken;
use ferroflow_tensor::Tensor;
use smallvec::SmallVec;

/// A node whose inputs were taken out of the state.
pub(crate) struct Detached {
    pub(crate) item: Item,
    pub(crate) place: Place,
    pub(crate) inputs: SmallVec<[Value; 4]>,
}

impl Detached {
    /// Calls the kernel.
    pub(crate) fn run(mut self, env: &Env) -> Result<Outputs> {
        let (plan, idx) = (env.plan, self.item.node);
        let node = &plan.nodes[idx.index()];
        let mut outputs: Outputs = smallvec::smallvec![Value::Empty; node.n_outputs as usize];
        if let Action::Kernel(kernel) = &node.action {
            let (info, inputs) = (&plan.info[idx.index()], &mut self.inputs);
            if env.trace.is_some() {
                crate::trace::traced_call(env, idx, self.place, inputs, &mut outputs)?;
            } else {
                let mut ctx =
                    KernelCtx::new(info, inputs, &plan.consts, &mut outputs, &env.services);
                kernel
                    .compute(&mut ctx)
                    .map_err(|e| e.at_node(&info.name, &info.op))?;
            }
        }
        Ok(outputs)
    }

    /// Starts an asynchronous kernel; `done` gets its outputs, now or later.
    pub(crate) fn start(
        self,
        env: &Env,
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
        if let Action::Kernel(kernel) = &plan.nodes[self.item.node.index()].action {
            kernel.start(call);
        }
    }
}
