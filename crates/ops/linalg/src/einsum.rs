//! Einsum: strided views of the operands instead of transposes, and batched matrix products
//! (TensorFlow: `core/kernels/linalg/einsum_op_impl.h`).

use crate::einsum_dense::EinsumDense;
use crate::equation::{Equation, Label, Labels, Sizes};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::product::MatMulElement;
use ferroflow_functors::strided::{Strided, unravel};
use ferroflow_opdef::{Cost, Expr, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::gemm::{BatchItem, GemmShape};
use ferroflow_sync::Parallelism;
use ferroflow_tensor::{
    Complex32, Complex64, DType, PartialShape, Shape, Tensor, bf16, dispatch, dispatch_items, f16,
};
use smallvec::SmallVec;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "Einsum",
    "inputs: N*T -> output: T | equation: string; N: int >= 1; T: type",
)
.shape(shape)
.cost(Cost::Expensive)
.kernel(einsum)
.gradient(einsum_gradient)];

pub(crate) fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let equation = Equation::parse(ctx.attrs().str("equation")?)?;
    let inputs: Vec<PartialShape> = (0..ctx.num_inputs()).map(|i| ctx.input(i)).collect();
    ctx.set(0, equation.infer(&inputs)?);
    Ok(())
}

pub(crate) fn einsum(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let equation = Equation::parse(build.attrs.str("equation")?)?;
    if build.inputs.len() != equation.num_inputs() {
        return Err(invalid_argument!(
            "Expected {} inputs for einsum but got: {}",
            equation.num_inputs(),
            build.inputs.len()
        ));
    }
    let dtype = build.output(0)?;
    if let Some(w) = build.constant(1).filter(|_| equation.is_dense())
        && matches!(dtype, DType::Float | DType::Double)
        && w.shape().num_elements() > 0
    {
        return dispatch!(dtype, T in [f32, f64] => Ok(Box::new(EinsumDense::<T>::new(build, equation, w)?)),
            else Err(build.unsupported(dtype)));
    }
    let arithmetic = Arithmetic::of_dtype(dtype).ok_or_else(|| build.unsupported(dtype))?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        contract(ctx, &equation, &arithmetic)
    }))
}

/// The offsets of the matrices of a product.
type Items<'a> = &'a (dyn Fn(usize) -> BatchItem + Sync);

