//! XlaCallModule: a StableHLO program, as jax2tf stores it (TensorFlow: `compiler/tf2xla/ops/xla_ops.cc`). The compiler makes a
//! call of a function of it.

use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Op, ShapeCtx};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "XlaCallModule",
    "args: list(Tin) -> output: list(Tout) | version: int; module: string; Sout: list(shape) >= 0; Tout: list(type) >= 0; \
     Tin: list(type) >= 0; dim_args_spec: list(string) = []; platforms: list(string) = []; function_list: list(func) = []; \
     has_token_input_output: bool = false; disabled_checks: list(string) = []; use_shardy_partitioner: bool = false \
     | stateful",
)
.shape(shapes)];

fn shapes(ctx: &mut ShapeCtx) -> Result<()> {
    let Some(AttrValue::List(list)) = ctx.attrs().get("Sout").cloned() else {
        return Ok(());
    };
    for (i, shape) in list.into_iter().enumerate() {
        if let AttrValue::Shape(shape) = shape {
            ctx.set(i, shape);
        }
    }
    Ok(())
}
