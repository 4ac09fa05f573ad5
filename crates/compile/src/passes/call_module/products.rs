//! Products and convolutions.

use super::attrs::{Axis, dim, dims, int, ints_or, message};
use super::scope::{Scope, typed};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::Output;
use ferroflow_opdef::AttrValue;
use ferroflow_stablehlo::{Op, TensorType};
use ferroflow_tensor::{DType, Tensor};

impl Scope<'_, '_> {
    /// Adds a product or a convolution; `false` if the op is none.
    pub(super) fn product(&mut self, op: &Op) -> Result<bool> {
        match op.name.as_str() {
            "dot" => self.dot(op)?,
            "dot_general" => self.dot_general(op)?,
            "convolution" => self.convolution(op)?,
            "dynamic_conv" => {
                let conv = Convolution::of(op)?;
                let (x, filter, of) = self.factors(op)?;
                let pads = self.operand(op, 2)?;
                let (dtype, pads) = (self.ty(pads)?.dtype, self.full(pads)?);
                let pads = self.cast(pads, dtype, DType::Int64)?;
                let y = self.any_convolution(&conv, [x, filter], of, Some(pads))?;
                self.set_product(op, y, of)?;
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// The operands of a product in the dtype of its result, or in one whose sums are exact.
    fn factors(&mut self, op: &Op) -> Result<(Output, Output, DType)> {
        let to = self.result(op)?.1.dtype;
        let of = match to {
            DType::Bool | DType::Int8 | DType::Uint8 | DType::Int16 | DType::Uint16 => DType::Int32,
            DType::Uint32 | DType::Uint64 => DType::Int64,
            other => other,
        };
        let mut factors = Vec::new();
        for i in 0..2 {
            let id = self.operand(op, i)?;
            let (dtype, x) = (self.ty(id)?.dtype, self.full(id)?);
            factors.push(self.convert(x, dtype, of)?);
        }
        Ok((factors[0], factors[1], of))
    }

    fn set_product(&mut self, op: &Op, y: Output, of: DType) -> Result<()> {
        let to = self.result(op)?.1.dtype;
        let y = self.convert(y, of, to)?;
        self.set(op, y)
    }

    /// A product of vectors or matrices.
    fn dot(&mut self, op: &Op) -> Result<()> {
        let rank = self.ty(self.operand(op, 0)?)?.dims.len();
        self.matmul(op, [rank.saturating_sub(1), 0])
    }

    fn einsum(&mut self, op: &Op, equation: &str) -> Result<()> {
        let (x, y, of) = self.factors(op)?;
        let attrs = typed(of)
            .with("N", AttrValue::Int(2))
            .with("equation", AttrValue::str(equation));
        let z = self.node("Einsum", attrs, &[x, y])?;
        self.set_product(op, z, of)
    }

    /// The product of two vectors or matrices over dimension `summed` of each.
    fn matmul(&mut self, op: &Op, summed: [usize; 2]) -> Result<()> {
        let (x, y, of) = self.factors(op)?;
        let mut factors = [x, y];
        let mut squeezed = Vec::new();
        for (i, factor) in factors.iter_mut().enumerate() {
            if self.ty(self.operand(op, i)?)?.dims.len() == 1 {
                let axis = self.constant(Tensor::scalar(i as i32))?;
                let attrs = typed(of).with("Tdim", AttrValue::Type(DType::Int32));
                *factor = self.node("ExpandDims", attrs, &[*factor, axis])?;
                squeezed.push(i as i64);
            }
        }
        // A vector is a row of the first matrix, or a column of the second one.
        let is_transposed = |i: usize| summed[i] == i && !squeezed.contains(&(i as i64));
        let attrs = typed(of)
            .with("transpose_a", AttrValue::Bool(is_transposed(0)))
            .with("transpose_b", AttrValue::Bool(is_transposed(1)));
        let mut z = self.node("MatMul", attrs, &factors)?;
        if !squeezed.is_empty() {
            let attrs = typed(of).with("squeeze_dims", AttrValue::ints(&squeezed));
            z = self.node("Squeeze", attrs, &[z])?;
        }
        self.set_product(op, z, of)
    }

    fn dot_general(&mut self, op: &Op) -> Result<()> {
        let list = |name: &str| dims(op, name);
        let batch = [
            list("lhs_batching_dimensions")?,
            list("rhs_batching_dimensions")?,
        ];
        let summed = [
            list("lhs_contracting_dimensions")?,
            list("rhs_contracting_dimensions")?,
        ];
        let mut letters = ('a'..='z').chain('A'..='Z');
        let mut labels: [Vec<char>; 2] = [Vec::new(), Vec::new()];
        for (i, labels) in labels.iter_mut().enumerate() {
            let rank = self.ty(self.operand(op, i)?)?.dims.len();
            labels.extend(letters.by_ref().take(rank));
            if labels.len() < rank {
                return Err(invalid_argument!("a product has too many dimensions"));
            }
        }
        let wrong = || invalid_argument!("the dimensions of the product do not fit");
        let [left, mut right] = labels;
        let pairs = batch[0]
            .iter()
            .zip(&batch[1])
            .chain(summed[0].iter().zip(&summed[1]));
        for (l, r) in pairs {
            let label = *left.get(*l).ok_or_else(wrong)?;
            *right.get_mut(*r).ok_or_else(wrong)? = label;
        }
        if batch[0].len() != batch[1].len() || summed[0].len() != summed[1].len() {
            return Err(wrong());
        }
        let mut out: String = batch[0].iter().map(|d| left[*d]).collect();
        for (i, labels) in [&left, &right].into_iter().enumerate() {
            let own = labels.iter().enumerate();
            let own = own.filter(|(d, _)| !batch[i].contains(d) && !summed[i].contains(d));
            out.extend(own.map(|(_, c)| *c));
        }
        let text = |labels: &[char]| labels.iter().collect::<String>();
        let equation = format!("{},{}->{out}", text(&left), text(&right));
        let is_matrix = |labels: &[char]| (1..=2).contains(&labels.len());
        match (&summed[0][..], &summed[1][..]) {
            (&[x], &[y]) if batch[0].is_empty() && is_matrix(&left) && is_matrix(&right) => {
                self.matmul(op, [x, y])
            }
            _ => self.einsum(op, &equation),
        }
    }

    fn convolution(&mut self, op: &Op) -> Result<()> {
        let conv = Convolution::of(op)?;
        let [x_ty, filter_ty] = [
            self.ty(self.operand(op, 0)?)?.clone(),
            self.ty(self.operand(op, 1)?)?.clone(),
        ];
        let y_ty = self.result(op)?.1;
        conv.check([&x_ty, &filter_ty], y_ty)?;
        let (x, filter, of) = self.factors(op)?;
        let types = [&x_ty, &filter_ty, y_ty];
        if let Some(y) = self.gradient_convolution(&conv, types, [x, filter], of)? {
            return self.set_product(op, y, of);
        }
        let y = match conv.is_plain()
            && matches!(
                of,
                DType::Float | DType::Double | DType::Half | DType::Bfloat16
            ) {
            true => self.plain_convolution(&conv, [x, filter], of)?,
            false => self.any_convolution(&conv, [x, filter], of, None)?,
        };
        self.set_product(op, y, of)
    }

    /// A convolution as Conv2D or Conv3D, whose dimensions have the order that those take.
    fn plain_convolution(
        &mut self,
        conv: &Convolution,
        [mut x, mut filter]: [Output; 2],
        of: DType,
    ) -> Result<Output> {
        let n = conv.input.spatial.len();
        x = self.transpose(x, of, &conv.input.channels_last())?;
        filter = self.transpose(filter, of, &conv.filter.filter_last())?;
        let (mut strides, mut dilations) = (conv.strides.clone(), conv.dilations.clone());
        let mut pads: Vec<i64> = conv.pads.clone();
        if n == 1 {
            // A row of an image.
            let axis = self.constant(Tensor::scalar(1i32))?;
            let first = self.constant(Tensor::scalar(0i32))?;
            let attrs = typed(of).with("Tdim", AttrValue::Type(DType::Int32));
            x = self.node("ExpandDims", attrs.clone(), &[x, axis])?;
            filter = self.node("ExpandDims", attrs, &[filter, first])?;
            strides.insert(0, 1);
            dilations.insert(0, 1);
            pads.splice(0..0, [0, 0]);
        }
        let around = |list: &[i64]| {
            let mut all = vec![1];
            all.extend_from_slice(list);
            all.push(1);
            all
        };
        let has_pads = pads.iter().any(|p| *p != 0);
        let mut attrs = typed(of)
            .with("strides", AttrValue::ints(&around(&strides)))
            .with("dilations", AttrValue::ints(&around(&dilations)))
            .with("padding", AttrValue::str("VALID"));
        let mut padded = x;
        if has_pads {
            let mut all = vec![0, 0];
            all.extend_from_slice(&pads);
            all.extend([0, 0]);
            if n < 3 {
                attrs.set("padding", AttrValue::str("EXPLICIT"));
                attrs.set("explicit_paddings", AttrValue::ints(&all));
            } else {
                let rank = all.len() / 2;
                let pairs = self.constant(Tensor::vector(&all)?.with_shape([rank, 2].into())?)?;
                let pad = typed(of).with("Tpaddings", AttrValue::Type(DType::Int64));
                padded = self.node("Pad", pad, &[x, pairs])?;
            }
        }
        let name = if n == 3 { "Conv3D" } else { "Conv2D" };
        let mut y = self.node(name, attrs, &[padded, filter])?;
        if n == 1 {
            let attrs = typed(of).with("squeeze_dims", AttrValue::ints(&[1]));
            y = self.node("Squeeze", attrs, &[y])?;
        }
        self.transpose(y, of, &conv.output.own_order())
    }

    /// Any convolution; `pads` are in place of its own if only the step knows them.
    fn any_convolution(
        &mut self,
        conv: &Convolution,
        [x, mut filter]: [Output; 2],
        of: DType,
        pads: Option<Output>,
    ) -> Result<Output> {
        let reversed: Vec<i64> = conv
            .reversal
            .iter()
            .zip(&conv.filter.spatial)
            .filter(|(r, _)| **r != 0)
            .map(|(_, d)| *d as i64)
            .collect();
        if !reversed.is_empty() {
            let axes = self.ints(&reversed)?;
            let attrs = typed(of).with("Tidx", AttrValue::Type(DType::Int64));
            filter = self.node("ReverseV2", attrs, &[filter, axes])?;
        }
        let mut inputs = vec![x, filter, self.ints(&conv.strides)?];
        inputs.push(match pads {
            Some(pads) => pads,
            None => self.pairs(&conv.pads)?,
        });
        inputs.push(self.ints(&conv.base_dilations)?);
        inputs.push(self.ints(&conv.dilations)?);
        inputs.push(self.constant(Tensor::scalar(conv.groups))?);
        let attrs = ferroflow_opdef::Attrs::default()
            .with("LhsT", AttrValue::Type(of))
            .with("RhsT", AttrValue::Type(of))
            .with("Tindices", AttrValue::Type(DType::Int64))
            .with("dimension_numbers", AttrValue::Str(conv.numbers().into()))
            .with("precision_config", AttrValue::str(""))
            .with("preferred_element_type", AttrValue::Type(of))
            .with("batch_group_count", AttrValue::Int(conv.batch_groups));
        self.node("XlaConvV2", attrs, &inputs)
    }

    /// The normalization of channels by known statistics.
    pub(super) fn batch_norm(&mut self, op: &Op, epsilon: f32) -> Result<()> {
        let x = self.operand(op, 0)?;
        let ty: TensorType = self.ty(x)?.clone();
        let feature = dim(op, "feature_index")?;
        let rank = ty.dims.len();
        let mut parts = Vec::new();
        let expand = typed(ty.dtype).with("Tdim", AttrValue::Type(DType::Int32));
        for i in 1..5 {
            let mut part = self.full(self.operand(op, i)?)?;
            for d in (0..rank).filter(|d| *d != feature) {
                let axis = self.constant(Tensor::scalar(d as i32))?;
                part = self.node("ExpandDims", expand.clone(), &[part, axis])?;
            }
            parts.push(part);
        }
        let [scale, offset, mean, variance] = parts[..] else {
            return Err(invalid_argument!("batch_norm_inference has five operands"));
        };
        let epsilon = self.constant(Tensor::scalar(epsilon))?;
        let epsilon = self.cast(epsilon, DType::Float, ty.dtype)?;
        let x = self.full(x)?;
        let centered = self.node("Sub", typed(ty.dtype), &[x, mean])?;
        let stable = self.node("AddV2", typed(ty.dtype), &[variance, epsilon])?;
        let factor = self.node("Rsqrt", typed(ty.dtype), &[stable])?;
        let factor = self.node("Mul", typed(ty.dtype), &[factor, scale])?;
        let scaled = self.node("Mul", typed(ty.dtype), &[centered, factor])?;
        let y = self.node("AddV2", typed(ty.dtype), &[scaled, offset])?;
        self.set(op, y)
    }
}

/// The roles of the dimensions of an operand: batch and feature, or input and output feature of a filter.
pub(super) struct Dims {
    pub(super) first: usize,
    pub(super) second: usize,
    pub(super) spatial: Vec<usize>,
}

impl Dims {
    fn of(op: &Op, names: [&str; 3]) -> Result<Dims> {
        Ok(Dims {
            first: dim(op, names[0])?,
            second: dim(op, names[1])?,
            spatial: dims(op, names[2])?,
        })
    }

    /// The order that puts the batch first and the feature last.
    pub(super) fn channels_last(&self) -> Vec<usize> {
        let mut order = vec![self.first];
        order.extend(&self.spatial);
        order.push(self.second);
        order
    }

    /// The order that puts a filter's input and output features last.
    fn filter_last(&self) -> Vec<usize> {
        let mut order = self.spatial.clone();
        order.extend([self.first, self.second]);
        order
    }

    /// What turns a result with channels last into this order.
    pub(super) fn own_order(&self) -> Vec<usize> {
        let order = self.channels_last();
        let place = |d: usize| order.iter().position(|o| *o == d).unwrap_or(d);
        (0..order.len()).map(place).collect()
    }
}

pub(super) struct Convolution {
    pub(super) input: Dims,
    pub(super) filter: Dims,
    pub(super) output: Dims,
    pub(super) strides: Vec<i64>,
    /// Before and behind each spatial dimension.
    pub(super) pads: Vec<i64>,
    pub(super) base_dilations: Vec<i64>,
    pub(super) dilations: Vec<i64>,
    pub(super) reversal: Vec<i64>,
    pub(super) groups: i64,
    pub(super) batch_groups: i64,
}

impl Convolution {
    fn of(op: &Op) -> Result<Convolution> {
        let input = Dims::of(
            op,
            [
                "input_batch_dimension",
                "input_feature_dimension",
                "input_spatial_dimensions",
            ],
        )?;
        let n = input.spatial.len();
        Ok(Convolution {
            input,
            filter: Dims::of(
                op,
                [
                    "kernel_input_feature_dimension",
                    "kernel_output_feature_dimension",
                    "kernel_spatial_dimensions",
                ],
            )?,
            output: Dims::of(
                op,
                [
                    "output_batch_dimension",
                    "output_feature_dimension",
                    "output_spatial_dimensions",
                ],
            )?,
            strides: ints_or(op, "window_strides", n, 1),
            pads: ints_or(op, "padding", 2 * n, 0),
            base_dilations: ints_or(op, "lhs_dilation", n, 1),
            dilations: ints_or(op, "rhs_dilation", n, 1),
            reversal: ints_or(op, "window_reversal", n, 0),
            groups: int(op, "feature_group_count")?,
            batch_groups: int(op, "batch_group_count")?,
        })
    }

    /// Checks that the result is as large as there are windows.
    fn check(&self, [x, filter]: [&TensorType; 2], y: &TensorType) -> Result<()> {
        let size = |ty: &TensorType, d: usize| {
            let size = ty.dims.get(d).copied();
            size.ok_or_else(|| invalid_argument!("there is no dimension {d}"))
        };
        let n = self.input.spatial.len();
        let lists = [
            &self.strides,
            &self.base_dilations,
            &self.dilations,
            &self.reversal,
        ];
        let are_whole = lists.iter().all(|l| l.len() == n) && self.pads.len() == 2 * n;
        let same_rank = self.filter.spatial.len() == n && self.output.spatial.len() == n;
        if !are_whole || !same_rank || x.dims.len() != n + 2 {
            return Err(invalid_argument!("the parts of the convolution do not fit"));
        }
        for i in 0..n {
            Axis {
                size: size(x, self.input.spatial[i])?,
                base_dilation: self.base_dilations[i],
                pads: [self.pads[2 * i], self.pads[2 * i + 1]],
                window: size(filter, self.filter.spatial[i])?,
                dilation: self.dilations[i],
                stride: self.strides[i],
            }
            .check(size(y, self.output.spatial[i])?)?;
        }
        Ok(())
    }

    /// Whether Conv2D or Conv3D can compute it.
    fn is_plain(&self) -> bool {
        let n = self.input.spatial.len();
        let is_one = |list: &[i64]| list.iter().all(|v| *v == 1);
        let is_small =
            (1..=2).contains(&n) || (n == 3 && self.groups == 1 && is_one(&self.dilations));
        is_small
            && is_one(&self.base_dilations)
            && self.reversal.iter().all(|r| *r == 0)
            && self.pads.iter().all(|p| *p >= 0)
            && self.batch_groups == 1
    }

    /// The roles as XLA's message.
    fn numbers(&self) -> Vec<u8> {
        let list = |values: &[usize]| values.iter().map(|v| *v as i64).collect::<Vec<i64>>();
        let one = |value: usize| [value as i64];
        message(&[
            (3, &one(self.filter.first)),
            (4, &one(self.filter.second)),
            (6, &list(&self.filter.spatial)),
            (7, &one(self.input.first)),
            (8, &one(self.input.second)),
            (9, &one(self.output.first)),
            (10, &one(self.output.second)),
            (11, &list(&self.input.spatial)),
            (12, &list(&self.output.spatial)),
        ])
    }
}
