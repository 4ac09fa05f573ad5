//! SparseAdd, SparseAddGrad and SparseTensorDenseAdd (TensorFlow: `core/kernels/sparse_add_op.cc`,
//! `sparse_add_grad_op.cc`, `sparse_tensor_dense_add_op.cc`).

use crate::sparse_parts::{Rows, narrow_output, wide_input};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{Index, aligned, dispatch_index};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, Item, PartialShape, Shape, Tensor, dispatch,
    dispatch_items,
};
use std::cmp::Ordering;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseAdd",
        "a_indices: int64, a_values: T, a_shape: int64, b_indices: int64, b_values: T, b_shape: \
         int64, thresh: Treal -> sum_indices: int64, sum_values: T, sum_shape: int64 | T: \
         numbertype; Treal: realnumbertype",
    )
    .shape(|ctx| {
        let shape = ctx.with_rank(2, 1)?;
        ctx.set(0, PartialShape::of([None, shape.dim(0)]));
        ctx.set(1, PartialShape::of([None]));
        ctx.set(2, shape);
        Ok(())
    })
    .kernel(|build| {
        let dtype = build.output(1)?;
        dispatch!(dtype, T in [f32, f64, i64, i32, i16, i8, Complex32, Complex64] =>
            Ok(Box::new(add::<T>)), else Err(build.unsupported(dtype)))
    })
    .gradient(|g| {
        let inputs = [g.dy(1), g.x(0), g.x(3), g.y(0)];
        if let [a, b] = inputs[0].node("SparseAddGrad", &inputs, &[])[..] {
            g.set(1, a)?;
            g.set(4, b)?;
        }
        Ok(())
    }),
    Op::new(
        "SparseAddGrad",
        "backprop_val_grad: T, a_indices: int64, b_indices: int64, sum_indices: int64 -> \
         a_val_grad: T, b_val_grad: T | T: numbertype",
    )
    .shape(|ctx| {
        let (a, b) = (ctx.with_rank(1, 2)?, ctx.with_rank(2, 2)?);
        ctx.set(0, PartialShape::of([a.dim(0)]));
        ctx.set(1, PartialShape::of([b.dim(0)]));
        Ok(())
    })
    .kernel(add_grad)
    .not_differentiable(),
    Op::new(
        "SparseTensorDenseAdd",
        "a_indices: Tindices, a_values: T, a_shape: Tindices, b: T -> output: T | T: numbertype; \
         Tindices: type {int32,int64}",
    )
    .shape(|ctx| {
        let shape = ctx.input(3);
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(add_dense)
    .gradient(|g| {
        let (at, dy) = (g.x(0), g.dy(0));
        g.set(1, dy.op("GatherNd", &[at]))?;
        g.set(3, dy)
    }),
];

/// A number with the magnitude that SparseAdd compares with its threshold.
trait Magnitude: Num {
    /// The type of magnitudes.
    type Real: Element;
    /// Returns whether the magnitude is at least `limit`.
    fn reaches(self, limit: Self::Real) -> bool;
}

macro_rules! magnitudes {
    ($($ty:ty, $real:ty, $reaches:expr;)*) => {$(
        impl Magnitude for $ty {
            type Real = $real;
            fn reaches(self, limit: $real) -> bool {
                $reaches(self, limit)
            }
        }
    )*};
}
magnitudes! {
    f32, f32, |x: f32, limit| limit <= x.abs();
    f64, f64, |x: f64, limit| limit <= x.abs();
    i8, i8, |x: i8, limit: i8| i32::from(limit) <= i32::from(x).abs();
    i16, i16, |x: i16, limit: i16| i32::from(limit) <= i32::from(x).abs();
    i32, i32, |x: i32, limit: i32| limit <= x.wrapping_abs();
    i64, i64, |x: i64, limit: i64| limit <= x.wrapping_abs();
    Complex32, f32, |x: Complex32, limit| limit <= x.norm();
    Complex64, f64, |x: Complex64, limit| limit <= x.norm();
}

fn check_sum(ctx: &KernelCtx) -> Result<usize> {
    let shape = |i: usize| ctx.input(i).map(Tensor::shape);
    let (a, b) = (shape(0)?, shape(3)?);
    if a.rank() != 2 || b.rank() != 2 {
        return Err(invalid_argument!(
            "Input indices should be matrices but received shapes: {a} and {b}"
        ));
    }
    if a[1] != b[1] {
        return Err(invalid_argument!(
            "Input indices must have the same dimension, got {} and {}",
            a[1],
            b[1]
        ));
    }
    let (x, y) = (shape(1)?, shape(4)?);
    if x.rank() != 1 || y.rank() != 1 {
        return Err(invalid_argument!(
            "Input values should be vectors but received shapes: {x} and {y}"
        ));
    }
    if x[0] != a[0] || y[0] != b[0] {
        return Err(invalid_argument!(
            "Expected {} and {} non-empty input values, got {} and {}",
            a[0],
            b[0],
            x[0],
            y[0]
        ));
    }
    let (of_a, of_b) = (shape(2)?, shape(5)?);
    if of_a.rank() != 1 || of_b.rank() != 1 {
        return Err(invalid_argument!(
            "Input shapes should be a vector but received shapes {of_a} and {of_b}"
        ));
    }
    if of_a[0] != a[1] {
        return Err(invalid_argument!(
            "Second dimension of a_indices and length of a_shape must match, got {} and {}",
            a[1],
            of_a[0]
        ));
    }
    if a[1] == 0 {
        return Err(invalid_argument!("Tesors must not be empty"));
    }
    same_shapes(ctx.input(2)?, ctx.input(5)?)?;
    if !shape(6)?.is_scalar() {
        return Err(invalid_argument!(
            "The magnitude threshold must be a scalar: got shape {}",
            shape(6)?
        ));
    }
    Ok(a[1])
}

/// Checks that two operands have the same shape.
pub(crate) fn same_shapes(a: &Tensor, b: &Tensor) -> Result<()> {
    let (a, b) = (a.slice::<i64>()?, b.slice::<i64>()?);
    if a.len() != b.len() {
        let shown = |sizes: &[i64]| {
            let first: Vec<String> = sizes.iter().take(10).map(i64::to_string).collect();
            first.join(" ") + if sizes.len() > 10 { "..." } else { "" }
        };
        return Err(invalid_argument!(
            "Operands do not have the same ranks; got shapes: {} and {}",
            shown(a),
            shown(b)
        ));
    }
    match a.iter().zip(b).position(|(a, b)| a != b) {
        Some(i) => Err(invalid_argument!(
            "Operands' shapes do not match: got {} and {} for dimension {i}",
            a[i],
            b[i]
        )),
        None => Ok(()),
    }
}

/// Calls `f` with the rows of both operands, merged in order: a row of the first, of the second,
/// or of both.
pub(crate) fn merge(
    a: (Rows, usize),
    b: (Rows, usize),
    mut f: impl FnMut(Option<usize>, Option<usize>),
) {
    let (mut i, mut j) = (0, 0);
    loop {
        let order = match (i < a.1, j < b.1) {
            (true, true) => a.0.row(i).cmp(b.0.row(j)),
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (false, false) => return,
        };
        f(order.is_le().then_some(i), order.is_ge().then_some(j));
        i += usize::from(order.is_le());
        j += usize::from(order.is_ge());
    }
}

fn add<T: Magnitude>(ctx: &mut KernelCtx) -> Result<()> {
    let rank = check_sum(ctx)?;
    let limit = ctx.input(6)?;
    if limit.dtype() != T::Real::DTYPE {
        return Err(invalid_argument!(
            "the threshold of a sum of {} must be {}, not {}",
            T::DTYPE,
            T::Real::DTYPE,
            limit.dtype()
        ));
    }
    let limit = limit.to_scalar::<T::Real>()?;
    let (a, b) = (ctx.slice::<T>(1)?, ctx.slice::<T>(4)?);
    let (a_rows, b_rows) = (Rows::of(ctx.input(0)?)?, Rows::of(ctx.input(3)?)?);
    let mut places = Vec::with_capacity((a.len() + b.len()) * rank);
    let mut values = Vec::with_capacity(a.len() + b.len());
    merge((a_rows, a.len()), (b_rows, b.len()), |i, j| {
        let of_a = i.and_then(|i| a.get(i)).copied();
        let of_b = j.and_then(|j| b.get(j)).copied();
        let value = match (of_a, of_b) {
            (Some(a), Some(b)) => Some(a.add(b)).filter(|sum| sum.reaches(limit)),
            (a, b) => a.or(b),
        };
        if let Some(value) = value {
            values.push(value);
            let row = i.map(|i| a_rows.row(i)).or(j.map(|j| b_rows.row(j)));
            places.extend_from_slice(row.unwrap_or_default());
        }
    });
    let at = Tensor::from_slice([values.len(), rank], &places)?;
    let shape = ctx.input(2)?.clone();
    ctx.set_output(0, at)?;
    ctx.set_output(1, Tensor::vector(&values)?)?;
    ctx.set_output(2, shape)
}

fn add_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    use DType::*;
    let dtype = build.output(0)?;
    if !matches!(
        dtype,
        Float | Double | Int64 | Int32 | Int16 | Int8 | Complex64 | Complex128
    ) {
        return Err(build.unsupported(dtype));
    }
    dispatch_items!(dtype, T => Ok(Box::new(divide_up::<T>)))
}

