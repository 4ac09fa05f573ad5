//! Operations on a product before it is stored.

use super::math::UnaryOp;

/// The last steps of a matrix product or convolution: `act(product * scale + bias + side)`.
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a, T = f32> {
    /// A factor for each output column (channel). Folded into the weights, its rounding error would
    /// be the same at every position and so accumulate from layer to layer.
    pub scale: Option<&'a [T]>,
    /// One number for each output column.
    pub bias: Option<&'a [T]>,
    /// A matrix of the output's shape and its row stride.
    pub side: Option<(&'a [T], usize)>,
    /// The activation.
    pub act: Activation,
}

impl<T> Default for Epilogue<'_, T> {
    fn default() -> Self {
        Epilogue {
            scale: None,
            bias: None,
            side: None,
            act: Activation::None,
        }
    }
}

impl<'a, T> Epilogue<'a, T> {
    /// Returns an epilogue that does nothing.
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns whether the epilogue does nothing.
    pub fn is_none(&self) -> bool {
        self.scale.is_none()
            && self.bias.is_none()
            && self.side.is_none()
            && self.act == Activation::None
    }

    /// Returns an epilogue that adds a bias, then applies an activation.
    pub fn new(bias: Option<&'a [T]>, act: Activation) -> Self {
        Epilogue {
            scale: None,
            bias,
            side: None,
            act,
        }
    }
}

/// An activation function that products can apply before storing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Activation {
    /// None.
    #[default]
    None,
    /// `max(x, 0)`.
    Relu,
    /// `min(max(x, 0), 6)`.
    Relu6,
    /// `min(max(x, lo), hi)`.
    Clamp(f32, f32),
    /// Any other function.
    Unary(UnaryOp),
}

impl Activation {
    /// Returns the bounds, if the activation is a clamp.
    pub(crate) fn limits(self) -> Option<(f32, f32)> {
        match self {
            Activation::Relu | Activation::Unary(UnaryOp::Relu) => Some((0.0, f32::INFINITY)),
            Activation::Relu6 | Activation::Unary(UnaryOp::Relu6) => Some((0.0, 6.0)),
            Activation::Clamp(lo, hi) | Activation::Unary(UnaryOp::Clamp(lo, hi)) => Some((lo, hi)),
            _ => None,
        }
    }

    /// Returns the function, if the activation is more than a clamp.
    pub(crate) fn function(self) -> Option<UnaryOp> {
        match self {
            Activation::Unary(UnaryOp::Identity) => None,
            Activation::Unary(op) if self.limits().is_none() => Some(op),
            _ => None,
        }
    }

    /// Returns the activation as an elementwise function.
    pub fn as_unary(self) -> UnaryOp {
        match self {
            Activation::None => UnaryOp::Identity,
            Activation::Relu => UnaryOp::Relu,
            Activation::Relu6 => UnaryOp::Relu6,
            Activation::Clamp(lo, hi) => UnaryOp::Clamp(lo, hi),
            Activation::Unary(op) => op,
        }
    }
}

impl From<UnaryOp> for Activation {
    fn from(op: UnaryOp) -> Self {
        match op {
            UnaryOp::Identity => Activation::None,
            UnaryOp::Relu => Activation::Relu,
            UnaryOp::Relu6 => Activation::Relu6,
            UnaryOp::Clamp(lo, hi) => Activation::Clamp(lo, hi),
            op => Activation::Unary(op),
        }
    }
}
