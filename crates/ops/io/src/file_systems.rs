//! FileSystemSetConfiguration (TensorFlow: `core/kernels/filesystem_ops.cc`): this engine's file systems have nothing to set,
//! as TensorFlow's own.

use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_opdef::{KernelCtx, Op};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "FileSystemSetConfiguration",
    "scheme: string, key: string, value: string -> |  | stateful",
)
.shape(|ctx| (0..3).try_for_each(|i| ctx.with_rank(i, 0).map(drop)))
.kernel(|_| Ok(Box::new(set)))];

fn set(ctx: &mut KernelCtx) -> Result<()> {
    for (i, name) in ["scheme", "key", "value"].into_iter().enumerate() {
        if !ctx.shape(i)?.is_scalar() {
            // The shape is that of the first input in all of them, as in TensorFlow.
            let shown = ctx.shape(if i == 1 { 1 } else { 0 })?;
            return Err(invalid_argument!(
                "{name} must be scalar, got shape {shown}"
            ));
        }
    }
    let scheme = String::from_utf8_lossy(&ctx.input(0)?.strings()?[0]).into_owned();
    Err(match &scheme[..] {
        "" | "file" | "ram" => unimplemented_error!("SetOption"),
        _ => unimplemented_error!("File system scheme '{scheme}' not found to set configuration"),
    })
}
