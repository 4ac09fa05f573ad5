//! Ops that read or write parts of tensors.

use super::attrs::{flag, int, ints, ints_or, message};
use super::function_ref;
use super::scope::{Scope, typed};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Output;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Op, ValueId};
use ferroflow_tensor::DType;

impl Scope<'_, '_> {
    /// Adds an op that reads or writes parts; `false` if it is none.
    pub(super) fn indexing(&mut self, op: &Op) -> Result<bool> {
        match op.name.as_str() {
            "slice" => self.slice(op)?,
            "real_dynamic_slice" => self.real_dynamic_slice(op)?,
            "dynamic_slice" => self.dynamic_slice(op)?,
            "dynamic_update_slice" => self.dynamic_update_slice(op)?,
            "gather" => {
                let sizes = self.ints(&ints(op, "slice_sizes")?)?;
                self.gather(op, sizes)?;
            }
            "dynamic_gather" => {
                let sizes = self.operand(op, 2)?;
                let (dtype, sizes) = (self.ty(sizes)?.dtype, self.full(sizes)?);
                let sizes = self.cast(sizes, dtype, DType::Int64)?;
                self.gather(op, sizes)?;
            }
            "scatter" => self.scatter(op)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn strided(&mut self, op: &Op, bounds: [Output; 3], index: DType) -> Result<()> {
        let x = self.operand(op, 0)?;
        let (dtype, x) = (self.ty(x)?.dtype, self.full(x)?);
        let [begin, end, strides] = bounds;
        let attrs = typed(dtype).with("Index", AttrValue::Type(index));
        let y = self.node("StridedSlice", attrs, &[x, begin, end, strides])?;
        self.set(op, y)
    }

    fn slice(&mut self, op: &Op) -> Result<()> {
        let start = ints(op, "start_indices")?;
        let strides = ints_or(op, "strides", start.len(), 1);
        let bounds = [
            self.ints(&start)?,
            self.ints(&ints(op, "limit_indices")?)?,
            self.ints(&strides)?,
        ];
        self.strided(op, bounds, DType::Int64)
    }

    fn real_dynamic_slice(&mut self, op: &Op) -> Result<()> {
        let index = self.ty(self.operand(op, 1)?)?.dtype;
        let mut bounds = Vec::new();
        for i in 1..4 {
            bounds.push(self.full(self.operand(op, i)?)?);
        }
        self.strided(op, [bounds[0], bounds[1], bounds[2]], index)
    }

    /// Scalars as a vector of integers that TensorFlow's ops take.
    fn starts(&mut self, ids: &[ValueId]) -> Result<Output> {
        let mut parts = Vec::new();
        for id in ids {
            let (dtype, x) = (self.ty(*id)?.dtype, self.full(*id)?);
            parts.push(self.cast(x, dtype, DType::Int64)?);
        }
        let attrs = typed(DType::Int64).with("N", AttrValue::Int(parts.len() as i64));
        match parts.is_empty() {
            true => self.ints(&[]),
            false => self.node("Pack", attrs, &parts),
        }
    }

    fn dynamic_slice(&mut self, op: &Op) -> Result<()> {
        let x = self.operand(op, 0)?;
        let (dtype, x) = (self.ty(x)?.dtype, self.full(x)?);
        let starts = self.starts(&op.operands[1..])?;
        let sizes = self.ints(&ints(op, "slice_sizes")?)?;
        let attrs = typed(dtype).with("Tindices", AttrValue::Type(DType::Int64));
        let y = self.node("XlaDynamicSlice", attrs, &[x, starts, sizes])?;
        self.set(op, y)
    }

    fn dynamic_update_slice(&mut self, op: &Op) -> Result<()> {
        let (x, update) = (self.operand(op, 0)?, self.operand(op, 1)?);
        let dtype = self.ty(x)?.dtype;
        let (x, update) = (self.full(x)?, self.full(update)?);
        let starts = self.starts(&op.operands[2..])?;
        let attrs = typed(dtype).with("Tindices", AttrValue::Type(DType::Int64));
        let y = self.node("XlaDynamicUpdateSlice", attrs, &[x, update, starts])?;
        self.set(op, y)
    }

    /// Indices as 64-bit integers.
    fn indices(&mut self, id: ValueId) -> Result<Output> {
        let (dtype, x) = (self.ty(id)?.dtype, self.full(id)?);
        self.cast(x, dtype, DType::Int64)
    }

    fn gather(&mut self, op: &Op, sizes: Output) -> Result<()> {
        let x = self.operand(op, 0)?;
        let (dtype, x) = (self.ty(x)?.dtype, self.full(x)?);
        let indices = self.indices(self.operand(op, 1)?)?;
        let list = |name: &str| ints(op, name).unwrap_or_default();
        let numbers = message(&[
            (1, &list("offset_dims")),
            (2, &list("collapsed_slice_dims")),
            (3, &list("start_index_map")),
            (4, &[int(op, "index_vector_dim")?]),
            (5, &list("operand_batching_dims")),
            (6, &list("start_indices_batching_dims")),
        ]);
        let attrs = typed(dtype)
            .with("Tindices", AttrValue::Type(DType::Int64))
            .with("dimension_numbers", AttrValue::Str(numbers.into()))
            .with(
                "indices_are_sorted",
                AttrValue::Bool(flag(op, "indices_are_sorted")),
            );
        let y = self.node("XlaGather", attrs, &[x, indices, sizes])?;
        self.set(op, y)
    }

    fn scatter(&mut self, op: &Op) -> Result<()> {
        let ([x, indices, updates], [(id, _)]) = (&op.operands[..], &op.results[..]) else {
            return Err(invalid_argument!(
                "scatters of several tensors are not implemented"
            ));
        };
        let ty = self.ty(*x)?.clone();
        let (x, indices) = (self.full(*x)?, self.indices(*indices)?);
        let updates = self.full(*updates)?;
        let function = self.pure_region(op, 0)?;
        let list = |name: &str| ints(op, name).unwrap_or_default();
        let numbers = message(&[
            (1, &list("update_window_dims")),
            (2, &list("inserted_window_dims")),
            (3, &list("scatter_dims_to_operand_dims")),
            (4, &[int(op, "index_vector_dim")?]),
            (5, &list("input_batching_dims")),
            (6, &list("scatter_indices_batching_dims")),
        ]);
        let attrs: Attrs = typed(ty.dtype)
            .with("Tindices", AttrValue::Type(DType::Int64))
            .with("update_computation", function_ref(&function))
            .with("dimension_numbers", AttrValue::Str(numbers.into()))
            .with(
                "indices_are_sorted",
                AttrValue::Bool(flag(op, "indices_are_sorted")),
            );
        let y = self.node("XlaScatter", attrs, &[x, indices, updates])?;
        self.define(*id, ty, y);
        Ok(())
    }
}
