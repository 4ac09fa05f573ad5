//! Attention in one launch, without its scores in memory; where there is no kernel for it, as products and a softmax.

use crate::data::{self, aligned, transposed};
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
const DEPTHS: [usize; 3] = [32, 64, MAX_DEPTH];
const MAX_DEPTH: usize = 128;

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
}

struct Attention {
    /// Of q, k, v and the result.
    layouts: [Layout; 4],
    /// How many heads of q, k and v are used, if not all, and the first of each.
    heads: Option<usize>,
    first_heads: [usize; 3],
    has_bias: bool,
    has_condition: bool,
    scale: f32,
    fill: f32,
}

/// Heads of a tensor.
struct Heads {
    tensor: Tensor,
    layout: Layout,
    /// Batch, heads, rows and depth.
    dims: [usize; 4],
    /// The number of the first element.
    start: usize,
}

impl Heads {
    fn new(tensor: Tensor, layout: Layout, first: usize, heads: Option<usize>) -> Result<Heads> {
        let mut dims = layout.dims(&tensor)?;
        let n = heads.unwrap_or(dims[1]);
        if first.saturating_add(n) > dims[1] {
            return Err(invalid_argument!(
                "attention takes {n} heads from {first} on of a tensor with {}",
                dims[1]
            ));
        }
        dims[1] = n;
        let start = first * layout.swap(strides(&tensor))[1];
        Ok(Heads {
            tensor,
            layout,
            dims,
            start,
        })
    }

    /// The distances from one batch, head and row to the next.
    fn distances(&self) -> Result<[TensorArg<'static>; 3]> {
        distances(self.layout, &self.tensor)
    }

    /// The elements as kernels read them, by 16 bytes.
    fn aligned(&self, ctx: &GpuCtx) -> Result<Tensor> {
        let n = self.tensor.num_elements() - self.start;
        let view = self.tensor.view(self.start, [n].into())?;
        if ctx.memory.span(&view)?.address.0.is_multiple_of(16) {
            return Ok(view);
        }
        aligned(ctx, view)
    }

    /// The heads as `[batch, heads, rows, depth]`.
    fn matrices(&self, ctx: &GpuCtx) -> Result<Tensor> {
        if self.dims == self.layout.dims(&self.tensor)? {
            return transposed(ctx, &self.tensor, &self.layout.swap([0, 1, 2, 3]));
        }
        let y = ctx.alloc(self.tensor.dtype(), self.dims)?;
        let (from, to) = (self.layout.swap(strides(&self.tensor)), strides(&y));
        let dims = (0..4).map(|d| (self.dims[d], from[d] as i64, to[d] as i64));
        data::Copy::new(dims).run(ctx, (&self.tensor, self.start), (&y, 0))?;
        Ok(y)
    }
}

/// The distances between the elements of a tensor of four dimensions.
fn strides(t: &Tensor) -> [usize; 4] {
    let strides = t.shape().strides();
    [strides[0], strides[1], strides[2], strides[3]]
}

/// The distances from one batch, head and row to the next in a tensor of a layout.
fn distances(layout: Layout, t: &Tensor) -> Result<[TensorArg<'static>; 3]> {
    let [batch, head, row, _] = layout.swap(strides(t));
    Ok([
        TensorArg::I32(int(batch)?),
        TensorArg::I32(int(head)?),
        TensorArg::I32(int(row)?),
    ])
}

/// The inputs of a call.
struct Call {
    q: Heads,
    k: Heads,
    v: Heads,
    bias: Option<Tensor>,
    condition: Option<Tensor>,
}

