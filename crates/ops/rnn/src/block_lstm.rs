//! BlockLSTM, BlockLSTMV2 and their gradients: all steps of an LSTM layer (TensorFlow:
//! `core/kernels/rnn/lstm_ops.cc`).
//!
//! The input's part of the gates is one product for all steps, and so are the gradients of input
//! and weights; only what depends on the step before is computed step by step.

use crate::cell::{
    Backward, Cell, Forward, PeepholeGrads, Peepholes, backward, finish, forward, row, same, wide,
    zeros,
};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Cost, GradientCtx, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::gemm::{Activation, Epilogue, GemmShape, PackedB, gemm, gemm_packed};
use ferroflow_tensor::{PartialShape, Shape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "BlockLSTM",
        "seq_len_max: int64, x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T -> i: \
         T, cs: T, f: T, o: T, ci: T, co: T, h: T | forget_bias: float = 1.0; cell_clip: float = \
         3.0; use_peephole: bool = false; T: type {half,float}",
    )
    .shape(layer_shapes)
    .cost(Cost::Expensive)
    .kernel(|build| layer(build, build.attrs.float("forget_bias")?, false))
    .gradient(|g| gradient(g, "BlockLSTMGrad")),
    Op::new(
        "BlockLSTMV2",
        "seq_len_max: int64, x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T -> i: \
         T, cs: T, f: T, o: T, ci: T, co: T, h: T | cell_clip: float = 0.0; use_peephole: bool = \
         false; T: type {half,float}",
    )
    .shape(layer_shapes)
    .cost(Cost::Expensive)
    .kernel(|build| layer(build, 0.0, true))
    .gradient(|g| gradient(g, "BlockLSTMGradV2")),
    Op::new("BlockLSTMGrad", GRAD)
        .shape(grad_shapes)
        .cost(Cost::Expensive)
        .kernel(|build| layer_grad(build, false)),
    Op::new("BlockLSTMGradV2", GRAD)
        .shape(grad_shapes)
        .cost(Cost::Expensive)
        .kernel(|build| layer_grad(build, true)),
];

const GRAD: &str = "seq_len_max: int64, x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, \
     b: T, i: T, cs: T, f: T, o: T, ci: T, co: T, h: T, cs_grad: T, h_grad: T -> x_grad: T, \
     cs_prev_grad: T, h_prev_grad: T, w_grad: T, wci_grad: T, wcf_grad: T, wco_grad: T, b_grad: T \
     | use_peephole: bool; T: type {half,float}";

fn layer_shapes(ctx: &mut ShapeCtx) -> Result<()> {
    let (x, b) = (ctx.with_rank(1, 3)?, ctx.with_rank(8, 1)?);
    if let Some(n) = b.dim(0).filter(|n| n % 4 != 0) {
        return Err(invalid_argument!(
            "Dimension size must be evenly divisible by 4 but is {n}"
        ));
    }
    let shape = PartialShape::of([x.dim(0), x.dim(1), b.dim(0).map(|n| n / 4)]);
    (0..7).for_each(|i| ctx.set(i, shape.clone()));
    Ok(())
}

fn grad_shapes(ctx: &mut ShapeCtx) -> Result<()> {
    for (i, rank) in [3, 2, 2, 2, 1, 1, 1, 1].into_iter().enumerate() {
        let shape = ctx.with_rank(i + 1, rank)?;
        ctx.set(i, shape);
    }
    Ok(())
}

/// TensorFlow differentiates the second version as if its gates had the order of the first; here
/// each has its own.
fn gradient(g: &mut GradientCtx, op: &str) -> Result<()> {
    let mut inputs = g.xs();
    inputs.extend((0..7).map(|i| g.y(i)));
    inputs.extend([g.dy(1), g.dy(6)]);
    let grads = inputs[0].node(op, &inputs, &[g.attr("use_peephole")]);
    for (i, grad) in grads.into_iter().enumerate() {
        g.set(i + 1, grad)?;
    }
    Ok(())
}

fn layer(build: &KernelBuild, forget_bias: f32, forget_first: bool) -> Result<Box<dyn OpKernel>> {
    let cell = Cell {
        forget_bias,
        clip: build.attrs.float("cell_clip")?,
        peephole: build.attrs.bool("use_peephole")?,
        forget_first,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| run(ctx, cell)))
}

/// The sizes of a layer: steps, those that are run, batch, input and state.
#[derive(Clone, Copy)]
struct Sizes {
    time: usize,
    steps: usize,
    batch: usize,
    input: usize,
    cell: usize,
}

/// Returns the number of steps to run.
fn steps(ctx: &KernelCtx, time: usize) -> Result<usize> {
    let n = ctx.input(0)?.to_scalar::<i64>()?;
    let found = usize::try_from(n).ok().filter(|&n| n <= time);
    found.ok_or_else(|| {
        invalid_argument!("seq_len_max must be between 0 and the {time} steps of x, not {n}")
    })
}

