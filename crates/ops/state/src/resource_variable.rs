//! Resource variables: variables accessed by handles (TensorFlow:
//! `core/kernels/resource_variable_ops.cc` and `count_up_to_op.cc`).

use ferroflow_base::{Result, failed_precondition, invalid_argument, not_found, out_of_range};
use ferroflow_functors::binary::{BinaryFn, BinaryFunctor, HalfBinary, SimdBinary, assign_left};
use ferroflow_functors::gather::{
    GatherNd, GatherRows, gather_nd_rows, gather_nd_shape_of, gather_rows, gather_shape_of,
};
use ferroflow_functors::gradients;
use ferroflow_functors::indices::{int, int_scalar, int_vector};
use ferroflow_functors::numeric::Num;
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::math::BinaryOp;
use ferroflow_resources::resource::{
    ContainerInfo, HandleKernel, Var, handle, handle_tensor, resolve, unreadable, value_mut,
    value_of, variable,
};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, PartialShape, Tensor, bf16, dispatch, f16,
};
use std::any::Any;

/// VarHandleOp, _VarHandlesOp, DisableCopyOnRead, ReadVariableOp, AssignVariableOp,
/// AssignAddVariableOp, AssignSubVariableOp, VarIsInitializedOp, VariableShape, DestroyResourceOp,
/// ResourceGather, ResourceGatherNd, ResourceCountUpTo.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "VarHandleOp",
        "-> resource: resource | container: string = ''; shared_name: string = ''; \
         debug_name: string = ''; dtype: type; shape: shape; allowed_devices: \
         list(string) = [] | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|build| {
        let place = ContainerInfo::of_variable(build)?;
        // Marks a variable that was a reference in the graph.
        let make = match build.attrs.get("_reference") {
            Some(_) => Var::reference,
            None => Var::default,
        };
        Ok(Box::new(HandleKernel::new(place, move |_| Ok(make()))))
    })
    .not_differentiable(),
    Op::new(
        "_VarHandlesOp",
        "-> resources: N*resource | containers: list(string); shared_names: \
         list(string); N: int >= 0; dtypes: list(type); shapes: list(shape) | stateful",
    )
    .shape(|ctx| {
        (0..ctx.num_outputs()).for_each(|i| ctx.set(i, PartialShape::scalar()));
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(var_handles)
    .not_differentiable(),
    Op::new("DisableCopyOnRead", "resource: resource -> | | stateful")
        .cost(Cost::Cheap)
        .kernel(|_| Ok(Box::new(|ctx: &mut KernelCtx| variable(ctx, 0).map(drop))))
        .not_differentiable(),
    Op::new(
        "ReadVariableOp",
        "resource: resource -> value: dtype | dtype: type | stateful",
    )
    .shape(|ctx| {
        ctx.set(0, ctx.handle_shape(0));
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(read)
    .gradient(read_gradient),
    Op::new(
        "AssignVariableOp",
        "resource: resource, value: dtype -> | dtype: type; validate_shape: bool = \
         false | stateful",
    )
    .shape(|ctx| {
        if ctx.attrs().bool("validate_shape")? {
            ctx.merge(&ctx.handle_shape(0), &ctx.input(1))?;
        }
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(assign)
    .not_differentiable(),
    Op::new(
        "AssignAddVariableOp",
        "resource: resource, value: dtype -> | dtype: type | stateful",
    )
    .shape(update_shape)
    .kernel(|build| update(build, false))
    .not_differentiable(),
    Op::new(
        "AssignSubVariableOp",
        "resource: resource, value: dtype -> | dtype: type | stateful",
    )
    .shape(update_shape)
    .kernel(|build| update(build, true))
    .not_differentiable(),
    Op::new(
        "VarIsInitializedOp",
        "resource: resource -> is_initialized: bool | | stateful",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let has_value = variable(ctx, 0)?.read().is_some();
            ctx.set_output(0, Tensor::scalar(has_value))
        }))
    })
    .not_differentiable(),
    Op::new(
        "VariableShape",
        "input: resource -> output: out_type | out_type: type {int32,int64} = int32 | \
         stateful",
    )
    .shape(|ctx| {
        let rank = ctx.handle_shape(0).rank();
        ctx.set(0, PartialShape::of([rank]));
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(variable_shape)
    .not_differentiable(),
    Op::new(
        "DestroyResourceOp",
        "resource: resource -> | ignore_lookup_error: bool = true | stateful",
    )
    .cost(Cost::Cheap)
    .kernel(destroy)
    .not_differentiable(),
    Op::new(
        "ResourceGather",
        "resource: resource, indices: Tindices -> output: dtype | batch_dims: int = 0; \
         validate_indices: bool = true; dtype: type; Tindices: type {int32,int64} | \
         stateful",
    )
    .shape(|ctx| {
        let (params, batch_dims) = (ctx.handle_shape(0), ctx.attrs().int("batch_dims")?);
        gather_shape_of(ctx, &params, Some(batch_dims), batch_dims)
    })
    .kernel(gather)
    .gradient(gather_gradient),
    Op::new(
        "ResourceGatherNd",
        "resource: resource, indices: Tindices -> output: dtype | dtype: type; \
         Tindices: type {int32,int64} | stateful",
    )
    .shape(|ctx| {
        let params = ctx.handle_shape(0);
        gather_nd_shape_of(ctx, &params)
    })
    .kernel(gather_nd)
    .gradient(gather_nd_gradient),
    Op::new(
        "ResourceCountUpTo",
        "resource: resource -> output: T | limit: int; T: type {int32,int64} | stateful",
    )
    .shape(|ctx| {
        ctx.merge(&ctx.handle_shape(0), &PartialShape::scalar())?;
        shapes::scalar(ctx)
    })
    .cost(Cost::Cheap)
    .kernel(count_up_to),
];

fn count_up_to(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (limit, dtype) = (build.attrs.int("limit")?, build.output(0)?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = variable(ctx, 0)?;
        let mut value = var.write();
        let count = value_mut(ctx, 0, &mut value, dtype)?;
        let now = int(count).filter(|_| count.shape().is_scalar());
        let now =
            now.ok_or_else(|| invalid_argument!("input is not a scalar: {}", count.shape()))?;
        if now >= limit {
            return Err(out_of_range!("Reached limit of {limit}"));
        }
        let before = std::mem::replace(count, int_scalar(dtype, now + 1)?);
        ctx.set_output(0, before)
    }))
}

fn var_handles(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let owned = |name: &str| -> Result<Vec<String>> {
        let list = build.attrs.strs(name)?;
        Ok(list.into_iter().map(str::to_string).collect())
    };
    let (containers, names) = (owned("containers")?, owned("shared_names")?);
    let n = build.outputs.len();
    if containers.len() != n || names.len() != n {
        return Err(invalid_argument!(
            "{n} handles have {} containers and {} names",
            containers.len(),
            names.len()
        ));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        for (i, (c, name)) in containers.iter().zip(&names).enumerate() {
            let resources = ctx.resources();
            let container = resources.container(c);
            let var = resources.lookup_or_create(container, name, || Ok(Var::default()))?;
            let handle = handle_tensor(container, name, var)?;
            ctx.set_output(i, handle)?;
        }
        Ok(())
    }))
}

