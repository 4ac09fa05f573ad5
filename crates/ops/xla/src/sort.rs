//! XlaSort, XlaKeyValueSort and XlaVariadicSort (TensorFlow: `compiler/tf2xla/kernels/sort_ops.cc`).

use crate::function::{Function, dispatch_combined};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_functors::indices::{axis_in, int};
use ferroflow_functors::shapes;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Element, Shape, Tensor, bf16, dispatch, dispatch_items, f16};
use std::cmp::Ordering;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("XlaSort", "input: T -> output: T | T: type")
        .shape(shapes::unchanged)
        .kernel(sort),
    Op::new(
        "XlaKeyValueSort",
        "keys: K, values: V -> sorted_keys: K, sorted_values: V | K: realnumbertype; V: type",
    )
    .shape(shapes::each_unchanged)
    .kernel(key_value_sort),
    Op::new(
        "XlaVariadicSort",
        "inputs: list(T), dimension: int32 -> outputs: list(T) | T: list(type) >= 1; comparator: func; is_stable: bool",
    )
    .shape(shapes::each_unchanged)
    .kernel(variadic_sort),
];

/// An element type in XLA's order, in which `-NaN < -inf < -0.0 < 0.0 < inf < NaN`.
trait Total: Element {
    fn order(&self, other: &Self) -> Ordering;
}

macro_rules! total {
    ($($ty:ty),*: $order:ident) => {$(
        impl Total for $ty {
            #[inline(always)]
            fn order(&self, other: &Self) -> Ordering { self.$order(other) }
        }
    )*};
}
total!(bool, i8, i16, i32, i64, u8, u16, u32, u64: cmp);
total!(f32, f64, f16, bf16: total_cmp);

macro_rules! dispatch_total {
    ($dtype:expr, $T:ident => $body:expr, else $otherwise:expr) => {
        dispatch!($dtype, $T in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64, bool] =>
            $body, else $otherwise)
    };
}

/// Least elements that a thread sorts.
const GRAIN: usize = 4096;

fn sort(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    if dtype.is_complex() {
        return Err(unimplemented_error!("complex comparison 'LT'"));
    }
    dispatch_total!(dtype, T => Ok(Box::new(|ctx: &mut KernelCtx| {
        let Some(&n) = ctx.shape(0)?.last() else {
            return Err(no_last_dimension());
        };
        let mut x = ctx.take_input(0)?;
        par_chunks_mut(ctx.par(), x.slice_mut::<T>()?, n.max(1), (GRAIN / n.max(1)).max(1), &|_, row| {
            row.sort_unstable_by(T::order);
        });
        ctx.set_output(0, x)
    })), else Err(build.unsupported(dtype)))
}

#[cold]
fn no_last_dimension() -> ferroflow_base::Status {
    invalid_argument!("dimension attribute value must be in range [-0, 0), but found -1")
}

fn key_value_sort(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(0)?;
    dispatch_total!(dtype, T => Ok(Box::new(|ctx: &mut KernelCtx| {
        let (keys, values) = (ctx.input(0)?, ctx.input(1)?);
        if keys.shape() != values.shape() {
            return Err(invalid_argument!(
                "Sort keys and values dimensions must match. Keys shape is: {}, Values shape (operand index 1) is: {}",
                keys.shape(),
                values.shape()
            ));
        }
        let Some(axis) = keys.shape().rank().checked_sub(1) else {
            return Err(no_last_dimension());
        };
        let lines = Lines::of(keys.shape(), axis);
        let all = keys.slice::<T>()?;
        let order = lines.sorted(|a, b| Ok(all[a].order(&all[b]) == Ordering::Less))?;
        for i in 0..2 {
            let sorted = lines.permuted(ctx, ctx.input(i)?, &order)?;
            ctx.set_output(i, sorted)?;
        }
        Ok(())
    })), else Err(build.unsupported(dtype)))
}

fn variadic_sort(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let name = build.attrs.func("comparator")?.name.clone();
    let n = build.outputs.len();
    for &dtype in build.outputs {
        dispatch_combined!(dtype, T => (), else return Err(build.unsupported(dtype)));
    }
    let first: DType = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let function = Function::of(ctx, &name)?;
        let shape = ctx.shape(0)?;
        for i in 1..n {
            if ctx.shape(i)? != shape {
                return Err(invalid_argument!(
                    "Sort keys and values dimensions must match. Keys shape is: {shape}, Values shape (operand index {i}) \
                     is: {}",
                    ctx.shape(i)?
                ));
            }
        }
        let dimension = int(ctx.input(n)?).unwrap_or(i64::MIN);
        let Some(axis) = axis_in(dimension, shape.rank()) else {
            let rank = shape.rank();
            return Err(invalid_argument!(
                "dimension attribute value must be in range [-{rank}, {rank}), but found {dimension}"
            ));
        };
        let lines = Lines::of(shape, axis);
        let order = match function.only_op().filter(|_| n == 1) {
            Some(op @ ("Less" | "Greater")) if !first.is_complex() && first != DType::Bool => {
                by_op(&lines, ctx.input(0)?, op == "Less")?
            }
            _ => by_function(ctx, &lines, n, &function)?,
        };
        for i in 0..n {
            let sorted = lines.permuted(ctx, ctx.input(i)?, &order)?;
            ctx.set_output(i, sorted)?;
        }
        Ok(())
    }))
}

