//! [`Accumulator`]: the sum of gradients and how many they are (TensorFlow:
//! `core/kernels/conditional_accumulator.h`, `sparse_conditional_accumulator.h`).

use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::indices::int_vector;
use ferroflow_tensor::rows::prepended;
use ferroflow_tensor::{DType, Element, PartialShape, Shape, Tensor, dispatch, f16};
use std::ops::Add;

/// A gradient to add.
pub(crate) enum Contribution {
    /// A tensor.
    Dense(Tensor),
    /// Rows of a tensor, and its shape if it is known.
    Sparse {
        indices: Tensor,
        values: Tensor,
        shape: Option<Tensor>,
    },
}

/// What was taken.
pub(crate) enum Accumulated {
    Dense(Tensor),
    Sparse {
        indices: Vec<i64>,
        values: Tensor,
        shape: Vec<i64>,
    },
}

impl Accumulated {
    pub(crate) fn into_tensors(self) -> Result<Vec<Tensor>> {
        Ok(match self {
            Accumulated::Dense(t) => vec![t],
            Accumulated::Sparse {
                indices,
                values,
                shape,
            } => vec![vector(indices)?, values, vector(shape)?],
        })
    }
}

/// Rows that were added: their indices in ascending order, values, and how many gradients had each.
struct Rows {
    indices: Vec<i64>,
    counts: Vec<u32>,
    values: Tensor,
}

enum Sum {
    None,
    Dense(Tensor),
    Sparse(Rows),
}

pub(crate) struct Accumulator {
    dtype: DType,
    shape: PartialShape,
    is_mean: bool,
    is_sparse: bool,
    step: i64,
    count: usize,
    sum: Sum,
}

impl Accumulator {
    pub(crate) fn new(dtype: DType, shape: PartialShape, is_mean: bool, is_sparse: bool) -> Self {
        Accumulator {
            dtype,
            shape,
            is_mean,
            is_sparse,
            step: 0,
            count: 0,
            sum: Sum::None,
        }
    }

    pub(crate) fn dtype(&self) -> DType {
        self.dtype
    }

    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn set_step(&mut self, step: i64) {
        self.step = step;
    }

    /// Adds a gradient of step `step`, unless it is stale.
    pub(crate) fn add(&mut self, step: i64, gradient: &Contribution) -> Result<()> {
        if step < self.step {
            return Ok(());
        }
        match gradient {
            Contribution::Dense(t) if !self.is_sparse => self.add_dense(t)?,
            Contribution::Sparse {
                indices,
                values,
                shape,
            } if self.is_sparse => {
                check_rows(indices, values)?;
                self.check_sparse(indices, values, shape.as_ref())?;
                self.add_rows(indices.slice::<i64>()?, values)?;
            }
            _ => {
                return Err(invalid_argument!(
                    "the accumulator holds {} gradients",
                    if self.is_sparse { "sparse" } else { "dense" }
                ));
            }
        }
        self.count += 1;
        Ok(())
    }

    fn add_dense(&mut self, t: &Tensor) -> Result<()> {
        if self.count > 0
            && let Sum::Dense(sum) = &self.sum
            && sum.shape() != t.shape()
        {
            return Err(mismatch(sum.shape(), t));
        }
        if !self.shape.matches(t.shape()) {
            return Err(mismatch(&self.shape, t));
        }
        match &mut self.sum {
            Sum::Dense(sum) if self.count > 0 => each(self.dtype, sum, t),
            sum => {
                *sum = Sum::Dense(t.clone());
                Ok(())
            }
        }
    }

