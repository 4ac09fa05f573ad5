//! SaveV2, Save, SaveSlices: writing tensors to checkpoints (TensorFlow: `core/kernels/save_op.cc`
//! and `save_restore_v2_ops.cc`).

use ferroflow_base::{Result, failed_precondition, invalid_argument, not_found};
use ferroflow_functors::shapes;
use ferroflow_model::{BundleWriter, SavedPart, TensorSlice, merge_bundles, write_slices};
use ferroflow_opdef::{Cost, KernelCtx, Op, ShapeCtx};
use ferroflow_resources::file_system::{files, io_error, local_path};
use ferroflow_tensor::{Bytes, PartialShape, Tensor};
use std::path::{Path, PathBuf};

/// SaveV2, Save, SaveSlices, MergeV2Checkpoints, ShardedFilename, ShardedFilespec.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SaveV2",
        "prefix: string, tensor_names: string, shape_and_slices: string, tensors: \
         list(dtypes) -> | dtypes: list(type) >= 1 | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        let names = ctx.with_rank(1, 1)?;
        ctx.merge(&names, &ctx.with_rank(2, 1)?)?;
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(save))),
    Op::new(
        "Save",
        "filename: string, tensor_names: string, data: list(T) -> | T: list(type) >= 1 \
         | stateful",
    )
    .shape(|ctx| old_shape(ctx, 2))
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(|ctx: &mut KernelCtx| save_old(ctx, 2)))),
    Op::new(
        "SaveSlices",
        "filename: string, tensor_names: string, shapes_and_slices: string, data: \
         list(T) -> | T: list(type) >= 1 | stateful",
    )
    .shape(|ctx| old_shape(ctx, 3))
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(|ctx: &mut KernelCtx| save_old(ctx, 3)))),
    Op::new(
        "MergeV2Checkpoints",
        "checkpoint_prefixes: string, destination_prefix: string -> | delete_old_dirs: \
         bool = true; allow_missing_files: bool = false | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 1)?;
        ctx.with_rank(1, 0)?;
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|build| {
        let delete = build.attrs.bool("delete_old_dirs")?;
        let lenient = build.attrs.bool("allow_missing_files")?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let parts = ctx.input(0)?;
            if parts.shape().rank() != 1 {
                return Err(invalid_argument!(
                    "Input checkpoint_prefixes should be an 1-D tensor, got {} instead.",
                    parts.shape()
                ));
            }
            let parts = parts.strings()?.iter().map(text);
            let mut parts: Vec<String> = parts.map(|p| local_path(&p).to_string()).collect();
            if lenient {
                parts.retain(|p| ferroflow_model::has_checkpoint(p.as_ref()));
            }
            let destination = scalar(ctx, 1, "destination_prefix")?;
            let destination = local_path(&destination);
            make_folder(destination)?;
            merge_bundles(&parts, destination, delete)
        }))
    }),
    Op::new(
        "ShardedFilename",
        "basename: string, shard: int32, num_shards: int32 -> filename: string |",
    )
    .shape(scalars)
    .cost(Cost::Cheap)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let name = scalar(ctx, 0, "basename")?;
            let (shard, n) = (number(ctx, 1, "shard")?, number(ctx, 2, "num_shards")?);
            let name = format!("{name}-{shard:05}-of-{n:05}");
            ctx.set_output(0, Tensor::string(name))
        }))
    }),
    Op::new(
        "ShardedFilespec",
        "basename: string, num_shards: int32 -> filename: string |",
    )
    .shape(scalars)
    .cost(Cost::Cheap)
    .kernel(|_| {
        Ok(Box::new(|ctx: &mut KernelCtx| {
            let n = number(ctx, 1, "num_shards")?;
            let name = format!("{}-?????-of-{n:05}", scalar(ctx, 0, "basename")?);
            ctx.set_output(0, Tensor::string(name))
        }))
    }),
];

fn scalars(ctx: &mut ShapeCtx) -> Result<()> {
    for i in 0..ctx.num_inputs() {
        ctx.with_rank(i, 0)?;
    }
    shapes::scalar(ctx)
}

fn number(ctx: &KernelCtx, i: usize, name: &str) -> Result<i32> {
    let input = ctx.input(i)?;
    match input.shape().is_scalar() {
        true => input.to_scalar(),
        false => Err(invalid_argument!(
            "{name} must be a scalar, got shape {}",
            input.shape()
        )),
    }
}

fn text(bytes: &Bytes) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the only string of input `i`.
fn scalar(ctx: &KernelCtx, i: usize, name: &str) -> Result<String> {
    match ctx.input(i)?.strings()? {
        [one] => Ok(text(one)),
        all => Err(invalid_argument!(
            "Input {name} should have a single element, got {} instead.",
            all.len()
        )),
    }
}

