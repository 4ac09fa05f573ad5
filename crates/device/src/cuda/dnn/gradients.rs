//! The gradients of convolutions.

use super::{Conv, Dnn, MAX_WORKSPACE, Plan, check, lock, measure};
use crate::{StreamMemory, backend::Address};
use ferroflow_base::{Result, internal, unimplemented_error};
use ferroflow_tensor::Tensor;
use std::ffi::c_int;

/// By what the gradient is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ConvGradient {
    /// The input.
    Input,
    /// The filter.
    Filter,
}

impl ConvGradient {
    /// The algorithms that the library has for it.
    fn n_algorithms(self) -> c_int {
        match self {
            ConvGradient::Input => 6,
            ConvGradient::Filter => 7,
        }
    }
}

impl Dnn {
    /// Enqueues a gradient on the computing stream: of `x` (the input, or its gradient), `filter` (or its gradient) and `dy`,
    /// the one of the first two that `of` names is written.
    ///
    /// # Errors
    /// INTERNAL if a tensor is not on the device, or has not the size that the convolution needs; UNIMPLEMENTED if
    /// the library has no such gradient.
    pub fn gradient(
        &self,
        memory: &StreamMemory,
        conv: &Conv,
        of: ConvGradient,
        [x, filter, dy]: [&Tensor; 3],
    ) -> Result<()> {
        let count = |dims: &[usize; 4]| dims.iter().product::<usize>();
        let sizes = [
            (x, count(&conv.input)),
            (filter, count(&conv.filter)),
            (dy, count(&conv.output)),
        ];
        let fits = |(t, n): &(&Tensor, usize)| t.num_elements() == *n && t.dtype() == conv.dtype;
        if !sizes.iter().all(fits) {
            return Err(internal!(
                "the gradient of a convolution does not fit its tensors: {conv:?}"
            ));
        }
        let at = |t: &Tensor| memory.span(t).map(|span| span.address);
        let addresses = [at(x)?, at(filter)?, at(dy)?];
        let key = (conv.clone(), of);
        let plan = self
            .gradients
            .of(&key, || self.plan_gradient(memory, conv, of, addresses))?;
        self.enqueue_gradient(memory, &plan, of, addresses)
    }

    /// Prepares a gradient with the fastest algorithm.
    fn plan_gradient(
        &self,
        memory: &StreamMemory,
        conv: &Conv,
        of: ConvGradient,
        addresses: [Address; 3],
    ) -> Result<Plan> {
        let (f, mut plan) = (&self.library.functions, self.describe(conv)?);
        let mut best: Option<(u128, c_int, usize)> = None;
        let mut why = None;
        for algorithm in 0..of.n_algorithms() {
            plan.algorithm = algorithm;
            let mut size = 0;
            let (first, second, last, workspace) = match of {
                ConvGradient::Input => (plan.filter, plan.output, plan.input, f.input_workspace),
                ConvGradient::Filter => (plan.input, plan.output, plan.filter, f.filter_workspace),
            };
            // SAFETY: the handles are the library's; writes one size.
            let sized = unsafe {
                workspace(
                    self.handle,
                    first,
                    second,
                    plan.conv,
                    last,
                    algorithm,
                    &raw mut size,
                )
            };
            if sized != 0 || size > MAX_WORKSPACE {
                continue;
            }
            plan.workspace = size;
            match measure(memory, || {
                self.enqueue_gradient(memory, &plan, of, addresses)
            }) {
                Ok(time) if best.is_none_or(|(least, ..)| time < least) => {
                    best = Some((time, algorithm, size));
                }
                Ok(_) => {}
                Err(e) => why = Some(e),
            }
        }
        let none = || unimplemented_error!("cuDNN has no gradient of such a convolution: {conv:?}");
        let (_, algorithm, size) = best.ok_or_else(|| why.unwrap_or_else(none))?;
        (plan.algorithm, plan.workspace) = (algorithm, size);
        Ok(plan)
    }

    fn enqueue_gradient(
        &self,
        memory: &StreamMemory,
        plan: &Plan,
        of: ConvGradient,
        [x, filter, dy]: [Address; 3],
    ) -> Result<()> {
        let f = &self.library.functions;
        let workspace = self.scratch(memory, plan.workspace)?;
        let workspace = memory.span(&workspace)?;
        let (one, zero) = (1.0f32, 0.0f32);
        let (call, first, last) = match of {
            ConvGradient::Input => (f.input_gradient, (plan.filter, filter), (plan.input, x)),
            ConvGradient::Filter => (f.filter_gradient, (plan.input, x), (plan.filter, filter)),
        };
        let _one = lock(&self.enqueue);
        // SAFETY: the handle is the library's, which one thread uses at a time; the stream lives as long as the memory.
        let set = unsafe { (f.set_stream)(self.handle, memory.compute().raw().0) };
        check(set, "cudnnSetStream")?;
        // SAFETY: the handles are the library's; `gradient` compared the descriptors with the memory, all of which
        // notes the computing stream; the factors are read before the call returns.
        let enqueued = unsafe {
            call(
                self.handle,
                (&raw const one).cast(),
                first.0,
                first.1.0,
                plan.output,
                dy.0,
                plan.conv,
                plan.algorithm,
                workspace.address.0,
                workspace.len,
                (&raw const zero).cast(),
                last.0,
                last.1.0,
            )
        };
        memory.compute().note_op();
        check(enqueued, "the gradient of a convolution")
    }
}
