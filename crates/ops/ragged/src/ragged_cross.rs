//! RaggedCross (TensorFlow: `core/kernels/ragged_cross_op.cc`).

use crate::splits::verified_splits;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::feature_cross::{Column, Crossing, cross};
use ferroflow_functors::indices::int_vector;
use ferroflow_opdef::{Attrs, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};
use std::ops::Range;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "RaggedCross",
    "ragged_values: list(ragged_values_types), ragged_row_splits: \
     list(ragged_splits_types), sparse_indices: Nsparse*int64, sparse_values: \
     list(sparse_values_types), sparse_shape: Nsparse*int64, dense_inputs: \
     list(dense_types) -> output_values: out_values_type, output_row_splits: \
     out_row_splits_type | Nsparse: int >= 0; input_order: string; hashed_output: bool; \
     num_buckets: int >= 0; hash_key: int; ragged_values_types: list(type) >= 0 \
     {int64,string}; ragged_splits_types: list(type) >= 0 {int32,int64}; \
     sparse_values_types: list(type) >= 0 {int64,string}; dense_types: list(type) >= 0 \
     {int64,string}; out_values_type: type {int64,string}; out_row_splits_type: type \
     {int32,int64}",
)
.shape(|ctx| {
    ctx.set(0, PartialShape::of_rank(1));
    let counts = Counts::of(ctx.attrs())?;
    let dense = counts.dense().map(|i| ctx.input(i).dim(0).map(|n| n + 1));
    let ragged = counts.splits().map(|i| ctx.input(i).dim(0));
    let n = ragged.chain(dense).flatten().next();
    ctx.set(1, PartialShape::of([n]));
    Ok(())
})
.kernel(kernel)];

/// How many inputs of each form there are.
#[derive(Clone, Copy)]
struct Counts {
    ragged: usize,
    sparse: usize,
    dense: usize,
}

impl Counts {
    fn of(attrs: &Attrs) -> Result<Counts> {
        let counts = Counts {
            ragged: attrs.dtypes("ragged_values_types")?.len(),
            sparse: attrs.dtypes("sparse_values_types")?.len(),
            dense: attrs.dtypes("dense_types")?.len(),
        };
        if attrs.dtypes("ragged_splits_types")?.len() != counts.ragged {
            return Err(invalid_argument!(
                "ragged values and splits must have the same length"
            ));
        }
        if usize::try_from(attrs.int("Nsparse")?).ok() != Some(counts.sparse) {
            return Err(invalid_argument!(
                "sparse indices and values must have the same length"
            ));
        }
        Ok(counts)
    }

    fn splits(&self) -> Range<usize> {
        self.ragged..2 * self.ragged
    }

    /// The first input of the sparse tensors: all coordinates, then all values, then all shapes.
    fn sparse_start(&self) -> usize {
        2 * self.ragged
    }

    fn dense(&self) -> Range<usize> {
        let start = self.sparse_start() + 3 * self.sparse;
        start..start + self.dense
    }
}

struct RaggedCross {
    counts: Counts,
    order: String,
    crossing: Crossing,
    splits_dtype: DType,
}

fn kernel(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let counts = Counts::of(attrs)?;
    let order = attrs.str("input_order")?.to_string();
    if order.len() != counts.ragged + counts.sparse + counts.dense {
        return Err(invalid_argument!("Invalid length for input_order"));
    }
    let crossing = match build.output(0)? {
        DType::String => Crossing::Joined("_X_".into()),
        _ => Crossing::Hashed {
            key: attrs.int("hash_key")? as u64,
            n_buckets: attrs.int("num_buckets")?,
        },
    };
    let op = RaggedCross {
        counts,
        order,
        crossing,
        splits_dtype: build.output(1)?,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| op.compute(ctx)))
}

fn wrong_rank() -> ferroflow_base::Status {
    invalid_argument!("tf.ragged.cross only supports inputs with rank=2.")
}