fn check_scalar(ctx: &KernelCtx) -> Result<()> {
    match ctx.shape(0)?.rank() {
        0 => Ok(()),
        rank => Err(invalid_argument!(
            "`seq_len_max_tensor` must be rank 0 but is rank {rank}"
        )),
    }
}

fn sizes(ctx: &KernelCtx) -> Result<Sizes> {
    check_scalar(ctx)?;
    let rank = |i: usize, rank: usize, name: &str| -> Result<&[usize]> {
        let shape = ctx.shape(i)?;
        match shape.rank() == rank {
            true => Ok(shape.dims()),
            false => Err(invalid_argument!("{name} must be {rank}D")),
        }
    };
    let x = rank(1, 3, "x")?;
    let (time, batch, input) = (x[0], x[1], x[2]);
    let state = rank(2, 2, "cs_prev")?;
    same(state[0], batch, "cs_prev.dims(0) != batch_size")?;
    let cell = state[1];
    let h = rank(3, 2, "h_prev")?;
    same(h[0], batch, "h_prev.dims(0) != batch_size")?;
    same(h[1], cell, "h_prev.dims(1) != cell_size")?;
    let w = rank(4, 2, "w")?;
    same(
        w[0],
        input + cell,
        "w.dim_size(0) != input_size + cell_size",
    )?;
    let columns = cell.saturating_mul(4);
    same(w[1], columns, "w.dim_size(1) != cell_size * 4")?;
    for (i, name) in [(5, "wci"), (6, "wcf"), (7, "wco")] {
        let n = rank(i, 1, name)?[0];
        same(n, cell, &format!("{name}.dim_size(0) != cell_size"))?;
    }
    let b = rank(8, 1, "b")?;
    same(b[0], columns, "b.dim_size(0) != cell_size * 4")?;
    Ok(Sizes {
        time,
        steps: steps(ctx, time)?,
        batch,
        input,
        cell,
    })
}

fn run(ctx: &mut KernelCtx, cell: Cell) -> Result<()> {
    let s = sizes(ctx)?;
    let dtype = ctx.input(1)?.dtype();
    let inputs = (1..9).map(|i| wide(ctx, i)).collect::<Result<Vec<_>>>()?;
    let of = |i: usize| inputs.get(i - 1).map_or(Ok(&[][..]), Tensor::slice::<f32>);
    let columns = 4 * s.cell;
    let (of_x, of_h) = of(4)?.split_at(s.input * columns);
    let mut out: Vec<Tensor> = (0..7)
        .map(|_| zeros([s.time, s.batch, s.cell]))
        .collect::<Result<_>>()?;
    if s.steps > 0 && s.batch * s.cell > 0 {
        let rows = s.steps * s.batch;
        let mut gates = zeros([rows, columns])?;
        let to = gates.slice_mut::<f32>()?;
        if s.input > 0 {
            let bias = Epilogue::new(Some(of(8)?), Activation::None);
            let shape = GemmShape::dense(rows, columns, s.input, false, false);
            gemm(ctx.par(), &shape, of(1)?, of_x, to, &bias);
        } else {
            let bias = of(8)?;
            to.chunks_exact_mut(columns)
                .for_each(|row| row.copy_from_slice(bias));
        }
        let weights = Peepholes {
            input: of(5)?,
            forget: of(6)?,
            output: of(7)?,
        };
        let first = [of(2)?.to_vec(), of(3)?.to_vec()];
        run_steps(ctx, cell, s, weights, of_h, first, to, &mut out)?;
    }
    for (i, t) in out.into_iter().enumerate() {
        finish(ctx, i, t, dtype)?;
    }
    Ok(())
}

