//! Sparse matrices in compressed rows, and the ops that make them and take them apart (TensorFlow:
//! `core/kernels/sparse/sparse_matrix.h` and the conversions next to it).

use ferroflow_base::{Result, Status, invalid_argument};
pub(crate) use ferroflow_functors::csr::{Csr, Owned, Part};
use ferroflow_functors::numeric::Num;
use ferroflow_opdef::{AttrValue, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{
    Complex32, Complex64, DType, Element, PartialShape, Shape, Tensor, dispatch,
};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "SparseTensorToCSRSparseMatrix",
        "indices: int64, values: T, dense_shape: int64 -> sparse_matrix: variant | T: type \
         {float,double,complex64,complex128}",
    )
    .shape(from_sparse_shape)
    .kernel(|build| typed(build, "T", Typed::FromSparse))
    .gradient(|g| {
        let values = g.x(1).dtype();
        let attrs = [("type", AttrValue::Type(values))];
        let parts = g
            .dy(0)
            .node("CSRSparseMatrixToSparseTensor", &[g.dy(0)], &attrs);
        match parts.get(1) {
            Some(values) => g.set(1, *values),
            None => Ok(()),
        }
    }),
    Op::new(
        "CSRSparseMatrixToSparseTensor",
        "sparse_matrix: variant -> indices: int64, values: type, dense_shape: int64 | type: type \
         {float,double,complex64,complex128}",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.set(0, PartialShape::of([None, None]));
        ctx.set(1, PartialShape::of([None]));
        ctx.set(2, PartialShape::of([None]));
        Ok(())
    })
    .kernel(|build| typed(build, "type", Typed::ToSparse))
    .gradient(|g| {
        let parts = [g.y(0), g.dy(1), g.y(2)];
        let matrix = g.y(0).make("SparseTensorToCSRSparseMatrix", &parts, &[]);
        g.set(0, matrix)
    }),
    Op::new(
        "DenseToCSRSparseMatrix",
        "dense_input: T, indices: int64 -> sparse_output: variant | T: type \
         {float,double,complex64,complex128}",
    )
    .shape(from_dense_shape)
    .kernel(|build| typed(build, "T", Typed::FromDense))
    .gradient(|g| {
        let dtype = g.x(0).dtype();
        let dense = g.dy(0).make(
            "CSRSparseMatrixToDense",
            &[g.dy(0)],
            &[("type", AttrValue::Type(dtype))],
        );
        g.set(0, dense)
    }),
    Op::new(
        "CSRSparseMatrixToDense",
        "sparse_input: variant -> dense_output: type | type: type \
         {float,double,complex64,complex128}",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.set(0, PartialShape::unknown());
        Ok(())
    })
    .kernel(|build| typed(build, "type", Typed::ToDense))
    .gradient(to_dense_gradient),
    Op::new(
        "CSRSparseMatrixComponents",
        "csr_sparse_matrix: variant, index: int32 -> row_ptrs: int32, col_inds: int32, values: \
         type | type: type {float,double,complex64,complex128}",
    )
    .shape(|ctx| {
        ctx.with_rank(0, 0)?;
        ctx.with_rank(1, 0)?;
        (0..3).for_each(|i| ctx.set(i, PartialShape::of([None])));
        Ok(())
    })
    .kernel(|build| typed(build, "type", Typed::Components)),
    Op::new("SparseMatrixNNZ", "sparse_matrix: variant -> nnz: int32")
        .shape(|ctx| {
            ctx.with_rank(0, 0)?;
            ctx.set(0, PartialShape::unknown());
            Ok(())
        })
        .kernel(|_| Ok(Box::new(count)))
        .not_differentiable(),
];

/// The kernels that depend on the values' dtype.
#[derive(Clone, Copy)]
enum Typed {
    FromSparse,
    ToSparse,
    FromDense,
    ToDense,
    Components,
}

fn typed(build: &KernelBuild, attr: &str, which: Typed) -> Result<Box<dyn OpKernel>> {
    let dtype = build.attrs.dtype(attr)?;
    dispatch!(dtype, T in [f32, f64, Complex32, Complex64] => Ok(match which {
        Typed::FromSparse => Box::new(from_sparse) as Box<dyn OpKernel>,
        Typed::ToSparse => Box::new(to_sparse::<T>),
        Typed::FromDense => Box::new(from_dense::<T>),
        Typed::ToDense => Box::new(to_dense::<T>),
        Typed::Components => Box::new(components::<T>),
    }), else Err(build.unsupported(dtype)))
}

fn from_sparse_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let at = ctx.with_rank(0, 2)?;
    ctx.with_rank(1, 1)?;
    ctx.with_rank(2, 1)?;
    if let Some(rank) = at.dim(1).filter(|rank| !matches!(rank, 2 | 3)) {
        return Err(invalid_argument!(
            "Invalid rank: {rank}.  Expected a known rank of either 2 or 3."
        ));
    }
    ctx.set(0, PartialShape::scalar());
    Ok(())
}

