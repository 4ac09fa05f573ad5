//! Attention in one launch, without its scores in memory; where there is no kernel for it, as products and a softmax.

use crate::data::{aligned, transposed};
use crate::elementwise::apply;
use crate::kernel::{GpuCtx, GpuKernel, Row, int, suffix};
use crate::library::tf32;
use crate::matmul::batch_product;
use crate::ptx::Step;
use crate::rows::{blocks, softmax_of};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_device::TensorArg;
use ferroflow_opdef::{BinaryFn, KernelBuild};
use ferroflow_tensor::{DType, Shape, Tensor};

pub(crate) const ROWS: &[Row] = &[Row::new("_Attention", attention)];

/// Queries of a block, and its threads.
const QUERIES: usize = 64;
const THREADS: usize = 128;
/// The depths that there are kernels for; those between use the next one.
const DEPTHS: [usize; 3] = [32, 64, 128];

/// The order of the dimensions of a tensor; depth is the last one.
#[derive(Clone, Copy, PartialEq)]
enum Layout {
    /// Batch, head, row.
    Bnth,
    /// Batch, row, head.
    Btnh,
}

impl Layout {
    fn parse(name: &str) -> Result<Layout> {
        match name {
            "BNTH" => Ok(Layout::Bnth),
            "BTNH" => Ok(Layout::Btnh),
            name => Err(invalid_argument!("layouts has the unknown '{name}'")),
        }
    }

    /// Dimensions in the order of this layout as batch, head, row and depth, or the other way.
    fn swap<T: Copy>(self, [b, x, y, h]: [T; 4]) -> [T; 4] {
        match self {
            Layout::Bnth => [b, x, y, h],
            Layout::Btnh => [b, y, x, h],
        }
    }

    /// The batch, heads, rows and depth of a tensor.
    fn dims(self, t: &Tensor) -> Result<[usize; 4]> {
        match t.shape()[..] {
            [b, x, y, h] => Ok(self.swap([b, x, y, h])),
            _ => Err(invalid_argument!(
                "attention takes tensors of 4 dimensions, not {}",
                t.shape()
            )),
        }
    }

    fn perm(self) -> [usize; 4] {
        self.swap([0, 1, 2, 3])
    }

    /// The distances from one batch, head and row to the next in a tensor of this layout.
    fn strides(self, t: &Tensor) -> Result<[TensorArg<'static>; 3]> {
        let s = t.shape().strides();
        let [batch, head, row, _] = self.swap([s[0], s[1], s[2], s[3]]);
        Ok([
            TensorArg::I32(int(batch)?),
            TensorArg::I32(int(head)?),
            TensorArg::I32(int(row)?),
        ])
    }
}

struct Attention {
    /// Of q, k, v and the result.
    layouts: [Layout; 4],
    has_bias: bool,
    has_condition: bool,
    scale: f32,
    fill: f32,
}

/// The inputs of a call.
struct Call {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Option<Tensor>,
    condition: Option<Tensor>,
}

/// The sizes of a call that one launch computes.
struct Sizes {
    batch: usize,
    heads: usize,
    queries: usize,
    keys: usize,
    depth: usize,
}

fn attention(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let attrs = build.attrs;
    let layouts: Vec<Layout> = attrs
        .strs("layouts")?
        .into_iter()
        .map(Layout::parse)
        .collect::<Result<_>>()?;
    let attention = Attention {
        layouts: layouts
            .try_into()
            .map_err(|_| invalid_argument!("layouts must have 4 elements"))?,
        has_bias: attrs.int("num_biases")? > 0,
        has_condition: attrs.int("num_conditions")? > 0,
        scale: attrs.float("scale")?,
        fill: attrs.float("fill")?,
    };
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let y = attention.compute(ctx)?;
        ctx.set_output(0, y)
    }))
}

impl Attention {
    fn compute(&self, ctx: &GpuCtx) -> Result<Tensor> {
        let (bias, condition) = (3, 3 + usize::from(self.has_bias));
        let call = Call {
            q: ctx.input(0)?,
            k: ctx.input(1)?,
            v: ctx.input(2)?,
            bias: self.has_bias.then(|| ctx.input(bias)).transpose()?,
            condition: self
                .has_condition
                .then(|| ctx.input(condition))
                .transpose()?,
        };
        match self.sizes(&call)? {
            Some(sizes) => match self.launch(ctx, &call, &sizes)? {
                Some(y) => Ok(y),
                None => self.by_products(ctx, &call),
            },
            None => self.by_products(ctx, &call),
        }
    }

    /// The sizes of a call, if it is one of those that there is a kernel for.
    fn sizes(&self, call: &Call) -> Result<Option<Sizes>> {
        let [q_layout, k_layout, v_layout, _] = self.layouts;
        let [batch, heads, queries, depth] = q_layout.dims(&call.q)?;
        let [k, v] = [k_layout.dims(&call.k)?, v_layout.dims(&call.v)?];
        let keys = k[2];
        let of_keys = [batch, heads, keys, depth];
        let is_whole = (depth * call.q.dtype().size()).is_multiple_of(16);
        let fits = k == of_keys && v == of_keys && is_whole && depth <= DEPTHS[DEPTHS.len() - 1];
        let has_unit = call.q.dtype() != DType::Float || tf32();
        let is_mask = |t: &Tensor| fits_scores(t.shape(), [batch, heads, queries, keys]);
        let mut masks = call.bias.iter().chain(&call.condition);
        let masks_fit = masks.next().is_none_or(is_mask) && masks.next().is_none();
        let has_elements = call.q.num_elements() > 0 && keys > 0;
        Ok(
            (fits && has_unit && masks_fit && has_elements).then_some(Sizes {
                batch,
                heads,
                queries,
                keys,
                depth,
            }),
        )
    }

