//! Convolutions that are gradients of others: of a dilated input, and of a kernel that is larger than the result.

use super::products::Convolution;
use super::scope::{Scope, typed};
use ferroflow_base::Result;
use ferroflow_graph::Output;
use ferroflow_opdef::AttrValue;
use ferroflow_stablehlo::TensorType;
use ferroflow_tensor::{DType, Tensor};

/// A convolution of images or rows whose gradient one is.
struct Forward {
    strides: Vec<i64>,
    /// Before and behind each dimension.
    pads: Vec<i64>,
    /// The sizes of the input and of the filter.
    input: Vec<i64>,
    filter: Vec<i64>,
}

impl Forward {
    fn fits(&self) -> bool {
        let least = |i: usize| self.pads[2 * i].min(self.pads[2 * i + 1]);
        let most = |i: usize| self.pads[2 * i].max(self.pads[2 * i + 1]);
        (0..self.strides.len()).all(|i| least(i) >= 0 && most(i) < self.filter[i])
    }

    /// The padding as Conv2D names it.
    fn padding(&self) -> &'static str {
        let same = |i: usize| {
            let (n, stride) = (self.input[i], self.strides[i]);
            let places = (n + stride - 1) / stride;
            let all = ((places - 1) * stride + self.filter[i] - n).max(0);
            self.pads[2 * i] == all / 2 && self.pads[2 * i + 1] == all - all / 2
        };
        match () {
            () if self.pads.iter().all(|p| *p == 0) => "VALID",
            () if (0..self.strides.len()).all(same) => "SAME",
            () => "EXPLICIT",
        }
    }
}

/// The sizes of dimensions, if they are known.
fn known(ty: &TensorType, dims: &[usize]) -> Option<Vec<i64>> {
    let size = |d: &usize| ty.dims.get(*d).copied().flatten().map(|n| n as i64);
    dims.iter().map(size).collect()
}

fn all_are(list: &[i64], value: i64) -> bool {
    list.iter().all(|v| *v == value)
}

impl Scope<'_, '_> {
    /// A convolution as a gradient of Conv2D, if it is one that is faster so.
    pub(super) fn gradient_convolution(
        &mut self,
        conv: &Convolution,
        types: [&TensorType; 3],
        [x, filter]: [Output; 2],
        of: DType,
    ) -> Result<Option<Output>> {
        let n = conv.input.spatial.len();
        let is_simple = (1..=2).contains(&n)
            && all_are(&conv.strides, 1)
            && conv.groups == 1
            && conv.batch_groups == 1;
        if !is_simple || !matches!(of, DType::Float | DType::Double) {
            return Ok(None);
        }
        if let Some(forward) = of_input(conv, types) {
            return self.input_gradient(conv, types, &forward, [x, filter], of);
        }
        match of_filter(conv, types) {
            Some(forward) => self.filter_gradient(conv, types, &forward, [x, filter], of),
            None => Ok(None),
        }
    }

    fn input_gradient(
        &mut self,
        conv: &Convolution,
        [x_ty, _, y_ty]: [&TensorType; 3],
        forward: &Forward,
        [x, filter]: [Output; 2],
        of: DType,
    ) -> Result<Option<Output>> {
        let Some(channels) = known(y_ty, &[conv.output.second]) else {
            return Ok(None);
        };
        let n = conv.input.spatial.len();
        let mut dy = self.transpose(x, of, &conv.input.channels_last())?;
        let mut order = conv.filter.spatial.clone();
        order.extend([conv.filter.second, conv.filter.first]);
        let mut filter = self.transpose(filter, of, &order)?;
        if all_are(&conv.reversal, 0) {
            let axes: Vec<i64> = (0..n as i64).collect();
            let axes = self.ints(&axes)?;
            let attrs = typed(of).with("Tidx", AttrValue::Type(DType::Int64));
            filter = self.node("ReverseV2", attrs, &[filter, axes])?;
        }
        let batch = match known(x_ty, &[conv.input.first]).as_deref() {
            Some(&[n]) => self.constant(Tensor::scalar(n as i32))?,
            _ => self.size_along(dy, of, 0)?,
        };
        let mut sizes = vec![batch];
        let rows = if n == 1 { vec![1] } else { vec![] };
        for size in rows.iter().chain(&forward.input).chain(&channels) {
            sizes.push(self.constant(Tensor::scalar(*size as i32))?);
        }
        if n == 1 {
            dy = self.with_row(dy, of, 1)?;
            filter = self.with_row(filter, of, 0)?;
        }
        let pack = typed(DType::Int32).with("N", AttrValue::Int(4));
        let sizes = self.node("Pack", pack, &sizes)?;
        let inputs = [sizes, filter, dy];
        let y = self.gradient("Conv2DBackpropInput", forward, inputs, of)?;
        let y = if n == 1 {
            self.without_row(y, of, 1)?
        } else {
            y
        };
        self.transpose(y, of, &conv.output.own_order()).map(Some)
    }

