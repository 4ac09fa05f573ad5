//! GRUBlockCell and GRUBlockCellGrad (TensorFlow: `core/kernels/rnn/gru_ops.cc`).

use crate::cell::{activate, joined, row, same, zeros};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Cost, KernelCtx, Op};
use ferroflow_primitives::gemm::{Activation, Epilogue, GemmShape, gemm};
use ferroflow_primitives::math::UnaryOp;
use ferroflow_tensor::PartialShape;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "GRUBlockCell",
        "x: T, h_prev: T, w_ru: T, w_c: T, b_ru: T, b_c: T -> r: T, u: T, c: T, h: T | T: type \
         {float}",
    )
    .shape(|ctx| {
        let (x, h) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 2)?);
        let shape = PartialShape::of([x.dim(0), h.dim(1)]);
        (0..4).for_each(|i| ctx.set(i, shape.clone()));
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(step))),
    Op::new(
        "GRUBlockCellGrad",
        "x: T, h_prev: T, w_ru: T, w_c: T, b_ru: T, b_c: T, r: T, u: T, c: T, d_h: T -> d_x: T, \
         d_h_prev: T, d_c_bar: T, d_r_bar_u_bar: T | T: type {float}",
    )
    .shape(|ctx| {
        let (x, h, w) = (
            ctx.with_rank(0, 2)?,
            ctx.with_rank(1, 2)?,
            ctx.with_rank(2, 2)?,
        );
        let state = PartialShape::of([x.dim(0), h.dim(1)]);
        let both = PartialShape::of([x.dim(0), w.dim(1)]);
        for (i, shape) in [x, state.clone(), state, both].into_iter().enumerate() {
            ctx.set(i, shape);
        }
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|_| Ok(Box::new(step_grad))),
];

/// The sizes of a cell: batch, input and state.
struct Sizes {
    batch: usize,
    input: usize,
    cell: usize,
}

fn ranked<'a>(ctx: &'a KernelCtx, i: usize, name: &str, rank: usize) -> Result<&'a [usize]> {
    let shape = ctx.shape(i)?;
    match shape.rank() == rank {
        true => Ok(shape.dims()),
        false => Err(invalid_argument!(
            "Rank of {name} must be {rank}, got {}",
            shape.rank()
        )),
    }
}

fn sizes(ctx: &KernelCtx) -> Result<Sizes> {
    let x = ranked(ctx, 0, "x", 2)?;
    let (batch, input) = (x[0], x[1]);
    let h = ranked(ctx, 1, "h_prev", 2)?;
    same(h[0], batch, "h_prev.dims(0) != batch_size")?;
    let cell = h[1];
    let w = ranked(ctx, 2, "w_ru_", 2)?;
    same(
        w[0],
        input + cell,
        "w_ru.dim_size(0) != input_size + cell_size",
    )?;
    same(
        w[1],
        cell.saturating_mul(2),
        "w_ru.dim_size(1) != cell_size * 2",
    )?;
    let w = ranked(ctx, 3, "w_c", 2)?;
    same(
        w[0],
        input + cell,
        "w_c.dim_size(0) != input_size + cell_size",
    )?;
    same(w[1], cell, "w_c.dim_size(1) != cell_size")?;
    let b = ranked(ctx, 4, "b_ru", 1)?;
    same(b[0], cell * 2, "b_ru.dim_size(0) != cell_size * 2")?;
    let b = ranked(ctx, 5, "b_c", 1)?;
    same(b[0], cell, "b_c.dim_size(0) != cell_size")?;
    Ok(Sizes { batch, input, cell })
}

fn step(ctx: &mut KernelCtx) -> Result<()> {
    let s = sizes(ctx)?;
    let (x, before) = (ctx.slice::<f32>(0)?, ctx.slice::<f32>(1)?);
    let n = s.cell;
    let mut out = [
        zeros([s.batch, n])?,
        zeros([s.batch, n])?,
        zeros([s.batch, n])?,
        zeros([s.batch, n])?,
    ];
    let [r, u, c, h] = &mut out;
    if s.batch > 0 && n > 0 {
        let mut xh = joined(x, s.input, before, n, s.batch)?;
        let mut gates = zeros([s.batch, 2 * n])?;
        let shape = GemmShape::dense(s.batch, 2 * n, s.input + n, false, false);
        let bias = Epilogue::new(Some(ctx.slice::<f32>(4)?), Activation::None);
        gemm(
            ctx.par(),
            &shape,
            xh.slice()?,
            ctx.slice(2)?,
            gates.slice_mut()?,
            &bias,
        );
        let gates = gates.slice_mut::<f32>()?;
        activate(ctx, UnaryOp::Sigmoid, gates);
        let (r, u) = (r.slice_mut::<f32>()?, u.slice_mut::<f32>()?);
        let outs = r.chunks_exact_mut(n).zip(u.chunks_exact_mut(n));
        let inputs = xh.slice_mut::<f32>()?.chunks_exact_mut(s.input + n);
        for (b, ((r, u), xh)) in outs.zip(inputs).enumerate() {
            let (to_r, to_u) = row(gates, b, 2 * n).split_at(n);
            r.copy_from_slice(to_r);
            u.copy_from_slice(to_u);
            for (xh, r) in xh.iter_mut().skip(s.input).zip(r) {
                *xh *= *r;
            }
        }
        let shape = GemmShape::dense(s.batch, n, s.input + n, false, false);
        let bias = Epilogue::new(Some(ctx.slice::<f32>(5)?), Activation::None);
        let c = c.slice_mut::<f32>()?;
        gemm(ctx.par(), &shape, xh.slice()?, ctx.slice(3)?, c, &bias);
        activate(ctx, UnaryOp::Tanh, c);
        let terms = before.iter().zip(&*u).zip(&*c);
        for (h, ((before, u), c)) in h.slice_mut::<f32>()?.iter_mut().zip(terms) {
            *h = u * (before - c) + c;
        }
    }
    for (i, t) in out.into_iter().enumerate() {
        ctx.set_output(i, t)?;
    }
    Ok(())
}