/// Checks the shapes of the file name and of vectors with an element per tensor.
fn old_shape(ctx: &mut ShapeCtx, n_fixed: usize) -> Result<()> {
    ctx.with_rank(0, 0)?;
    let n = ctx.num_inputs().saturating_sub(n_fixed);
    for i in 1..n_fixed {
        ctx.merge(&PartialShape::of([Some(n)]), &ctx.with_rank(i, 1)?)?;
    }
    Ok(())
}

/// Writes the V1 format.
fn save_old(ctx: &mut KernelCtx, n_fixed: usize) -> Result<()> {
    let path = scalar(ctx, 0, "filename")?;
    let names = ctx.input(1)?.strings()?;
    let n = ctx.num_inputs().saturating_sub(n_fixed);
    if names.len() != n {
        return Err(invalid_argument!(
            "size(tensor_names) ({}) and the number of tensors to save ({n}) must match",
            names.len()
        ));
    }
    let specs = match n_fixed {
        3 => Some(ctx.input(2)?.strings()?),
        _ => None,
    };
    let mut parts = Vec::with_capacity(n);
    for (i, name) in names.iter().enumerate() {
        let value = ctx.input(i + n_fixed)?;
        let spec = match specs {
            None => String::new(),
            Some(specs) => text(specs.get(i).ok_or_else(|| {
                invalid_argument!(
                    "Expected {n} elements for the tensor shapes and slices but got {}",
                    specs.len()
                )
            })?),
        };
        let (whole, slice) = match spec.is_empty() {
            true => (value.shape().clone(), TensorSlice::all(value.shape())),
            false => TensorSlice::parse_spec(&spec)?,
        };
        if slice.shape(&whole)? != *value.shape() {
            return Err(invalid_argument!(
                "Slice in shape_and_slice specification does not match the shape of the tensor to  \
                 save: {spec}, tensor: {}",
                value.shape()
            ));
        }
        parts.push(SavedPart {
            name: text(name),
            whole,
            slice,
            value,
        });
    }
    let local = local_path(&path);
    if folder_of(local).is_some_and(|f| !files::exists(f)) {
        return Err(not_found!("{path}; No such file or directory"));
    }
    write_slices(local.as_ref(), &parts)
}

fn folder_of(path: &str) -> Option<PathBuf> {
    files::folder_of(Path::new(path))
}

/// Creates the folder of a checkpoint, but not its parents, as TensorFlow does.
fn make_folder(prefix: &str) -> Result<()> {
    let Some(folder) = folder_of(prefix) else {
        return Ok(());
    };
    match files::create_dir(&folder) {
        Err(_) if files::is_dir(&folder) => Ok(()),
        Err(_) if files::exists(&folder) => Err(failed_precondition!("{prefix}; Not a directory")),
        made => made.map_err(|e| io_error(&folder.to_string_lossy(), &e)),
    }
}

fn save(ctx: &mut KernelCtx) -> Result<()> {
    const FIXED: usize = 3;
    let prefix = scalar(ctx, 0, "prefix")?;
    let (names, specs) = (ctx.input(1)?, ctx.input(2)?);
    for (what, t) in [("tensor_names", names), ("shape_and_slices", specs)] {
        if t.shape().rank() != 1 {
            return Err(invalid_argument!(
                "Input {what} should be an 1-D tensor, got {} instead.",
                t.shape()
            ));
        }
    }
    let (names, specs) = (names.strings()?, specs.strings()?);
    if names.len() != specs.len() {
        return Err(invalid_argument!(
            "tensor_names and shape_and_slices have different number of elements: {} vs. {}",
            names.len(),
            specs.len()
        ));
    }
    if names.len() + FIXED != ctx.num_inputs() {
        return Err(invalid_argument!(
            "Got {} tensor names but {} tensors.",
            names.len(),
            ctx.num_inputs().saturating_sub(FIXED)
        ));
    }
    let local = local_path(&prefix);
    make_folder(local)?;
    let mut writer = BundleWriter::create(local)?;
    for (i, (name, spec)) in names.iter().zip(specs).enumerate() {
        let (name, spec, tensor) = (text(name), text(spec), ctx.input(i + FIXED)?);
        if spec.is_empty() {
            writer.add(&name, tensor)?;
        } else {
            let (whole, slice) = TensorSlice::parse_spec(&spec)?;
            writer.add_slice(&name, &whole, &slice, tensor)?;
        }
    }
    writer.finish()
}
