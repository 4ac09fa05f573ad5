//! The attr `fused_ops`: the steps that follow a product in the same kernel.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::Attrs;
use ferroflow_primitives::gemm::Activation;
use ferroflow_primitives::math::UnaryOp;

/// The epilogue of a fused kernel.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct FusedOps {
    /// The first extra argument is added to every row.
    pub bias: bool,
    /// The next extra argument, of the output's shape, is added.
    pub side: bool,
    /// The activation, applied last.
    pub activation: Activation,
}

impl FusedOps {
    /// Parses `fused_ops` (and `leakyrelu_alpha`): `BiasAdd`, then `Add`, then an activation, each
    /// optional.
    pub(crate) fn from_attrs(attrs: &Attrs) -> Result<FusedOps> {
        FusedOps::from_names(&attrs.strs("fused_ops")?, attrs)
    }

    /// Like [`FusedOps::from_attrs`], for the given steps.
    pub(crate) fn from_names(names: &[&str], attrs: &Attrs) -> Result<FusedOps> {
        let mut rest = names;
        let mut take = |name: &str| match rest.split_first() {
            Some((first, tail)) if *first == name => {
                rest = tail;
                true
            }
            _ => false,
        };
        let bias = take("BiasAdd");
        let side = take("Add");
        let activation = match rest {
            [] => Activation::None,
            [name] => activation(name, attrs)?,
            _ => return Err(unknown(names)),
        };
        Ok(FusedOps {
            bias,
            side,
            activation,
        })
    }

    /// Returns the number of extra arguments of the kernel.
    pub(crate) fn num_args(&self) -> usize {
        self.bias as usize + self.side as usize
    }
}

fn activation(name: &str, attrs: &Attrs) -> Result<Activation> {
    Ok(match name {
        "Relu" => Activation::Relu,
        "Relu6" => Activation::Relu6,
        "Elu" => Activation::Unary(UnaryOp::Elu(1.0)),
        "LeakyRelu" => Activation::Unary(UnaryOp::LeakyRelu(attrs.float("leakyrelu_alpha")?)),
        "Tanh" => Activation::Unary(UnaryOp::Tanh),
        "Sigmoid" => Activation::Unary(UnaryOp::Sigmoid),
        "GeluExact" => Activation::Unary(UnaryOp::GeluErf),
        "GeluApproximate" => Activation::Unary(UnaryOp::GeluTanh),
        "Swish" | "_MklSwish" => Activation::Unary(UnaryOp::Swish),
        "HardSwish" | "_FusedHardSwish" => Activation::Unary(UnaryOp::HardSwish),
        "Softplus" => Activation::Unary(UnaryOp::Softplus),
        _ => return Err(unknown(&[name])),
    })
}

fn unknown(names: &[&str]) -> ferroflow_base::Status {
    invalid_argument!("fused_ops {names:?} is not a sequence of BiasAdd, Add and an activation")
}
