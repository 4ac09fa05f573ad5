//! GenerateVocabRemapping and LoadAndRemapMatrix: weights of a checkpoint for another vocabulary
//! (TensorFlow: `core/kernels/generate_vocab_remapping_op.cc`, `load_and_remap_matrix_op.cc`).

use ferroflow_base::{Result, internal, invalid_argument, unimplemented_error};
use ferroflow_model::TensorBundle;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_resources::file_system::{files, io_error, local_path};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::collections::HashMap;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "GenerateVocabRemapping",
        "new_vocab_file: string, old_vocab_file: string -> remapping: int64, num_present: int32 | \
         new_vocab_offset: int >= 0; num_new_vocab: int >= 0; old_vocab_size: int >= -1 = -1",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank(1, 0)?;
        let n = ctx.attrs().int("num_new_vocab")?.max(0) as usize;
        ctx.set(0, PartialShape::of([Some(n)]));
        ctx.set(1, PartialShape::scalar());
        Ok(())
    })
    .kernel(vocabulary)
    .not_differentiable(),
    Op::new(
        "LoadAndRemapMatrix",
        "ckpt_path: string, old_tensor_name: string, row_remapping: int64, col_remapping: int64, \
         initializing_values: float -> output_matrix: float | num_rows: int >= 0; num_cols: int >= \
         1; max_rows_in_memory: int = -1 | stateful",
    )
    .shape(|ctx| {
        ctx.with_rank(2, 1)?;
        let size = |name| Ok::<_, ferroflow_base::Status>(ctx.attrs().int(name)?.max(0) as usize);
        let shape = PartialShape::of([Some(size("num_rows")?), Some(size("num_cols")?)]);
        ctx.set(0, shape);
        Ok(())
    })
    .kernel(matrix)
    .not_differentiable(),
];

/// Returns the lines of the file whose name input `i` holds.
fn lines(ctx: &KernelCtx, i: usize, what: &str) -> Result<Vec<Vec<u8>>> {
    let (0, [name]) = (ctx.shape(i)?.rank(), ctx.input(i)?.strings()?) else {
        return Err(invalid_argument!(
            "{what} should be a single string, but got {}",
            ctx.shape(i)?
        ));
    };
    if name.is_empty() {
        return Err(invalid_argument!("new vocab filename cannot be empty."));
    }
    let name = String::from_utf8_lossy(name);
    let text = files::read(local_path(&name)).map_err(|e| io_error(&name, &e))?;
    let mut lines: Vec<Vec<u8>> = text
        .split(|&b| b == b'\n')
        .map(|line| line.strip_suffix(b"\r").unwrap_or(line).to_vec())
        .collect();
    if lines.last().is_some_and(Vec::is_empty) {
        lines.pop();
    }
    Ok(lines)
}

fn vocabulary(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let number = |name: &str| build.attrs.int(name);
    let (offset, n) = (
        number("new_vocab_offset")?.max(0) as usize,
        number("num_new_vocab")?.max(0) as usize,
    );
    let old_size = usize::try_from(number("old_vocab_size")?).ok();
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let new = lines(ctx, 0, "new_vocab_file")?;
        let wanted = offset.checked_add(n).and_then(|end| new.get(offset..end));
        let wanted = wanted.ok_or_else(|| {
            invalid_argument!("lookup table size must be larger than last new vocab entry's line")
        })?;
        let old = lines(ctx, 1, "old_vocab_file")?;
        if let Some(size) = old_size.filter(|&size| size > old.len()) {
            return Err(invalid_argument!(
                "Invalid vocab_size in the old vocabulary: expected {size} but got {}",
                old.len()
            ));
        }
        let mut ids: HashMap<&[u8], i64> = HashMap::new();
        for (id, word) in old.iter().enumerate().take(old_size.unwrap_or(old.len())) {
            if ids.insert(word, id as i64).is_some() {
                return Err(ferroflow_base::failed_precondition!(
                    "HashTable has different value for same key. Key {} is repeated in the old \
                     vocabulary",
                    String::from_utf8_lossy(word)
                ));
            }
        }
        let remapping: Vec<i64> = wanted
            .iter()
            .map(|word| ids.get(&word[..]).copied().unwrap_or(-1))
            .collect();
        let present = remapping.iter().filter(|&&id| id >= 0).count();
        ctx.set_output(0, Tensor::vector(&remapping)?)?;
        ctx.set_output(1, Tensor::scalar(present as i32))
    }))
}

/// Returns the new place of each old one, and which new places have an old one.
fn inverted(remapping: &[i64]) -> Result<(HashMap<i64, usize>, Vec<bool>)> {
    let mut places = HashMap::new();
    let mut present = vec![false; remapping.len()];
    for (new, &old) in remapping.iter().enumerate().filter(|(_, old)| **old >= 0) {
        present[new] = true;
        if let Some(other) = places.insert(old, new) {
            return Err(unimplemented_error!(
                "Old ID {old} is mapped to both new ID {other} and {new}, which is not supported."
            ));
        }
    }
    Ok((places, present))
}

