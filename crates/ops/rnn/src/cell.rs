//! The pointwise part of LSTM cells, and what all files of this group share (TensorFlow:
//! `core/kernels/rnn/lstm_ops.h`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::half_conversion::{narrowed, widened};
use ferroflow_opdef::KernelCtx;
use ferroflow_primitives::math::{UnaryOp, unary, unary_in_place};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Shape, Tensor};

/// Elements of a parallel task.
const TASK: usize = 4096;

/// Returns input `i` in single precision.
///
/// # Errors
/// RESOURCE_EXHAUSTED if a copy does not fit into memory.
pub(crate) fn wide(ctx: &KernelCtx, i: usize) -> Result<Tensor> {
    widened(ctx.par(), ctx.input(i)?)
}

/// Sets output `i` in the dtype of the op.
///
/// # Errors
/// RESOURCE_EXHAUSTED if a copy does not fit into memory.
pub(crate) fn finish(ctx: &mut KernelCtx, i: usize, t: Tensor, dtype: DType) -> Result<()> {
    let t = narrowed(ctx.par(), t, dtype)?;
    ctx.set_output(i, t)
}

/// Returns zeros.
///
/// # Errors
/// RESOURCE_EXHAUSTED if they do not fit into memory.
pub(crate) fn zeros<const N: usize>(dims: [usize; N]) -> Result<Tensor> {
    Tensor::zeros(DType::Float, Shape::from(dims))
}

/// Checks that a size is the wanted one.
///
/// # Errors
/// INVALID_ARGUMENT if it is not.
pub(crate) fn same(found: usize, wanted: usize, what: &str) -> Result<()> {
    match found == wanted {
        true => Ok(()),
        false => Err(invalid_argument!("{what}: {found} vs. {wanted}")),
    }
}

/// How the cells of an op differ from those of others.
#[derive(Clone, Copy)]
pub(crate) struct Cell {
    /// Added to the forget gate.
    pub(crate) forget_bias: f32,
    /// The largest magnitude of a state; not positive for none.
    pub(crate) clip: f32,
    /// Whether gates see the state.
    pub(crate) peephole: bool,
    /// Whether the forget gate comes before the new input.
    pub(crate) forget_first: bool,
}

impl Cell {
    /// Splits a row of gates into input, new input, forget and output gate.
    fn split<'a>(&self, gates: &'a mut [f32]) -> [&'a mut [f32]; 4] {
        let n = gates.len() / 4;
        let (i, rest) = gates.split_at_mut(n);
        let (a, rest) = rest.split_at_mut(n);
        let (b, o) = rest.split_at_mut(n);
        match self.forget_first {
            true => [i, b, a, o],
            false => [i, a, b, o],
        }
    }
}

/// The weights by which gates see the state: of the input, the forget and the output gate.
#[derive(Clone, Copy)]
pub(crate) struct Peepholes<'a> {
    pub(crate) input: &'a [f32],
    pub(crate) forget: &'a [f32],
    pub(crate) output: &'a [f32],
}

/// What a cell computes for one element of the batch.
pub(crate) struct Forward<'a> {
    /// The sums that the gates are made of; overwritten.
    pub(crate) gates: &'a mut [f32],
    pub(crate) before: &'a [f32],
    pub(crate) i: &'a mut [f32],
    pub(crate) cs: &'a mut [f32],
    pub(crate) f: &'a mut [f32],
    pub(crate) o: &'a mut [f32],
    pub(crate) ci: &'a mut [f32],
    pub(crate) co: &'a mut [f32],
    pub(crate) h: &'a mut [f32],
}

/// Adds `x * w` to a gate.
fn peep(gate: &mut [f32], x: &[f32], w: &[f32]) {
    for ((gate, x), w) in gate.iter_mut().zip(x).zip(w) {
        *gate += x * w;
    }
}

/// Computes a step of all elements of a batch.
pub(crate) fn forward(ctx: &KernelCtx, cell: Cell, weights: Peepholes, rows: &mut [Forward]) {
    let n = rows.first().map_or(0, |row| row.h.len());
    let chunk = (TASK / n.max(1)).max(1);
    par_chunks_mut(ctx.par(), rows, chunk, 1, &|_, rows| {
        for row in rows {
            forward_row(cell, weights, row);
        }
    });
}

fn forward_row(cell: Cell, weights: Peepholes, row: &mut Forward) {
    let [i, ci, f, o] = cell.split(row.gates);
    f.iter_mut().for_each(|f| *f += cell.forget_bias);
    if cell.peephole {
        peep(i, row.before, weights.input);
        peep(f, row.before, weights.forget);
    }
    unary(UnaryOp::Sigmoid, i, row.i);
    unary(UnaryOp::Tanh, ci, row.ci);
    unary(UnaryOp::Sigmoid, f, row.f);
    let terms = row.i.iter().zip(&*row.ci).zip(row.f.iter().zip(row.before));
    for (cs, ((i, ci), (f, before))) in row.cs.iter_mut().zip(terms) {
        *cs = i * ci + f * before;
    }
    if cell.clip > 0.0 {
        let clip = cell.clip;
        row.cs.iter_mut().for_each(|cs| *cs = cs.clamp(-clip, clip));
    }
    unary(UnaryOp::Tanh, row.cs, row.co);
    if cell.peephole {
        peep(o, row.cs, weights.output);
    }
    unary(UnaryOp::Sigmoid, o, row.o);
    for ((h, o), co) in row.h.iter_mut().zip(&*row.o).zip(&*row.co) {
        *h = o * co;
    }
}

