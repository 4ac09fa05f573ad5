//! Ops that programs use often, as methods of [`Eager`].

use super::{AttrValue, Attrs, Eager, TensorHandle};
use ferroflow_base::Result;
use ferroflow_tensor::DType;

macro_rules! conveniences {
    ($($(#[$doc:meta])* $name:ident($($arg:ident),*) = $op:literal;)*) => {
        impl Eager {$(
            $(#[$doc])*
            ///
            /// # Errors
            /// As [`EagerOp::execute`].
            pub fn $name(
                &self,
                $($arg: impl Into<TensorHandle>,)*
            ) -> Result<TensorHandle> {
                self.one($op, [$($arg.into()),*], &Attrs::default())
            }
        )*}
    };
}

conveniences! {
    /// `x + y`, with broadcasting.
    add(x, y) = "AddV2";
    /// `x - y`, with broadcasting.
    sub(x, y) = "Sub";
    /// `x * y`, element by element, with broadcasting.
    mul(x, y) = "Mul";
    /// `x / y`, with broadcasting.
    div(x, y) = "RealDiv";
    /// The larger value, element by element.
    maximum(x, y) = "Maximum";
    /// The smaller value, element by element.
    minimum(x, y) = "Minimum";
    /// `x` to the power of `y`.
    pow(x, y) = "Pow";
    /// Whether `x < y`.
    less(x, y) = "Less";
    /// Whether `x > y`.
    greater(x, y) = "Greater";
    /// Whether `x == y`.
    equal(x, y) = "Equal";
    /// The product of two matrices.
    matmul(a, b) = "MatMul";
    /// The products of two batches of matrices.
    batch_matmul(a, b) = "BatchMatMulV2";
    /// `-x`
    neg(x) = "Neg";
    /// The absolute value.
    abs(x) = "Abs";
    /// e to the power of `x`.
    exp(x) = "Exp";
    /// The natural logarithm.
    log(x) = "Log";
    /// The square root.
    sqrt(x) = "Sqrt";
    /// `x * x`
    square(x) = "Square";
    /// `max(x, 0)`
    relu(x) = "Relu";
    /// `1 / (1 + exp(-x))`
    sigmoid(x) = "Sigmoid";
    /// The hyperbolic tangent.
    tanh(x) = "Tanh";
    /// The softmax along the last dimension.
    softmax(logits) = "Softmax";
    /// The sum over the dimensions `axes`, which are removed.
    sum(x, axes) = "Sum";
    /// The mean over the dimensions `axes`, which are removed.
    mean(x, axes) = "Mean";
    /// The maximum over the dimensions `axes`, which are removed.
    max(x, axes) = "Max";
    /// The index of the maximum along `axis`.
    argmax(x, axis) = "ArgMax";
    /// The elements in another shape.
    reshape(x, shape) = "Reshape";
    /// The dimensions in the order `perm`.
    transpose(x, permutation) = "Transpose";
    /// Slices of `x` along `axis`, by index.
    gather(x, indices, axis) = "GatherV2";
}

impl Eager {
    /// The elements as another dtype.
    ///
    /// # Errors
    /// As [`EagerOp::execute`].
    pub fn cast(&self, x: impl Into<TensorHandle>, dtype: DType) -> Result<TensorHandle> {
        let attrs = Attrs::default().with("DstT", AttrValue::Type(dtype));
        self.one("Cast", [x.into()], &attrs)
    }
}