/// Returns the order of the elements of each line by less or greater.
fn by_op(lines: &Lines, x: &Tensor, ascends: bool) -> Result<Vec<u32>> {
    dispatch!(x.dtype(), T in [f32, f64, f16, bf16, i8, i16, i32, i64, u8, u16, u32, u64] => {
        let x = x.slice::<T>()?;
        match ascends {
            true => lines.sorted(|a, b| Ok(x[a] < x[b])),
            false => lines.sorted(|a, b| Ok(x[a] > x[b])),
        }
    }, else Err(crate::function::unfit()))
}

fn by_function(ctx: &KernelCtx, lines: &Lines, n: usize, function: &Function) -> Result<Vec<u32>> {
    let inputs: Vec<&Tensor> = (0..n).map(|i| ctx.input(i)).collect::<Result<_>>()?;
    lines.sorted(|a, b| {
        let mut args = Vec::with_capacity(2 * n);
        for input in &inputs {
            args.push(input.view(a, Shape::scalar())?);
            args.push(input.view(b, Shape::scalar())?);
        }
        match &function.call(args)?[..] {
            [less] if less.shape().is_scalar() => less.to_scalar::<bool>(),
            _ => Err(crate::function::unfit()),
        }
    })
}

/// The lines of a tensor along one dimension.
struct Lines {
    n_outer: usize,
    /// Elements of a line.
    len: usize,
    /// Elements between neighbors of a line.
    stride: usize,
}

impl Lines {
    fn of(shape: &Shape, axis: usize) -> Lines {
        Lines {
            n_outer: shape[..axis].iter().product(),
            len: shape[axis],
            stride: shape[axis + 1..].iter().product(),
        }
    }

    /// Returns the position of the first element of each line.
    fn starts(&self) -> impl Iterator<Item = usize> {
        let (len, stride) = (self.len, self.stride);
        (0..self.n_outer).flat_map(move |o| (0..stride).map(move |i| o * len * stride + i))
    }

    /// Returns the order of the elements of each line, whose positions in the tensor `less` compares; equal ones stay in
    /// order.
    fn sorted(&self, mut less: impl FnMut(usize, usize) -> Result<bool>) -> Result<Vec<u32>> {
        let len = u32::try_from(self.len)
            .map_err(|_| invalid_argument!("a line of {} elements", self.len))?;
        let mut all = Vec::with_capacity(self.n_outer * self.len * self.stride);
        let mut spare = vec![0; self.len];
        for start in self.starts() {
            let from = all.len();
            all.extend(0..len);
            let line = &mut all[from..];
            let at = |i: u32| start + i as usize * self.stride;
            merge_sort(line, &mut spare, &mut |a, b| less(at(a), at(b)))?;
        }
        Ok(all)
    }

    /// Returns the tensor with the elements of each line in this order.
    fn permuted(&self, ctx: &KernelCtx, x: &Tensor, order: &[u32]) -> Result<Tensor> {
        let mut out = ctx.alloc(x.dtype(), x.shape().clone())?;
        dispatch_items!(x.dtype(), T => {
            let (x, out) = (x.items::<T>()?, out.items_mut::<T>()?);
            for (start, line) in self.starts().zip(order.chunks(self.len.max(1))) {
                for (i, &from) in line.iter().enumerate() {
                    let from = &x[start + from as usize * self.stride];
                    out[start + i * self.stride].clone_from(from);
                }
            }
        });
        Ok(out)
    }
}

/// Sorts `line`, stably. A comparison that is not an order, as of NaN, leaves a permutation.
fn merge_sort(
    line: &mut [u32],
    spare: &mut [u32],
    less: &mut impl FnMut(u32, u32) -> Result<bool>,
) -> Result<()> {
    let n = line.len();
    let mut width = 1;
    while width < n {
        for (part, out) in line.chunks(2 * width).zip(spare.chunks_mut(2 * width)) {
            let (left, right) = part.split_at(width.min(part.len()));
            let (mut l, mut r) = (0, 0);
            for to in out.iter_mut().take(part.len()) {
                let takes_right = match (left.get(l), right.get(r)) {
                    (Some(&a), Some(&b)) => less(b, a)?,
                    (left, _) => left.is_none(),
                };
                if takes_right {
                    *to = right[r];
                    r += 1;
                } else {
                    *to = left[l];
                    l += 1;
                }
            }
        }
        line.copy_from_slice(&spare[..n]);
        width *= 2;
    }
    Ok(())
}
