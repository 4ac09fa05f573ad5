//! MatrixDiag, MatrixDiagPart, and MatrixSetDiag, versions 1 to 3 (TensorFlow:
//! `core/kernels/linalg/matrix_diag_op.cc` and `matrix_set_diag_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::{self, shape_of};
use ferroflow_functors::strided::par_rows;
use ferroflow_opdef::{Attrs, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{Item, PartialShape, Shape, Tensor, dispatch_items};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new("MatrixDiag", "diagonal: T -> output: T | T: type")
        .shape(matrix_diag_shape)
        .kernel(matrix_diag)
        .gradient(matrix_diag_gradient),
    Op::new(
        "MatrixDiagV2",
        "diagonal: T, k: int32, num_rows: int32, num_cols: int32, padding_value: T -> \
         output: T | T: type",
    )
    .shape(matrix_diag_shape)
    .kernel(matrix_diag)
    .gradient(matrix_diag_v2_gradient),
    Op::new(
        "MatrixDiagV3",
        "diagonal: T, k: int32, num_rows: int32, num_cols: int32, padding_value: T -> \
         output: T | T: type; align: string \
         {'LEFT_RIGHT','RIGHT_LEFT','LEFT_LEFT','RIGHT_RIGHT'} = 'RIGHT_LEFT'",
    )
    .shape(matrix_diag_shape)
    .kernel(matrix_diag)
    .gradient(matrix_diag_v3_gradient),
    Op::new("MatrixDiagPart", "input: T -> diagonal: T | T: type")
        .shape(matrix_diag_part_shape)
        .kernel(matrix_diag_part)
        .gradient(matrix_diag_part_gradient),
    Op::new(
        "MatrixDiagPartV2",
        "input: T, k: int32, padding_value: T -> diagonal: T | T: type",
    )
    .shape(matrix_diag_part_shape)
    .kernel(matrix_diag_part)
    .gradient(matrix_diag_part_v2_gradient),
    Op::new(
        "MatrixDiagPartV3",
        "input: T, k: int32, padding_value: T -> diagonal: T | T: type; align: string \
         {'LEFT_RIGHT','RIGHT_LEFT','LEFT_LEFT','RIGHT_RIGHT'} = 'RIGHT_LEFT'",
    )
    .shape(matrix_diag_part_shape)
    .kernel(matrix_diag_part)
    .gradient(matrix_diag_part_v3_gradient),
    Op::new(
        "MatrixSetDiag",
        "input: T, diagonal: T -> output: T | T: type",
    )
    .shape(matrix_set_diag_shape)
    .kernel(matrix_set_diag)
    .gradient(set_diag_gradient),
    Op::new(
        "MatrixSetDiagV2",
        "input: T, diagonal: T, k: int32 -> output: T | T: type",
    )
    .shape(matrix_set_diag_shape)
    .kernel(matrix_set_diag)
    .gradient(set_diag_v2_gradient),
    Op::new(
        "MatrixSetDiagV3",
        "input: T, diagonal: T, k: int32 -> output: T | T: type; align: string \
         {'LEFT_RIGHT','RIGHT_LEFT','LEFT_LEFT','RIGHT_RIGHT'} = 'RIGHT_LEFT'",
    )
    .shape(matrix_set_diag_shape)
    .kernel(matrix_set_diag)
    .gradient(set_diag_v3_gradient),
];

/// A band of diagonals `lower..=upper` of matrices, and how its rows are aligned when packed.
#[derive(Clone, Copy, Debug)]
struct Band {
    lower: i64,
    upper: i64,
    /// Whether superdiagonals, and subdiagonals, are aligned left.
    super_left: bool,
    sub_left: bool,
}

impl Band {
    /// Returns the band of input `k` and the attr `align`; the main diagonal without `k`.
    fn new(k: Option<&[i64]>, align: (bool, bool)) -> Result<Self> {
        let (lower, upper) = match k {
            None => (0, 0),
            Some([k]) => (*k, *k),
            Some([lower, upper]) => (*lower, *upper),
            Some(k) => {
                return Err(invalid_argument!(
                    "diag_index must have only one or two elements, received {} elements.",
                    k.len()
                ));
            }
        };
        Ok(Band {
            lower,
            upper,
            super_left: align.0,
            sub_left: align.1,
        })
    }