/// Writes a batch of products of matrices of two tensors.
type Products =
    fn(&dyn Parallelism, usize, &GemmShape, [&Tensor; 2], &mut Tensor, Items<'_>) -> Result<()>;

/// What a contraction computes of elements. The rest only moves them and is compiled once.
pub(crate) struct Arithmetic {
    products: Products,
    row_sums: fn(&dyn Parallelism, &Tensor, usize, &mut Tensor) -> Result<()>,
}

impl Arithmetic {
    /// Returns that of elements of a type, if they are numbers.
    pub(crate) fn of_dtype(dtype: DType) -> Option<Self> {
        dispatch!(dtype, T in [f32, f64, f16, bf16, i32, i64, i8, u8, i16, u16, u32, u64, Complex32, Complex64] =>
            Some(Arithmetic::of::<T>()), else None)
    }

    fn of<T: MatMulElement>() -> Self {
        Arithmetic {
            products: |par, n, shape, [x, y], out, items| {
                T::products(
                    par,
                    n,
                    shape,
                    x.slice()?,
                    y.slice()?,
                    out.slice_mut()?,
                    items,
                )
            },
            row_sums: |par, rows, row_len, out| {
                T::row_sums(par, rows.slice()?, row_len, out.slice_mut()?);
                Ok(())
            },
        }
    }
}

/// A tensor whose dimensions have labels. Labels are unique, and none has size 1.
pub(crate) struct Operand {
    pub(crate) tensor: Tensor,
    labels: Labels,
    dims: SmallVec<[usize; 6]>,
    strides: SmallVec<[isize; 6]>,
}

impl Operand {
    /// Merges repeated labels into one along the diagonal, and drops dimensions of size 1.
    pub(crate) fn new(tensor: Tensor, labels: &[Label]) -> Self {
        let mut op = Operand {
            labels: Labels::new(),
            dims: SmallVec::new(),
            strides: SmallVec::new(),
            tensor,
        };
        let shape = op.tensor.shape();
        for ((&label, &d), &stride) in labels.iter().zip(shape.iter()).zip(&shape.strides()) {
            match op.labels.iter().position(|&l| l == label) {
                Some(i) => op.strides[i] += stride as isize,
                None if d == 1 => {}
                None => {
                    op.labels.push(label);
                    op.dims.push(d);
                    op.strides.push(stride as isize);
                }
            }
        }
        op
    }

    pub(crate) fn has(&self, label: Label) -> bool {
        self.labels.contains(&label)
    }

    /// Returns size and stride of a label; a missing one is broadcast.
    pub(crate) fn axis(&self, label: Label) -> (usize, isize) {
        match self.labels.iter().position(|&l| l == label) {
            Some(i) => (self.dims[i], self.strides[i]),
            None => (1, 0),
        }
    }

    pub(crate) fn view(&self, labels: &[Label]) -> Strided {
        Strided::new(0, labels.iter().map(|&l| self.axis(l)))
    }

    /// Returns the dense tensor with exactly these labels, in this order.
    pub(crate) fn dense(&self, par: &dyn Parallelism, labels: &[Label]) -> Result<Tensor> {
        let shape: Shape = labels.iter().map(|&l| self.axis(l).0).collect();
        let view = self.view(labels);
        if view.is_empty()
            || (view.as_range_start().is_some() && view.len() == self.tensor.num_elements())
        {
            return self.tensor.clone().with_shape(shape);
        }
        let mut out = Tensor::for_overwrite(self.tensor.dtype(), shape)?;
        dispatch_items!(self.tensor.dtype(), T => {
            view.copy_to(par, self.tensor.items::<T>()?, out.items_mut::<T>()?)?;
        });
        Ok(out)
    }

    /// Returns the operand with only `labels`, summed over the others.
    fn reduced(
        self,
        par: &dyn Parallelism,
        keep: &[Label],
        arithmetic: &Arithmetic,
    ) -> Result<Operand> {
        let gone: Labels = self
            .labels
            .iter()
            .copied()
            .filter(|l| !keep.contains(l))
            .collect();
        if gone.is_empty() {
            return Ok(self);
        }
        let kept: Labels = self
            .labels
            .iter()
            .copied()
            .filter(|l| keep.contains(l))
            .collect();
        let order: Labels = kept.iter().chain(&gone).copied().collect();
        let dense = self.dense(par, &order)?;
        let row: usize = dense.shape()[kept.len()..].iter().product();
        let mut out = Tensor::zeros(dense.dtype(), Shape::from(&dense.shape()[..kept.len()]))?;
        if row > 0 {
            (arithmetic.row_sums)(par, &dense, row, &mut out)?;
        }
        Ok(Operand::new(out, &kept))
    }

    /// Returns the operand as a matrix with these rows and columns, if its strides allow: whether
    /// it is transposed, and its row stride as stored.
    pub(crate) fn matrix(&self, rows: &[Label], cols: &[Label]) -> Option<(bool, usize)> {
        let group = |labels: &[Label]| {
            let view = self.view(labels);
            let mut axes = view.collapsed();
            match (axes.next(), axes.next()) {
                (None, _) => Some((1, None)),
                (Some((d, s)), None) => Some((d, Some(usize::try_from(s).ok()?))),
                _ => None,
            }
        };
        let ((m, row), (n, col)) = (group(rows)?, group(cols)?);
        match (row, col) {
            (row, None | Some(1)) => Some((false, row.unwrap_or(n))),
            (None | Some(1), Some(col)) => Some((true, col)),
            _ => None,
        }
        .filter(|&(transposed, ld)| ld >= if transposed { m } else { n })
    }
}

fn sizes_of(operands: &[Operand]) -> Sizes {
    let mut sizes = Sizes::default();
    for op in operands {
        for (&l, &d) in op.labels.iter().zip(&op.dims) {
            // Contradictions were found during shape inference.
            let _ = sizes.add(l, Some(d));
        }
    }
    sizes
}

/// Returns the output's labels, its shape and the operands, checked against each other.
fn operands(ctx: &KernelCtx, equation: &Equation) -> Result<(Labels, Shape, Vec<Operand>)> {
    let n = ctx.num_inputs();
    let shapes: SmallVec<[PartialShape; 2]> = (0..n)
        .map(|i| Ok(ctx.shape(i)?.into()))
        .collect::<Result<_>>()?;
    let out = equation.infer(&shapes)?;
    let out = shape_of(out.dims().unwrap_or(&[]).iter().map(|d| d.unwrap_or(0)))?;
    let ranks: SmallVec<[usize; 2]> = shapes.iter().map(|s| s.rank().unwrap_or(0)).collect();
    let operands = (0..n)
        .map(|i| {
            Ok(Operand::new(
                ctx.input(i)?.clone(),
                &equation.input_labels(i, ranks[i])?,
            ))
        })
        .collect::<Result<_>>()?;
    Ok((equation.output_labels(&ranks)?, out, operands))
}

fn contract(ctx: &mut KernelCtx, equation: &Equation, arithmetic: &Arithmetic) -> Result<()> {
    let (out_labels, out_shape, ops) = operands(ctx, equation)?;
    let out = contraction(ctx.par(), ops, &out_labels, out_shape, arithmetic)?;
    ctx.set_output(0, out)
}

/// Returns the contraction of one or two operands to a tensor whose dimensions have the labels `out_labels`.
pub(crate) fn contraction(
    par: &dyn Parallelism,
    mut ops: Vec<Operand>,
    out_labels: &[Label],
    out_shape: Shape,
    arithmetic: &Arithmetic,
) -> Result<Tensor> {
    let y = if ops.len() == 2 { ops.pop() } else { None };
    let Some(x) = ops.pop() else {
        return Err(invalid_argument!("Einsum needs inputs"));
    };
    let is_empty = |op: &Operand| op.tensor.num_elements() == 0;
    if out_shape.num_elements() == 0 || is_empty(&x) || y.as_ref().is_some_and(is_empty) {
        return Tensor::zeros(x.tensor.dtype(), out_shape);
    }
    let result = match y {
        None => x.reduced(par, out_labels, arithmetic)?,
        Some(y) => {
            let keep = |op: &Operand| {
                out_labels
                    .iter()
                    .chain(&op.labels)
                    .copied()
                    .collect::<Labels>()
            };
            let (keep_x, keep_y) = (keep(&y), keep(&x));
            multiply(
                par,
                x.reduced(par, &keep_x, arithmetic)?,
                y.reduced(par, &keep_y, arithmetic)?,
                out_labels,
                arithmetic,
            )?
        }
    };
    finish(par, &result, out_labels, out_shape)
}

/// Permutes the result's labels to the order of the output, which may repeat some.
pub(crate) fn finish(
    par: &dyn Parallelism,
    result: &Operand,
    labels: &[Label],
    shape: Shape,
) -> Result<Tensor> {
    let mut unique = Labels::new();
    let mut repeated = false;
    for &l in labels {
        if unique.contains(&l) {
            repeated = true;
        } else {
            unique.push(l);
        }
    }
    let dense = result.dense(par, &unique)?;
    if !repeated {
        return dense.with_shape(shape);
    }
    // Everything off the diagonals is zero.
    let mut out = Tensor::zeros(dense.dtype(), shape)?;
    let strides = out.shape().strides();
    let along = |label: Label| -> isize {
        labels
            .iter()
            .zip(&strides)
            .filter(|(l, _)| **l == label)
            .map(|(_, &s)| s as isize)
            .sum()
    };
    let view = Strided::new(0, unique.iter().map(|&l| (result.axis(l).0, along(l))));
    dispatch_items!(dense.dtype(), T => {
        view.copy_from(dense.items::<T>()?, out.items_mut::<T>()?)?;
    });
    Ok(out)
}

/// The labels of a product of matrices.
struct Roles {
    batch: Labels,
    rows: Labels,
    cols: Labels,
    /// Those that are summed over.
    inner: Labels,
}

impl Roles {
    /// Returns the roles of labels, and the operands in the order in which the product has them.
    fn of(x: Operand, y: Operand, out_labels: &[Label]) -> (Roles, Operand, Operand) {
        let in_output = |keep: &dyn Fn(Label) -> bool| -> Labels {
            let mut labels = Labels::new();
            for &l in out_labels {
                if keep(l) && !labels.contains(&l) {
                    labels.push(l);
                }
            }
            labels
        };
        let batch = in_output(&|l| x.has(l) && y.has(l));
        let rows = in_output(&|l| x.has(l) && !y.has(l));
        let cols = in_output(&|l| !x.has(l) && y.has(l));
        // The order of the product is free: the output's own, if possible.
        let first_row = out_labels.iter().position(|l| rows.contains(l));
        let first_col = out_labels.iter().position(|l| cols.contains(l));
        let (x, y, rows, cols) = match (first_row, first_col) {
            (Some(r), Some(c)) if c < r => (y, x, cols, rows),
            _ => (x, y, rows, cols),
        };
        let summed = |op: &Operand| -> Labels {
            op.labels
                .iter()
                .copied()
                .filter(|l| !out_labels.contains(l))
                .collect()
        };
        let n_in_place = |inner: &Labels| {
            let layouts = [x.matrix(&rows, inner), y.matrix(inner, &cols)];
            layouts.iter().flatten().count()
        };
        let (in_x, in_y) = (summed(&x), summed(&y));
        let inner = if n_in_place(&in_y) > n_in_place(&in_x) {
            in_y
        } else {
            in_x
        };
        let roles = Roles {
            batch,
            rows,
            cols,
            inner,
        };
        (roles, x, y)
    }
}

/// Returns the product over the labels that both operands have and the output does not.
fn multiply(
    par: &dyn Parallelism,
    x: Operand,
    y: Operand,
    out_labels: &[Label],
    arithmetic: &Arithmetic,
) -> Result<Operand> {
    let (roles, x, y) = Roles::of(x, y, out_labels);
    let Roles {
        batch,
        rows,
        cols,
        inner,
    } = roles;
    let sizes = sizes_of(std::slice::from_ref(&x));
    let size = |op: &Operand, ls: &[Label]| -> usize { ls.iter().map(|&l| op.axis(l).0).product() };
    let (m, k, n) = (size(&x, &rows), size(&x, &inner), size(&y, &cols));
    let n_batch: usize = batch.iter().map(|&l| sizes.get(l).unwrap_or(1)).product();
    let placed =
        |op: Operand, rows: &[Label], cols: &[Label]| -> Result<(Operand, (bool, usize))> {
            if let Some(layout) = op.matrix(rows, cols) {
                return Ok((op, layout));
            }
            let order: Labels = batch.iter().chain(rows).chain(cols).copied().collect();
            let dense = Operand::new(op.dense(par, &order)?, &order);
            let ld = size(&dense, cols);
            Ok((dense, (false, ld)))
        };
    let (x, (trans_a, lda)) = placed(x, &rows, &inner)?;
    let (y, (trans_b, ldb)) = placed(y, &inner, &cols)?;
    let s = GemmShape {
        m,
        n,
        k,
        trans_a,
        trans_b,
        lda,
        ldb,
        ldc: n,
    };
    let labels: Labels = batch.iter().chain(&rows).chain(&cols).copied().collect();
    let axis = |l: Label| if x.has(l) { x.axis(l).0 } else { y.axis(l).0 };
    let mut out =
        Tensor::for_overwrite(x.tensor.dtype(), shape_of(labels.iter().map(|&l| axis(l)))?)?;
    let (starts_x, starts_y) = (starts(&x, &batch, n_batch), starts(&y, &batch, n_batch));
    let item = |i: usize| BatchItem {
        a: starts_x[i],
        b: starts_y[i],
        out: 0,
    };
    (arithmetic.products)(par, n_batch, &s, [&x.tensor, &y.tensor], &mut out, &item)?;
    Ok(Operand::new(out, &labels))
}

/// Returns the start of the matrix of each batch entry.
fn starts(op: &Operand, batch: &[Label], n: usize) -> Vec<usize> {
    let axes: SmallVec<[(usize, isize); 6]> = batch.iter().map(|&l| op.axis(l)).collect();
    let dims: SmallVec<[usize; 6]> = axes.iter().map(|a| a.0).collect();
    let mut coords = SmallVec::<[usize; 6]>::from_elem(0, dims.len());
    (0..n)
        .map(|i| {
            unravel(i, &dims, &mut coords);
            coords
                .iter()
                .zip(&axes)
                .map(|(&c, a)| c * a.1 as usize)
                .sum()
        })
        .collect()
}

const DOTS: &str = "...";

pub(crate) fn einsum_gradient(g: &mut GradientCtx) -> Result<()> {
    let equation: String = g.attrs().str("equation")?.split_whitespace().collect();
    let (left, out) = equation.split_once("->").ok_or_else(|| {
        invalid_argument!("Expecting exactly one '->' in einsum equation: {equation}")
    })?;
    // An ellipsis that the result lacks covers no dimensions.
    let has_dots = out.contains(DOTS);
    let term = |t: &str| match has_dots {
        true => t.to_string(),
        false => t.replace(DOTS, ""),
    };
    let inputs: Vec<String> = left.split(',').map(term).collect();
    for i in 0..inputs.len() {
        if g.needs(i) {
            let dx = of_operand(g, i, &inputs, out)?;
            g.set(i, dx)?;
        }
    }
    Ok(())
}

/// Returns the operands' contraction.
fn contracted<'g>(operands: &[Expr<'g>], terms: &[&str], to: &str) -> Result<Expr<'g>> {
    let first = operands.first();
    let first = first.ok_or_else(|| invalid_argument!("Einsum needs an operand"))?;
    let equation = format!("{}->{to}", terms.join(","));
    Ok(first.make(
        "Einsum",
        operands,
        &[("equation", equation.as_str().into())],
    ))
}

