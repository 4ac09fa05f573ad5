//! Constant tensors.

use super::{Values, too_large};
use crate::bytecode::Cursor;
use crate::{Attr, TensorType, Type};
use ferroflow_base::Result;
use ferroflow_tensor::{DType, Shape, Tensor};
use std::borrow::Cow;

impl<'a> Values<'_, 'a> {
    /// Reads the constant tensor that is attribute `i`.
    pub(super) fn tensor(&mut self, i: usize, at: &mut Cursor<'a>, depth: usize) -> Result<Attr> {
        if let Some(done) = &self.tensors[i] {
            let done = Attr::Tensor(done.clone());
            at.take(at.remaining() as u64)?;
            return Ok(done);
        }
        let start = *at;
        let ty = at.index(self.file.types.len(), "type")?;
        self.decoded_type(ty, depth + 1)?;
        let ty = self.ty(ty)?;
        let bytes = at.blob()?;
        let Type::Tensor(ty) = ty else {
            return Ok(Attr::Other(format!("dense<...> : {ty}")));
        };
        let tensor = self.dense(&start, &ty, bytes)?;
        self.tensors[i] = Some(tensor.clone());
        Ok(Attr::Tensor(tensor))
    }

    fn dense(&mut self, at: &Cursor<'a>, ty: &TensorType, bytes: &[u8]) -> Result<Tensor> {
        let error = |what: &str| {
            at.error(format_args!(
                "a constant {} {what}",
                Type::Tensor(ty.clone())
            ))
        };
        let dims = ty
            .dims
            .iter()
            .map(|d| d.and_then(|d| i64::try_from(d).ok()));
        let dims = dims.collect::<Option<Vec<_>>>();
        let dims = dims.ok_or_else(|| error("has no size"))?;
        let shape = Shape::checked(&dims).map_err(|_| error("is too large"))?;
        let n = shape.num_elements();
        let size = ty.dtype.size();
        let Some(all) = n.checked_mul(size) else {
            return Err(error("is too large"));
        };
        let bytes = match ty.dtype {
            DType::Bool => bools(n, bytes),
            _ => Cow::Borrowed(bytes),
        };
        if bytes.len() == all {
            return Tensor::from_bytes(ty.dtype, shape, &bytes);
        }
        if bytes.len() != size {
            return Err(error(&format!("has {} bytes", bytes.len())));
        }
        self.splats = self.splats.checked_sub(all).ok_or_else(too_large)?;
        Tensor::from_bytes(ty.dtype, shape, &bytes.repeat(n))
    }
}

/// Returns a byte for each of `n` booleans, or for all together. Files pack eight into a byte, but
/// for splats; old files do not pack.
fn bools(n: usize, bytes: &[u8]) -> Cow<'_, [u8]> {
    if bytes == [0xFF] {
        return Cow::Borrowed(&[1]);
    }
    if bytes.len() != n.div_ceil(8) || bytes.len() == n {
        return Cow::Borrowed(bytes);
    }
    let bits = (0..n).map(|i| bytes[i / 8] >> (i % 8) & 1);
    Cow::Owned(bits.collect())
}