    /// Checks that the bounds are in order.
    fn ordered(self) -> Result<Self> {
        let Band { lower, upper, .. } = self;
        match lower > upper {
            true => Err(invalid_argument!(
                "lower_diag_index must not be larger than upper_diag_index: {lower} > {upper}"
            )),
            false => Ok(self),
        }
    }

    fn check(&self, rows: usize, cols: usize, end: &str) -> Result<()> {
        let inside = |k: i64| (-(rows as i64) < k && k < cols as i64) || k == 0;
        for (name, k, end) in [("lower", self.lower, end), ("upper", self.upper, "")] {
            if !inside(k) {
                return Err(invalid_argument!(
                    "{name}_diag_index is out of bound: {k}{end} It must be between {} and {cols}",
                    -(rows as i64)
                ));
            }
        }
        self.ordered().map(|_| ())
    }

    fn count(&self) -> usize {
        (self.upper - self.lower) as usize + 1
    }

    /// Returns the longest diagonal in matrices of this size.
    fn max_len(&self, rows: usize, cols: usize) -> usize {
        let rows = rows as i64 + self.upper.min(0);
        let cols = cols as i64 - self.lower.max(0);
        rows.min(cols).max(0) as usize
    }

    /// Returns the length of diagonal `d` and its start in its packed row.
    fn place(&self, d: i64, rows: usize, cols: usize) -> (usize, usize) {
        let len = (rows as i64 + d.min(0)).min(cols as i64 - d.max(0)).max(0) as usize;
        let left = if d >= 0 {
            self.super_left
        } else {
            self.sub_left
        };
        (
            len,
            if left {
                0
            } else {
                self.max_len(rows, cols).saturating_sub(len)
            },
        )
    }

    /// Returns the shape of the packed diagonals of a batch.
    fn packed_shape(&self, batch: &[usize], rows: usize, cols: usize) -> Result<Shape> {
        let count = (self.lower != self.upper).then_some(self.count());
        shape_of(
            batch
                .iter()
                .copied()
                .chain(count)
                .chain([self.max_len(rows, cols)]),
        )
    }

    /// Copies the band of each matrix to its packed diagonals.
    fn pack<T: Item>(
        &self,
        par: &dyn Parallelism,
        [rows, cols]: [usize; 2],
        from: &[T],
        pad: &T,
        to: &mut [T],
    ) {
        let packed = self.count() * self.max_len(rows, cols);
        par_rows(par, to, packed, &|b, to| {
            to.fill(pad.clone());
            let from = &from[b * rows * cols..];
            self.each(rows, cols, |m, p| to[p] = from[m].clone());
        });
    }

    /// Copies packed diagonals to the band of each matrix, whose other elements become `pad` if it is given.
    fn unpack<T: Item>(
        &self,
        par: &dyn Parallelism,
        [rows, cols]: [usize; 2],
        from: &[T],
        pad: Option<&T>,
        to: &mut [T],
    ) {
        let packed = self.count() * self.max_len(rows, cols);
        par_rows(par, to, rows * cols, &|b, to| {
            if let Some(pad) = pad {
                to.fill(pad.clone());
            }
            let from = &from[b * packed..];
            self.each(rows, cols, |m, p| to[m] = from[p].clone());
        });
    }

    /// Calls `f(matrix offset, packed offset)` for every element of the band of one matrix.
    fn each(&self, rows: usize, cols: usize, mut f: impl FnMut(usize, usize)) {
        let max_len = self.max_len(rows, cols);
        for (row, d) in (self.lower..=self.upper).rev().enumerate() {
            let (len, start) = self.place(d, rows, cols);
            let (r, c) = ((-d).max(0) as usize, d.max(0) as usize);
            for i in 0..len {
                f((r + i) * cols + c + i, row * max_len + start + i);
            }
        }
    }
}

