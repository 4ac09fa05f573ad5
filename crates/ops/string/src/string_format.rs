//! StringFormat (TensorFlow: `core/kernels/string_format_op.cc`).

use crate::split::find;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::summarize::summary_v2;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{PartialShape, Tensor};

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[Op::new(
    "StringFormat",
    "inputs: list(T) -> output: string | T: list(type) >= 0; template: string = \
         '%s'; placeholder: string = '%s'; summarize: int = 3",
)
.shape(|ctx| {
    ctx.set(0, PartialShape::scalar());
    Ok(())
})
.kernel(string_format)];

fn string_format(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let (mut rest, mark) = (
        &build.attrs.bytes("template")?[..],
        build.attrs.bytes("placeholder")?,
    );
    let mut parts: Vec<Vec<u8>> = Vec::new();
    while !mark.is_empty()
        && let Some(at) = find(rest, mark)
    {
        parts.push(rest[..at].to_vec());
        rest = &rest[at + mark.len()..];
    }
    parts.push(rest.to_vec());
    if parts.len() != build.inputs.len() + 1 {
        return Err(invalid_argument!(
            "num placeholders in template and num inputs must match: {} vs. {}",
            parts.len() - 1,
            build.inputs.len()
        ));
    }
    let summarize = build.attrs.int("summarize")?;
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let mut text = parts.first().cloned().unwrap_or_default();
        for (i, part) in parts.iter().skip(1).enumerate() {
            text.extend(summary_v2(ctx.input(i)?, summarize));
            text.extend(part);
        }
        ctx.set_output(0, Tensor::string(text))
    }))
}
