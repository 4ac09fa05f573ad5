//! Ops that move elements, and constants.

use super::attrs::{Axis, dim, dims, ints, ints_or};
use super::elementwise::bitcast;
use super::scope::{Scope, Small, Target, known_dims, open_dims, sizes, typed};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Output;
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_stablehlo::{Attr, Op};
use ferroflow_tensor::{DType, Shape, Tensor};

impl Scope<'_, '_> {
    /// Adds an op that moves elements; `false` if it is none.
    pub(super) fn shape_op(&mut self, op: &Op) -> Result<bool> {
        match op.name.as_str() {
            "constant" => self.dense(op)?,
            "broadcast_in_dim" => self.broadcast_in_dim(op)?,
            "dynamic_broadcast_in_dim" => self.dynamic_broadcast_in_dim(op)?,
            "broadcast" => self.broadcast_in_front(op)?,
            "reshape" => self.reshape_op(op)?,
            "dynamic_reshape" => {
                let x = self.operand(op, 0)?;
                let (dtype, x) = (self.ty(x)?.dtype, self.full(x)?);
                let shape = self.full(self.operand(op, 1)?)?;
                let y = self.reshape_to(x, dtype, shape)?;
                self.set(op, y)?;
            }
            "transpose" => {
                let perm = dims(op, "permutation")?;
                self.moved(op, |this, x, dtype| this.transpose(x, dtype, &perm))?;
            }
            "reverse" => {
                let axes = ints(op, "dimensions")?;
                self.moved(op, |this, x, dtype| {
                    let axes = this.ints(&axes)?;
                    let attrs = typed(dtype).with("Tidx", AttrValue::Type(DType::Int64));
                    this.node("ReverseV2", attrs, &[x, axes])
                })?;
            }
            "concatenate" => self.concatenate(op)?,
            "iota" => self.iota(op)?,
            "dynamic_iota" => self.dynamic_iota(op)?,
            "get_dimension_size" => self.dimension_size(op)?,
            "pad" => self.pad(op)?,
            "dynamic_pad" => {
                let inputs: Vec<Output> = (0..5)
                    .map(|i| self.operand(op, i).and_then(|id| self.full(id)))
                    .collect::<Result<_>>()?;
                let index = self.ty(self.operand(op, 2)?)?.dtype;
                let dtype = self.ty(self.operand(op, 0)?)?.dtype;
                let attrs = typed(dtype).with("Tindices", AttrValue::Type(index));
                let y = self.node("XlaPad", attrs, &inputs)?;
                self.set(op, y)?;
            }
            "bitcast_convert" => {
                let to = self.result(op)?.1.dtype;
                self.moved(op, |this, x, dtype| match dtype == to {
                    true => Ok(x),
                    false => this.node("Bitcast", bitcast(dtype, to), &[x]),
                })?;
            }
            "optimization_barrier" => {
                for (i, (id, _)) in op.results.iter().enumerate() {
                    let value = self.value(self.operand(op, i)?)?.clone();
                    self.values.insert(*id, value);
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Applies a node to the whole first operand.
    fn moved(
        &mut self,
        op: &Op,
        make: impl FnOnce(&mut Self, Output, DType) -> Result<Output>,
    ) -> Result<()> {
        let x = self.operand(op, 0)?;
        let (dtype, x) = (self.ty(x)?.dtype, self.full(x)?);
        let y = make(self, x, dtype)?;
        self.set(op, y)
    }

    /// A constant; one whose elements are all the same is a broadcast.
    fn dense(&mut self, op: &Op) -> Result<()> {
        let Some(Attr::Tensor(value)) = op.attr("value") else {
            return Err(invalid_argument!("the constant has no value"));
        };
        let (id, ty) = self.result(op)?;
        self.constants.insert(id, op.clone());
        let bytes = value.bytes()?;
        let size = value.dtype().size().max(1);
        let is_splat = bytes.len() > size && bytes.chunks(size).all(|c| *c == bytes[..size]);
        if !is_splat {
            let output = self.constant(value.clone())?;
            self.define(id, ty.clone(), output);
            return Ok(());
        }
        let one = value.view(0, Shape::scalar())?;
        let output = self.constant(one)?;
        let small = Small {
            output,
            target: Target::Known(value.shape().dims().to_vec()),
            is_scalar: true,
        };
        self.define_broadcast(id, ty.clone(), small);
        Ok(())
    }

    /// `x` with dimensions of size 1 between its own, which become the dimensions `places` of `rank`.
    fn spread(
        &mut self,
        x: Output,
        dtype: DType,
        own: &[Option<usize>],
        places: &[usize],
        rank: usize,
    ) -> Result<Output> {
        let mut order: Vec<usize> = (0..places.len()).collect();
        order.sort_by_key(|i| places[*i]);
        let x = self.transpose(x, dtype, &order)?;
        if own.len() == rank {
            return Ok(x);
        }
        let mut x = x;
        let attrs = typed(dtype).with("Tdim", AttrValue::Type(DType::Int32));
        for d in (0..rank).filter(|d| !places.contains(d)) {
            let axis = self.constant(Tensor::scalar(d as i32))?;
            x = self.node("ExpandDims", attrs.clone(), &[x, axis])?;
        }
        Ok(x)
    }

    fn broadcast_in_dim(&mut self, op: &Op) -> Result<()> {
        self.note_constant(op)?;
        let places = dims(op, "broadcast_dimensions")?;
        let (id, ty) = self.result(op)?;
        let target = known_dims(ty);
        let target = target.ok_or_else(|| invalid_argument!("the result has an open shape"))?;
        self.broadcast_to(op, id, ty, &places, Target::Known(target))
    }

    fn dynamic_broadcast_in_dim(&mut self, op: &Op) -> Result<()> {
        let places = dims(op, "broadcast_dimensions")?;
        let shape = self.full(self.operand(op, 1)?)?;
        let (id, ty) = self.result(op)?;
        self.broadcast_to(op, id, ty, &places, Target::Computed(shape))
    }

    fn broadcast_to(
        &mut self,
        op: &Op,
        id: ferroflow_stablehlo::ValueId,
        ty: &ferroflow_stablehlo::TensorType,
        places: &[usize],
        target: Target,
    ) -> Result<()> {
        let x = self.operand(op, 0)?;
        let own = self.ty(x)?.clone();
        if places.len() != own.dims.len() || places.iter().any(|p| *p >= ty.dims.len()) {
            return Err(invalid_argument!(
                "broadcast_dimensions {places:?} do not fit"
            ));
        }
        let is_identity = places.iter().enumerate().all(|(i, p)| i == *p);
        if own.dims == ty.dims && is_identity && matches!(target, Target::Known(_)) {
            let value = self.value(x)?.clone();
            self.values.insert(id, value);
            return Ok(());
        }
        // A scalar that is broadcast is so to any shape.
        let (output, is_scalar) = match self.small(x)? {
            Some(small) if small.is_scalar => (small.output, true),
            _ if own.dims.is_empty() => (self.full(x)?, true),
            _ => {
                let x = self.full(x)?;
                let spread = self.spread(x, own.dtype, &own.dims, places, ty.dims.len())?;
                (spread, false)
            }
        };
        let small = Small {
            output,
            target,
            is_scalar,
        };
        self.define_broadcast(id, ty.clone(), small);
        Ok(())
    }

    /// Dimensions in front of those of the operand.
    fn broadcast_in_front(&mut self, op: &Op) -> Result<()> {
        let (id, ty) = self.result(op)?;
        let target = known_dims(ty);
        let target = target.ok_or_else(|| invalid_argument!("the result has an open shape"))?;
        let rank = self.ty(self.operand(op, 0)?)?.dims.len();
        let places: Vec<usize> = (target.len().saturating_sub(rank)..target.len()).collect();
        self.broadcast_to(op, id, ty, &places, Target::Known(target))
    }

    fn reshape_op(&mut self, op: &Op) -> Result<()> {
        let x = self.operand(op, 0)?;
        let (id, ty) = self.result(op)?;
        let target = known_dims(ty);
        if let (Some(small), Some(target)) = (self.small(x)?, &target)
            && small.is_scalar
        {
            let target = Target::Known(target.clone());
            self.define_broadcast(id, ty.clone(), Small { target, ..small });
            return Ok(());
        }
        let n_open = ty.dims.iter().filter(|d| d.is_none()).count();
        if n_open > 1 {
            return Err(invalid_argument!("a reshape has several open dimensions"));
        }
        let (dtype, full) = (self.ty(x)?.dtype, self.full(x)?);
        let shape = self.ints(&open_dims(ty))?;
        let y = self.reshape_to(full, dtype, shape)?;
        self.define(id, ty.clone(), y);
        Ok(())
    }

    fn concatenate(&mut self, op: &Op) -> Result<()> {
        let mut inputs = Vec::new();
        for id in &op.operands {
            inputs.push(self.full(*id)?);
        }
        if let [one] = inputs[..] {
            return self.set(op, one);
        }
        let axis = dim(op, "dimension")?;
        inputs.push(self.constant(Tensor::scalar(axis as i32))?);
        let attrs = typed(self.ty(self.operand(op, 0)?)?.dtype)
            .with("N", AttrValue::Int(op.operands.len() as i64))
            .with("Tidx", AttrValue::Type(DType::Int32));
        let y = self.node("ConcatV2", attrs, &inputs)?;
        self.set(op, y)
    }

    /// The numbers from 0 on of a dtype, `n` of them.
    fn range(&mut self, n: Output, dtype: DType) -> Result<Output> {
        let (start, step) = (
            self.constant(Tensor::scalar(0i64))?,
            self.constant(Tensor::scalar(1i64))?,
        );
        let attrs = Attrs::default().with("Tidx", AttrValue::Type(DType::Int64));
        let numbers = self.node("Range", attrs, &[start, n, step])?;
        self.convert(numbers, DType::Int64, dtype)
    }

    /// Numbers along a dimension.
    fn iota(&mut self, op: &Op) -> Result<()> {
        self.note_constant(op)?;
        let (axis, (id, ty)) = (dim(op, "iota_dimension")?, self.result(op)?);
        let target = known_dims(ty);
        let target = target.ok_or_else(|| invalid_argument!("the result has an open shape"))?;
        let n = *target
            .get(axis)
            .ok_or_else(|| invalid_argument!("there is no dimension {axis}"))?;
        let count = self.constant(Tensor::scalar(n as i64))?;
        let numbers = self.range(count, ty.dtype)?;
        self.iotas.insert(id, axis);
        let own = [Some(n)];
        let small = self.spread(numbers, ty.dtype, &own, &[axis], target.len())?;
        match target.len() {
            1 => self.define(id, ty.clone(), small),
            _ => {
                let small = Small {
                    output: small,
                    target: Target::Known(target),
                    is_scalar: false,
                };
                self.define_broadcast(id, ty.clone(), small);
            }
        }
        Ok(())
    }

    fn dynamic_iota(&mut self, op: &Op) -> Result<()> {
        let (axis, (id, ty)) = (dim(op, "iota_dimension")?, self.result(op)?);
        let shape = self.operand(op, 0)?;
        let (of, shape) = (self.ty(shape)?.dtype, self.full(shape)?);
        let n = self.element(shape, of, axis)?;
        let n = self.cast(n, of, DType::Int64)?;
        let numbers = self.range(n, ty.dtype)?;
        let small = self.spread(numbers, ty.dtype, &[None], &[axis], ty.dims.len())?;
        let small = Small {
            output: small,
            target: Target::Computed(shape),
            is_scalar: false,
        };
        self.define_broadcast(id, ty.clone(), small);
        Ok(())
    }

    fn dimension_size(&mut self, op: &Op) -> Result<()> {
        let axis = dim(op, "dimension")?;
        let x = self.operand(op, 0)?;
        if let Some(n) = self.ty(x)?.dims.get(axis).copied().flatten() {
            let size = self.constant(Tensor::scalar(n as i32))?;
            return self.set(op, size);
        }
        let (dtype, x) = (self.ty(x)?.dtype, self.full(x)?);
        let size = self.size_along(x, dtype, axis)?;
        self.set(op, size)
    }

    /// The size of a dimension that only the step knows.
    pub(super) fn size_along(&mut self, x: Output, dtype: DType, axis: usize) -> Result<Output> {
        let shape = self.shape_of(x, dtype)?;
        let n = self.element(shape, DType::Int64, axis)?;
        self.cast(n, DType::Int64, DType::Int32)
    }

    /// Element `i` of a vector.
    fn element(&mut self, vector: Output, dtype: DType, i: usize) -> Result<Output> {
        let at = self.constant(Tensor::scalar(i as i32))?;
        let zero = self.constant(Tensor::scalar(0i32))?;
        let attrs = Attrs::default()
            .with("Tparams", AttrValue::Type(dtype))
            .with("Tindices", AttrValue::Type(DType::Int32))
            .with("Taxis", AttrValue::Type(DType::Int32));
        self.node("GatherV2", attrs, &[vector, at, zero])
    }

    fn pad(&mut self, op: &Op) -> Result<()> {
        let (x, value) = (self.operand(op, 0)?, self.operand(op, 1)?);
        let (ty, value) = (self.ty(x)?.clone(), self.full(value)?);
        let rank = ty.dims.len();
        let low = ints_or(op, "edge_padding_low", rank, 0);
        let high = ints_or(op, "edge_padding_high", rank, 0);
        let interior = ints_or(op, "interior_padding", rank, 0);
        let x = self.full(x)?;
        if [&low, &high, &interior].iter().any(|l| l.len() != rank) {
            return Err(invalid_argument!(
                "the padding does not have {rank} dimensions"
            ));
        }
        for (d, size) in self.result(op)?.1.dims.iter().enumerate().take(rank) {
            Axis {
                size: ty.dims[d],
                base_dilation: interior[d].saturating_add(1),
                pads: [low[d], high[d]],
                window: Some(1),
                dilation: 1,
                stride: 1,
            }
            .check(*size)?;
        }
        let is_plain = interior.iter().all(|n| *n == 0) && low.iter().chain(&high).all(|n| *n >= 0);
        let y = match is_plain {
            true => {
                let pairs: Vec<i64> = low.iter().zip(&high).flat_map(|(a, b)| [*a, *b]).collect();
                let pairs = Tensor::vector(&pairs)?.with_shape([rank, 2].into())?;
                let pairs = self.constant(pairs)?;
                let attrs = typed(ty.dtype).with("Tpaddings", AttrValue::Type(DType::Int64));
                self.node("PadV2", attrs, &[x, pairs, value])?
            }
            false => {
                let mut inputs = vec![x, value];
                for list in [&low, &high, &interior] {
                    inputs.push(self.ints(list)?);
                }
                let attrs = typed(ty.dtype).with("Tindices", AttrValue::Type(DType::Int64));
                self.node("XlaPad", attrs, &inputs)?
            }
        };
        self.set(op, y)
    }

    /// Lets regions have this op in place of its value, if all that it reads is constant.
    fn note_constant(&mut self, op: &Op) -> Result<()> {
        if op.operands.iter().all(|id| self.constants.contains_key(id)) {
            self.constants.insert(self.result(op)?.0, op.clone());
        }
        Ok(())
    }

    /// Sizes of a shape as a constant.
    pub(super) fn shape_constant(&mut self, dims: &[usize]) -> Result<Output> {
        self.ints(&sizes(dims))
    }
}
