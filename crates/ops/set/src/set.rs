//! SetSize and the set operations (TensorFlow: `core/kernels/set_kernels.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::list;
use ferroflow_functors::sparse::{check_ordered, groups};
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor, dispatch};
use std::cmp::Ordering;
use std::collections::BTreeMap;
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SetSize",
        "set_indices: int64, set_values: T, set_shape: int64 -> size: int32 | \
         validate_indices: bool = true; T: type \
         {int8,int16,int32,int64,uint8,uint16,string}",
    )
    .kernel(size_kernel)
    .not_differentiable(),
    Op::new(
        "DenseToDenseSetOperation",
        "set1: T, set2: T -> result_indices: int64, result_values: T, result_shape: int64 \
         | set_operation: string; validate_indices: bool = true; T: type \
         {int8,int16,int32,int64,uint8,uint16,string}",
    )
    .shape(|ctx| {
        ctx.with_rank_at_least(0, 2)?;
        ctx.with_rank_at_least(1, 2)?;
        let rank = ctx.input(0).rank().or(ctx.input(1).rank());
        result_shape(ctx, rank)
    })
    .kernel(|build| operation_kernel(build, [Form::Dense(0), Form::Dense(1)]))
    .not_differentiable(),
    Op::new(
        "DenseToSparseSetOperation",
        "set1: T, set2_indices: int64, set2_values: T, set2_shape: int64 -> \
         result_indices: int64, result_values: T, result_shape: int64 | set_operation: \
         string; validate_indices: bool = true; T: type \
         {int8,int16,int32,int64,uint8,uint16,string}",
    )
    .shape(|ctx| {
        ctx.with_rank_at_least(0, 2)?;
        let rank = ctx.input(0).rank().or(ctx.input(3).dim(0));
        result_shape(ctx, rank)
    })
    .kernel(|build| operation_kernel(build, [Form::Dense(0), Form::Sparse(1)]))
    .not_differentiable(),
    Op::new(
        "SparseToSparseSetOperation",
        "set1_indices: int64, set1_values: T, set1_shape: int64, set2_indices: int64, \
         set2_values: T, set2_shape: int64 -> result_indices: int64, result_values: T, \
         result_shape: int64 | set_operation: string; validate_indices: bool = true; T: \
         type {int8,int16,int32,int64,uint8,uint16,string}",
    )
    .shape(|ctx| {
        let rank = ctx.input(2).dim(0).or(ctx.input(5).dim(0));
        result_shape(ctx, rank)
    })
    .kernel(|build| operation_kernel(build, [Form::Sparse(0), Form::Sparse(3)]))
    .not_differentiable(),
];

fn result_shape(ctx: &mut ShapeCtx, rank: Option<usize>) -> Result<()> {
    ctx.set(0, PartialShape::of([None, rank]));
    ctx.set(1, PartialShape::of_rank(1));
    ctx.set(2, PartialShape::of([rank]));
    Ok(())
}

/// How a group of sets is fed, with its first input.
#[derive(Clone, Copy)]
enum Form {
    Dense(usize),
    Sparse(usize),
}

/// The sets of one operand: the last dimension of a tensor.
struct Sets {
    shape: Vec<i64>,
    values: Tensor,
    /// Coordinates, with those of the last dimension, and the values of each set that has some.
    groups: Vec<(Vec<i64>, Range<usize>)>,
}

impl Sets {
    fn of(ctx: &KernelCtx, form: Form, validate: bool) -> Result<Sets> {
        match form {
            Form::Dense(i) => Self::dense(ctx.input(i)?),
            Form::Sparse(i) => Self::sparse(
                ctx.input(i)?,
                ctx.input(i + 1)?,
                ctx.input(i + 2)?,
                validate,
            ),
        }
    }

    fn dense(values: &Tensor) -> Result<Sets> {
        let shape = values.shape().to_i64().to_vec();
        let width = values.shape().last().copied().unwrap_or(1);
        // The rank is checked when both sets have been read.
        let outer = &values.shape()[..shape.len().saturating_sub(1)];
        let n = outer.iter().product();
        let group = |i: usize| {
            let (mut rest, mut at) = (i, vec![0; outer.len()]);
            for (x, &size) in at.iter_mut().zip(outer).rev() {
                *x = (rest % size) as i64;
                rest /= size;
            }
            (at, i * width..(i + 1) * width)
        };
        // Sets without a value have no group.
        let n = if width == 0 { 0 } else { n };
        Ok(Sets {
            shape,
            values: values.clone(),
            groups: (0..n).map(group).collect(),
        })
    }