    /// Enqueues the kernel; `None` if the device has none.
    fn launch(&self, ctx: &GpuCtx, call: &Call, sizes: &Sizes) -> Result<Option<Tensor>> {
        let dtype = call.q.dtype();
        let depth = DEPTHS.into_iter().find(|d| *d >= sizes.depth);
        let name = format!("attention_{}_{}", depth.unwrap_or(0), suffix(dtype)?);
        let Some(function) = ctx.library.attention(&name)? else {
            return Ok(None);
        };
        let [q, k, v] = [&call.q, &call.k, &call.v].map(|t| aligned(ctx, t.clone()));
        let (q, k, v) = (q?, k?, v?);
        let of_heads = [sizes.batch, sizes.heads, sizes.queries, sizes.depth];
        let y = ctx.alloc(dtype, self.layouts[3].swap(of_heads))?;
        let mask = call.bias.as_ref().or(call.condition.as_ref());
        let [q_layout, k_layout, v_layout, y_layout] = self.layouts;
        let mut args = Vec::with_capacity(32);
        args.extend([&q, &k, &v].map(TensorArg::Tensor));
        for t in [&call.bias, &call.condition] {
            args.push(t.as_ref().map_or(TensorArg::Null, TensorArg::Tensor));
        }
        args.push(TensorArg::Tensor(&y));
        for n in [sizes.heads, sizes.queries, sizes.keys, sizes.depth] {
            args.push(TensorArg::I32(int(n)?));
        }
        for (layout, t) in [
            (q_layout, &q),
            (k_layout, &k),
            (v_layout, &v),
            (y_layout, &y),
        ] {
            args.extend(layout.strides(t)?);
        }
        for stride in mask.map_or([0; 4], |t| mask_strides(t.shape())) {
            args.push(TensorArg::I32(int(stride)?));
        }
        args.extend([TensorArg::F32(self.scale), TensorArg::F32(self.fill)]);
        let n = sizes.queries.div_ceil(QUERIES) * sizes.batch * sizes.heads;
        ctx.launch(&function, &blocks(n, THREADS), &args)?;
        Ok(Some(y))
    }

    /// The same as products of matrices.
    fn by_products(&self, ctx: &GpuCtx, call: &Call) -> Result<Tensor> {
        let [q, k, v] = [(&call.q, 0), (&call.k, 1), (&call.v, 2)]
            .map(|(t, i)| transposed(ctx, t, &self.layouts[i].perm()));
        let mut scores = batch_product(ctx, &q?, &k?, false, true)?;
        if self.scale != 1.0 {
            let steps = [Step::Number(self.scale), Step::Binary(BinaryFn::Mul, 0, 1)];
            scores = apply(ctx, &steps, &[scores])?;
        }
        if let Some(bias) = &call.bias {
            let steps = [Step::Binary(BinaryFn::Add, 0, 1)];
            scores = apply(ctx, &steps, &[scores, bias.clone()])?;
        }
        if let Some(condition) = &call.condition {
            let steps = [Step::Number(self.fill), Step::Select(0, 1, 2)];
            scores = apply(ctx, &steps, &[condition.clone(), scores])?;
        }
        let y = batch_product(ctx, &softmax_of(ctx, &scores, false)?, &v?, false, false)?;
        transposed(ctx, &y, &self.layouts[3].perm())
    }
}

/// Whether a tensor is broadcast to scores of these sizes.
fn fits_scores(own: &Shape, scores: [usize; 4]) -> bool {
    let mut pairs = own.iter().rev().zip(scores.iter().rev());
    own.rank() <= 4 && pairs.all(|(n, of)| *n == 1 || n == of)
}

/// The distances of a tensor that is broadcast to scores, from one batch, head, query and key to the next.
fn mask_strides(own: &Shape) -> [usize; 4] {
    let mut strides = [0; 4];
    let lead = 4 - own.rank();
    for (i, stride) in own.strides().iter().enumerate() {
        strides[lead + i] = if own[i] == 1 { 0 } else { *stride };
    }
    strides
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_are_broadcast() {
        let check = |own: &[usize], expected: Option<[usize; 4]>| {
            let own = Shape::from(own);
            let got = fits_scores(&own, [2, 3, 5, 7]).then(|| mask_strides(&own));
            assert_eq!(got, expected, "{own}");
        };
        check(&[], Some([0; 4]));
        check(&[7], Some([0, 0, 0, 1]));
        check(&[5, 7], Some([0, 0, 7, 1]));
        check(&[2, 1, 1, 7], Some([7, 0, 0, 1]));
        check(&[2, 3, 5, 7], Some([105, 35, 7, 1]));
        check(&[2, 3, 5, 1], Some([15, 5, 1, 0]));
        check(&[3, 1, 1, 7], None);
        check(&[1, 1, 1, 1, 7], None);
    }
}