fn from_dense_shape(ctx: &mut ShapeCtx) -> Result<()> {
    if let Some(rank) = ctx.input(0).rank().filter(|rank| !matches!(rank, 2 | 3)) {
        return Err(invalid_argument!(
            "Invalid rank of dense: {rank}.  Expected a known rank of either 2 or 3."
        ));
    }
    ctx.with_rank(1, 2)?;
    ctx.set(0, PartialShape::scalar());
    Ok(())
}

/// The gradient keeps the elements that the matrix stores.
fn to_dense_gradient(g: &mut GradientCtx) -> Result<()> {
    let dy = g.dy(0);
    let places = g.x(0).make(
        "CSRSparseMatrixToSparseTensor",
        &[g.x(0)],
        &[("type", AttrValue::Type(dy.dtype()))],
    );
    let values = dy.op("GatherNd", &[places]);
    let shape = dy.shape_of().cast(DType::Int64);
    let matrix = places.make(
        "SparseTensorToCSRSparseMatrix",
        &[places, values, shape],
        &[],
    );
    g.set(0, matrix)
}

/// Compresses ascending coordinates.
fn compressed(shape: &[i64], at: &[i64], values: Tensor) -> Result<Csr> {
    let rank = shape.len();
    let (n_batches, inner) = match *shape {
        [rows, columns] => (1, [rows, columns]),
        [batches, rows, columns] => (batches, [rows, columns]),
        _ => return Err(rank_error(rank)),
    };
    let most = i64::from(i32::MAX);
    if n_batches >= most {
        return Err(invalid_argument!(
            "dense_shape batch_size must be < Int32Max, but the input value is {n_batches}"
        ));
    }
    let n_rows = inner[0].saturating_add(1).saturating_mul(n_batches);
    if n_rows > most {
        return Err(invalid_argument!(
            "The csr row index size, computed based on the dense_shape, must be <= Int32Max, but is \
             too large. Current value is {n_rows}"
        ));
    }
    let mut rows = vec![0i32; n_rows.max(0) as usize];
    let mut batches = vec![0usize; n_batches.max(0) as usize + 1];
    let mut columns = Vec::with_capacity(values.num_elements());
    let width = inner[0] as usize + 1;
    for place in at.chunks_exact(rank.max(1)) {
        let (b, row, column) = match *place {
            [row, column] => (0, row, column),
            [b, row, column] => (b, row, column),
            _ => return Err(rank_error(rank)),
        };
        for (what, i, limit) in [
            ("Batch", b, n_batches),
            ("Row", row, inner[0]),
            ("Column", column, inner[1]),
        ] {
            if i < 0 || i >= limit {
                return Err(invalid_argument!(
                    "{what} index {i} is outside of valid range [0, {limit})"
                ));
            }
        }
        rows[b as usize * width + row as usize + 1] += 1;
        batches[b as usize + 1] += 1;
        columns.push(column as i32);
    }
    for own in rows.chunks_exact_mut(width) {
        own.iter_mut().fold(0, |sum, n| {
            *n += sum;
            *n
        });
    }
    batches.iter_mut().fold(0, |sum, n| {
        *n += sum;
        *n
    });
    let shape = shape.to_vec();
    Ok(Csr {
        shape,
        batches,
        rows,
        columns,
        values,
    })
}

fn rank_error(rank: usize) -> Status {
    invalid_argument!("SparseTensor must have rank 2 or 3; but indices has rank: {rank}")
}

fn from_sparse(ctx: &mut KernelCtx) -> Result<()> {
    let (at, values, shape) = (ctx.input(0)?, ctx.input(1)?, ctx.input(2)?);
    ferroflow_functors::sparse::check_parts(at, values, shape)?;
    let sizes = shape.slice::<i64>()?;
    crate::sparse_parts::checked_shape(sizes)?;
    ferroflow_functors::sparse::check_bounds(at.slice()?, sizes.len(), sizes)?;
    let matrix = compressed(sizes, at.slice()?, values.clone())?;
    ctx.set_output(0, matrix.into_tensor()?)
}

fn to_sparse<T: Element>(ctx: &mut KernelCtx) -> Result<()> {
    let matrix = Csr::input(ctx, 0)?;
    matrix.check_dtype(T::DTYPE, |wanted, found| {
        invalid_argument!("Expected a CSRSparseMatrix of type {wanted} but saw type: {found}")
    })?;
    let (rows, _) = matrix.size();
    let batched = matrix.shape.len() == 3;
    let mut at = Vec::with_capacity(matrix.columns.len() * matrix.shape.len());
    for b in 0..matrix.batch_size() {
        let part = matrix.part::<T>(b)?;
        for r in 0..rows {
            for (c, _) in part.row(r) {
                at.extend(batched.then_some(b as i64));
                at.extend([r as i64, c as i64]);
            }
        }
    }
    let at = Tensor::from_slice([matrix.columns.len(), matrix.shape.len()], &at)?;
    let (values, shape) = (matrix.values.clone(), Tensor::vector(&matrix.shape)?);
    ctx.set_output(0, at)?;
    ctx.set_output(1, values)?;
    ctx.set_output(2, shape)
}