    fn sparse(indices: &Tensor, values: &Tensor, shape: &Tensor, validate: bool) -> Result<Sets> {
        if shape.shape().rank() != 1 {
            return Err(invalid_argument!("Shape must be a 1D tensor."));
        }
        let shape = shape.slice::<i64>()?.to_vec();
        if let Some(d) = shape.iter().find(|&&d| d < 0) {
            return Err(invalid_argument!(
                "Expected shape dimensions to be non-negative, got {d}"
            ));
        }
        Shape::checked(&shape)?;
        if shape.len() < 2 {
            return Err(invalid_argument!("Invalid rank {}.", shape.len()));
        }
        if values.shape().rank() != 1 {
            return Err(invalid_argument!(
                "vals must be a vec, but got: {}",
                values.shape()
            ));
        }
        let n = indices.shape().first().copied().unwrap_or(0);
        if n != values.num_elements() {
            return Err(invalid_argument!(
                "indices and values rows (indexing dimension) must match. (indices = {n}, values = {})",
                values.num_elements()
            ));
        }
        let [_, rank] = *indices.shape().dims() else {
            return Err(invalid_argument!(
                "indices must be a matrix, but got: {}",
                indices.shape()
            ));
        };
        if rank != shape.len() {
            return Err(invalid_argument!("Order length must be SparseTensor rank."));
        }
        let at = indices.slice::<i64>()?;
        if validate {
            check_ordered(at, rank, &shape)?;
        }
        let key = |group: Range<usize>| {
            let first = group.start * rank;
            (at[first..first + rank - 1].to_vec(), group)
        };
        let groups = groups(at, rank).into_iter().map(key).collect();
        Ok(Sets {
            shape,
            values: values.clone(),
            groups,
        })
    }

    fn group_shape(&self) -> &[i64] {
        self.shape.split_last().map_or(&[], |(_, outer)| outer)
    }
}

fn check_rank(shape: &[i64]) -> Result<()> {
    match shape.len() {
        0 | 1 => Err(invalid_argument!(
            "Shape {} has rank {} < 2",
            list(shape),
            shape.len()
        )),
        _ => Ok(()),
    }
}

fn size_kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let validate = build.attrs.bool("validate_indices")?;
    let dtype = build.input(1)?;
    dispatch_values(build, dtype)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let sets = Sets::of(ctx, Form::Sparse(0), validate)?;
        let shape = Shape::checked(sets.group_shape())?;
        let strides = shape.strides();
        let mut out = Tensor::zeros(DType::Int32, shape.clone())?;
        let sizes = out.slice_mut::<i32>()?;
        for (at, group) in &sets.groups {
            let n = match dtype {
                DType::String => distinct(&sets.values.strings()?[group.clone()]),
                _ => dispatch!(dtype, T in [i8, i16, i32, i64, u8, u16] =>
                    distinct(&sets.values.slice::<T>()?[group.clone()]), else 0),
            };
            let terms = at.iter().zip(&strides);
            let place = terms.fold(0i64, |sum, (&x, &stride)| {
                sum.wrapping_add(x.wrapping_mul(stride as i64))
            });
            let size = usize::try_from(place).ok().and_then(|i| sizes.get_mut(i));
            let Some(size) = size else {
                return Err(invalid_argument!(
                    "Index out of range, {} vs {shape}",
                    list(at)
                ));
            };
            *size = n as i32;
        }
        ctx.set_output(0, out)
    }))
}

fn distinct<T: Ord>(values: &[T]) -> usize {
    let mut sorted: Vec<&T> = values.iter().collect();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.len()
}

fn dispatch_values(build: &KernelBuild, dtype: DType) -> Result<()> {
    use DType::{Int8, Int16, Int32, Int64, String, Uint8, Uint16};
    match dtype {
        Int8 | Int16 | Int32 | Int64 | Uint8 | Uint16 | String => Ok(()),
        _ => Err(build.unsupported(dtype)),
    }
}

#[derive(Clone, Copy)]
enum Operation {
    AMinusB,
    BMinusA,
    Intersection,
    Union,
}