fn matrix(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let size = |name: &str| build.attrs.int(name).map(|n| n.max(0) as usize);
    let (rows, columns) = (size("num_rows")?, size("num_cols")?);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let out = remapped(ctx, rows, columns)?;
        ctx.set_output(0, out)
    }))
}

/// Returns the matrix that input 1 names in the checkpoint.
fn stored(ctx: &KernelCtx) -> Result<Tensor> {
    let text = |i: usize, what: &str| match ctx.input(i)?.strings()? {
        [text] => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err(invalid_argument!(
            "The `{what}` tensor must have exactly one element, got tensor of shape {}",
            ctx.shape(i)?
        )),
    };
    let (path, name) = (text(0, "ckpt_path")?, text(1, "old_tensor_name")?);
    let bundle = TensorBundle::open(local_path(&path))?;
    let (dtype, shape) = bundle.dtype_and_shape(&name)?;
    if dtype != DType::Float {
        return Err(invalid_argument!(
            "Tensor {name} has invalid type {dtype} instead of expected type float"
        ));
    }
    if shape.rank() != 2 {
        return Err(invalid_argument!(
            "Tensor {name} has shape {shape} of invalid rank {} instead of expected shape of rank 2.",
            shape.rank()
        ));
    }
    bundle.read(&name)
}

fn remapped(ctx: &KernelCtx, rows: usize, columns: usize) -> Result<Tensor> {
    let shape = ctx.shape(2)?;
    if shape.rank() != 1 {
        return Err(invalid_argument!(
            "The `row_remapping` tensor must be 1-D, got a tensor of shape {shape}"
        ));
    }
    let (row_map, column_map) = (ctx.slice::<i64>(2)?, ctx.slice::<i64>(3)?);
    if row_map.len() != rows {
        return Err(invalid_argument!(
            "Size of row_remapping is {} instead of being equal to num_rows={rows}",
            row_map.len()
        ));
    }
    let (new_rows, has_row) = inverted(row_map)?;
    let remaps_columns = !column_map.is_empty();
    if remaps_columns && column_map.len() != columns {
        return Err(invalid_argument!(
            "Provided col_remapping, but its size is {} instead of being equal to num_cols={columns}",
            column_map.len()
        ));
    }
    let (new_columns, has_column) = match remaps_columns {
        true => inverted(column_map)?,
        false => (HashMap::new(), vec![true; columns]),
    };
    let old = stored(ctx)?;
    let old_columns = old.shape()[1];
    if !remaps_columns && old_columns != columns {
        return Err(invalid_argument!(
            "The checkpoint's tensor has shape {}, where the size of its 2nd dimension is \
             {old_columns} instead of being equal to num_cols={columns}",
            old.shape()
        ));
    }
    let mut out = Tensor::zeros(DType::Float, Shape::from([rows, columns]))?;
    let to = out.slice_mut::<f32>()?;
    let from = old.slice::<f32>()?;
    for (&row, &new_row) in &new_rows {
        let Some(values) = from.chunks_exact(old_columns.max(1)).nth(row as usize) else {
            return Err(internal!(
                "Extent in dimension 0 out of bounds: shape = {}, slice = {row},1:-",
                old.shape()
            ));
        };
        for (column, &value) in values.iter().enumerate() {
            let new_column = match remaps_columns {
                true => new_columns.get(&(column as i64)).copied(),
                false => Some(column),
            };
            if let Some(slot) = new_column.and_then(|c| to.get_mut(new_row * columns + c)) {
                *slot = value;
            }
        }
    }
    fill_missing(to, &has_row, &has_column, ctx.slice::<f32>(4)?)?;
    Ok(out)
}

/// Fills what no old row and column has, in order.
fn fill_missing(
    to: &mut [f32],
    has_row: &[bool],
    has_column: &[bool],
    values: &[f32],
) -> Result<()> {
    let mut used = 0;
    for (row, &row_known) in to.chunks_exact_mut(has_column.len().max(1)).zip(has_row) {
        for (x, _) in row
            .iter_mut()
            .zip(has_column)
            .filter(|(_, known)| !(row_known && **known))
        {
            let value = values.get(used);
            *x = *value.ok_or_else(|| {
                invalid_argument!(
                    "initializing_values contained {} elements, but more missing values remain.",
                    values.len()
                )
            })?;
            used += 1;
        }
    }
    match used == values.len() {
        true => Ok(()),
        false => Err(invalid_argument!(
            "initializing_values contained {} elements, but only {used} elements were used to fill in \
             missing values.",
            values.len()
        )),
    }
}
