//! LSTMBlockCell and LSTMBlockCellGrad (TensorFlow: `core/kernels/rnn/lstm_ops.cc`).

use crate::cell::{
    Backward, Cell, Forward, PeepholeGrads, Peepholes, backward, finish, forward, joined, row,
    same, wide, zeros,
};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_primitives::gemm::{Activation, Epilogue, GemmShape, gemm};
use ferroflow_tensor::{PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "LSTMBlockCell",
        "x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T -> i: T, cs: T, f: T, o: \
         T, ci: T, co: T, h: T | forget_bias: float = 1.0; cell_clip: float = 3.0; use_peephole: \
         bool = false; T: type {half,float}",
    )
    .shape(|ctx| {
        let (x, state) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 2)?);
        let shape = PartialShape::of([x.dim(0), state.dim(1)]);
        (0..7).for_each(|i| ctx.set(i, shape.clone()));
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(|build| {
        let cell = Cell {
            forget_bias: build.attrs.float("forget_bias")?,
            clip: build.attrs.float("cell_clip")?,
            ..peephole_cell(build)?
        };
        Ok(Box::new(move |ctx: &mut KernelCtx| step(ctx, cell)))
    }),
    Op::new(
        "LSTMBlockCellGrad",
        "x: T, cs_prev: T, h_prev: T, w: T, wci: T, wcf: T, wco: T, b: T, i: T, cs: T, f: T, o: T, \
         ci: T, co: T, cs_grad: T, h_grad: T -> cs_prev_grad: T, dicfo: T, wci_grad: T, wcf_grad: \
         T, wco_grad: T | use_peephole: bool; T: type {half,float}",
    )
    .shape(|ctx| {
        let (x, state) = (ctx.with_rank(0, 2)?, ctx.with_rank(1, 2)?);
        let n = state.dim(1);
        ctx.set(0, PartialShape::of([x.dim(0), n]));
        let all = n.and_then(|n| n.checked_mul(4));
        ctx.set(1, PartialShape::of([x.dim(0), all]));
        (2..5).for_each(|i| ctx.set(i, PartialShape::of([n])));
        Ok(())
    })
    .cost(Cost::Expensive)
    .kernel(cell_grad),
];

fn peephole_cell(build: &KernelBuild) -> Result<Cell> {
    Ok(Cell {
        forget_bias: 0.0,
        clip: 0.0,
        peephole: build.attrs.bool("use_peephole")?,
        forget_first: false,
    })
}

/// The sizes of a cell: batch, input and state.
struct Sizes {
    batch: usize,
    input: usize,
    cell: usize,
}

/// Checks the inputs that both ops have.
fn sizes(ctx: &KernelCtx, cell: Cell) -> Result<Sizes> {
    let has_rank = |i: usize, name: &str, rank: usize| match ctx.shape(i)?.rank() {
        found if found == rank => Ok(()),
        found => Err(invalid_argument!(
            "{name}_tensor must be rank {rank} but is rank {found}."
        )),
    };
    for (i, name) in ["x", "cs_prev", "h_prev", "w"].into_iter().enumerate() {
        has_rank(i, name, 2)?;
    }
    let dim = |i: usize, d: usize| Ok(ctx.shape(i)?[d]);
    let s = Sizes {
        batch: dim(0, 0)?,
        input: dim(0, 1)?,
        cell: dim(1, 1)?,
    };
    same(dim(1, 0)?, s.batch, "cs_prev.dims(0) != batch_size")?;
    same(dim(2, 0)?, s.batch, "h_prev.dims(0) != batch_size")?;
    same(dim(2, 1)?, s.cell, "h_prev.dims(1) != cell_size")?;
    let rows = s.input + s.cell;
    same(dim(3, 0)?, rows, "w.dim_size(0) != input_size + cell_size")?;
    let Some(columns) = s.cell.checked_mul(4) else {
        return Err(invalid_argument!("the cell size {} is too large", s.cell));
    };
    same(dim(3, 1)?, columns, "w.dim_size(1) != cell_size * 4")?;
    let biases = ctx.shape(7)?.first().copied().unwrap_or(1);
    same(biases, columns, "b.dim_size(0) != cell_size * 4")?;
    for (i, name) in [(4, "wci"), (5, "wcf"), (6, "wco")] {
        has_rank(i, name, 1)?;
        if cell.peephole {
            same(
                dim(i, 0)?,
                s.cell,
                &format!("{name}.dim_size(0) != cell_size"),
            )?;
        }
    }
    has_rank(7, "b", 1)?;
    Ok(s)
}