/// Returns whether superdiagonals and subdiagonals are aligned left; in version 2 both are.
fn alignment(attrs: &Attrs) -> (bool, bool) {
    match attrs.str("align") {
        Ok(align) => (align.starts_with("LEFT"), align.ends_with("LEFT")),
        Err(_) => (true, true),
    }
}

fn k_input(ctx: &KernelCtx, i: usize) -> Result<Option<indices::Ints>> {
    if i >= ctx.num_inputs() {
        return Ok(None);
    }
    let k = ctx.input(i)?;
    if k.shape().rank() > 1 {
        return Err(invalid_argument!(
            "diag_index must be a scalar or vector, received shape: {}",
            k.shape()
        ));
    }
    if k.num_elements() == 0 {
        return Err(match i {
            1 => invalid_argument!("Expected diag_index to have at least 1 element"),
            _ => invalid_argument!("diag_index must have at least one element"),
        });
    }
    indices::ints(k).map(Some)
}

fn padding<T: Item>(ctx: &KernelCtx, i: usize) -> Result<T> {
    match ctx.num_inputs() > i {
        true => match ctx.input(i)?.items::<T>()? {
            [v] => Ok(v.clone()),
            _ => Err(invalid_argument!("padding_value must be a scalar")),
        },
        false => Ok(T::default()),
    }
}

/// Splits the shape of a batch of matrices.
pub(crate) fn matrices(shape: &Shape) -> Result<(&[usize], usize, usize)> {
    match shape.split_last_chunk::<2>() {
        Some((batch, &[rows, cols])) => Ok((batch, rows, cols)),
        None => Err(invalid_argument!(
            "input must be at least 2-dim, received shape: {shape}"
        )),
    }
}

fn matrix_diag_part(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let align = alignment(build.attrs);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let band = Band::new(k_input(ctx, 1)?.as_deref(), align)?;
        if ctx.num_inputs() > 2 && ctx.input(2)?.num_elements() != 1 {
            return Err(invalid_argument!("Padding must be scalar."));
        }
        let (batch, rows, cols) = matrices(input.shape())?;
        band.check(rows, cols, ".")?;
        let mut out = ctx.alloc(input.dtype(), band.packed_shape(batch, rows, cols)?)?;
        dispatch_items!(out.dtype(), T => {
            let pad = padding::<T>(ctx, 2)?;
            band.pack(ctx.par(), [rows, cols], input.items()?, &pad, out.items_mut()?);
        });
        ctx.set_output(0, out)
    }))
}

fn matrix_diag(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let align = alignment(build.attrs);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let input = ctx.input(0)?;
        let band = Band::new(k_input(ctx, 1)?.as_deref(), align)?;
        let size = |i: usize, name: &str| match ctx.num_inputs() > i {
            true => indices::scalar(ctx.input(i)?)
                .ok_or_else(|| invalid_argument!("{name} must be a scalar")),
            false => Ok(-1),
        };
        let (rows, cols) = (size(2, "num_rows")?, size(3, "num_cols")?);
        if ctx.num_inputs() > 4 && ctx.shape(4)?.rank() != 0 {
            return Err(invalid_argument!("padding_value must be a scalar"));
        }
        let (batch, rows, cols) = matrix_size(input.shape(), &band, rows, cols)?;
        let shape = shape_of(batch.iter().copied().chain([rows, cols]))?;
        let mut out = ctx.alloc(input.dtype(), shape)?;
        dispatch_items!(out.dtype(), T => {
            let pad = padding::<T>(ctx, 4)?;
            band.unpack(ctx.par(), [rows, cols], input.items()?, Some(&pad), out.items_mut()?);
        });
        ctx.set_output(0, out)
    }))
}

