//! [`Optional`]: the value of the Optional ops' variants.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::KernelCtx;
use ferroflow_tensor::{Shape, Tensor, Variant};
use std::sync::Arc;

/// Some tensors, or none.
#[derive(Clone)]
pub struct Optional(pub Option<Vec<Tensor>>);

impl Optional {
    /// Returns the optional as a variant scalar.
    ///
    /// # Errors
    /// Those of [`Tensor::from_variants`], which do not occur here.
    pub fn into_tensor(self) -> Result<Tensor> {
        Tensor::from_variants(Shape::scalar(), vec![self.into_variant()])
    }

    /// Wraps the value as a variant.
    pub fn into_variant(self) -> Variant {
        Variant(Some(Arc::new(self)))
    }

    /// Returns the optional of a variant, if it is one.
    pub fn of(variant: &Variant) -> Option<&Optional> {
        variant.0.as_deref()?.downcast_ref()
    }

    /// Returns the optional of input `i`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the input is not a scalar that holds an optional.
    pub fn input<'c>(ctx: &'c KernelCtx, i: usize, op: &str) -> Result<&'c Optional> {
        let t = ctx.input(i)?;
        if !t.shape().is_scalar() {
            return Err(invalid_argument!(
                "Input to {op} must be a scalar tensor containing an OptionalVariant object."
            ));
        }
        t.variants()?
            .first()
            .and_then(Optional::of)
            .ok_or_else(|| invalid_argument!("Input to {op} must be an OptionalVariant object."))
    }

    /// Returns the optional with `f` applied to every tensor.
    ///
    /// # Errors
    /// Those of `f`.
    pub fn map(&self, f: impl FnMut(&Tensor) -> Result<Tensor>) -> Result<Optional> {
        let values = self.0.as_ref().map(|v| v.iter().map(f).collect());
        Ok(Optional(values.transpose()?))
    }

    /// Returns the tensors of both combined by `f`.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if only one has tensors or their numbers differ; those of `f`.
    pub fn zip(
        &self,
        other: &Optional,
        mut f: impl FnMut(&Tensor, &Tensor) -> Result<Tensor>,
    ) -> Result<Optional> {
        let (a, b) = match (&self.0, &other.0) {
            (Some(a), Some(b)) => (a, b),
            (None, None) => return Ok(Optional(None)),
            _ => {
                return Err(invalid_argument!(
                    "Cannot add optionals because one has a value and the other doesn't."
                ));
            }
        };
        if a.len() != b.len() {
            return Err(invalid_argument!(
                "Cannot add optionals because they have different numbers of components ({} vs. {}).",
                a.len(),
                b.len()
            ));
        }
        let both = a
            .iter()
            .zip(b)
            .map(|(a, b)| f(a, b))
            .collect::<Result<_>>()?;
        Ok(Optional(Some(both)))
    }
}
