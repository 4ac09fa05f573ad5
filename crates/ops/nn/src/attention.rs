//! `_Attention`: scaled dot-product attention (Vaswani et al. 2017) as one node.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Op, ShapeCtx};
use ferroflow_tensor::PartialShape;

/// `_Attention`: internal; `softmax(q kᵀ · scale + bias) v`, with `fill` for scores where the condition is false. The pass
/// `fuse_attention` makes it, for devices. `layouts` are those of q, k, v and y: `BTNH`, by batch, position, head and depth, or
/// `BNTH`. The bias and the condition are broadcast to `[batch, heads, queries, keys]`. If `heads` is not 0, that many heads of
/// q, k and v are used, from `first_heads` on.
pub(crate) const OPS: &[Op] = &[Op::new(
    "_Attention",
    "q: T, k: T, v: T, bias: num_biases*T, condition: num_conditions*bool -> y: T | T: type {bfloat16,half,float}; \
     num_biases: int >= 0 = 0; num_conditions: int >= 0 = 0; layouts: list(string) >= 4; heads: int >= 0 = 0; \
     first_heads: list(int) = []; scale: float = 1.0; fill: float = 0.0",
)
.shape(shape)];

fn shape(ctx: &mut ShapeCtx) -> Result<()> {
    let layouts = ctx.attrs().strs("layouts")?;
    let heads_first: Vec<bool> = layouts.into_iter().map(|l| l == "BNTH").collect();
    let [q_first, _, v_first, y_first] = heads_first[..] else {
        return Err(invalid_argument!("layouts must have 4 elements"));
    };
    let (q, v) = (ctx.with_rank(0, 4)?, ctx.with_rank(2, 4)?);
    let (heads, rows) = if q_first { (1, 2) } else { (2, 1) };
    let heads = match usize::try_from(ctx.attrs().int("heads")?) {
        Ok(n) if n > 0 => Some(n),
        _ => q.dim(heads).or(v.dim(if v_first { 1 } else { 2 })),
    };
    let (batch, rows, depth) = (q.dim(0).or(v.dim(0)), q.dim(rows), v.dim(3));
    let dims = match y_first {
        true => [batch, heads, rows, depth],
        false => [batch, rows, heads, depth],
    };
    ctx.set(0, PartialShape::of(dims));
    Ok(())
}