/// Returns the batch dimensions and the size of matrices with these diagonals.
fn matrix_size<'a>(
    diagonals: &'a Shape,
    band: &Band,
    rows: i64,
    cols: i64,
) -> Result<(&'a [usize], usize, usize)> {
    if diagonals.rank() < 1 {
        return Err(invalid_argument!(
            "diagonal must be at least 1-dim, received shape: {diagonals}"
        ));
    }
    let one = band.ordered()?.lower == band.upper;
    if diagonals.rank() < 2 && !one {
        return Err(invalid_argument!(
            "diagonal must be at least 2-dim, received shape: {diagonals}"
        ));
    }
    let (lead, max_len) = diagonals.split_at(diagonals.rank() - 1);
    let max_len = max_len[0] as i64;
    let batch = if one { lead } else { &lead[..lead.len() - 1] };
    if !one && lead[lead.len() - 1] as u64 != band.upper.abs_diff(band.lower) + 1 {
        return Err(invalid_argument!(
            "The number of diagonals provided in the input does not match the lower_diag_index and \
             upper_diag_index range."
        ));
    }
    let min_rows = max_len - band.upper.min(0);
    let min_cols = max_len + band.lower.max(0);
    let (mut r, mut c) = (rows, cols);
    match (rows, cols) {
        (-1, -1) => {
            r = min_rows.max(min_cols);
            c = r;
        }
        (-1, _) => r = min_rows,
        (_, -1) => c = min_cols,
        _ => {}
    }
    if r < min_rows {
        return Err(invalid_argument!("The number of rows is too small."));
    }
    if c < min_cols {
        return Err(invalid_argument!("The number of columns is too small."));
    }
    if r != min_rows && c != min_cols {
        return Err(invalid_argument!(
            "The number of rows or columns is not consistent with the specified d_lower, d_upper, \
             and diagonal."
        ));
    }
    let (r, c) = (r.max(0) as usize, c.max(0) as usize);
    band.check(r, c, "")?;
    Ok((batch, r, c))
}

fn matrix_set_diag(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let align = alignment(build.attrs);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let diagonal = ctx.input(1)?.clone();
        let (band, rows, cols) = band_to_set(ctx, &diagonal, align)?;
        let mut out = ctx.take_input(0)?;
        dispatch_items!(out.dtype(), T => {
            band.unpack::<T>(ctx.par(), [rows, cols], diagonal.items()?, None, out.items_mut()?);
        });
        ctx.set_output(0, out)
    }))
}

/// Returns the band that `diagonal` is, in matrices of this size.
fn band_to_set(
    ctx: &KernelCtx,
    diagonal: &Tensor,
    align: (bool, bool),
) -> Result<(Band, usize, usize)> {
    let band = Band::new(k_input(ctx, 2)?.as_deref(), align)?;
    let shape = ctx.shape(0)?.clone();
    let (batch, rows, cols) = matrices(&shape)?;
    if diagonal.shape().rank() < 1 {
        return Err(invalid_argument!(
            "diagonal must be at least 1-dim, received shape: {}",
            diagonal.shape()
        ));
    }
    band.check(rows, cols, "")?;
    let count = diagonal.shape().get(shape.rank() - 2);
    if band.lower != band.upper && count != Some(&band.count()) {
        return Err(invalid_argument!(
            "The number of diagonals provided in `diag` is not consistent with `lower_diag_index` \
             and `upper_diag_index`"
        ));
    }
    let expected = band.packed_shape(batch, rows, cols)?;
    if diagonal.shape() != &expected {
        return Err(invalid_argument!(
            "Either first dimensions of diagonal don't match input.shape[:-2], or \
             diagonal.shape[:-1] is not equal to the longests diagonal in range \
             [lower_diag_index:upper_diag_index].\nInput shape: {shape}\nDiagonal shape: {}\n\
             Expected diagonal shape: {expected}",
            diagonal.shape()
        ));
    }
    Ok((band, rows, cols))
}

fn constant_band(ctx: &ShapeCtx, i: usize) -> Result<Option<Band>> {
    if i >= ctx.num_inputs() {
        return Band::new(None, (true, true)).map(Some);
    }
    match indices::constant(ctx, i) {
        Some(k) => Band::new(Some(&k), (true, true))?.ordered().map(Some),
        None => Ok(None),
    }
}