fn of_operand<'g>(g: &GradientCtx<'g>, i: usize, inputs: &[String], out: &str) -> Result<Expr<'g>> {
    let (x, has_dots) = (g.x(i), out.contains(DOTS));
    let mut own = inputs.get(i).cloned().unwrap_or_default();
    if has_dots && !own.contains(DOTS) {
        own.insert_str(0, DOTS);
    }
    let others = || inputs.iter().enumerate().filter(|(j, _)| *j != i);
    // A label that only this operand has was summed: the gradient is constant along it.
    let is_known = |c: char| c == '.' || out.contains(c) || others().any(|(_, t)| t.contains(c));
    let (mut kept, mut summed, mut seen) = (String::new(), Vec::new(), String::new());
    for c in own.chars() {
        if c != '.' && seen.contains(c) {
            continue;
        }
        seen.push(c);
        match is_known(c) {
            true => kept.push(c),
            false => summed.push(c),
        }
    }
    let (mut operands, mut terms) = (vec![g.dy(0)], vec![out]);
    for (j, t) in others() {
        operands.push(g.x(j).conj());
        terms.push(t);
    }
    let mut dx = contracted(&operands, &terms, &kept)?;
    if !has_dots && seen == own {
        // Insert the missing dimensions.
        for (axis, _) in own.chars().enumerate().filter(|(_, c)| summed.contains(c)) {
            dx = dx.op("ExpandDims", &[dx.int(axis as i32)]);
        }
        return Ok(match summed.is_empty() {
            true => dx,
            false => dx.op("BroadcastTo", &[x.shape_of()]),
        });
    }
    for c in summed {
        let size = x.shape_of().op("Gather", &[axis_of(x, &own, c)]);
        let ones = size.reshape(size.ints([1]));
        let ones = ones.op("Fill", &[dx.number(1.0)]);
        let more = format!("{kept}{c}");
        dx = contracted(&[dx, ones], &[&kept, &c.to_string()], &more)?;
        kept = more;
    }
    // A repeated label selects a diagonal.
    if kept != own {
        dx = contracted(&[dx], &[&kept], &own)?;
    }
    // Dimensions that others have, or of size 1 here, were broadcast.
    Ok(match has_dots {
        true => dx.sum_to(x),
        false => dx,
    })
}

/// Returns the first dimension of `x` that has the label.
fn axis_of<'g>(x: Expr<'g>, own: &str, label: char) -> Expr<'g> {
    let (front, back) = own.split_once(DOTS).unwrap_or((own, ""));
    let in_back = || back.find(label).unwrap_or(0);
    match (front.find(label), x.rank()) {
        (Some(axis), _) => x.int(axis as i32),
        (None, Some(rank)) => x.int((rank + in_back()).saturating_sub(back.len()) as i32),
        (None, None) => {
            let behind = back.len() - in_back();
            x.op("Rank", &[]) - x.int(behind as i32)
        }
    }
}