    fn check_sparse(
        &self,
        indices: &Tensor,
        values: &Tensor,
        shape: Option<&Tensor>,
    ) -> Result<()> {
        let dims = self.shape.dims().unwrap_or(&[]);
        if let Some(shape) = shape {
            let sizes = shape.slice::<i64>()?;
            if dims.len() > sizes.len() {
                return Err(invalid_argument!(
                    "Shape mismatch: expected shape rank at least {}, got {}",
                    dims.len(),
                    sizes.len()
                ));
            }
            for (i, (dim, &size)) in dims.iter().zip(sizes).enumerate() {
                if let Some(n) = *dim
                    && n as i64 != size
                {
                    return Err(invalid_argument!(
                        "Shape mismatch: expected shape dim {i} to be {n}, got {size}"
                    ));
                }
            }
        }
        if let Some(Some(limit)) = dims.first().copied() {
            for (i, &index) in indices.slice::<i64>()?.iter().enumerate() {
                if index >= limit as i64 {
                    return Err(invalid_argument!(
                        "Shape mismatch: index of slice {i} exceeded limits of shape; index is \
                         {index} exceeded {limit}"
                    ));
                }
            }
        }
        self.check_values(dims, values.shape())
    }

    fn check_values(&self, dims: &[Option<usize>], got: &[usize]) -> Result<()> {
        let present: Vec<Option<usize>> = match &self.sum {
            Sum::Sparse(rows) if self.count > 0 => {
                let shape = rows.values.shape();
                if shape.len() != got.len() {
                    return Err(invalid_argument!(
                        "Shape mismatch: expected values rank {}, got {}",
                        shape.len(),
                        got.len()
                    ));
                }
                shape.iter().map(|&n| Some(n)).collect()
            }
            _ => {
                if dims.len() > got.len() {
                    return Err(invalid_argument!(
                        "Shape mismatch: expected values rank at least {}, got {}",
                        dims.len(),
                        got.len()
                    ));
                }
                dims.to_vec()
            }
        };
        for (i, (dim, &n)) in present.iter().zip(got).enumerate().skip(1) {
            if let Some(expected) = *dim
                && expected != n
            {
                return Err(invalid_argument!(
                    "Shape mismatch: expected values dim {i} to be {expected}, got {n}"
                ));
            }
        }
        Ok(())
    }

    fn add_rows(&mut self, indices: &[i64], values: &Tensor) -> Result<()> {
        let rows = match &self.sum {
            Sum::Sparse(rows) if self.count > 0 => rows,
            _ => {
                self.sum = Sum::Sparse(Rows {
                    indices: indices.to_vec(),
                    counts: vec![1; indices.len()],
                    values: values.clone(),
                });
                return Ok(());
            }
        };
        let merged = dispatch!(self.dtype, T in [f16, f32, f64] => merge::<T>(rows, indices, values),
            else Err(internal!("no accumulator of {}", self.dtype)))?;
        self.sum = Sum::Sparse(merged);
        Ok(())
    }

    /// Takes the mean or the sum; the accumulator is empty then, and one step on.
    pub(crate) fn take(&mut self) -> Result<Accumulated> {
        self.step = self.step.wrapping_add(1);
        let n = std::mem::take(&mut self.count);
        match std::mem::replace(&mut self.sum, Sum::None) {
            Sum::Dense(mut t) => {
                if self.is_mean {
                    divide(self.dtype, &mut t, |_| n as u32)?;
                }
                Ok(Accumulated::Dense(t))
            }
            Sum::Sparse(rows) => {
                let mut values = rows.values;
                if self.is_mean {
                    let width = width(values.shape());
                    divide(self.dtype, &mut values, |i| rows.counts[i / width])?;
                }
                let first = self.shape.dims().and_then(|d| d.first().copied().flatten());
                let mut shape: Vec<i64> = values.shape().iter().map(|&n| n as i64).collect();
                if let Some(size) = shape.first_mut() {
                    *size = first.map_or(-1, |n| n as i64);
                }
                Ok(Accumulated::Sparse {
                    indices: rows.indices,
                    values,
                    shape,
                })
            }
            Sum::None => Err(internal!("the accumulator is empty")),
        }
    }
}