fn step(ctx: &mut KernelCtx, cell: Cell) -> Result<()> {
    let s = sizes(ctx, cell)?;
    let dtype = ctx.input(0)?.dtype();
    if s.batch == 0 || s.cell == 0 {
        return Err(invalid_argument!(
            "cs_prev_tensor is empty, has shape: ({},{}).",
            s.batch,
            s.cell
        ));
    }
    let inputs = (0..8).map(|i| wide(ctx, i)).collect::<Result<Vec<_>>>()?;
    let of = |i: usize| inputs.get(i).map_or(Ok(&[][..]), Tensor::slice::<f32>);
    let (x, before, h) = (of(0)?, of(1)?, of(2)?);
    let xh = joined(x, s.input, h, s.cell, s.batch)?;
    let mut gates = zeros([s.batch, 4 * s.cell])?;
    let shape = GemmShape::dense(s.batch, 4 * s.cell, s.input + s.cell, false, false);
    let bias = Epilogue::new(Some(of(7)?), Activation::None);
    gemm(
        ctx.par(),
        &shape,
        xh.slice()?,
        of(3)?,
        gates.slice_mut()?,
        &bias,
    );
    let mut out: Vec<Tensor> = (0..7)
        .map(|_| zeros([s.batch, s.cell]))
        .collect::<Result<_>>()?;
    let weights = Peepholes {
        input: of(4)?,
        forget: of(5)?,
        output: of(6)?,
    };
    let mut parts = Vec::with_capacity(7);
    for t in &mut out {
        parts.push(t.slice_mut::<f32>()?.chunks_exact_mut(s.cell));
    }
    let mut rows = Vec::with_capacity(s.batch);
    let all_gates = gates.slice_mut::<f32>()?.chunks_exact_mut(4 * s.cell);
    for (r, gates) in all_gates.enumerate() {
        let mut next = |i: usize| {
            parts
                .get_mut(i)
                .and_then(Iterator::next)
                .unwrap_or_default()
        };
        rows.push(Forward {
            gates,
            before: row(before, r, s.cell),
            i: next(0),
            cs: next(1),
            f: next(2),
            o: next(3),
            ci: next(4),
            co: next(5),
            h: next(6),
        });
    }
    forward(ctx, cell, weights, &mut rows);
    for (i, t) in out.into_iter().enumerate() {
        finish(ctx, i, t, dtype)?;
    }
    Ok(())
}

fn cell_grad(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let cell = peephole_cell(build)?;
    Ok(Box::new(move |ctx: &mut KernelCtx| step_grad(ctx, cell)))
}

/// Checks what a step has computed, and the gradients of its results.
fn check_grad_inputs(ctx: &KernelCtx, s: &Sizes) -> Result<()> {
    let names = ["i", "cs", "f", "o", "ci", "co", "cs_grad", "h_grad"];
    for (k, name) in names.iter().enumerate() {
        let shape = ctx.shape(8 + k)?;
        let &[batch, n] = shape.dims() else {
            return Err(invalid_argument!(
                "{name} must be rank 2 but is rank {}",
                shape.rank()
            ));
        };
        let (size, tensor) = if k < 6 {
            ("dim_size", "")
        } else {
            ("dims", "_tensor")
        };
        same(
            batch,
            s.batch,
            &format!("{name}{tensor}.{size}(0) != batch_size"),
        )?;
        // TensorFlow's message about f names i.
        let name = if *name == "f" { "i" } else { name };
        same(n, s.cell, &format!("{name}{tensor}.{size}(1) != cell_size"))?;
    }
    Ok(())
}

fn step_grad(ctx: &mut KernelCtx, cell: Cell) -> Result<()> {
    let s = sizes(ctx, cell)?;
    let dtype = ctx.input(0)?.dtype();
    check_grad_inputs(ctx, &s)?;
    let inputs = (0..16).map(|i| wide(ctx, i)).collect::<Result<Vec<_>>>()?;
    let of = |i: usize| inputs.get(i).map_or(Ok(&[][..]), Tensor::slice::<f32>);
    let (before, cs) = (of(1)?, of(9)?);
    let weights = Peepholes {
        input: of(4)?,
        forget: of(5)?,
        output: of(6)?,
    };
    let mut d_before = zeros([s.batch, s.cell])?;
    let mut d_gates = zeros([s.batch, 4 * s.cell])?;
    let values = [of(8)?, of(10)?, of(11)?, of(12)?, of(13)?, of(14)?, of(15)?];
    let mut rows = Vec::with_capacity(s.batch);
    let gates = d_gates
        .slice_mut::<f32>()?
        .chunks_exact_mut((4 * s.cell).max(1));
    let states = d_before.slice_mut::<f32>()?.chunks_exact_mut(s.cell.max(1));
    for (r, (d_gates, d_before)) in gates.zip(states).enumerate() {
        let [i, f, o, ci, co, d_state, d_h] = values.map(|v| row(v, r, s.cell));
        rows.push(Backward {
            before: row(before, r, s.cell),
            i,
            f,
            o,
            ci,
            co,
            d_state,
            d_h,
            d_gates,
            d_before,
        });
    }
    backward(ctx, cell, weights, &mut rows);
    // The weights' gradients have the shapes of the weights, which only peepholes check.
    let mut grads = PeepholeGrads::new(s.cell);
    if cell.peephole {
        let gates = d_gates
            .slice_mut::<f32>()?
            .chunks_exact_mut((4 * s.cell).max(1));
        for (r, d_gates) in gates.enumerate() {
            grads.add(cell, row(before, r, s.cell), row(cs, r, s.cell), d_gates);
        }
    }
    finish(ctx, 0, d_before, dtype)?;
    finish(ctx, 1, d_gates, dtype)?;
    for (k, own) in [grads.input, grads.forget, grads.output].iter().enumerate() {
        let n = ctx.shape(4 + k)?[0];
        let own = match n == own.len() {
            true => Tensor::vector(own)?,
            false => zeros([n])?,
        };
        finish(ctx, 2 + k, own, dtype)?;
    }
    Ok(())
}