impl RaggedCross {
    /// Checks the shapes and returns the size of the batch.
    fn n_rows(&self, ctx: &KernelCtx) -> Result<usize> {
        let counts = self.counts;
        let mut sizes = Vec::new();
        for i in 0..counts.ragged {
            let (values, splits) = (ctx.input(i)?, ctx.input(counts.ragged + i)?);
            if values.shape().rank() != 1 || splits.shape().rank() != 1 {
                return Err(wrong_rank());
            }
            verified_splits(splits, Some(values.num_elements()))?;
            sizes.push((splits.num_elements() - 1) as i64);
        }
        let mut sparse = Vec::new();
        for i in 0..counts.sparse {
            let [indices, values, shape] = self.sparse_inputs(ctx, i)?;
            let ranks = [indices, values, shape].map(|t| t.shape().rank());
            if ranks != [2, 1, 1] || indices.shape()[0] != values.num_elements() {
                return Err(invalid_argument!("Invalid SparseTensor {i}"));
            }
            let [n_rows, _] = *shape.slice::<i64>()? else {
                return Err(wrong_rank());
            };
            if indices.shape()[1] != 2 {
                return Err(wrong_rank());
            }
            sparse.push(n_rows);
        }
        for i in counts.dense() {
            let [n_rows, _] = *ctx.shape(i)?.dims() else {
                return Err(wrong_rank());
            };
            sizes.push(n_rows as i64);
        }
        sizes.extend(sparse);
        let n = sizes.first().copied().unwrap_or(0);
        match usize::try_from(n) {
            Ok(n_rows) if sizes.iter().all(|&size| size == n) => Ok(n_rows),
            _ => Err(invalid_argument!(
                "inputs must all have the same batch dimension size."
            )),
        }
    }

    fn sparse_inputs<'a>(&self, ctx: &'a KernelCtx, i: usize) -> Result<[&'a Tensor; 3]> {
        let (start, n) = (self.counts.sparse_start(), self.counts.sparse);
        Ok([
            ctx.input(start + i)?,
            ctx.input(start + n + i)?,
            ctx.input(start + 2 * n + i)?,
        ])
    }

    fn columns<'a>(&self, ctx: &'a KernelCtx, n_rows: usize) -> Result<Vec<Column<'a>>> {
        let (mut ragged, mut sparse, mut dense) = (0, 0, self.counts.dense());
        let too_many = |form: &str, at: usize, n: usize, items: &str| {
            invalid_argument!(
                "input_order \"{}\" specifies reading a {form} at index {at} from a list of {n} {items}.",
                self.order
            )
        };
        let mut columns = Vec::with_capacity(self.order.len());
        for form in self.order.chars() {
            columns.push(match form {
                'R' if ragged < self.counts.ragged => {
                    let splits = ctx.input(self.counts.ragged + ragged)?;
                    let values = ctx.input(ragged)?;
                    ragged += 1;
                    let splits = verified_splits(splits, Some(values.num_elements()))?;
                    Column::ragged(values, splits)?
                }
                'R' => {
                    let form = "ragged tensor value";
                    return Err(too_many(form, ragged, self.counts.ragged, "values"));
                }
                'S' if sparse < self.counts.sparse => {
                    let [indices, values, _] = self.sparse_inputs(ctx, sparse)?;
                    sparse += 1;
                    let splits = splits_of_rows(indices.slice()?, n_rows);
                    Column::ragged(values, splits)?
                }
                'S' => {
                    let form = "sparse tensor value";
                    return Err(too_many(form, sparse, self.counts.sparse, "values"));
                }
                'D' => match dense.next() {
                    Some(i) => Column::dense(ctx.input(i)?)?,
                    None => {
                        let n = self.counts.dense;
                        return Err(too_many("dense tensor", n, n, "tensors"));
                    }
                },
                _ => return Err(invalid_argument!("Unexpected input_order value.")),
            });
        }
        Ok(columns)
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let n_rows = self.n_rows(ctx)?;
        // Refuses a batch that the machine cannot hold.
        ctx.alloc(DType::Int64, Shape::checked(&[n_rows as i64, 2])?)?;
        let columns = self.columns(ctx, n_rows)?;
        let crosses = cross(&columns, n_rows, &self.crossing)?;
        let mut splits = vec![0i64; n_rows + 1];
        for &(row, n) in &crosses.counts {
            if let Some(split) = splits.get_mut(row + 1) {
                *split = n as i64;
            }
        }
        for i in 1..splits.len() {
            splits[i] += splits[i - 1];
        }
        let splits = int_vector(self.splits_dtype, splits.into_iter())?;
        ctx.set_output(0, crosses.values)?;
        ctx.set_output(1, splits)
    }
}

/// The ends of the rows of sorted coordinates, after a 0.
fn splits_of_rows(coordinates: &[i64], n_rows: usize) -> Vec<usize> {
    let mut splits = vec![0];
    let mut i = 0;
    for row in 0..n_rows {
        while coordinates.get(2 * i).is_some_and(|&at| at <= row as i64) {
            i += 1;
        }
        splits.push(i);
    }
    splits
}