fn vector(values: Vec<i64>) -> Result<Tensor> {
    int_vector(DType::Int64, values.into_iter())
}

#[cold]
fn mismatch(expected: &dyn std::fmt::Display, got: &Tensor) -> ferroflow_base::Status {
    invalid_argument!("Shape mismatch: expected {expected}, got {}", got.shape())
}

fn check_rows(indices: &Tensor, values: &Tensor) -> Result<()> {
    let [n] = indices.shape()[..] else {
        return Err(invalid_argument!(
            "Input indices should be vector but received shape: {}",
            indices.shape()
        ));
    };
    match values.shape().first() {
        None => Err(invalid_argument!("Values cannot be 0-dimensional.")),
        Some(&rows) if rows != n => Err(invalid_argument!(
            "Expected {n} non-empty input values, got {rows}"
        )),
        _ => Ok(()),
    }
}

fn width(shape: &Shape) -> usize {
    shape.iter().skip(1).product::<usize>().max(1)
}

/// Adds `t` to `sum`, element by element.
fn each(dtype: DType, sum: &mut Tensor, t: &Tensor) -> Result<()> {
    dispatch!(dtype, T in [f16, f32, f64] => {
        let more = t.slice::<T>()?;
        let to = sum.slice_mut::<T>()?;
        to.iter_mut().zip(more).for_each(|(a, b)| *a += *b);
        Ok(())
    }, else Err(internal!("no accumulator of {dtype}")))
}

fn divide(dtype: DType, t: &mut Tensor, by: impl Fn(usize) -> u32) -> Result<()> {
    match dtype {
        DType::Half => {
            let items = t.slice_mut::<f16>()?.iter_mut().enumerate();
            items.for_each(|(i, x)| *x /= f16::from_f32(by(i) as f32));
        }
        DType::Float => {
            let items = t.slice_mut::<f32>()?.iter_mut().enumerate();
            items.for_each(|(i, x)| *x /= by(i) as f32);
        }
        _ => {
            let items = t.slice_mut::<f64>()?.iter_mut().enumerate();
            items.for_each(|(i, x)| *x /= f64::from(by(i)));
        }
    }
    Ok(())
}

/// Merges rows by index, as two sorted lists.
fn merge<T: Element + Add<Output = T>>(a: &Rows, indices: &[i64], values: &Tensor) -> Result<Rows> {
    let width = width(values.shape());
    let (left, right) = (a.values.slice::<T>()?, values.slice::<T>()?);
    let row = |all: &[T], i: usize| all.get(i * width..(i + 1) * width).unwrap_or(&[]).to_vec();
    let mut out = Rows {
        indices: Vec::with_capacity(a.indices.len() + indices.len()),
        counts: Vec::new(),
        values: Tensor::scalar(0i32),
    };
    let mut sum: Vec<T> = Vec::new();
    let (mut i, mut j) = (0, 0);
    loop {
        let pair = (a.indices.get(i).copied(), indices.get(j).copied());
        let (index, from_a, from_b) = match pair {
            (Some(x), Some(y)) if x == y => (x, true, true),
            (Some(x), Some(y)) if x > y => (y, false, true),
            (Some(x), _) => (x, true, false),
            (None, Some(y)) => (y, false, true),
            (None, None) => break,
        };
        let mut next = if from_a { row(left, i) } else { row(right, j) };
        if from_a && from_b {
            let more = row(right, j);
            next.iter_mut().zip(more).for_each(|(x, y)| *x = y + *x);
        }
        out.indices.push(index);
        out.counts
            .push(if from_a { a.counts[i] } else { 0 } + u32::from(from_b));
        sum.extend(next);
        i += usize::from(from_a);
        j += usize::from(from_b);
    }
    let row: Shape = values.shape().iter().skip(1).copied().collect();
    let shape = prepended(out.indices.len(), &row)?;
    out.values = Tensor::from_slice(shape, &sum)?;
    Ok(out)
}
