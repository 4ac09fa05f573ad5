//! Products of floats, as the pass `fuse` left them, and the nodes of codes that they become.

use super::fine;
use super::steps::Steps;
use super::weights::{Coded, coded};
use crate::PassCtx;
use crate::pass::constant_node;
use crate::passes::conv_groups::GROUPS;
use crate::view::View;
use ferroflow_base::Result;
use ferroflow_graph::{Graph, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, LazyTensor, Shape, Tensor};
use smallvec::{SmallVec, smallvec};

/// A product with constant weights that has a form for codes.
pub(super) struct Product {
    pub id: NodeId,
    op: &'static str,
    pub input: Output,
    weights: LazyTensor,
    /// Output channels.
    n: usize,
    channels_first: bool,
    scale: Option<Vec<f32>>,
    bias: Option<Vec<f32>>,
    /// The mean of each channel of the input, if a calibration found it.
    pub means: Option<Vec<f32>>,
    /// What is added to each output channel, if a calibration found it.
    corrections: Option<Vec<f32>>,
    pub side: Option<Output>,
    /// Whether the input is two codes of each number.
    pub is_fine: bool,
    pub clamp: (f32, f32),
}

/// The clamps that activations are.
pub(super) fn clamp_of(activation: &str) -> Option<(f32, f32)> {
    match activation {
        "Relu" => Some((0.0, f32::INFINITY)),
        "Relu6" => Some((0.0, 6.0)),
        _ => None,
    }
}

/// No clamp.
pub(super) const ALL: (f32, f32) = (f32::NEG_INFINITY, f32::INFINITY);

impl Product {
    /// Returns the product of a node, if it has a form for codes.
    pub(super) fn of(view: &View, id: NodeId) -> Option<Product> {
        let node = view.node(id);
        let attrs = &node.attrs;
        let is_set = |name: &str| attrs.bool(name).unwrap_or(false);
        let (op, is_image) = match node.op() {
            "Conv2D" | "_FusedConv2D" => ("_Int8Conv2D", true),
            "DepthwiseConv2dNative" | "_FusedDepthwiseConv2dNative" => {
                ("_Int8DepthwiseConv2d", true)
            }
            "_Dense" => ("_Int8Dense", false),
            "MatMul" if !is_set("transpose_a") => ("_Int8Dense", false),
            _ => return None,
        };
        let weights = view.constant(*node.inputs.get(1)?)?.clone();
        if weights.dtype() != DType::Float
            || node.outputs[..] != [DType::Float]
            || !view.is_pure(id)
        {
            return None;
        }
        if is_image && (attrs.str("data_format").ok()? != "NHWC" || attrs.get(GROUPS).is_some()) {
            return None;
        }
        let input = node.inputs[0];
        let channels_first = is_set("transpose_w") || is_set("transpose_b");
        let n = match (op, weights.shape().dims()) {
            ("_Int8Conv2D", [_, _, c, n]) if view.shape(input).dim(-1) == Some(*c) => *n,
            ("_Int8DepthwiseConv2d", [_, _, c, 1]) => *c,
            ("_Int8Dense", [_, n]) if !channels_first => *n,
            ("_Int8Dense", [n, _]) if channels_first => *n,
            _ => return None,
        };
        let mut product = Product {
            id,
            op,
            input,
            weights,
            n,
            channels_first,
            scale: None,
            bias: None,
            means: None,
            corrections: None,
            side: None,
            is_fine: false,
            clamp: ALL,
        };
        let names = match attrs.get("fused_ops") {
            Some(_) => attrs.strs("fused_ops").ok()?,
            None => Vec::new(),
        };
        let mut args = node.inputs[2..].iter().copied();
        for name in names {
            match name {
                "Scale" => product.scale = Some(product.channel_numbers(view, args.next()?)?),
                "BiasAdd" => product.bias = Some(product.channel_numbers(view, args.next()?)?),
                "Add" => product.side = Some(args.next()?),
                name => product.clamp = clamp_of(name)?,
            }
        }
        args.next().is_none().then_some(product)
    }

    /// Sets what is added to each output channel, if there are numbers for all.
    pub(super) fn correct(&mut self, corrections: Option<Vec<f32>>) {
        let fits = |c: &Vec<f32>| c.len() == self.n && c.iter().all(|x| x.is_finite());
        self.corrections = corrections.filter(fits);
    }

    fn channel_numbers(&self, view: &View, output: Output) -> Option<Vec<f32>> {
        view.floats(output).filter(|values| values.len() == self.n)
    }