    fn filter_gradient(
        &mut self,
        conv: &Convolution,
        [x_ty, filter_ty, _]: [&TensorType; 3],
        forward: &Forward,
        [x, filter]: [Output; 2],
        of: DType,
    ) -> Result<Option<Output>> {
        let features = [
            known(x_ty, &[conv.input.first]),
            known(filter_ty, &[conv.filter.second]),
        ];
        let [Some(from), Some(to)] = features else {
            return Ok(None);
        };
        let n = conv.input.spatial.len();
        let swapped = |first: usize, spatial: &[usize], last: usize| {
            let mut order = vec![first];
            order.extend(spatial);
            order.push(last);
            order
        };
        let (i, f) = (&conv.input, &conv.filter);
        let mut x = self.transpose(x, of, &swapped(i.second, &i.spatial, i.first))?;
        let mut dy = self.transpose(filter, of, &swapped(f.first, &f.spatial, f.second))?;
        let mut sizes: Vec<i32> = vec![1; 2 - n];
        sizes.extend(
            forward
                .filter
                .iter()
                .chain(&from)
                .chain(&to)
                .map(|n| *n as i32),
        );
        let sizes = self.constant(Tensor::vector(&sizes)?)?;
        if n == 1 {
            x = self.with_row(x, of, 1)?;
            dy = self.with_row(dy, of, 1)?;
        }
        let inputs = [x, sizes, dy];
        let y = self.gradient("Conv2DBackpropFilter", forward, inputs, of)?;
        let y = if n == 1 {
            self.without_row(y, of, 0)?
        } else {
            y
        };
        let o = &conv.output;
        let mut order = o.spatial.clone();
        order.extend([o.first, o.second]);
        let place = |d: usize| order.iter().position(|o| *o == d).unwrap_or(d);
        let own: Vec<usize> = (0..order.len()).map(place).collect();
        self.transpose(y, of, &own).map(Some)
    }

    fn gradient(
        &mut self,
        name: &str,
        forward: &Forward,
        inputs: [Output; 3],
        of: DType,
    ) -> Result<Output> {
        let is_row = forward.strides.len() == 1;
        let around = |edge: &[i64], row: &[i64], list: &[i64]| {
            let mut all = edge.to_vec();
            if is_row {
                all.extend(row);
            }
            all.extend_from_slice(list);
            all.extend(edge);
            all
        };
        let padding = forward.padding();
        let mut attrs = typed(of)
            .with(
                "strides",
                AttrValue::ints(&around(&[1], &[1], &forward.strides)),
            )
            .with("padding", AttrValue::str(padding));
        if padding == "EXPLICIT" {
            let pads = around(&[0, 0], &[0, 0], &forward.pads);
            attrs.set("explicit_paddings", AttrValue::ints(&pads));
        }
        self.node(name, attrs, &inputs)
    }

    fn with_row(&mut self, x: Output, of: DType, axis: i32) -> Result<Output> {
        let axis = self.constant(Tensor::scalar(axis))?;
        let attrs = typed(of).with("Tdim", AttrValue::Type(DType::Int32));
        self.node("ExpandDims", attrs, &[x, axis])
    }

    fn without_row(&mut self, y: Output, of: DType, axis: i64) -> Result<Output> {
        let attrs = typed(of).with("squeeze_dims", AttrValue::ints(&[axis]));
        self.node("Squeeze", attrs, &[y])
    }
}

/// The convolution whose gradient at the input one is: of a dilated input, by a filter that is reversed or not.
fn of_input(conv: &Convolution, [_, filter, y]: [&TensorType; 3]) -> Option<Forward> {
    let is_reversed = all_are(&conv.reversal, 1);
    let is_one = all_are(&conv.dilations, 1)
        && (is_reversed || all_are(&conv.reversal, 0))
        && (is_reversed || !all_are(&conv.base_dilations, 1));
    let sizes = known(filter, &conv.filter.spatial)?;
    let pads = conv.pads.iter().enumerate();
    let forward = Forward {
        strides: conv.base_dilations.clone(),
        pads: pads.map(|(i, pad)| sizes[i / 2] - 1 - pad).collect(),
        input: known(y, &conv.output.spatial)?,
        filter: sizes,
    };
    (is_one && forward.fits()).then_some(forward)
}

/// The convolution whose gradient at the filter one is: its result is smaller than its filter.
fn of_filter(conv: &Convolution, [x, filter, y]: [&TensorType; 3]) -> Option<Forward> {
    let is_one = all_are(&conv.base_dilations, 1) && all_are(&conv.reversal, 0);
    let places = known(filter, &conv.filter.spatial)?;
    let mut forward = Forward {
        strides: conv.dilations.clone(),
        pads: conv.pads.clone(),
        input: known(x, &conv.input.spatial)?,
        filter: known(y, &conv.output.spatial)?,
    };
    let is_smaller = forward.filter.iter().product::<i64>() < places.iter().product::<i64>();
    for (i, stride) in forward.strides.iter().enumerate() {
        // What strides do not reach behind the input.
        let behind = &mut forward.pads[2 * i + 1];
        if (1 - stride..0).contains(behind) {
            *behind = 0;
        }
        let room = forward.input[i] + forward.pads[2 * i] + forward.pads[2 * i + 1];
        if (room - forward.filter[i]) / stride + 1 != places[i] {
            return None;
        }
    }
    (is_one && is_smaller && forward.fits()).then_some(forward)
}