/// Computes the outputs step by step; `gates` has the input's part of the gates.
#[allow(
    clippy::too_many_arguments,
    reason = "what a step needs, each of another kind"
)]
fn run_steps(
    ctx: &KernelCtx,
    cell: Cell,
    s: Sizes,
    weights: Peepholes,
    of_h: &[f32],
    mut last: [Vec<f32>; 2],
    gates: &mut [f32],
    out: &mut [Tensor],
) -> Result<()> {
    let (n, columns) = (s.batch * s.cell, 4 * s.cell);
    let packed = PackedB::from_rows(ctx.par(), of_h, columns, s.cell, columns);
    let none = Epilogue::new(None, Activation::None);
    let mut recurrent = vec![0.0; s.batch * columns];
    let mut parts = Vec::with_capacity(out.len());
    for t in out {
        parts.push(t.slice_mut::<f32>()?);
    }
    for (t, gates) in gates.chunks_exact_mut(s.batch * columns).enumerate() {
        let (h, to) = (&last[1], &mut recurrent);
        gemm_packed(ctx.par(), h, s.cell, s.batch, &packed, to, columns, &none);
        gates.iter_mut().zip(&recurrent).for_each(|(g, r)| *g += r);
        let mut outs = parts.iter_mut();
        let mut outs: [_; 7] = std::array::from_fn(|_| {
            let part = outs
                .next()
                .and_then(|part| part.get_mut(t * n..(t + 1) * n));
            part.unwrap_or_default().chunks_exact_mut(s.cell)
        });
        let mut rows = Vec::with_capacity(s.batch);
        for (r, gates) in gates.chunks_exact_mut(columns).enumerate() {
            let [i, cs, f, o, ci, co, h] = outs.each_mut().map(|o| o.next().unwrap_or_default());
            let before = row(&last[0], r, s.cell);
            rows.push(Forward {
                gates,
                before,
                i,
                cs,
                f,
                o,
                ci,
                co,
                h,
            });
        }
        forward(ctx, cell, weights, &mut rows);
        drop(rows);
        for (last, k) in last.iter_mut().zip([1, 6]) {
            let now = parts.get(k).and_then(|p| p.get(t * n..(t + 1) * n));
            last.copy_from_slice(now.unwrap_or_default());
        }
    }
    Ok(())
}

fn layer_grad(build: &KernelBuild, forget_first: bool) -> Result<Box<dyn OpKernel>> {
    let cell = Cell {
        forget_bias: 0.0,
        clip: 0.0,
        peephole: build.attrs.bool("use_peephole")?,
        forget_first,
    };
    Ok(Box::new(move |ctx: &mut KernelCtx| run_grad(ctx, cell)))
}

fn grad_sizes(ctx: &KernelCtx) -> Result<Sizes> {
    check_scalar(ctx)?;
    let names = ["x", "cs_prev", "h_prev", "w", "wci", "wcf", "wco", "b"];
    let ranks = [3, 2, 2, 2, 1, 1, 1, 1];
    let dims = |i: usize| ctx.shape(i).map(Shape::dims);
    for (i, (name, rank)) in names.iter().zip(ranks).enumerate() {
        let found = dims(i + 1)?.len();
        if found != rank {
            return Err(invalid_argument!(
                "{name} must be rank {rank} but is rank {found}"
            ));
        }
        if i == 3 {
            let (w, input) = (dims(4)?, dims(1)?[2]);
            same(input + w[1] / 4, w[0], "w matrix rows don't match")?;
        }
    }
    let (x, w, b) = (dims(1)?, dims(4)?, dims(8)?);
    let s = Sizes {
        time: x[0],
        steps: steps(ctx, x[0])?,
        batch: x[1],
        input: x[2],
        cell: w[1] / 4,
    };
    if b[0] / 4 != s.cell {
        return Err(invalid_argument!(
            "w and b cell_size don't match: {} vs. {}",
            s.cell,
            b[0]
        ));
    }
    let fits = |i: usize, wanted: &[usize]| -> Result<()> {
        match dims(i)? == wanted {
            true => Ok(()),
            false => Err(invalid_argument!(
                "input {i} has shape {}, but should have shape {}",
                ctx.shape(i)?,
                Shape::from(wanted)
            )),
        }
    };
    fits(4, &[w[0], 4 * s.cell])?;
    fits(8, &[4 * s.cell])?;
    for i in [2, 3] {
        fits(i, &[s.batch, s.cell])?;
    }
    for i in [5, 6, 7] {
        fits(i, &[s.cell])?;
    }
    for i in 9..18 {
        fits(i, &[s.time, s.batch, s.cell])?;
    }
    Ok(s)
}

/// The gradients of the gates' sums, step by step, and of the state and output before the first.
struct Steps {
    d_gates: Tensor,
    d_state: Vec<f32>,
    d_h: Vec<f32>,
    peepholes: PeepholeGrads,
}