/// Each operand gets the gradients of the sum at its own positions.
fn divide_up<T: Item>(ctx: &mut KernelCtx) -> Result<()> {
    let (dy, sum) = (ctx.input(0)?, ctx.input(3)?);
    let (a, b) = (ctx.input(1)?, ctx.input(2)?);
    if [a, b, sum].iter().any(|t| t.shape().rank() != 2) {
        return Err(invalid_argument!(
            "Input indices should be matrices but received shapes: {} and {} and {}",
            a.shape(),
            b.shape(),
            sum.shape()
        ));
    }
    if dy.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Input backprop_val_grad should be a vector but received shape: {}",
            dy.shape()
        ));
    }
    let ranks = [a, b, sum].map(|t| t.shape()[1]);
    if ranks[0] != ranks[1] || ranks[1] != ranks[2] {
        return Err(invalid_argument!(
            "The densified operands should have the same ndims; for A, B, sum got: {}{}{}",
            ranks[0],
            ranks[1],
            ranks[2]
        ));
    }
    if dy.num_elements() != sum.shape()[0] {
        return Err(invalid_argument!(
            "# elements of backprop_val_grad and # rows of sum_indices should match (#nnz of sum): \
             got {} and {}",
            dy.num_elements(),
            sum.shape()[0]
        ));
    }
    let sums = Rows::of(sum)?;
    let from = dy.items::<T>()?;
    let share = |operand: &Tensor| -> Result<Tensor> {
        let n = operand.shape()[0];
        let mut out = Tensor::zeros(dy.dtype(), Shape::from([n]))?;
        let to = out.items_mut::<T>()?;
        merge((Rows::of(operand)?, n), (sums, from.len()), |i, k| {
            let to = i.and_then(|i| to.get_mut(i));
            if let (Some(to), Some(from)) = (to, k.and_then(|k| from.get(k))) {
                to.clone_from(from);
            }
        });
        Ok(out)
    };
    let (a, b) = (share(a)?, share(b)?);
    ctx.set_output(0, a)?;
    ctx.set_output(1, b)
}

