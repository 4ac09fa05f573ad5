//! SparseCross, SparseCrossV2, SparseCrossHashed (TensorFlow: `core/kernels/sparse_cross_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::feature_cross::{Column, Crossing, cross};
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseCross",
        "indices: N*int64, values: list(sparse_types), shapes: N*int64, dense_inputs: \
         list(dense_types) -> output_indices: int64, output_values: out_type, \
         output_shape: int64 | N: int >= 0; hashed_output: bool; num_buckets: int >= 0; \
         hash_key: int; sparse_types: list(type) >= 0 {int64,string}; dense_types: \
         list(type) >= 0 {int64,string}; out_type: type {int64,string}; internal_type: \
         type {int64,string}",
    )
    .shape(cross_shape)
    .kernel(sparse_cross),
    Op::new(
        "SparseCrossV2",
        "indices: N*int64, values: list(sparse_types), shapes: N*int64, dense_inputs: \
         list(dense_types), sep: string -> output_indices: int64, output_values: string, \
         output_shape: int64 | N: int >= 0; sparse_types: list(type) >= 0 {int64,string}; \
         dense_types: list(type) >= 0 {int64,string}",
    )
    .shape(cross_shape)
    .kernel(|build| {
        let inputs = Inputs::of(build.attrs, None)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let columns = inputs.columns(ctx)?;
            let separator = ctx.input(inputs.end())?;
            if !separator.shape().is_scalar() {
                return Err(invalid_argument!(
                    "Input separator should be a scalar. Received: {separator:?}"
                ));
            }
            let separator = separator.strings()?.first().cloned().unwrap_or_default();
            let outputs = outputs(&columns, inputs.n_rows(ctx)?, &Crossing::Joined(separator))?;
            set_all(ctx, outputs)
        }))
    }),
    Op::new(
        "SparseCrossHashed",
        "indices: N*int64, values: list(sparse_types), shapes: N*int64, dense_inputs: \
         list(dense_types), num_buckets: int64, strong_hash: bool, salt: int64 -> \
         output_indices: int64, output_values: int64, output_shape: int64 | N: int >= 0; \
         sparse_types: list(type) >= 0 {int64,string}; dense_types: list(type) >= 0 \
         {int64,string}",
    )
    .shape(cross_shape)
    .kernel(|build| {
        let inputs = Inputs::of(build.attrs, None)?;
        Ok(Box::new(move |ctx: &mut KernelCtx| {
            let columns = inputs.columns(ctx)?;
            let n_buckets = ctx.input(inputs.end())?.to_scalar::<i64>()?;
            let is_strong = ctx.input(inputs.end() + 1)?.to_scalar::<bool>()?;
            let [first, second] = *ctx.slice::<i64>(inputs.end() + 2)? else {
                return Err(invalid_argument!(
                    "Input \"salt\" must have length 2 but has length {}",
                    ctx.shape(inputs.end() + 2)?.num_elements()
                ));
            };
            let crossing = Crossing::Keyed {
                key: is_strong.then_some([first as u64, second as u64]),
                n_buckets,
            };
            let outputs = outputs(&columns, inputs.n_rows(ctx)?, &crossing)?;
            set_all(ctx, outputs)
        }))
    }),
];

fn cross_shape(ctx: &mut ShapeCtx) -> Result<()> {
    ctx.set(0, PartialShape::of([None, Some(2)]));
    ctx.set(1, PartialShape::of_rank(1));
    ctx.set(2, PartialShape::of([Some(2)]));
    Ok(())
}

fn sparse_cross(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let inputs = Inputs::of(attrs, Some(attrs.dtype("internal_type")?))?;
    let crossing = match build.output(1)? {
        DType::String => Crossing::Joined("_X_".into()),
        _ => Crossing::Hashed {
            key: attrs.int("hash_key")? as u64,
            n_buckets: attrs.int("num_buckets")?,
        },
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let columns = inputs.columns(ctx)?;
        let outputs = outputs(&columns, inputs.n_rows(ctx)?, &crossing)?;
        set_all(ctx, outputs)
    }))
}

/// The inputs that are columns.
struct Inputs {
    n_sparse: usize,
    /// The number of inputs with values, which a call must have one for each sparse column.
    n_values: usize,
    n_dense: usize,
    /// The dtype of features, if the op has it.
    internal: Option<DType>,
}

impl Inputs {
    fn of(attrs: &Attrs, internal: Option<DType>) -> Result<Inputs> {
        Ok(Inputs {
            n_sparse: usize::try_from(attrs.int("N")?).unwrap_or(0),
            n_values: attrs.dtypes("sparse_types")?.len(),
            n_dense: attrs.dtypes("dense_types")?.len(),
            internal,
        })
    }

    /// The first input behind the columns.
    fn end(&self) -> usize {
        3 * self.n_sparse + self.n_dense
    }

    fn batch_size(&self, ctx: &KernelCtx) -> Result<i64> {
        if self.n_sparse > 0 {
            return Ok(ctx.slice::<i64>(2 * self.n_sparse)?[0]);
        }
        match self.n_dense {
            0 => Ok(0),
            _ => Ok(ctx.shape(0)?[0] as i64),
        }
    }

