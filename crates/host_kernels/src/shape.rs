//! `ts.*`: tensor shapes.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_host_context::{Arg, ArrayAttr, Ctx, HostValue, KernelRegistry};
use ferroflow_sync::Chain;
use smallvec::SmallVec;
use std::fmt;

/// Dimensions, up to four inline.
pub type Dims = SmallVec<[i64; 4]>;

/// The dimensions of a tensor.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TensorShape(pub Dims);

/// Dimensions of which some (-1), or all, are unknown.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PartialTensorShape(pub Option<Vec<i64>>);

/// A shape whose rank is part of its type.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FixedRankShape(pub Vec<i64>);

impl HostValue for TensorShape {}
impl HostValue for PartialTensorShape {}
impl HostValue for FixedRankShape {}

impl TensorShape {
    /// Creates a shape from the attribute of a kernel.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for a negative dimension.
    pub fn new(dims: impl Into<Dims>) -> Result<Self> {
        let dims = dims.into();
        if dims.iter().any(|d| *d < 0) {
            return Err(invalid_argument!("negative dimension in shape {dims:?}"));
        }
        Ok(TensorShape(dims))
    }

    /// Returns the number of elements of a tensor of this shape.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if it overflows.
    pub fn n_elements(&self) -> Result<usize> {
        let product = self
            .0
            .iter()
            .try_fold(1usize, |n, d| n.checked_mul(usize::try_from(*d).ok()?));
        product.ok_or_else(|| invalid_argument!("shape {self} has too many elements"))
    }
}

fn list(dims: &[i64], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
    write!(f, "[{}]", dims.join(", "))
}

impl fmt::Display for TensorShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(&self.0, f)
    }
}

impl fmt::Display for FixedRankShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        list(&self.0, f)
    }
}

impl fmt::Display for PartialTensorShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Some(dims) => list(dims, f),
            None => f.write_str("Unknown rank"),
        }
    }
}

fn build(dims: ArrayAttr<i64>) -> Result<TensorShape> {
    TensorShape::new(dims.0)
}

fn build_partial(dims: ArrayAttr<i64>) -> PartialTensorShape {
    PartialTensorShape(Some(dims.0))
}

fn print(shape: Arg<TensorShape>, ctx: Ctx) -> Chain {
    ctx.host().print(&format!("shape = {}\n", *shape));
    Chain
}

fn print_fixed(shape: Arg<FixedRankShape>, ctx: Ctx) -> Chain {
    ctx.host()
        .print(&format!("fixed_rank_shape = {}\n", *shape));
    Chain
}

fn print_partial(shape: Arg<PartialTensorShape>, ctx: Ctx) -> Chain {
    ctx.host()
        .print(&format!("partial_tensor_shape = {}\n", *shape));
    Chain
}

fn dimension(shape: Arg<TensorShape>, i: i32) -> Result<i64> {
    let dim = usize::try_from(i).ok().and_then(|i| shape.0.0.get(i));
    dim.copied()
        .ok_or_else(|| invalid_argument!("shape {} has no dimension {i}", *shape))
}

fn to_shape(shape: Arg<PartialTensorShape>) -> Result<TensorShape> {
    let Some(dims) = &shape.0.0 else {
        return Err(invalid_argument!("Unknown rank"));
    };
    let unknown = dims.iter().enumerate().filter(|(_, d)| **d < 0);
    let unknown: Vec<String> = unknown.map(|(i, _)| i.to_string()).collect();
    if unknown.is_empty() {
        return Ok(TensorShape(dims.as_slice().into()));
    }
    Err(invalid_argument!(
        "Unknown dimensions at following indices = [{}]",
        unknown.join(", ")
    ))
}

fn to_partial(shape: Arg<TensorShape>) -> PartialTensorShape {
    PartialTensorShape(Some(shape.0.0.to_vec()))
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry
        .add("ts.build_shape", build)
        .add("ts.print_shape", print)
        .add(
            "ts.equal_shape",
            |a: Arg<TensorShape>, b: Arg<TensorShape>| *a == *b,
        )
        .add("ts.get_dimension", dimension)
        .add("ts.get_num_elements", |shape: Arg<TensorShape>| {
            shape.n_elements().map(|n| n as i64)
        })
        .add("ts.build_partial_shape", build_partial)
        .add("ts.build_unranked_partial_shape", || {
            PartialTensorShape(None)
        })
        .add("ts.print_partial_shape", print_partial)
        .add("ts.to_shape", to_shape)
        .add("ts.to_partial_shape", to_partial)
        .add_sync("ts_sync.build_shape", build)
        .add_sync("ts_sync.build_partial_shape", build_partial)
        .add_sync("ts_sync.to_partial_shape", to_partial);
    for rank in 0..8usize {
        let as_fixed = move |shape: Arg<TensorShape>| match shape.0.0.len() == rank {
            true => Ok(FixedRankShape(shape.0.0.to_vec())),
            false => Err(invalid_argument!("shape {} is not of rank {rank}", *shape)),
        };
        registry
            .add(&format!("ts.as_fixed_rank_shape.{rank}"), as_fixed)
            .add(&format!("ts.print_fixed_rank_shape.{rank}"), print_fixed);
    }
}
