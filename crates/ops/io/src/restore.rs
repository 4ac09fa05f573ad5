//! RestoreV2, Restore, RestoreSlice: reading tensors from checkpoints (TensorFlow:
//! `core/kernels/restore_op.cc` and `save_restore_v2_ops.cc`).

use ferroflow_base::{Code, Result, invalid_argument, not_found};
use ferroflow_model::{SliceReader, TensorBundle, TensorSlice};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_resources::file_system::glob;
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::path::PathBuf;

/// RestoreV2, Restore, RestoreSlice.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "RestoreV2",
        "prefix: string, tensor_names: string, shape_and_slices: string -> tensors: \
         list(dtypes) | dtypes: list(type) >= 1 | stateful",
    )
    .shape(restore_shape)
    .cost(Cost::Expensive)
    .kernel(restore),
    Op::new(
        "Restore",
        "file_pattern: string, tensor_name: string -> tensor: dt | dt: type; \
         preferred_shard: int = -1 | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank(1, 0)?;
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|build| old(build, false)),
    Op::new(
        "RestoreSlice",
        "file_pattern: string, tensor_name: string, shape_and_slice: string -> tensor: \
         dt | dt: type; preferred_shard: int = -1 | stateful",
    )
    .shape(|ctx| {
        for i in 0..3 {
            ctx.with_rank(i, 0)?;
        }
        let spec = ctx.constant(2).cloned();
        if let Some([spec]) = spec.as_ref().map(Tensor::strings).transpose()?
            && !spec.is_empty()
        {
            let (whole, slice) = TensorSlice::parse_spec(&String::from_utf8_lossy(spec))?;
            ctx.set(0, PartialShape::from(&slice.shape(&whole)?));
        }
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|build| old(build, true)),
];

/// Opens the files of a checkpoint in the V1 format.
fn old_files(pattern: &str) -> Result<SliceReader> {
    let found = glob(pattern)?;
    let paths: Vec<PathBuf> = found.into_iter().map(PathBuf::from).collect();
    if paths.is_empty() {
        return Err(not_found!(
            "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for {pattern}"
        ));
    }
    SliceReader::open(&paths)
}

fn old(build: &KernelBuild, sliced: bool) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype("dt")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let text = |i: usize, what: &str| match ctx.input(i)?.strings()? {
            [one] => Ok(String::from_utf8_lossy(one).into_owned()),
            all => Err(invalid_argument!(
                "Input {i} ({what}) must be a string scalar; got a tensor of {} elements",
                all.len()
            )),
        };
        let (pattern, name) = (text(0, "file_pattern")?, text(1, "tensor_name")?);
        let spec = match sliced {
            true => text(2, "shape_and_slice")?,
            false => String::new(),
        };
        let value = from_old(&old_files(&pattern)?, &name, &spec, dtype)?;
        ctx.set_output(0, value)
    }))
}

fn from_old(files: &SliceReader, name: &str, spec: &str, dtype: DType) -> Result<Tensor> {
    let Some((stored, shape)) = files.dtype_and_shape(name) else {
        return files.read(name, None);
    };
    if stored != dtype {
        return Err(invalid_argument!(
            "Expected to restore a tensor of type {dtype}, got a tensor of type {stored} instead: \
             tensor_name = {name}"
        ));
    }
    if spec.is_empty() {
        return files.read(name, None);
    }
    let (whole, slice) = TensorSlice::parse_spec(spec)?;
    if whole != shape {
        return Err(invalid_argument!(
            "Shape in shape_and_slice spec does not match the shape in the save file: {whole}, save \
             file shape: {shape}"
        ));
    }
    files.read(name, Some(&slice))
}

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
            let wanted = names.strings()?.iter().zip(specs.strings()?);
            let text = |bytes| String::from_utf8_lossy(bytes);
            let wanted = wanted.zip(&dtypes);
            match TensorBundle::open(ferroflow_resources::file_system::local_path(&prefix)) {
                // It may be a V1 checkpoint.
                Err(e) if e.code() == Code::NotFound => {
                    let files = old_files(&prefix)?;
                    wanted
                        .map(|((name, spec), t)| from_old(&files, &text(name), &text(spec), *t))
                        .collect::<Result<Vec<_>>>()?
                }
                bundle => {
                    let bundle = bundle?;
                    wanted
                        .map(|((name, spec), t)| one(&bundle, &text(name), &text(spec), *t))
                        .collect::<Result<Vec<_>>>()?
                }
            }
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