    fn n_rows(&self, ctx: &KernelCtx) -> Result<usize> {
        let n = self.batch_size(ctx)?;
        usize::try_from(n).map_err(|_| invalid_argument!("Expected a batch size >= 0, got {n}"))
    }

    /// Checks the inputs as TensorFlow does and returns their columns.
    fn columns<'a>(&self, ctx: &'a KernelCtx) -> Result<Vec<Column<'a>>> {
        let n = self.n_sparse;
        self.check_indices(ctx)?;
        if n != self.n_values {
            return Err(invalid_argument!(
                "Expected {n} input values, got {}",
                self.n_values
            ));
        }
        self.check_values(ctx)?;
        self.check_shapes(ctx)?;
        self.check_dense(ctx)?;
        self.check_batch_sizes(ctx)?;
        let sparse = (0..n).map(|i| Column::sparse(ctx.input(n + i)?, ctx.slice(i)?));
        let dense = self.dense().map(|at| Column::dense(ctx.input(at)?));
        sparse.chain(dense).collect()
    }

    /// The numbers of the dense inputs.
    fn dense(&self) -> Range<usize> {
        3 * self.n_sparse..self.end()
    }

    /// Whether integers come where the op is to cross strings.
    fn is_wrong_type(&self, t: &Tensor) -> bool {
        self.internal == Some(DType::String) && t.dtype() == DType::Int64
    }

    fn check_indices(&self, ctx: &KernelCtx) -> Result<()> {
        let n = self.n_sparse;
        for i in 0..n {
            match *ctx.shape(i)?.dims() {
                [_, 2] => {}
                [_, width] => {
                    return Err(invalid_argument!(
                        "Expected D2 of index to be 2 got {width} at position {i}"
                    ));
                }
                _ => {
                    return Err(invalid_argument!(
                        "Input indices should be a matrix but received shape {} at position {i}",
                        ctx.shape(i)?
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_values(&self, ctx: &KernelCtx) -> Result<()> {
        let n = self.n_sparse;
        // Messages name types by their numbers.
        for i in 0..n {
            let (indices, values) = (ctx.input(i)?, ctx.input(n + i)?);
            if self.is_wrong_type(values) {
                return Err(invalid_argument!(
                    "Input values should be of internal type 7 but received 9"
                ));
            }
            if values.shape().rank() != 1 {
                return Err(invalid_argument!(
                    "Input values should be a vector but received shape {} at position {i}",
                    values.shape()
                ));
            }
            if indices.shape()[0] != values.num_elements() {
                return Err(invalid_argument!(
                    "Expected size of values to be {} got {} at position {i}",
                    indices.shape()[0],
                    values.num_elements()
                ));
            }
        }
        Ok(())
    }

    fn check_shapes(&self, ctx: &KernelCtx) -> Result<()> {
        let n = self.n_sparse;
        for i in 0..n {
            let shape = ctx.shape(2 * n + i)?;
            match *shape.dims() {
                [2] => {}
                [_] => {
                    return Err(invalid_argument!(
                        "shape should imply a 2D tensor, but got {shape} at position {i}"
                    ));
                }
                _ => {
                    return Err(invalid_argument!(
                        "Input shapes should be a vector but received shape {shape} at position {i}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn check_dense(&self, ctx: &KernelCtx) -> Result<()> {
        for (i, at) in self.dense().enumerate() {
            let input = ctx.input(at)?;
            if self.is_wrong_type(input) {
                return Err(invalid_argument!(
                    "Dense inputs should be of internal type 7 but received 9"
                ));
            }
            if input.shape().rank() != 2 {
                return Err(invalid_argument!(
                    "Dense inputs should be a matrix but received shape {} at position {i}",
                    input.shape()
                ));
            }
        }
        Ok(())
    }

    fn check_batch_sizes(&self, ctx: &KernelCtx) -> Result<()> {
        let n = self.n_sparse;
        let batch = self.batch_size(ctx)?;
        for i in 0..n {
            let size = ctx.slice::<i64>(2 * n + i)?[0];
            if size != batch {
                return Err(invalid_argument!(
                    "Expected batch size {batch} got {size} at position {i}"
                ));
            }
        }
        for (i, at) in self.dense().enumerate() {
            let size = ctx.shape(at)?[0] as i64;
            if size != batch {
                return Err(invalid_argument!(
                    "Expected batch size {batch} got {size} at dense tensor {i}"
                ));
            }
        }
        Ok(())
    }
}

/// Crosses the columns: coordinates, values and the shape of the result.
fn outputs(columns: &[Column], n_rows: usize, crossing: &Crossing) -> Result<[Tensor; 3]> {
    let crosses = cross(columns, n_rows, crossing)?;
    let counts = crosses.counts.iter();
    let indices: Vec<i64> = counts
        .flat_map(|&(row, n)| (0..n).flat_map(move |i| [row as i64, i as i64]))
        .collect();
    let widest = crosses.counts.iter().map(|&(_, n)| n).max().unwrap_or(0);
    Ok([
        Tensor::from_slice([indices.len() / 2, 2], &indices)?,
        crosses.values,
        Tensor::vector(&[n_rows as i64, widest as i64])?,
    ])
}

fn set_all(ctx: &mut KernelCtx, outputs: [Tensor; 3]) -> Result<()> {
    for (i, output) in outputs.into_iter().enumerate() {
        ctx.set_output(i, output)?;
    }
    Ok(())
}
