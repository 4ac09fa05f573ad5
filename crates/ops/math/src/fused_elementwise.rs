//! `_FusedElementwise`: a chain (or tree) of elementwise ops as one pass over cache-sized blocks.

use crate::elementwise_program::{BLOCK, Block, Program};
use ferroflow_base::Result;
use ferroflow_functors::agreement::check_operands;
use ferroflow_functors::broadcast::{broadcast_partial, broadcast_shape};
use ferroflow_functors::spread::Spread;
use ferroflow_opdef::{ElementwiseProgram, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_sync::par_chunks_mut;
use ferroflow_tensor::{DType, Shape, Tensor};
use smallvec::SmallVec;
use std::borrow::Cow;

/// `_FusedElementwise` is internal; it runs `program` (see
/// [`ElementwiseProgram`]) on its inputs, broadcast together but where steps do not that are `checked`; as machine code
/// where that pays, unless `jit` is false.
pub(crate) const OPS: &[Op] = &[Op::new(
    "_FusedElementwise",
    "inputs: N*T -> y: T | T: type {bfloat16,half,float}; N: int >= 1; program: string; checked: bool = false; \
     jit: bool = true",
)
.shape(shape)
.kernel(build)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let mut shape = ctx.input(0);
    for i in 1..ctx.num_inputs() {
        shape = broadcast_partial(&shape, &ctx.input(i))?;
    }
    ctx.set(0, shape);
    Ok(())
}

/// Least elements of a task.
const TASK: usize = 8 * BLOCK;
/// Operands of shorter rows are expanded to blocks first: a row of its own costs as much as 100 elements.
const SHORT_ROW: usize = 256;

fn build(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let steps = ElementwiseProgram::decode(build.attrs.str("program")?, build.inputs.len())?;
    // Files of older versions do not say.
    let jit = build.attrs.bool("jit").unwrap_or(true);
    let program = Program::new(&steps, build.inputs.len(), jit);
    let checked = build.attrs.bool("checked")?.then_some(steps);
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        if let Some(scalar) = program.scalar(|i| ctx.inline_scalar::<f32>(i)) {
            return ctx.set_output(0, Tensor::scalar(scalar));
        }
        let out = compute(ctx, checked.as_ref(), &program)?;
        ctx.set_output(0, out)
    }))
}

fn compute(
    ctx: &KernelCtx,
    checked: Option<&ElementwiseProgram>,
    program: &Program,
) -> Result<Tensor> {
    let inputs: SmallVec<[&Tensor; 8]> = (0..ctx.num_inputs())
        .map(|i| ctx.input(i))
        .collect::<Result<_>>()?;
    if let Some(steps) = checked {
        let shapes: SmallVec<[&Shape; 8]> = inputs.iter().map(|t| t.shape()).collect();
        check_operands(steps, ctx.node(), &shapes)?;
    }
    if let Some(out) = one_block(ctx, &inputs, program)? {
        return Ok(out);
    }
    let mut shape = Shape::scalar();
    for input in &inputs {
        shape = broadcast_shape(&shape, input.shape())?;
    }
    let mut out = ctx.alloc(DType::Float, shape)?;
    if out.num_elements() > 0 {
        let shape = out.shape().clone();
        Loops::new(&shape, &inputs)?.run(ctx, program, out.slice_mut()?);
    }
    Ok(out)
}

/// Computes an output of one block whose operands are as large as it or have one element: without loops, which take longer
/// to set up than a small block to compute.
fn one_block(ctx: &KernelCtx, inputs: &[&Tensor], program: &Program) -> Result<Option<Tensor>> {
    let mut shape = inputs[0].shape();
    for input in &inputs[1..] {
        let (own, n) = (input.shape(), shape.num_elements());
        if own.num_elements() > n || own.num_elements() == n && own.rank() > shape.rank() {
            shape = own;
        }
    }
    let is_one = |t: &Tensor| t.num_elements() == 1 && t.shape().rank() <= shape.rank();
    let n = shape.num_elements();
    let fits = inputs.iter().all(|t| t.shape() == shape || is_one(t));
    if n == 0 || n > BLOCK || !fits {
        return Ok(None);
    }
    let mut blocks: SmallVec<[Block; 8]> = SmallVec::new();
    for input in inputs {
        let data = input.slice::<f32>()?;
        blocks.push(match data {
            [one] if n > 1 => Block::Scalar(*one),
            all => Block::Slice(all),
        });
    }
    let mut out = ctx.alloc(DType::Float, shape.clone())?;
    program.run(&blocks, out.slice_mut()?);
    Ok(Some(out))
}

/// The output as rows of one length, and the position of each input's part of a row.
struct Loops<'a> {
    row: usize,
    /// Outer extents, outermost first.
    outer: SmallVec<[usize; 4]>,
    inputs: SmallVec<[Walk<'a>; 8]>,
}

struct Walk<'a> {
    data: Cow<'a, [f32]>,
    /// The same for any part of the output.
    spread: Spread,
    /// Stride over each outer extent.
    outer: SmallVec<[usize; 4]>,
    /// Whether the row is one repeated number.
    repeats: bool,
}