/// Checks what a step has computed, and the gradient of its result.
fn check_grad_inputs(ctx: &KernelCtx, s: &Sizes) -> Result<()> {
    for (i, name, rank_name) in [
        (6, "r", "r"),
        (7, "u", "u"),
        (8, "c", "w_c"),
        (9, "d_h", "d_h"),
    ] {
        let dims = ranked(ctx, i, rank_name, 2)?;
        same(dims[0], s.batch, &format!("{name}.dims(0) != batch_size"))?;
        same(dims[1], s.cell, &format!("{name}.dims(1) != cell_size"))?;
    }
    Ok(())
}

fn step_grad(ctx: &mut KernelCtx) -> Result<()> {
    let s = sizes(ctx)?;
    check_grad_inputs(ctx, &s)?;
    let n = s.cell;
    let all = [1, 6, 7, 8, 9].map(|i| ctx.slice::<f32>(i));
    let [h, r, u, c, dh] = all;
    let (h, r, u, c, dh) = (h?, r?, u?, c?, dh?);
    let mut d_x = zeros([s.batch, s.input])?;
    let (mut d_before, mut d_c) = (zeros([s.batch, n])?, zeros([s.batch, n])?);
    let mut d_gates = zeros([s.batch, 2 * n])?;
    if s.batch > 0 && n > 0 {
        let width = s.input + n;
        let to = d_c.slice_mut::<f32>()?;
        for (k, to) in to.iter_mut().enumerate() {
            *to = dh[k] * (1.0 - u[k]) * (1.0 - c[k] * c[k]);
        }
        let none = Epilogue::new(None, Activation::None);
        let mut second = zeros([s.batch, width])?;
        let shape = GemmShape::dense(s.batch, width, n, false, true);
        gemm(
            ctx.par(),
            &shape,
            to,
            ctx.slice(3)?,
            second.slice_mut()?,
            &none,
        );
        let second = second.slice::<f32>()?;
        let gates = d_gates.slice_mut::<f32>()?;
        for (b, gates) in gates.chunks_exact_mut(2 * n).enumerate() {
            let d_hr = row(second, b, width).get(s.input..).unwrap_or_default();
            let (to_r, to_u) = gates.split_at_mut(n);
            for (j, (to_r, to_u)) in to_r.iter_mut().zip(to_u).enumerate() {
                let k = b * n + j;
                *to_r = d_hr[j] * h[k] * r[k] * (1.0 - r[k]);
                *to_u = dh[k] * (h[k] - c[k]) * u[k] * (1.0 - u[k]);
            }
        }
        let mut first = zeros([s.batch, width])?;
        let shape = GemmShape::dense(s.batch, width, 2 * n, false, true);
        gemm(
            ctx.par(),
            &shape,
            gates,
            ctx.slice(2)?,
            first.slice_mut()?,
            &none,
        );
        let first = first.slice::<f32>()?;
        let (dx, d_before) = (d_x.slice_mut::<f32>()?, d_before.slice_mut::<f32>()?);
        for b in 0..s.batch {
            let (one, two) = (row(first, b, width), row(second, b, width));
            let dx = dx
                .get_mut(b * s.input..(b + 1) * s.input)
                .unwrap_or_default();
            for (dx, (one, two)) in dx.iter_mut().zip(one.iter().zip(two)) {
                *dx = one + two;
            }
            for j in 0..n {
                let k = b * n + j;
                d_before[k] = one[s.input + j] + two[s.input + j] * r[k] + dh[k] * u[k];
            }
        }
    }
    for (i, t) in [d_x, d_before, d_c, d_gates].into_iter().enumerate() {
        ctx.set_output(i, t)?;
    }
    Ok(())
}