fn read(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    // Reads that replace references to an old-style variable name it in errors.
    let reference = build.attrs.str("_reference").ok().map(str::to_string);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let handle = handle(ctx, 0)?;
        let value = match handle.value.as_ref().map(|v| v.downcast_ref::<Var>()) {
            Some(Some(var)) => var.get(),
            _ => resolve::<Var>(ctx, handle)?.get(),
        };
        let Some(value) = value else {
            return Err(match &reference {
                Some(name) => failed_precondition!("Attempting to use uninitialized value {name}"),
                None => unreadable(handle),
            });
        };
        if value.dtype() != dtype {
            return Err(invalid_argument!(
                "Trying to read variable with wrong dtype. Expected {dtype} got {}",
                value.dtype()
            ));
        }
        ctx.set_output(0, value.on_host()?)
    }))
}

fn assign(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let validate = build.attrs.bool("validate_shape")?;
    // The declared shape of an old-style variable.
    let declared = build.attrs.shape("_declared").ok().cloned();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let value = ctx.take_input(1)?;
        let var = variable(ctx, 0)?;
        var.assign(value, declared.as_ref(), validate)
    }))
}

fn update_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.merge(&ctx.handle_shape(0), &ctx.input(1)).map(|_| ())
}

/// A function that changes a tensor by another of the same shape.
type Change = Box<dyn Fn(&dyn Parallelism, &mut Tensor, &Tensor) -> Result<()> + Send + Sync>;

fn by<T: Element>(functor: Box<dyn BinaryFunctor<T, T>>) -> Change {
    Box::new(move |par, target, by| {
        assign_left(par, &*functor, target.slice_mut::<T>()?, by.slice()?);
        Ok(())
    })
}

/// Returns the sum or the difference of two floats.
fn in_floats(subtract: bool) -> Box<dyn BinaryFunctor<f32, f32>> {
    match subtract {
        true => Box::new(SimdBinary(BinaryOp::Sub, <f32 as Num>::sub)),
        false => Box::new(SimdBinary(BinaryOp::Add, <f32 as Num>::add)),
    }
}