fn from_dense<T: Element>(ctx: &mut KernelCtx) -> Result<()> {
    let (dense, at) = (ctx.input(0)?, ctx.input(1)?);
    let rank = dense.shape().rank();
    if !matches!(rank, 2 | 3) {
        return Err(invalid_argument!(
            "params must have rank == 2 or 3; but saw shape: {}",
            dense.shape()
        ));
    }
    let &[_, width] = at.shape().dims() else {
        return Err(invalid_argument!(
            "indices must be a matrix, but saw shape: {}",
            at.shape()
        ));
    };
    if width != rank {
        return Err(invalid_argument!(
            "indices.shape[1] must be equal to the rank of params, but saw: {width} vs. {rank}"
        ));
    }
    let shape = dense.shape().to_i64();
    let from = dense.slice::<T>()?;
    let places = at.slice::<i64>()?;
    let mut values = Vec::with_capacity(places.len() / rank);
    for (i, place) in places.chunks_exact(rank).enumerate() {
        let inside = place.iter().zip(&shape).all(|(i, n)| (0..*n).contains(i));
        let flat = place
            .iter()
            .zip(&shape)
            .fold(0i64, |at, (i, n)| at.wrapping_mul(*n).wrapping_add(*i));
        let value = inside.then(|| from.get(flat as usize)).flatten();
        values.push(*value.ok_or_else(|| {
            let place: Vec<String> = place.iter().map(i64::to_string).collect();
            invalid_argument!(
                "indices[{i}] = [{}] does not index into param shape {}",
                place.join(", "),
                dense.shape()
            )
        })?);
    }
    let matrix = compressed(&shape, places, Tensor::vector(&values)?)?;
    ctx.set_output(0, matrix.into_tensor()?)
}

fn asked(wanted: DType, found: DType) -> Status {
    invalid_argument!("Asked for a CSRSparseMatrix of type {wanted} but saw dtype: {found}")
}

fn to_dense<T: Num>(ctx: &mut KernelCtx) -> Result<()> {
    let matrix = Csr::input(ctx, 0)?;
    matrix.check_dtype(T::DTYPE, asked)?;
    let mut out = Tensor::zeros(T::DTYPE, Shape::checked(&matrix.shape)?)?;
    let (rows, columns) = matrix.size();
    let to = out.slice_mut::<T>()?;
    for b in 0..matrix.batch_size() {
        let part = matrix.part::<T>(b)?;
        for r in 0..rows {
            let start = (b * rows + r) * columns;
            let row = to.get_mut(start..start + columns).unwrap_or_default();
            for (c, value) in part.row(r) {
                if let Some(slot) = row.get_mut(c) {
                    *slot = value;
                }
            }
        }
    }
    ctx.set_output(0, out)
}

fn components<T: Element>(ctx: &mut KernelCtx) -> Result<()> {
    let matrix = Csr::input(ctx, 0)?;
    matrix.check_dtype(T::DTYPE, |wanted, found| {
        invalid_argument!("dtype of input is not equal to 'type': {found} vs. {wanted}")
    })?;
    if !ctx.shape(1)?.is_scalar() {
        return Err(invalid_argument!(
            "index should be a scalar, but saw: {}",
            ctx.shape(1)?
        ));
    }
    let index = ctx.input(1)?.to_scalar::<i32>()?;
    if index < 0 || index as usize >= matrix.batch_size() {
        return Err(invalid_argument!(
            "index ({index}) not in [0, {})",
            matrix.batch_size()
        ));
    }
    let part = matrix.part::<T>(index as usize)?;
    let parts = [
        Tensor::vector(part.rows)?,
        Tensor::vector(part.columns)?,
        Tensor::vector(part.values)?,
    ];
    for (i, part) in parts.into_iter().enumerate() {
        ctx.set_output(i, part)?;
    }
    Ok(())
}

fn count(ctx: &mut KernelCtx) -> Result<()> {
    let matrix = Csr::input(ctx, 0)?;
    let counts: Vec<i32> = (0..matrix.batch_size())
        .map(|b| matrix.elements(b).len() as i32)
        .collect();
    let counts = match matrix.shape.len() {
        2 => Tensor::scalar(counts.first().copied().unwrap_or(0)),
        _ => Tensor::vector(&counts)?,
    };
    ctx.set_output(0, counts)
}