/// Goes back through the steps. `inputs` are the op's without the first.
fn walk(ctx: &KernelCtx, cell: Cell, s: Sizes, inputs: &[Tensor]) -> Result<Steps> {
    let of = |i: usize| inputs.get(i - 1).map_or(Ok(&[][..]), Tensor::slice::<f32>);
    let (n, columns) = (s.batch * s.cell, 4 * s.cell);
    let mut all = Steps {
        d_gates: zeros([s.steps, s.batch, columns])?,
        d_state: vec![0.0; n],
        d_h: vec![0.0; n],
        peepholes: PeepholeGrads::new(s.cell),
    };
    if n == 0 || s.steps == 0 {
        return Ok(all);
    }
    let (w, cs, first) = (of(4)?, of(10)?, of(2)?);
    let of_h = w.get(s.input * columns..).unwrap_or_default();
    let packed = PackedB::from_transposed(ctx.par(), of_h, columns, columns, s.cell);
    let weights = Peepholes {
        input: of(5)?,
        forget: of(6)?,
        output: of(7)?,
    };
    let values = [of(9)?, of(11)?, of(12)?, of(13)?, of(14)?];
    let (cs_grad, h_grad) = (of(16)?, of(17)?);
    let mut d_before = vec![0.0; n];
    let d_gates = all.d_gates.slice_mut::<f32>()?;
    for (t, d_gates) in d_gates
        .chunks_exact_mut(s.batch * columns)
        .enumerate()
        .rev()
    {
        let state = if t == 0 { first } else { row(cs, t - 1, n) };
        for (d, g) in [(&mut all.d_state, cs_grad), (&mut all.d_h, h_grad)] {
            d.iter_mut().zip(row(g, t, n)).for_each(|(d, g)| *d += g);
        }
        let mut rows = Vec::with_capacity(s.batch);
        let states = d_before.chunks_exact_mut(s.cell);
        for (r, (d_gates, d_before)) in d_gates.chunks_exact_mut(columns).zip(states).enumerate() {
            let [i, f, o, ci, co] = values.map(|v| row(v, t * s.batch + r, s.cell));
            rows.push(Backward {
                before: row(state, r, s.cell),
                i,
                f,
                o,
                ci,
                co,
                d_state: row(&all.d_state, r, s.cell),
                d_h: row(&all.d_h, r, s.cell),
                d_gates,
                d_before,
            });
        }
        backward(ctx, cell, weights, &mut rows);
        drop(rows);
        std::mem::swap(&mut d_before, &mut all.d_state);
        let none = Epilogue::new(None, Activation::None);
        gemm_packed(
            ctx.par(),
            d_gates,
            columns,
            s.batch,
            &packed,
            &mut all.d_h,
            s.cell,
            &none,
        );
        if cell.peephole {
            for (r, d_gates) in d_gates.chunks_exact_mut(columns).enumerate() {
                let (before, now) = (row(state, r, s.cell), row(cs, t * s.batch + r, s.cell));
                all.peepholes.add(cell, before, now, d_gates);
            }
        }
    }
    Ok(all)
}

fn run_grad(ctx: &mut KernelCtx, cell: Cell) -> Result<()> {
    let s = grad_sizes(ctx)?;
    let dtype = ctx.input(1)?.dtype();
    let inputs = (1..18).map(|i| wide(ctx, i)).collect::<Result<Vec<_>>>()?;
    let all = walk(ctx, cell, s, &inputs)?;
    let of = |i: usize| inputs.get(i - 1).map_or(Ok(&[][..]), Tensor::slice::<f32>);
    let (columns, rows) = (4 * s.cell, s.steps * s.batch);
    let d_gates = all.d_gates.slice::<f32>()?;
    let mut dx = zeros([s.time, s.batch, s.input])?;
    let mut dw = zeros([s.input + s.cell, columns])?;
    let mut db = vec![0.0f32; columns];
    for gates in d_gates.chunks_exact(columns.max(1)) {
        db.iter_mut().zip(gates).for_each(|(d, g)| *d += g);
    }
    let none = Epilogue::new(None, Activation::None);
    if rows > 0 && columns > 0 {
        let (of_x, of_h) = dw.slice_mut::<f32>()?.split_at_mut(s.input * columns);
        if s.input > 0 {
            let shape = GemmShape::dense(rows, s.input, columns, false, true);
            let to = dx.slice_mut::<f32>()?.get_mut(..rows * s.input);
            gemm(
                ctx.par(),
                &shape,
                d_gates,
                of(4)?,
                to.unwrap_or_default(),
                &none,
            );
            let shape = GemmShape::dense(s.input, columns, rows, true, false);
            gemm(ctx.par(), &shape, of(1)?, d_gates, of_x, &none);
        }
        // The outputs one step before.
        let n = s.batch * s.cell;
        let earlier = of(15)?.get(..(s.steps - 1) * n).unwrap_or_default();
        let before = [of(3)?, earlier].concat();
        let shape = GemmShape::dense(s.cell, columns, rows, true, false);
        gemm(ctx.par(), &shape, &before, d_gates, of_h, &none);
    }
    let states = [&all.d_state, &all.d_h].map(|d| Tensor::from_slice([s.batch, s.cell], d));
    let [d_state, d_h] = states;
    let weights = [
        all.peepholes.input,
        all.peepholes.forget,
        all.peepholes.output,
    ];
    let mut outputs = vec![dx, d_state?, d_h?, dw];
    for w in weights.iter().chain([&db]) {
        outputs.push(Tensor::vector(w)?);
    }
    for (i, t) in outputs.into_iter().enumerate() {
        finish(ctx, i, t, dtype)?;
    }
    Ok(())
}
