//! Ops that return their input, with the same or another shape, or only its shape.

use crate::kernel::{GpuCtx, GpuKernel, Row, axis};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices;
use ferroflow_functors::shapes::reshape_to;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};

const ANY: &[(&str, &[DType])] = crate::data::T;
/// Lists, whose elements may be on the device, and handles of variables.
const HANDLES: &[(&str, &[DType])] = &[("T", &[DType::Variant, DType::Resource])];

pub(crate) const ROWS: &[Row] = &[
    Row::new("Identity", identity).types(ANY),
    Row::new("StopGradient", identity).types(ANY),
    Row::new("PreventGradient", identity).types(ANY),
    Row::new("Snapshot", identity).types(ANY),
    Row::passes("Identity").types(HANDLES),
    Row::passes("StopGradient").types(HANDLES),
    Row::passes("PreventGradient").types(HANDLES),
    Row::passes("IdentityN"),
    Row::new("Reshape", reshape).types(ANY).host(&["shape"]),
    Row::new("ExpandDims", expand_dims)
        .types(ANY)
        .host(&["dim"]),
    Row::new("Squeeze", squeeze).types(ANY),
    Row::new("Shape", shape).types(ANY).host(&["output"]),
    Row::new("Size", shape).types(ANY).host(&["output"]),
    Row::new("Rank", shape).types(ANY).host(&["output"]),
    Row::passes("ShapeN").types(ANY),
    Row::passes("EnsureShape").types(ANY),
];

fn identity(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let x = ctx.pass(0)?;
        ctx.set_output(0, x)
    }))
}

fn reshape(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, sizes) = (ctx.pass(0)?, ctx.host(1)?);
        if sizes.shape().rank() > 1 {
            return Err(invalid_argument!(
                "sizes input must be 1-D, not {}",
                sizes.shape()
            ));
        }
        if sizes.num_elements() >= 254 {
            return Err(invalid_argument!(
                "too many dimensions: must be < 254, but received {}",
                sizes.num_elements()
            ));
        }
        let shape = reshape_to(&indices::ints(&sizes)?, x.shape())?;
        let y = x.with_shape(shape)?;
        ctx.set_output(0, y)
    }))
}

fn expand_dims(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (x, at) = (ctx.pass(0)?, ctx.ints(1)?);
        let [at] = at[..] else {
            return Err(invalid_argument!(
                "'dim' must be a tensor with a single value"
            ));
        };
        let at = axis(at, x.shape().rank() + 1)?;
        let mut dims = x.shape().to_vec();
        dims.insert(at, 1);
        let y = x.with_shape(Shape::from(&dims[..]))?;
        ctx.set_output(0, y)
    }))
}

fn squeeze(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let wanted = build.attrs.ints("squeeze_dims")?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let x = ctx.pass(0)?;
        let rank = x.shape().rank();
        let mut removed: Vec<bool> = x
            .shape()
            .iter()
            .map(|n| wanted.is_empty() && *n == 1)
            .collect();
        for a in &wanted {
            let at = axis(*a, rank)?;
            if x.shape()[at] != 1 {
                return Err(invalid_argument!(
                    "Can not squeeze dim[{at}], expected a dimension of 1, got {}",
                    x.shape()[at]
                ));
            }
            removed[at] = true;
        }
        let dims = x.shape().iter().zip(&removed).filter(|(_, r)| !**r);
        let shape = dims.map(|(n, _)| *n).collect();
        let y = x.with_shape(shape)?;
        ctx.set_output(0, y)
    }))
}

/// Shape, Size and Rank.
fn shape(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let (op, dtype) = (build.def.name.to_string(), build.output(0)?);
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let x = ctx.pass(0)?;
        let dims = x.shape().to_i64();
        let numbers = match &*op {
            "Shape" => dims.to_vec(),
            "Size" => vec![x.num_elements() as i64],
            _ => vec![x.shape().rank() as i64],
        };
        let y = match dtype {
            DType::Int64 => Tensor::vector(&numbers)?,
            _ => {
                let small = numbers.iter().map(|n| i32::try_from(*n));
                let small: Result<Vec<i32>, _> = small.collect();
                let too_large = |_| invalid_argument!("{op} output does not fit into int32");
                Tensor::vector(&small.map_err(too_large)?)?
            }
        };
        let y = match &*op {
            "Shape" => y,
            _ => y.with_shape(Shape::scalar())?,
        };
        ctx.set_output(0, y)
    }))
}