fn change_of(build: &KernelBuild, dtype: DType, subtract: bool) -> Result<Change> {
    Ok(match dtype {
        DType::Float => by(in_floats(subtract)),
        DType::Half => by::<f16>(Box::new(HalfBinary(in_floats(subtract)))),
        DType::Bfloat16 => by::<bf16>(Box::new(HalfBinary(in_floats(subtract)))),
        _ => {
            dispatch!(dtype, T in [f64, i8, i16, i32, i64, u8, u16, u32, u64, Complex32, Complex64] => {
                match subtract {
                    true => by(Box::new(BinaryFn(<T as Num>::sub))),
                    false => by(Box::new(BinaryFn(<T as Num>::add))),
                }
            }, else return Err(build.unsupported(dtype)))
        }
    })
}

fn update(build: &KernelBuild, subtract: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = build.input(1)?;
    let change = change_of(build, dtype, subtract)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = variable(ctx, 0)?;
        let mut value = var.write();
        let target = value_mut(ctx, 0, &mut value, dtype)?;
        let by = ctx.input(1)?;
        var.check_update(target.shape(), by.shape())?;
        change(ctx.par(), target, by)
    }))
}

fn variable_shape(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let out = build.output(0)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = variable(ctx, 0)?;
        let shape = var.read().as_ref().map(|t| t.shape().to_i64());
        let shape = shape.ok_or_else(|| ferroflow_resources::resource::unassigned(ctx, 0))?;
        ctx.set_output(0, int_vector(out, shape.into_iter())?)
    }))
}

fn destroy(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let ignore = build.attrs.bool("ignore_lookup_error")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let handle = handle(ctx, 0)?;
        let existed = match resolve::<Var>(ctx, handle) {
            // The variable stays registered without a value, for kernels that cached it.
            Ok(var) => var.get().is_some() && var.write().take().is_some(),
            Err(_) => {
                ferroflow_resources::table::destroy(ctx, handle)
                    || crate::stub_resources::destroy(ctx, handle)
                    || ferroflow_resources::queue::destroy(ctx, handle)
                    || ferroflow_resources::resource::destroy_kept(ctx, handle)
            }
        };
        if existed || ignore {
            return Ok(());
        }
        // In TensorFlow a handle alone does not create the variable, and so not its container.
        let is_there = |r: &(dyn Any + Send + Sync)| {
            let var = r.downcast_ref::<Var>();
            var.is_none_or(|var| var.version() > 0)
        };
        if !ctx.resources().is_container(&handle.container, is_there) {
            return Err(not_found!("Container {} does not exist.", handle.container));
        }
        Err(not_found!(
            "Resource {}/{}/<unknown> does not exist.",
            handle.container,
            handle.name
        ))
    }))
}

fn gather(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let batch_dims = build.attrs.int("batch_dims")?;
    let dtype = build.output(0)?;
    let loops = GatherRows::new(dtype, build.input(1)?)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = variable(ctx, 0)?;
        // The value is shared, not locked: a gather may take long.
        let params = value_of(ctx, 0, &var.get(), dtype)?;
        let out = gather_rows(loops, ctx, &params, ctx.input(1)?, batch_dims, batch_dims)?;
        ctx.set_output(0, out)
    }))
}

fn gather_nd(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtype = build.output(0)?;
    let loops = GatherNd::new(dtype, build.input(1)?)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let var = variable(ctx, 0)?;
        let params = value_of(ctx, 0, &var.get(), dtype)?;
        let out = gather_nd_rows(loops, ctx, &params, ctx.input(1)?, false)?;
        ctx.set_output(0, out)
    }))
}

/// The gradient of the handle is that of the variable's value.
fn read_gradient(g: &mut GradientCtx) -> Result<()> {
    match g.arrived(0) {
        Some(gradient) => g.set_gradient(0, gradient),
        None => Ok(()),
    }
}

fn gather_gradient(g: &mut GradientCtx) -> Result<()> {
    let shape = g.x(0).op("VariableShape", &[]);
    let (indices, batch_dims) = (g.x(1), g.attrs().int("batch_dims")?);
    if batch_dims != 0 {
        let batch = gradients::batch_of(indices, batch_dims);
        let dx = gradients::in_batches(g.dy(0), indices, shape, batch, batch);
        return g.set(0, dx);
    }
    let gradient = gradients::slices(g.dy(0), g.x(1), shape);
    g.set_gradient(0, gradient)
}

fn gather_nd_gradient(g: &mut GradientCtx) -> Result<()> {
    let (handle, indices) = (g.x(0), g.x(1));
    let attrs = [("out_type", indices.dtype().into())];
    let shape = handle.op_with("VariableShape", &[], &attrs);
    let dx = indices.op("ScatterNd", &[g.dy(0), shape]);
    g.set(0, dx)
}
