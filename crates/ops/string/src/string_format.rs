//! StringFormat (TensorFlow: `core/kernels/string_format_op.cc`).

use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::summarize::summary_v2;
use ferroflow_opdef::{KernelBuild, KernelCtx, Op, OpKernel};
use ferroflow_tensor::{PartialShape, Shape, Tensor};

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
    let (template, placeholder) = (
        build.attrs.str("template")?,
        build.attrs.str("placeholder")?,
    );
    let parts: Vec<String> = match placeholder {
        "" => vec![template.to_string()],
        mark => template.split(mark).map(str::to_string).collect(),
    };
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
            text += &summary_v2(ctx.input(i)?, summarize);
            text += part;
        }
        let text = Tensor::from_strings(Shape::scalar(), vec![text.into_bytes().into()])?;
        ctx.set_output(0, text)
    }))
}