fn attention(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let attrs = build.attrs;
    let layouts: Vec<Layout> = attrs
        .strs("layouts")?
        .into_iter()
        .map(Layout::parse)
        .collect::<Result<_>>()?;
    let size = |n: i64| {
        usize::try_from(n).map_err(|_| invalid_argument!("heads must not be negative, got {n}"))
    };
    let attention = Attention {
        layouts: layouts
            .try_into()
            .map_err(|_| invalid_argument!("layouts must have 4 elements"))?,
        heads: Some(size(attrs.int("heads")?)?).filter(|n| *n > 0),
        first_heads: match attrs.ints("first_heads")?[..] {
            [] => [0; 3],
            [q, k, v] => [size(q)?, size(k)?, size(v)?],
            _ => return Err(invalid_argument!("first_heads must have 3 elements")),
        },
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
        let heads = |i: usize| {
            let first = self.first_heads[i];
            Heads::new(ctx.input(i)?, self.layouts[i], first, self.heads)
        };
        let optional = |is_there: bool, i: usize| is_there.then(|| ctx.input(i)).transpose();
        let call = Call {
            q: heads(0)?,
            k: heads(1)?,
            v: heads(2)?,
            bias: optional(self.has_bias, bias)?,
            condition: optional(self.has_condition, condition)?,
        };
        if call.has_kernel()
            && let Some(y) = self.launch(ctx, &call)?
        {
            return Ok(y);
        }
        self.by_products(ctx, &call)
    }

    /// Enqueues the kernel; `None` if the device has none.
    fn launch(&self, ctx: &GpuCtx, call: &Call) -> Result<Option<Tensor>> {
        let Call { q, k, v, .. } = call;
        let ([batch, heads, queries, depth], keys) = (q.dims, k.dims[2]);
        let dtype = q.tensor.dtype();
        let name = format!(
            "attention_{}_{}",
            DEPTHS.into_iter().find(|d| *d >= depth).unwrap_or(0),
            suffix(dtype)?
        );
        let Some(function) = ctx.library.attention(&name)? else {
            return Ok(None);
        };
        let operands = [q.aligned(ctx)?, k.aligned(ctx)?, v.aligned(ctx)?];
        let y = ctx.alloc(dtype, self.layouts[3].swap(q.dims))?;
        let mask = call.bias.as_ref().or(call.condition.as_ref());
        let mut args = Vec::with_capacity(32);
        args.extend(operands.iter().map(TensorArg::Tensor));
        for t in [&call.bias, &call.condition] {
            args.push(t.as_ref().map_or(TensorArg::Null, TensorArg::Tensor));
        }
        args.push(TensorArg::Tensor(&y));
        for n in [heads, queries, keys, depth] {
            args.push(TensorArg::I32(int(n)?));
        }
        for operand in [q, k, v] {
            args.extend(operand.distances()?);
        }
        args.extend(distances(self.layouts[3], &y)?);
        for stride in mask.map_or([0; 4], |t| mask_strides(t.shape())) {
            args.push(TensorArg::I32(int(stride)?));
        }
        args.extend([TensorArg::F32(self.scale), TensorArg::F32(self.fill)]);
        let n = queries.div_ceil(QUERIES) * batch * heads;
        ctx.launch(&function, &blocks(n, THREADS), &args)?;
        Ok(Some(y))
    }

    /// The same as products of matrices.
    fn by_products(&self, ctx: &GpuCtx, call: &Call) -> Result<Tensor> {
        let (q, k) = (call.q.matrices(ctx)?, call.k.matrices(ctx)?);
        let mut scores = batch_product(ctx, &q, &k, false, true)?;
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
        let (weights, v) = (softmax_of(ctx, &scores, false)?, call.v.matrices(ctx)?);
        let y = batch_product(ctx, &weights, &v, false, false)?;
        transposed(ctx, &y, &self.layouts[3].swap([0, 1, 2, 3]))
    }
}

impl Call {
    /// Whether there is a kernel for these sizes and this dtype.
    fn has_kernel(&self) -> bool {
        let dtype = self.q.tensor.dtype();
        let ([batch, heads, queries, depth], keys) = (self.q.dims, self.k.dims[2]);
        let of_keys = [batch, heads, keys, depth];
        let is_whole = (depth * dtype.size()).is_multiple_of(16);
        let is_same = self.k.dims == of_keys && self.v.dims == of_keys;
        let has_unit = dtype != DType::Float || tf32();
        let is_mask = |t: &Tensor| fits_scores(t.shape(), [batch, heads, queries, keys]);
        let mut masks = self.bias.iter().chain(&self.condition);
        let masks_fit = masks.next().is_none_or(is_mask) && masks.next().is_none();
        let has_elements = batch * heads * queries * depth > 0 && keys > 0;
        is_same && is_whole && depth <= MAX_DEPTH && has_unit && masks_fit && has_elements
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