/// The values and gradients of one element of the batch.
pub(crate) struct Backward<'a> {
    pub(crate) before: &'a [f32],
    pub(crate) i: &'a [f32],
    pub(crate) f: &'a [f32],
    pub(crate) o: &'a [f32],
    pub(crate) ci: &'a [f32],
    pub(crate) co: &'a [f32],
    /// The gradient of the state.
    pub(crate) d_state: &'a [f32],
    /// The gradient of the output.
    pub(crate) d_h: &'a [f32],
    /// The gradients of the sums that the gates are made of.
    pub(crate) d_gates: &'a mut [f32],
    /// The gradient of the state before.
    pub(crate) d_before: &'a mut [f32],
}

/// Computes the gradients of a step of all elements of a batch.
pub(crate) fn backward(ctx: &KernelCtx, cell: Cell, weights: Peepholes, rows: &mut [Backward]) {
    let n = rows.first().map_or(0, |row| row.d_h.len());
    let chunk = (TASK / n.max(1)).max(1);
    par_chunks_mut(ctx.par(), rows, chunk, 1, &|_, rows| {
        for row in rows {
            backward_row(cell, weights, row);
        }
    });
}

fn backward_row(cell: Cell, weights: Peepholes, row: &mut Backward) {
    let n = row.d_h.len();
    let [di, dci, df, d_o] = cell.split(row.d_gates);
    // Slices of one length, so that the compiler vectorizes the loops.
    let (o, co, d_h) = (&row.o[..n], &row.co[..n], &row.d_h[..n]);
    let (i, ci, f) = (&row.i[..n], &row.ci[..n], &row.f[..n]);
    let (before, d_state) = (&row.before[..n], &row.d_state[..n]);
    let (di, dci, df, d_o) = (&mut di[..n], &mut dci[..n], &mut df[..n], &mut d_o[..n]);
    let d_before = &mut row.d_before[..n];
    for k in 0..n {
        d_o[k] = o[k] * (1.0 - o[k]) * d_h[k] * co[k];
        // Holds the gradient of the new state until the end.
        d_before[k] = (1.0 - co[k] * co[k]) * d_h[k] * o[k] + d_state[k];
    }
    if cell.peephole {
        peep(d_before, d_o, weights.output);
    }
    for k in 0..n {
        let d = d_before[k];
        dci[k] = (1.0 - ci[k] * ci[k]) * d * i[k];
        df[k] = f[k] * (1.0 - f[k]) * d * before[k];
        di[k] = i[k] * (1.0 - i[k]) * d * ci[k];
        d_before[k] = d * f[k];
    }
    if cell.peephole {
        peep(d_before, di, weights.input);
        peep(d_before, df, weights.forget);
    }
}

/// The gradients of the peepholes' weights.
pub(crate) struct PeepholeGrads {
    pub(crate) input: Vec<f32>,
    pub(crate) forget: Vec<f32>,
    pub(crate) output: Vec<f32>,
}

impl PeepholeGrads {
    /// Returns zeros.
    pub(crate) fn new(n: usize) -> Self {
        PeepholeGrads {
            input: vec![0.0; n],
            forget: vec![0.0; n],
            output: vec![0.0; n],
        }
    }

    /// Adds those of one element of the batch.
    pub(crate) fn add(&mut self, cell: Cell, before: &[f32], cs: &[f32], d_gates: &mut [f32]) {
        let [di, _, df, d_o] = cell.split(d_gates);
        peep(&mut self.input, di, before);
        peep(&mut self.forget, df, before);
        peep(&mut self.output, d_o, cs);
    }
}

/// Applies an activation in parallel.
pub(crate) fn activate(ctx: &KernelCtx, op: UnaryOp, data: &mut [f32]) {
    par_chunks_mut(ctx.par(), data, TASK, 1, &|_, part| {
        unary_in_place(op, part)
    });
}

/// Returns row `r` of a matrix with `n` columns.
pub(crate) fn row(data: &[f32], r: usize, n: usize) -> &[f32] {
    data.get(r * n..(r + 1) * n).unwrap_or_default()
}

/// Returns the rows of two matrices next to each other.
///
/// # Errors
/// RESOURCE_EXHAUSTED if the result does not fit into memory.
pub(crate) fn joined(a: &[f32], n_a: usize, b: &[f32], n_b: usize, rows: usize) -> Result<Tensor> {
    let n = n_a + n_b;
    let mut out = Tensor::for_overwrite(DType::Float, Shape::from([rows, n]))?;
    for (r, to) in out
        .slice_mut::<f32>()?
        .chunks_exact_mut(n.max(1))
        .enumerate()
    {
        let (left, right) = to.split_at_mut(n_a);
        left.copy_from_slice(row(a, r, n_a));
        right.copy_from_slice(row(b, r, n_b));
    }
    Ok(out)
}