fn matrix_diag_part_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank_at_least(0, 2)?;
    let (Some(dims), Some(band)) = (input.dims(), constant_band(ctx, 1)?) else {
        return Ok(());
    };
    let (batch, matrix) = dims.split_at(dims.len() - 2);
    let mut out = batch.to_vec();
    if band.lower != band.upper {
        out.push(usize::try_from(band.upper - band.lower + 1).ok());
    }
    out.push(match (matrix[0], matrix[1]) {
        (Some(rows), Some(cols)) => {
            band.check(rows, cols, ".")?;
            Some(band.max_len(rows, cols))
        }
        _ => None,
    });
    ctx.set(0, PartialShape::of(out));
    Ok(())
}

fn matrix_diag_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let input = ctx.with_rank_at_least(0, 1)?;
    let Some(band) = constant_band(ctx, 1)? else {
        return Ok(());
    };
    let size = |i: usize| match ctx.num_inputs() > i {
        true => indices::constant_int(ctx, i),
        false => Some(-1),
    };
    let (rows, cols) = (size(2), size(3));
    let Some(dims) = input.dims() else {
        return Ok(());
    };
    let shape = match (input.to_full(), rows, cols) {
        (Some(full), Some(rows), Some(cols)) => {
            let (batch, rows, cols) = matrix_size(&full, &band, rows, cols)?;
            PartialShape::of(batch.iter().copied().chain([rows, cols]).map(Some))
        }
        _ => {
            let lead = dims
                .len()
                .saturating_sub(if band.lower == band.upper { 1 } else { 2 });
            PartialShape::of(dims[..lead].iter().copied().chain([None, None]))
        }
    };
    ctx.set(0, shape);
    Ok(())
}

fn matrix_set_diag_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let shape = ctx.with_rank_at_least(0, 2)?;
    ctx.with_rank_at_least(1, 1)?;
    ctx.set(0, shape);
    Ok(())
}

fn matrix_diag_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.dy(0).op("MatrixDiagPart", &[]);
    g.set(0, dx)
}

fn matrix_diag_v2_gradient(g: &mut GradientCtx) -> Result<()> {
    let (d, k) = (g.dy(0), g.x(1));
    g.set(0, d.op("MatrixDiagPartV2", &[k, d.number(0.0)]))
}

fn matrix_diag_v3_gradient(g: &mut GradientCtx) -> Result<()> {
    let (d, k) = (g.dy(0), g.x(1));
    let zero = d.number(0.0);
    g.set(
        0,
        d.op_with("MatrixDiagPartV3", &[k, zero], &[g.attr("align")]),
    )
}

fn matrix_diag_part_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g.x(0).zeros_like().op("MatrixSetDiag", &[g.dy(0)]);
    g.set(0, dx)
}

fn matrix_diag_part_v2_gradient(g: &mut GradientCtx) -> Result<()> {
    let dx = g
        .x(0)
        .zeros_like()
        .op("MatrixSetDiagV2", &[g.dy(0), g.x(1)]);
    g.set(0, dx)
}

fn matrix_diag_part_v3_gradient(g: &mut GradientCtx) -> Result<()> {
    let zeros = g.x(0).zeros_like();
    let dx = zeros.op_with("MatrixSetDiagV3", &[g.dy(0), g.x(1)], &[g.attr("align")]);
    g.set(0, dx)
}

fn set_diag_gradient(g: &mut GradientCtx) -> Result<()> {
    let d = g.dy(0);
    g.set(0, d.op("MatrixSetDiag", &[g.x(1).zeros_like()]))?;
    g.set(1, d.op("MatrixDiagPart", &[]))
}

fn set_diag_v2_gradient(g: &mut GradientCtx) -> Result<()> {
    let (d, k) = (g.dy(0), g.x(2));
    g.set(0, d.op("MatrixSetDiagV2", &[g.x(1).zeros_like(), k]))?;
    g.set(1, d.op("MatrixDiagPartV2", &[k, d.number(0.0)]))
}

fn set_diag_v3_gradient(g: &mut GradientCtx) -> Result<()> {
    let (d, k, align) = (g.dy(0), g.x(2), [g.attr("align")]);
    g.set(
        0,
        d.op_with("MatrixSetDiagV3", &[g.x(1).zeros_like(), k], &align),
    )?;
    g.set(
        1,
        d.op_with("MatrixDiagPartV3", &[k, d.number(0.0)], &align),
    )
}
