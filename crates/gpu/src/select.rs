//! Choices by conditions, which are copied from the host, and fills.

use crate::data;
use crate::elementwise;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row};
use crate::ptx::Step;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::broadcast::broadcast_shape;
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{DType, Shape, Tensor};

pub(crate) const ROWS: &[Row] = &[
    Row::new("Select", select),
    Row::new("SelectV2", select),
    Row::new("Fill", fill).host(&["dims", "value"]),
    Row::new("OnesLike", ones_like).types(&[("T", FLOATS)]),
];

fn select(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let is_first = build.def.name == "Select";
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (mut condition, a, b) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
        if is_first {
            condition = rows(ctx.node(), condition, &a, &b)?;
        }
        let shape = broadcast_shape(condition.shape(), a.shape())?;
        let y = ctx.alloc(a.dtype(), broadcast_shape(&shape, b.shape())?)?;
        elementwise::run(ctx, &[Step::Select(0, 1, 2)], &[condition, a, b], &y)?;
        ctx.set_output(0, y)
    }))
}

/// The condition of a Select: a vector chooses rows.
fn rows(node: &str, condition: Tensor, a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let own = condition.shape().clone();
    let by_row = own.rank() == 1 && a.shape().rank() != 1;
    if (by_row || own.is_scalar()) && a.shape() != b.shape() {
        return Err(invalid_argument!(
            "'then' and 'else' must have the same size.  but received: {} vs. {}",
            a.shape(),
            b.shape()
        ));
    }
    let others = [(1, a), (2, b)];
    let differs = |(_, t): &&(i32, &Tensor)| *t.shape() != own;
    if !by_row
        && !own.is_scalar()
        && let Some((i, other)) = others.iter().find(differs)
    {
        return Err(invalid_argument!(
            "Inputs to operation {node} of type Select must have the same size and shape.  Input 0: {own} != input {i}: {}",
            other.shape()
        ));
    }
    if by_row && a.shape().is_scalar() {
        return Err(invalid_argument!(
            "'then' must be at least a vector, but saw shape: {}",
            a.shape()
        ));
    }
    if by_row && a.shape().first() != own.first() {
        return Err(invalid_argument!(
            "Number of batches of 'then' must match size of 'cond', but saw: {} vs. {}",
            a.shape().first().copied().unwrap_or(0),
            own.num_elements()
        ));
    }
    match own == *a.shape() || own.is_scalar() {
        true => Ok(condition),
        false => {
            let ones = std::iter::repeat_n(1, a.shape().rank() - 1);
            condition.with_shape(own.iter().copied().chain(ones).collect())
        }
    }
}

fn fill(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let (dims, value) = (ctx.ints(0)?, ctx.pass(1)?);
        if value.num_elements() != 1 {
            return Err(invalid_argument!(
                "value must be a scalar, got shape {}",
                value.shape()
            ));
        }
        let value = value.with_shape(Shape::scalar())?;
        let shape = Shape::checked(&dims)?;
        if shape.is_scalar() {
            return ctx.set_output(0, value);
        }
        if value.is_on_device() {
            let y = data::broadcast(ctx, &value, &shape)?;
            return ctx.set_output(0, y);
        }
        let y = ctx.alloc(value.dtype(), shape)?;
        ctx.memory.fill(&y, ctx.host(1)?.bytes()?)?;
        ctx.set_output(0, y)
    }))
}

fn ones_like(_: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    Ok(Box::new(|ctx: &mut GpuCtx| {
        let x = ctx.pass(0)?;
        let y = ctx.alloc(x.dtype(), x.shape().clone())?;
        let one: &[u8] = match x.dtype() {
            DType::Half => &[0x00, 0x3c],
            DType::Bfloat16 => &[0x80, 0x3f],
            _ => &[0, 0, 0x80, 0x3f],
        };
        ctx.memory.fill(&y, one)?;
        ctx.set_output(0, y)
    }))
}
