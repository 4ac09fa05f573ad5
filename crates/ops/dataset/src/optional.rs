//! Optional values: OptionalFromValue and its ops (TensorFlow:
//! `core/kernels/data/optional_ops.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::optional::Optional;
use ferroflow_functors::shapes;
use ferroflow_opdef::{AttrValue, Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::Tensor;

/// OptionalFromValue, OptionalNone, OptionalHasValue, OptionalGetValue.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "OptionalFromValue",
        "components: list(Toutput_types) -> optional: variant | Toutput_types: \
         list(type) >= 1",
    )
    .shape(shapes::scalar)
    .cost(Cost::Cheap)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let n = ctx.num_inputs();
            let values = (0..n).map(|i| ctx.take_input(i)).collect::<Result<_>>()?;
            ctx.set_output(0, Optional(Some(values)).into_tensor()?)
        }))
    })
    .gradient(from_value_gradient),
    Op::new("OptionalNone", "-> optional: variant")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                ctx.set_output(0, Optional(None).into_tensor()?)
            }))
        }),
    Op::new("OptionalHasValue", "optional: variant -> has_value: bool")
        .shape(shapes::scalar)
        .cost(Cost::Cheap)
        .kernel(|_| {
            Ok(Box::new(|ctx: &mut KernelCtx| {
                let has_value = Optional::input(ctx, 0, "OptionalHasValue")?.0.is_some();
                ctx.set_output(0, Tensor::scalar(has_value))
            }))
        })
        .not_differentiable(),
    Op::new(
        "OptionalGetValue",
        "optional: variant -> components: list(output_types) | output_types: \
         list(type) >= 1; output_shapes: list(shape) >= 1",
    )
    .shape(|ctx| {
        for (i, shape) in ctx.attrs().shapes("output_shapes")?.into_iter().enumerate() {
            ctx.set(i, shape);
        }
        Ok(())
    })
    .cost(Cost::Cheap)
    .kernel(get_value)
    .gradient(get_value_gradient),
];

/// The gradient of an optional is an optional of gradients.
fn from_value_gradient(g: &mut GradientCtx) -> Result<()> {
    let xs = g.xs();
    let dtypes = xs.iter().map(|x| AttrValue::Type(x.dtype())).collect();
    let shapes = xs.iter().map(|x| AttrValue::Shape(x.shape())).collect();
    let attrs = [
        ("output_types", AttrValue::List(dtypes)),
        ("output_shapes", AttrValue::List(shapes)),
    ];
    let values = g.dy(0).node("OptionalGetValue", &[g.dy(0)], &attrs);
    for (i, value) in values.into_iter().enumerate() {
        g.set(i, value)?;
    }
    Ok(())
}

fn get_value_gradient(g: &mut GradientCtx) -> Result<()> {
    let all: Vec<Expr> = (0..g.num_outputs()).map(|i| g.dy(i)).collect();
    let dtypes = all.iter().map(|d| AttrValue::Type(d.dtype())).collect();
    let attrs = [("Toutput_types", AttrValue::List(dtypes))];
    g.set(0, g.x(0).make("OptionalFromValue", &all, &attrs))
}

fn get_value(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes = build.outputs.to_vec();
    let shapes = build.attrs.shapes("output_shapes")?;
    if shapes.len() != dtypes.len() {
        return Err(invalid_argument!(
            "output_types and output_shapes must be same length, got:\noutput_types: {}\n\
             output_shapes: {}",
            dtypes.len(),
            shapes.len()
        ));
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let optional = Optional::input(ctx, 0, "OptionalGetValue")?;
        let Some(values) = optional.0.clone() else {
            return Err(invalid_argument!(
                "The given optional does not have a value."
            ));
        };
        if values.len() != dtypes.len() {
            return Err(invalid_argument!(
                "The given optional has {} components, expected {}.",
                values.len(),
                dtypes.len()
            ));
        }
        let expected = dtypes.iter().zip(&shapes);
        for (i, (value, (dtype, shape))) in values.into_iter().zip(expected).enumerate() {
            if value.dtype() != *dtype {
                return Err(invalid_argument!(
                    "The given optional does not match the expected type for component {i}. \
                     Expected: {dtype}. Actual: {}.",
                    value.dtype()
                ));
            }
            if !shape.matches(value.shape()) {
                return Err(invalid_argument!(
                    "The given optional does not match the expected shape for component {i}. \
                     Expected: {shape}. Actual: {}.",
                    value.shape()
                ));
            }
            ctx.set_output(i, value)?;
        }
        Ok(())
    }))
}