fn operation_kernel(build: &KernelBuild, forms: [Form; 2]) -> Result<Box<dyn OpKernel>> {
    let validate = build.attrs.bool("validate_indices")?;
    let name = build.attrs.str("set_operation")?.to_ascii_lowercase();
    let operation = match &name[..] {
        "a-b" => Operation::AMinusB,
        "b-a" => Operation::BMinusA,
        "intersection" => Operation::Intersection,
        "union" => Operation::Union,
        _ => return Err(invalid_argument!("Invalid set_operation {name}.")),
    };
    let dtype = build.output(1)?;
    dispatch_values(build, dtype)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let [first, second] = forms;
        let sets = [
            Sets::of(ctx, first, validate)?,
            Sets::of(ctx, second, validate)?,
        ];
        let [a, b] = &sets;
        check_rank(&a.shape)?;
        check_rank(&b.shape)?;
        if a.group_shape() != b.group_shape() {
            return Err(invalid_argument!(
                "Mismatched shapes {} vs {}",
                list(a.group_shape()),
                list(b.group_shape())
            ));
        }
        let groups = paired(a, b);
        if dtype == DType::String {
            let values = [a.values.strings()?, b.values.strings()?];
            let (sizes, strings) = results(&groups, values, operation);
            let values = Tensor::from_strings([strings.len()], strings)?;
            return write(ctx, a.group_shape().to_vec(), &sizes, values);
        }
        dispatch!(dtype, T in [i8, i16, i32, i64, u8, u16] => {
            let values = [a.values.slice::<T>()?, b.values.slice::<T>()?];
            let (sizes, numbers) = results(&groups, values, operation);
            let values = Tensor::vector(&numbers)?;
            write(ctx, a.group_shape().to_vec(), &sizes, values)
        }, else Ok(()))
    }))
}

/// The groups of both operands by their coordinates, in order.
fn paired(a: &Sets, b: &Sets) -> BTreeMap<Vec<i64>, [Vec<Range<usize>>; 2]> {
    let mut groups: BTreeMap<Vec<i64>, [Vec<Range<usize>>; 2]> = BTreeMap::new();
    for (side, sets) in [a, b].into_iter().enumerate() {
        for (at, range) in &sets.groups {
            let pair = groups.entry(at.clone()).or_default();
            pair[side].push(range.clone());
        }
    }
    groups
}

/// The coordinates and the size of each group's result that is not empty, and the elements of all, in order.
fn results<'a, T: Ord + Clone>(
    groups: &'a BTreeMap<Vec<i64>, [Vec<Range<usize>>; 2]>,
    values: [&[T]; 2],
    operation: Operation,
) -> (Vec<(&'a [i64], usize)>, Vec<T>) {
    let (mut sizes, mut found) = (Vec::new(), Vec::new());
    let mut sets = [Vec::new(), Vec::new()];
    for (at, ranges) in groups {
        for ((set, ranges), values) in sets.iter_mut().zip(ranges).zip(values) {
            set.clear();
            let parts = ranges.iter().filter_map(|range| values.get(range.clone()));
            set.extend(parts.flatten().cloned());
            set.sort_unstable();
            set.dedup();
        }
        let before = found.len();
        merge(&sets, operation, &mut found);
        if found.len() > before {
            sizes.push((&at[..], found.len() - before));
        }
    }
    (sizes, found)
}

/// Adds the result for two sets, in order, to `to`.
fn merge<T: Ord + Clone>([a, b]: &[Vec<T>; 2], operation: Operation, to: &mut Vec<T>) {
    let (only_a, only_b, both) = match operation {
        Operation::AMinusB => (true, false, false),
        Operation::BMinusA => (false, true, false),
        Operation::Intersection => (false, false, true),
        Operation::Union => (true, true, true),
    };
    let (mut a, mut b) = (&a[..], &b[..]);
    while let ([x, rest_a @ ..], [y, rest_b @ ..]) = (a, b) {
        let order = x.cmp(y);
        let (x, is_kept) = match order {
            Ordering::Less => (x, only_a),
            Ordering::Greater => (y, only_b),
            Ordering::Equal => (x, both),
        };
        if is_kept {
            to.push(x.clone());
        }
        if order.is_le() {
            a = rest_a;
        }
        if order.is_ge() {
            b = rest_b;
        }
    }
    for (rest, is_kept) in [(a, only_a), (b, only_b)] {
        if is_kept {
            to.extend_from_slice(rest);
        }
    }
}

/// Sets the outputs: coordinates, values and the shape.
fn write(
    ctx: &mut KernelCtx,
    mut shape: Vec<i64>,
    sizes: &[(&[i64], usize)],
    values: Tensor,
) -> Result<()> {
    let mut indices = Vec::new();
    for &(at, n) in sizes {
        for i in 0..n {
            indices.extend_from_slice(at);
            indices.push(i as i64);
        }
    }
    let largest = sizes.iter().map(|&(_, n)| n).max().unwrap_or(0);
    shape.push(largest as i64);
    let dims = [values.num_elements(), shape.len()];
    ctx.set_output(0, Tensor::from_slice(dims, &indices)?)?;
    ctx.set_output(1, values)?;
    ctx.set_output(2, Tensor::vector(&shape)?)
}
