//! [`OpSegment`]: the kernels of stateful nodes, which outlive plans (TensorFlow: `core/framework/op_segment.h`).

use super::body::KernelEntry;
use ferroflow_base::Result;
use ferroflow_opdef::{AsyncCall, Attrs, KernelCtx, OpKernel, Registry, StepServices};
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Kernels that no plan has any more are forgotten at this number.
const MAX_KEPT: usize = 4096;

/// The kernels of a session's stateful nodes, by node: all plans with the node share its kernel, and what the
/// kernel keeps. Functions have their own.
#[derive(Default)]
pub struct OpSegment(Mutex<HashMap<String, Kept>>);

struct Kept {
    op: String,
    device: String,
    attrs: Attrs,
    kernel: Arc<dyn OpKernel>,
}

impl OpSegment {
    /// Returns the kernel of a node, built if there is none. `None` if the op has no state.
    pub(super) fn kernel(
        &self,
        entry: &KernelEntry,
        registry: &Registry,
    ) -> Result<Option<Box<dyn OpKernel>>> {
        let def = registry.def(&entry.op)?;
        if !def.is_some_and(|def| def.flags.stateful) {
            return Ok(None);
        }
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = kept.get(&entry.node) {
            let is_same = known.op == entry.op
                && known.device == entry.device
                && known.attrs.same_values(&entry.attrs);
            return Ok(is_same.then(|| shared(&known.kernel)));
        }
        // Other plans may feed what is a constant in this one.
        let kernel: Arc<dyn OpKernel> = entry.build(registry, &[])?.into();
        if kept.len() >= MAX_KEPT {
            kept.retain(|_, kept| Arc::strong_count(&kept.kernel) > 1);
        }
        let result = shared(&kernel);
        let new = Kept {
            op: entry.op.clone(),
            device: entry.device.clone(),
            attrs: entry.attrs.clone(),
            kernel,
        };
        kept.insert(entry.node.clone(), new);
        Ok(Some(result))
    }
}

fn shared(kernel: &Arc<dyn OpKernel>) -> Box<dyn OpKernel> {
    Box::new(Shared(kernel.clone()))
}

/// A kernel that several plans have.
struct Shared(Arc<dyn OpKernel>);

impl OpKernel for Shared {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        self.0.compute(ctx)
    }

    fn start(&self, call: AsyncCall) {
        self.0.start(call);
    }

    fn start_with(&self, call: AsyncCall, services: &StepServices) {
        self.0.start_with(call, services);
    }
}
