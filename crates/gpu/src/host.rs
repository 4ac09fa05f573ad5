//! Kernels of CPUs on nodes of a device: inputs on the device are copied to the host, which waits for them.

use crate::train::step_variables;
use ferroflow_base::Result;
use ferroflow_opdef::{AsyncCall, KernelCtx, OpKernel, StepServices};
use ferroflow_tensor::Tensor;

struct OnHost {
    kernel: Box<dyn OpKernel>,
    /// Whether floats stay where they are.
    passes_floats: bool,
}

/// Lets a kernel read inputs that are on a device.
pub(crate) fn on_host(kernel: Box<dyn OpKernel>) -> Box<dyn OpKernel> {
    Box::new(OnHost {
        kernel,
        passes_floats: false,
    })
}

/// The same, for a kernel that passes floats on without reading them.
pub(crate) fn passing(kernel: Box<dyn OpKernel>) -> Box<dyn OpKernel> {
    Box::new(OnHost {
        kernel,
        passes_floats: true,
    })
}

impl OnHost {
    fn must_copy(&self, t: &Tensor) -> bool {
        t.is_on_device() && !(self.passes_floats && t.dtype().is_floating())
    }
}

impl OpKernel for OnHost {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        if !self.passes_floats {
            step_variables::note_host(ctx);
        }
        for i in 0..ctx.num_inputs() {
            if ctx.input(i).is_ok_and(|t| self.must_copy(t)) {
                let copy = ctx.input(i)?.on_host()?;
                ctx.set_input(i, copy)?;
            }
        }
        self.kernel.compute(ctx)
    }

    fn prepacks_input(&self, i: usize) -> bool {
        self.kernel.prepacks_input(i)
    }

    fn packed(&self) -> Result<Vec<Tensor>> {
        self.kernel.packed()
    }

    fn start(&self, call: AsyncCall) {
        self.kernel.start(call);
    }

    fn start_with(&self, mut call: AsyncCall, services: &StepServices) {
        let inputs = call.inputs.iter().map(Tensor::on_host);
        match inputs.collect::<Result<_>>() {
            Ok(inputs) => {
                call.inputs = inputs;
                self.kernel.start_with(call, services);
            }
            Err(e) => call.finish(Err(e)),
        }
    }
}
