//! Variables whose values are in the device's memory: only readers of the host copy them.

use super::step_variables::{read_variable, written_variable};
use crate::elementwise::run_all;
use crate::gather::gather_rows;
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row};
use crate::ptx::Step;
use ferroflow_base::{Result, failed_precondition, invalid_argument};
use ferroflow_opdef::{BinaryFn, KernelBuild};
use ferroflow_resources::resource::{Var, handle, placed_mut, unassigned, unreadable};
use ferroflow_tensor::{DType, Tensor};

/// What variables of a device hold; integers stay with the host.
const VALUES: &[DType] = &[
    DType::Float,
    DType::Half,
    DType::Bfloat16,
    DType::Int32,
    DType::Int64,
    DType::Uint32,
    DType::Uint64,
    DType::Bool,
];
const T: &[(&str, &[DType])] = &[("dtype", VALUES)];

pub(crate) const ROWS: &[Row] = &[
    Row::passes("VarHandleOp").types(T),
    Row::passes("VarIsInitializedOp"),
    Row::passes("VariableShape"),
    Row::passes("DestroyResourceOp"),
    Row::passes("DisableCopyOnRead"),
    Row::floats("ReadVariableOp", read).types(T),
    Row::floats("AssignVariableOp", assign).types(T),
    Row::floats("AssignAddVariableOp", add).types(T),
    Row::floats("AssignSubVariableOp", add).types(T),
    Row::new("ResourceGather", gather)
        .types(&[
            ("dtype", FLOATS),
            ("Tindices", &[DType::Int32, DType::Int64]),
        ])
        .only_if(|attrs| attrs.int("batch_dims").is_ok_and(|n| n == 0)),
];

/// Returns a value where launches of the device read it.
///
/// # Errors
/// Those of the device.
pub(crate) fn placed(ctx: &GpuCtx, value: &Tensor) -> Result<Tensor> {
    match value.is_on_device() && ctx.memory.span(value).is_err() {
        // Another device has it.
        true => ctx.memory.upload(&value.on_host()?),
        false => ctx.memory.upload(value),
    }
}

/// The value of a variable, which moves to the device if it is elsewhere.
fn value(ctx: &GpuCtx, var: &Var) -> Result<Option<Tensor>> {
    let Some(value) = var.get() else {
        return Ok(None);
    };
    if ctx.memory.span(&value).is_ok() {
        return Ok(Some(value));
    }
    var.relocate(|value| placed(ctx, value))?;
    Ok(var.get())
}

/// The value of the variable in input 0.
fn read_value(ctx: &GpuCtx, dtype: DType) -> Result<Option<Tensor>> {
    let var = read_variable(ctx, 0)?;
    let Some(value) = value(ctx, &var)? else {
        return Ok(None);
    };
    if value.dtype() != dtype {
        return Err(invalid_argument!(
            "Trying to read variable with wrong dtype. Expected {dtype} got {}",
            value.dtype()
        ));
    }
    Ok(Some(value))
}

fn read(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let dtype = build.output(0)?;
    // Reads that replace references to an old-style variable name it in errors.
    let reference = build.attrs.str("_reference").ok().map(str::to_string);
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let Some(value) = read_value(ctx, dtype)? else {
            return Err(match &reference {
                Some(name) => failed_precondition!("Attempting to use uninitialized value {name}"),
                None => unreadable(handle(ctx.engine(), 0)?),
            });
        };
        ctx.set_output(0, value)
    }))
}

fn assign(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let validate = build.attrs.bool("validate_shape")?;
    // The declared shape of an old-style variable.
    let declared = build.attrs.shape("_declared").ok().cloned();
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let value = ctx.input(1)?;
        let var = written_variable(ctx, 0)?;
        var.assign(value, declared.as_ref(), validate)
    }))
}

/// AssignAddVariableOp and AssignSubVariableOp.
fn add(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let dtype = build.input(1)?;
    let function = match &*build.def.name {
        "AssignSubVariableOp" => BinaryFn::Sub,
        _ => BinaryFn::Add,
    };
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let (by, var) = (ctx.input(1)?, written_variable(ctx, 0)?);
        let mut current = var.write();
        let value = placed_mut(ctx.engine(), 0, &mut current, dtype)?;
        var.check_update(value.shape(), by.shape())?;
        let steps = [Step::Binary(function, 0, 1)];
        rewrite(ctx, &mut [value], &steps, &[by], &[2])
    }))
}

/// Computes new values of tensors by a program, whose first operands they are, before `others`. A value without another
/// owner is overwritten.
///
/// # Errors
/// Those of the device.
pub(crate) fn rewrite(
    ctx: &GpuCtx,
    values: &mut [&mut Tensor],
    steps: &[Step],
    others: &[Tensor],
    results: &[usize],
) -> Result<()> {
    let mut operands = Vec::with_capacity(values.len() + others.len());
    let mut targets = Vec::with_capacity(values.len());
    for value in values.iter_mut() {
        **value = placed(ctx, value)?;
        targets.push(match value.is_sole_owner() {
            true => None,
            false => Some(ctx.alloc(value.dtype(), value.shape().clone())?),
        });
        operands.push(value.clone());
    }
    operands.extend_from_slice(others);
    let to = targets.iter().zip(&operands).zip(results);
    let to: Vec<(&Tensor, usize)> = to
        .map(|((target, own), at)| (target.as_ref().unwrap_or(own), *at))
        .collect();
    run_all(ctx, steps, &operands, &to)?;
    for (value, target) in values.iter_mut().zip(targets) {
        if let Some(target) = target {
            **value = target;
        }
    }
    Ok(())
}

fn gather(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let dtype = build.output(0)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let value = read_value(ctx, dtype)?;
        let value = value.ok_or_else(|| unassigned(ctx.engine(), 0))?;
        let y = gather_rows(ctx, &value, 1, 0)?;
        ctx.set_output(0, y)
    }))
}