impl<'a> Loops<'a> {
    /// Merges neighboring dimensions in which every input is contiguous, or broadcast.
    fn new(shape: &Shape, inputs: &[&'a Tensor]) -> Result<Loops<'a>> {
        let rank = shape.rank();
        let strides: Vec<SmallVec<[usize; 4]>> = inputs
            .iter()
            .map(|t| {
                let own = t.shape().strides();
                let lead = rank - t.shape().rank();
                let at = |d: usize| match d.checked_sub(lead) {
                    Some(i) if t.shape()[i] != 1 => own[i],
                    _ => 0,
                };
                (0..rank).map(at).collect()
            })
            .collect();
        // Groups of dimensions, innermost first: (extent, stride of each input).
        let mut groups: Vec<(usize, SmallVec<[usize; 8]>)> = Vec::new();
        for d in (0..rank).rev().filter(|&d| shape[d] != 1) {
            let here: SmallVec<[usize; 8]> = strides.iter().map(|s| s[d]).collect();
            match groups.last_mut() {
                Some((extent, inner))
                    if here
                        .iter()
                        .zip(inner.iter())
                        .all(|(h, i)| *h == i * *extent) =>
                {
                    *extent *= shape[d];
                }
                _ => groups.push((shape[d], here)),
            }
        }
        if groups.is_empty() {
            groups.push((1, SmallVec::from_elem(0, inputs.len())));
        }
        let (row, inner) = groups.remove(0);
        let outer: SmallVec<[usize; 4]> = groups.iter().rev().map(|g| g.0).collect();
        let mut walks: SmallVec<[Walk; 8]> = SmallVec::new();
        for (i, t) in inputs.iter().enumerate() {
            let dims = strides[i].iter().zip(shape.iter()).rev();
            walks.push(Walk {
                data: t.slice::<f32>()?.into(),
                spread: Spread::new(dims.map(|(stride, extent)| (*extent, *stride))),
                outer: groups.iter().rev().map(|g| g.1[i]).collect(),
                repeats: inner[i] == 0,
            });
        }
        let mut loops = Loops {
            row,
            outer,
            inputs: walks,
        };
        loops.join_rows();
        Ok(loops)
    }

    /// Joins short rows until they fill a block, copying operands that repeat from row to row; what stays short is expanded.
    fn join_rows(&mut self) {
        let row = self.row;
        let Some(last) = self.outer.last_mut().filter(|last| **last > 1) else {
            return;
        };
        if row * 2 > BLOCK / 2 {
            return;
        }
        let divides = |n: &usize| last.is_multiple_of(*n);
        let n = (1..=(BLOCK / row).min(*last))
            .rev()
            .find(divides)
            .unwrap_or(1);
        let joins = |w: &Walk| match w.outer.last() {
            Some(0) => w.repeats || w.data.len() == row,
            Some(&s) => !w.repeats && s == row,
            None => false,
        };
        if n == 1 || row * n < SHORT_ROW || !self.inputs.iter().all(joins) {
            return;
        }
        for w in &mut self.inputs {
            if let Some(stride) = w.outer.last_mut() {
                if *stride == 0 && !w.repeats {
                    w.data = w.data.repeat(n).into();
                }
                *stride *= n;
            }
        }
        *last /= n;
        self.row *= n;
    }

    fn run(&self, ctx: &KernelCtx, program: &Program, out: &mut [f32]) {
        let repeats = self.inputs.iter().map(|w| w.repeats);
        let block = program.block(out.len(), ctx.par().width(), repeats);
        if self.row < SHORT_ROW && out.len() > self.row {
            return par_chunks_mut(ctx.par(), out, BLOCK, TASK / BLOCK, &|i, out| {
                self.expanded_block(program, i * BLOCK, out);
            });
        }
        let blocks_per_row = self.row.div_ceil(block);
        let last_block = self.row - (blocks_per_row - 1) * block;
        if blocks_per_row == 1 || last_block == block || out.len() == self.row {
            // All blocks but the very last have the same length: one chunk is one block.
            let chunk = if blocks_per_row == 1 { self.row } else { block };
            let group = (TASK / chunk).max(1);
            par_chunks_mut(ctx.par(), out, chunk, group, &|i, out| {
                let start = i * chunk;
                self.block(program, start / self.row, start % self.row, out);
            });
        } else {
            par_chunks_mut(ctx.par(), out, self.row, 1, &|r, row| {
                for (b, out) in row.chunks_mut(block).enumerate() {
                    self.block(program, r, b * block, out);
                }
            });
        }
    }

    /// Computes elements from `start` on with operands expanded to as many.
    fn expanded_block(&self, program: &Program, start: usize, out: &mut [f32]) {
        let n = out.len();
        let is_expanded = |w: &&Walk| !w.spread.is_whole() && !w.spread.is_scalar();
        let mut expanded = vec![0.0; self.inputs.iter().filter(is_expanded).count() * n];
        let mut parts = expanded.chunks_exact_mut(n);
        let mut inputs: SmallVec<[Block; 8]> = SmallVec::new();
        for w in &self.inputs {
            inputs.push(match w.spread.is_scalar() {
                true => Block::Scalar(w.data[0]),
                false if w.spread.is_whole() => Block::Slice(&w.data[start..start + n]),
                false => {
                    let part = parts.next().unwrap_or_default();
                    w.spread.write(&w.data, start, part);
                    Block::Slice(part)
                }
            });
        }
        program.run(&inputs, out);
    }

    /// Computes elements `start..start + out.len()` of row `r`.
    fn block(&self, program: &Program, r: usize, start: usize, out: &mut [f32]) {
        let mut index: SmallVec<[usize; 4]> = SmallVec::from_elem(0, self.outer.len());
        let mut rest = r;
        for (i, extent) in self.outer.iter().enumerate().rev() {
            index[i] = rest % extent;
            rest /= extent;
        }
        let inputs: SmallVec<[Block; 8]> = self
            .inputs
            .iter()
            .map(|w| {
                let at: usize = index.iter().zip(&w.outer).map(|(i, s)| i * s).sum();
                match w.repeats {
                    true => Block::Scalar(w.data[at]),
                    false => Block::Slice(&w.data[at + start..][..out.len()]),
                }
            })
            .collect();
        program.run(&inputs, out);
    }
}
