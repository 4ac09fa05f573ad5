//! Tensors from checkpoint files.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_model::{TensorBundle, TensorSlice};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor};

/// RestoreV2.
pub const OPS: &[Op] = &[Op::new(
    "RestoreV2",
    "prefix: string, tensor_names: string, shape_and_slices: string -> tensors: list(dtypes) \
         | dtypes: list(type) >= 1 | stateful",
)
.shape(restore_shape)
.cost(Cost::Expensive)
.kernel(restore)];

fn restore_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let Some(specs) = ctx.constant(2) else {
        return Ok(());
    };
    for (i, spec) in specs.strings()?.iter().enumerate() {
        let spec = String::from_utf8_lossy(spec);
        if !spec.is_empty() {
            let (whole, slice) = TensorSlice::parse_spec(&spec)?;
            ctx.set(i, PartialShape::from(&slice.shape(&whole)?));
        }
    }
    Ok(())
}

fn restore(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let dtypes: Vec<DType> = build.outputs.to_vec();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let outputs = {
            let (prefix, names, specs) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
            check(prefix, names, specs, dtypes.len())?;
            let prefix = String::from_utf8_lossy(&prefix.strings()?[0]).into_owned();
            let bundle = TensorBundle::open(&prefix)?;
            let wanted = names.strings()?.iter().zip(specs.strings()?);
            let text = |bytes| String::from_utf8_lossy(bytes);
            wanted
                .zip(&dtypes)
                .map(|((name, spec), &dtype)| one(&bundle, &text(name), &text(spec), dtype))
                .collect::<Result<Vec<_>>>()?
        };
        for (i, tensor) in outputs.into_iter().enumerate() {
            ctx.set_output(i, tensor)?;
        }
        Ok(())
    }))
}

fn check(prefix: &Tensor, names: &Tensor, specs: &Tensor, n_dtypes: usize) -> Result<()> {
    let (n, n_specs) = (names.num_elements(), specs.num_elements());
    if prefix.num_elements() != 1 {
        return Err(invalid_argument!(
            "Input prefix should have a single element, got {} instead.",
            prefix.num_elements()
        ));
    }
    for (what, t) in [("tensor_names", names), ("shape_and_slices", specs)] {
        if t.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Input {what} should be an 1-D tensor, got {} instead.",
                t.shape()
            ));
        }
    }
    if n != n_specs {
        return Err(invalid_argument!(
            "tensor_names and shape_and_slices have different number of elements: {n} vs. {n_specs}"
        ));
    }
    if n != n_dtypes {
        return Err(invalid_argument!(
            "Got {n} tensor names, but {n_dtypes} expected dtypes."
        ));
    }
    Ok(())
}

fn one(bundle: &TensorBundle, name: &str, spec: &str, dtype: DType) -> Result<Tensor> {
    let (stored, _) = bundle.dtype_and_shape(name)?;
    if stored != dtype {
        return Err(invalid_argument!(
            "tensor_name = {name}; expected dtype {dtype} does not equal original dtype {stored}"
        ));
    }
    if spec.is_empty() {
        return bundle.read(name);
    }
    let (whole, slice) = TensorSlice::parse_spec(spec)?;
    bundle.read_slice(name, &whole, &slice)
}
