//! ReadFile, WriteFile, MatchingFiles (TensorFlow: `core/kernels/whole_file_read_ops.cc` and
//! `matching_files_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::shapes;
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_resources::file_system::{files, glob, io_error, local_path};
use ferroflow_tensor::{Bytes, PartialShape, Tensor};
use std::path::Path;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("ReadFile", "filename: string -> contents: string |")
        .shape(|ctx| {
            ctx.with_rank(0, 0)?;
            shapes::scalar(ctx)
        })
        .cost(Cost::Expensive)
        .kernel(|_| Ok(Box::new(read_file))),
    Op::new(
        "WriteFile",
        "filename: string, contents: string -> | | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank(1, 0)?;
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(write_file))),
    Op::new("MatchingFiles", "pattern: string -> filenames: string |")
        .shape(|ctx| {
            ctx.set(0, PartialShape::of_rank(1));
            Ok(())
        })
        .cost(Cost::Expensive)
        .kernel(|_| Ok(Box::new(matching))),
];

/// Returns the only string of input `i`.
fn scalar(ctx: &KernelCtx, i: usize, name: &str) -> Result<Bytes> {
    let t = ctx.input(i)?;
    match (t.shape().is_scalar(), t.strings()?) {
        (true, [one]) => Ok(one.clone()),
        _ => Err(invalid_argument!(
            "Input {name} tensor must be scalar, but had shape: {}",
            t.shape()
        )),
    }
}

fn read_file(ctx: &mut KernelCtx) -> Result<()> {
    let name = scalar(ctx, 0, "filename")?;
    let name = String::from_utf8_lossy(&name);
    let contents = files::read(local_path(&name)).map_err(|e| io_error(&name, &e))?;
    ctx.set_output(0, Tensor::string(contents))
}

fn write_file(ctx: &mut KernelCtx) -> Result<()> {
    let (name, contents) = (scalar(ctx, 0, "filename")?, scalar(ctx, 1, "contents")?);
    let name = String::from_utf8_lossy(&name);
    let path = local_path(&name);
    if let Some(folder) = files::folder_of(Path::new(path)) {
        let made = files::create_dir_all(&folder);
        // If the folder is a file, writing fails below.
        if !files::exists(&folder) {
            made.map_err(|e| io_error(&folder.to_string_lossy(), &e))?;
        }
    }
    files::write(path, &contents).map_err(|e| io_error(&name, &e))
}

fn matching(ctx: &mut KernelCtx) -> Result<()> {
    let patterns = ctx.input(0)?;
    if patterns.shape().rank() > 1 {
        return Err(invalid_argument!(
            "Input patterns tensor must be scalar or vector, but had shape: {}",
            patterns.shape()
        ));
    }
    let mut found = Vec::new();
    for pattern in patterns.strings()? {
        found.extend(glob(&String::from_utf8_lossy(pattern))?);
    }
    found.sort_unstable();
    let names: Vec<Bytes> = found.into_iter().map(Bytes::from).collect();
    let names = Tensor::from_strings([names.len()], names)?;
    ctx.set_output(0, names)
}
