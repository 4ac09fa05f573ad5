//! StringToNumber (TensorFlow: `core/kernels/string_to_number_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::number_text::Number;
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{Element, dispatch};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "StringToNumber",
    "string_tensor: string -> output: out_type | \
         out_type: type {float,double,int32,int64,uint32,uint64} = float",
)
.shape(shapes::unchanged)
.kernel(to_number)
.not_differentiable()];

fn to_number(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    dispatch!(dtype, T in [f32, f64, i32, i64, u32, u64] => Ok(Box::new(numbers::<T>)),
        else Err(build.unsupported(dtype)))
}

/// Strings that one thread parses in a row.
const BLOCK: usize = 1024;

fn numbers<T: Element + Number>(ctx: &mut KernelCtx) -> Result<()> {
    let input = ctx.input(0)?;
    let strings = input.strings()?;
    let mut out = ctx.alloc(T::DTYPE, input.shape().clone())?;
    // The first string that does not hold a number.
    let bad = AtomicUsize::new(usize::MAX);
    par_chunks_mut(ctx.par(), out.slice_mut()?, BLOCK, 1, &|block, to| {
        for (to, i) in to.iter_mut().zip(block * BLOCK..) {
            match T::parse(&strings[i]) {
                Some(value) => *to = value,
                None => {
                    bad.fetch_min(i, Ordering::Relaxed);
                    return;
                }
            }
        }
    });
    match strings.get(bad.into_inner()) {
        Some(bad) => Err(invalid_argument!(
            "StringToNumberOp could not correctly convert string: {}",
            String::from_utf8_lossy(bad)
        )),
        None => ctx.set_output(0, out),
    }
}
