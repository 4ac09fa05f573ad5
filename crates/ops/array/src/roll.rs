//! Roll (TensorFlow: `core/kernels/roll_op.cc`).

use crate::strided_slice::same_as_first;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, axis_in};
use ferroflow_functors::strided::par_rows;
use ferroflow_opdef::{GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{Item, dispatch_items};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Roll",
    "input: T, shift: Tshift, axis: Taxis -> output: T | T: type; Tshift: type \
         {int32,int64}; Taxis: type {int32,int64}",
)
.shape(same_as_first)
.kernel(roll)
.gradient(roll_gradient)];

fn roll(_: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(|ctx: &mut KernelCtx| {
        let (shift, axis) = (ctx.input(1)?, ctx.input(2)?);
        let rank = ctx.shape(0)?.rank();
        if rank < 1 {
            return Err(invalid_argument!("input must be 1-D or higher"));
        }
        for (name, t) in [("shift", shift), ("axis", axis)] {
            if t.shape().rank() > 1 {
                return Err(invalid_argument!(
                    "{name} must be a scalar or a 1-D vector. Found: {}",
                    t.shape()
                ));
            }
        }
        if shift.shape() != axis.shape() {
            return Err(invalid_argument!("shift and axis must have the same size"));
        }
        let (shift, axis) = (indices::ints(shift)?, indices::ints(axis)?);
        let mut shifts = SmallVec::<[usize; 8]>::from_elem(0, rank);
        for (&s, &a) in shift.iter().zip(&axis) {
            let Some(at) = axis_in(a, rank) else {
                return Err(invalid_argument!("axis {a} is out of range"));
            };
            let d = ctx.shape(0)?[at].max(1) as i64;
            shifts[at] = ((shifts[at] as i64 + s.rem_euclid(d)) % d) as usize;
        }
        // One axis at a time; each moves two runs per outer row.
        let mut value = ctx.take_input(0)?;
        for (at, &shift) in shifts.iter().enumerate().filter(|(_, s)| **s > 0) {
            let inner: usize = value.shape()[at + 1..].iter().product();
            let row = value.shape()[at] * inner;
            if row == 0 {
                break;
            }
            let cut = row - shift * inner;
            let mut out = ctx.alloc(value.dtype(), value.shape().clone())?;
            dispatch_items!(value.dtype(), T => {
                rotate(ctx.par(), value.items::<T>()?, row, cut, out.items_mut::<T>()?);
            });
            value = out;
        }
        ctx.set_output(0, value)
    }))
}

/// Copies rows of `row` elements whose first `cut` elements become their last.
fn rotate<T: Item>(par: &dyn Parallelism, from: &[T], row: usize, cut: usize, to: &mut [T]) {
    par_rows(par, to, row, &|i, to| {
        let from = &from[i * row..(i + 1) * row];
        let (head, tail) = to.split_at_mut(row - cut);
        head.clone_from_slice(&from[cut..]);
        tail.clone_from_slice(&from[..cut]);
    });
}

fn roll_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("Roll", &[-g.x(1), g.x(2)]);
    g.set(0, dx)
}