    /// Adds the node for an input of these steps; its output is codes of `to`, or floats.
    pub(super) fn node(
        &self,
        graph: &mut Graph,
        ctx: &PassCtx,
        patch: &mut Patch,
        (codes, from): (Output, Steps),
        side: Option<(Output, Option<Steps>)>,
        (to, clamp): (Option<Steps>, (f32, f32)),
    ) -> Result<Output> {
        let values = self.weights.get()?;
        self.weights.release();
        let mut coded = coded(values.slice()?, self.n, self.channels_first);
        if self.is_fine {
            // Those of the second codes are parts of them.
            coded.widen(self.n);
        }
        let lost = self.mean_loss(values.slice()?, &coded);
        let numbers = self.numbers(&coded.scales, &lost, from, side.and_then(|s| s.1), to);
        let (shape, codes_of_weights) = self.shaped(coded.codes);
        let base = graph.node(self.id).name.clone();
        let mut constant = |graph: &mut Graph, suffix: &str, value: Tensor| -> Result<Output> {
            let name = graph.unique_name(&format!("{base}/{suffix}"));
            let node = constant_node(ctx, name, value)?;
            Ok(Output::new(patch.add(graph, node)?, 0))
        };
        let mut inputs: SmallVec<[Output; 5]> = smallvec![
            codes,
            constant(
                graph,
                "codes",
                Tensor::from_slice(shape, &codes_of_weights)?
            )?,
            constant(graph, "scale", Tensor::vector(&numbers.scale)?)?,
            constant(graph, "bias", Tensor::vector(&numbers.bias)?)?,
        ];
        let mut attrs = Attrs::default()
            .with("x_zero", AttrValue::Int(i64::from(from.zero)))
            .with("factor", AttrValue::Float(numbers.factor))
            .with("num_side", AttrValue::Int(i64::from(side.is_some())));
        if let Some((output, steps)) = side {
            inputs.push(output);
            attrs.set("Tside", AttrValue::Type(dtype_of(steps)));
        }
        let (low, high) = limits(to, clamp);
        attrs.set("low", AttrValue::Float(low));
        attrs.set("high", AttrValue::Float(high));
        attrs.set("out_type", AttrValue::Type(dtype_of(to)));
        let old = graph.node(self.id);
        for name in ["strides", "padding", "explicit_paddings", "dilations"] {
            if let Some(value) = old.attrs.get(name) {
                attrs.set(name, value.clone());
            }
        }
        if self.op == "_Int8Dense" {
            attrs.set("transpose_w", AttrValue::Bool(self.channels_first));
        }
        let name = graph.unique_name(&format!("{base}/int8"));
        let mut node = ctx.node(name, self.op, attrs, &inputs, &[])?;
        node.device.clone_from(&graph.node(self.id).device);
        Ok(Output::new(patch.add(graph, node)?, 0))
    }

    /// Whether this is a convolution with at least as many output channels for each input channel.
    pub(super) fn expands(&self, least: usize) -> bool {
        match (self.op, self.weights.shape().dims()) {
            ("_Int8Conv2D", [_, _, c, n]) => *n >= c.saturating_mul(least),
            _ => false,
        }
    }

    /// The weights as their input needs them.
    fn shaped(&self, codes: Vec<i8>) -> (Shape, Vec<i8>) {
        let shape = self.weights.shape();
        match (self.is_fine, shape.dims()) {
            (true, [height, width, c, n]) => {
                let shape = Shape::from([*height, *width, 2 * c, *n]);
                (shape, fine::weights(&codes, *n))
            }
            _ => (shape.clone(), codes),
        }
    }

    /// What rounding the weights takes from the sum of each output channel on the mean input (Nagel et al. 2019, bias
    /// correction). Padding is left out of account.
    fn mean_loss(&self, weights: &[f32], coded: &Coded) -> Vec<f64> {
        let mut lost = vec![0.0; self.n];
        let n_inputs = match (self.op, self.weights.shape().dims()) {
            ("_Int8Dense", _) => weights.len() / self.n.max(1),
            (_, [.., c, _]) => *c,
            _ => 0,
        };
        let means = self.means.as_ref().filter(|m| m.len() == n_inputs);
        let Some(means) = means else { return lost };
        let is_depthwise = self.op == "_Int8DepthwiseConv2d";
        for (i, (x, code)) in weights.iter().zip(&coded.codes).enumerate() {
            let (input, output) = match self.channels_first {
                true => (i % n_inputs, i / n_inputs),
                false if is_depthwise => (i % n_inputs, i % n_inputs),
                false => (i / self.n % n_inputs, i % self.n),
            };
            let gap = f64::from(*x) - f64::from(*code) * f64::from(coded.scales[output]);
            lost[output] += gap * f64::from(means[input]);
        }
        lost
    }

    /// The numbers that turn sums of codes into numbers, or into codes of `to`; `lost` is added to the sums.
    fn numbers(
        &self,
        of_weights: &[f32],
        lost: &[f64],
        from: Steps,
        side: Option<Steps>,
        to: Option<Steps>,
    ) -> Numbers {
        let unit = to.map_or(1.0, |to| f64::from(to.scale));
        let zero = to.map_or(0.0, |to| f64::from(to.zero));
        let factor = side.map_or(1.0, |s| f64::from(s.scale)) / unit;
        let of_side = side.map_or(0.0, |s| f64::from(s.zero) * factor);
        let given = |values: &Option<Vec<f32>>, i: usize, default: f64| {
            values.as_ref().map_or(default, |v| f64::from(v[i]))
        };
        let scale = (0..self.n).map(|i| {
            let scale = f64::from(from.scale) * f64::from(of_weights[i]);
            (scale * given(&self.scale, i, 1.0) / unit) as f32
        });
        let bias = (0..self.n).map(|i| {
            let lost = lost[i] * given(&self.scale, i, 1.0);
            let bias = given(&self.bias, i, 0.0) + lost + given(&self.corrections, i, 0.0);
            (bias / unit + zero - of_side) as f32
        });
        Numbers {
            scale: scale.collect(),
            bias: bias.collect(),
            factor: factor as f32,
        }
    }
}

struct Numbers {
    scale: Vec<f32>,
    bias: Vec<f32>,
    factor: f32,
}

/// The dtype of codes, or of floats.
fn dtype_of(steps: Option<Steps>) -> DType {
    match steps {
        Some(_) => DType::Uint8,
        None => DType::Float,
    }
}

/// The limits of numbers, or of codes.
pub(super) fn limits(to: Option<Steps>, (low, high): (f32, f32)) -> (f32, f32) {
    let Some(to) = to else { return (low, high) };
    let place = |x: f32| (to.place(f64::from(x)) as f32).clamp(to.low.into(), to.high.into());
    (place(low), place(high))
}