fn add_dense(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let wide = match dtype {
        DType::Half | DType::Bfloat16 => DType::Float,
        dtype => dtype,
    };
    dispatch!(wide, T in
        [f32, f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] =>
            Ok(Box::new(to_dense::<T>)),
        else Err(build.unsupported(dtype)))
}

/// Checks the inputs; returns the positions of the values in the dense tensor.
fn places<I: Index>(ctx: &KernelCtx) -> Result<Vec<usize>> {
    let (at, values) = (ctx.input(0)?, ctx.input(1)?);
    let (shape, b) = (ctx.input(2)?, ctx.input(3)?);
    let &[n, rank] = at.shape().dims() else {
        return Err(invalid_argument!(
            "Input a_indices should be a matrix but received shape: {}",
            at.shape()
        ));
    };
    if values.shape().rank() != 1 || shape.shape().rank() != 1 {
        return Err(invalid_argument!(
            "Inputs a_values and a_shape should be vectors but received shapes: {} and {}",
            values.shape(),
            shape.shape()
        ));
    }
    for (wanted, found) in [(n, values.num_elements()), (rank, shape.num_elements())] {
        if wanted != found {
            return Err(invalid_argument!(
                "Dimensions {wanted} and {found} are not compatible"
            ));
        }
    }
    if rank != b.shape().rank() {
        return Err(invalid_argument!(
            "Two operands have different ranks; received: {rank} and {}",
            b.shape().rank()
        ));
    }
    let sizes: Vec<i64> = shape.slice::<I>()?.iter().map(|&d| d.to_i64()).collect();
    for (i, (&size, &dense)) in sizes.iter().zip(b.shape().dims()).enumerate() {
        if size != dense as i64 {
            return Err(invalid_argument!(
                "Dimension {i} does not equal (no broadcasting is supported): sparse side {size} \
                 vs dense side {dense}"
            ));
        }
    }
    let rows = at.slice::<I>()?.chunks_exact(rank.max(1));
    let mut places = Vec::with_capacity(n);
    for (i, row) in rows.enumerate() {
        let mut place = 0;
        for (d, (&x, &size)) in row.iter().zip(&sizes).enumerate() {
            let x = x.to_i64();
            if x < 0 || x >= size {
                return Err(invalid_argument!(
                    "Sparse tensor has an invalid index on dimension {d}: a_indices({i},{d}) = \
                     {x}, dense tensor shape: {}",
                    aligned(&sizes)
                ));
            }
            place = place * size as usize + x as usize;
        }
        places.push(place);
    }
    if !(1..=5).contains(&rank) {
        return Err(invalid_argument!(
            "Only tensors with ranks between 1 and 5 are currently supported.  Tensor rank: {rank}"
        ));
    }
    Ok(places)
}

fn to_dense<T: Num>(ctx: &mut KernelCtx) -> Result<()> {
    let index = ctx.input(0)?.dtype();
    let places = dispatch_index!(index, I => places::<I>(ctx))?;
    let (dtype, values) = (ctx.input(3)?.dtype(), wide_input(ctx, 1)?);
    let mut out = match dtype == T::DTYPE {
        true => ctx.take_input(3)?,
        false => wide_input(ctx, 3)?,
    };
    let to = out.slice_mut::<T>()?;
    for (place, &value) in places.into_iter().zip(values.slice::<T>()?) {
        if let Some(to) = to.get_mut(place) {
            *to = to.add(value);
        }
    }
    let out = narrow_output(ctx, out, dtype)?;
    ctx.set_output(0, out)
}
