//! [`Epilogue`]: what follows a product in the same node, by the attr `fused_ops`.

use crate::elementwise;
use crate::kernel::GpuCtx;
use crate::ptx::Step;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Attrs, BinaryFn, UnaryFn};
use ferroflow_tensor::Tensor;

/// Each step is optional; they come in this order.
#[derive(Clone, Copy, Default)]
pub(crate) struct Epilogue {
    /// The weights are scaled for each output.
    pub(crate) scale: bool,
    /// A number is added for each output.
    pub(crate) bias: bool,
    /// A tensor of the output's shape is added.
    pub(crate) side: bool,
    pub(crate) activation: Option<UnaryFn>,
}

impl Epilogue {
    /// Parses the attr; a node without has none of the steps.
    ///
    /// # Errors
    /// INVALID_ARGUMENT for an unknown step.
    pub(crate) fn of(attrs: &Attrs) -> Result<Epilogue> {
        let mut epilogue = Epilogue::default();
        if attrs.get("fused_ops").is_none() {
            return Ok(epilogue);
        }
        for name in attrs.strs("fused_ops")? {
            match name {
                "Scale" => epilogue.scale = true,
                "BiasAdd" => epilogue.bias = true,
                "Add" => epilogue.side = true,
                name => epilogue.activation = Some(activation(name, attrs)?),
            }
        }
        Ok(epilogue)
    }

    pub(crate) fn is_relu(&self) -> bool {
        self.activation == Some(UnaryFn::Relu)
    }
}

fn activation(name: &str, attrs: &Attrs) -> Result<UnaryFn> {
    let op = match name {
        "GeluExact" => "_Gelu",
        "GeluApproximate" => "_GeluTanh",
        "Swish" | "_MklSwish" => "_Swish",
        "HardSwish" | "_FusedHardSwish" => "_HardSwish",
        name => name,
    };
    let alpha = attrs.float("leakyrelu_alpha").unwrap_or(0.2);
    UnaryFn::of_op(op, alpha)
        .ok_or_else(|| invalid_argument!("fused_ops has the unknown step '{name}'"))
}

/// Splits a tensor that is added to `y`: the libraries take one of its shape, another one is broadcast late, like the
/// fused Add.
pub(crate) fn split_side(side: Option<Tensor>, y: &Tensor) -> (Option<Tensor>, Vec<Tensor>) {
    match side {
        Some(side) if side.shape() == y.shape() => (Some(side), Vec::new()),
        side => (None, side.into_iter().collect()),
    }
}

/// Adds `added`, one after the other, to `y` and applies an activation, in one launch; nothing is launched if
/// there is nothing to do.
///
/// # Errors
/// Those of the device.
pub(crate) fn finish(
    ctx: &GpuCtx,
    y: &Tensor,
    added: &[Tensor],
    activation: Option<UnaryFn>,
) -> Result<()> {
    let n_inputs = added.len() + 1;
    let mut steps = Vec::new();
    let mut last = 0;
    for i in 0..added.len() {
        steps.push(Step::Binary(BinaryFn::Add, last, i + 1));
        last = n_inputs + i;
    }
    steps.extend(activation.map(|f| Step::Unary(f, last)));
    if steps.is_empty() {
        return Ok(());
    }
    let mut inputs = vec![y.clone()];
    inputs.extend_from_slice(added);
    elementwise::run(ctx, &steps, &inputs, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ferroflow_opdef::AttrValue;

    #[test]
    fn activations_have_the_names_of_libraries() {
        for (name, expected) in [
            ("Relu", UnaryFn::Relu),
            ("Swish", UnaryFn::Swish),
            ("_MklSwish", UnaryFn::Swish),
            ("_FusedHardSwish", UnaryFn::HardSwish),
            ("GeluExact", UnaryFn::Gelu),
        ] {
            let steps = AttrValue::List(vec![AttrValue::str("BiasAdd"), AttrValue::str(name)]);
            let epilogue = Epilogue::of(&Attrs::default().with("fused_ops", steps)).expect(name);
            assert!(epilogue.bias);
            assert_eq!(epilogue.activation, Some(expected));
        }
    }
}
