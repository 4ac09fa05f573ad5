//! Products and convolutions of 8-bit codes, which the pass `int8` makes of those of floats.
//!
//! A code stands for a number by a scale and a zero point that its readers know. The factors and offsets
//! of all scales are worked into `scale`, `bias` and `factor`: `y = clamp(sum * scale + bias + side * factor,
//! low, high)`, where `sum` is the product of the weights and the codes less `x_zero`, and `y` is rounded if
//! it is a code.

use crate::conv::conv_shape;
use crate::conv_reference::{geometry, output_dims, over_nothing};
use crate::depthwise::{depthwise_geometry, depthwise_rules, depthwise_shape};
use ferroflow_base::{Result, invalid_argument};
use ferroflow_functors::window::{NHWC, Rules, conv_rules, shape as shape_of};
use ferroflow_opdef::{Attrs, Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_primitives::as_constants;
use ferroflow_primitives::conv::Conv2dShape;
use ferroflow_primitives::int8::{
    Channels, DepthwiseWeights, Int8Epilogue, Int8Layout, Int8Out, Int8Side, Int8Weights,
    int8_conv2d, int8_dense, int8_depthwise2d,
};
use ferroflow_tensor::{DType, PartialShape, Shape, Tensor};

/// `_Int8Conv2D`, `_Int8DepthwiseConv2d` and `_Int8Dense`: internal; channels last, one group.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "_Int8Conv2D",
        "x: uint8, filter: int8, scale: float, bias: float, side: num_side*Tside -> y: out_type \
         | out_type: type {uint8,float}; num_side: int >= 0 = 0; Tside: type {uint8,float} = \
         uint8; strides: list(int); padding: string {'SAME','VALID','EXPLICIT'}; \
         explicit_paddings: list(int) = []; dilations: list(int) = [1,1,1,1]; x_zero: int; \
         factor: float = 0.0; low: float; high: float",
    )
    .shape(conv_shape)
    .cost(Cost::Expensive)
    .kernel(|build| kernel(build, Form::Conv(conv_rules(build.attrs, NHWC)?))),
    Op::new(
        "_Int8DepthwiseConv2d",
        "x: uint8, filter: int8, scale: float, bias: float, side: num_side*Tside -> y: out_type \
         | out_type: type {uint8,float}; num_side: int >= 0 = 0; Tside: type {uint8,float} = \
         uint8; strides: list(int); padding: string {'SAME','VALID','EXPLICIT'}; \
         explicit_paddings: list(int) = []; dilations: list(int) = [1,1,1,1]; x_zero: int; \
         factor: float = 0.0; low: float; high: float",
    )
    .shape(depthwise_shape)
    .cost(Cost::Expensive)
    .kernel(|build| kernel(build, Form::Depthwise(depthwise_rules(build.attrs, NHWC)?))),
    Op::new(
        "_Int8Dense",
        "x: uint8, w: int8, scale: float, bias: float, side: num_side*Tside -> y: out_type \
         | out_type: type {uint8,float}; num_side: int >= 0 = 0; Tside: type {uint8,float} = \
         uint8; transpose_w: bool = false; x_zero: int; factor: float = 0.0; low: float; \
         high: float",
    )
    .shape(dense_shape)
    .cost(Cost::Expensive)
    .kernel(|build| {
        let transposed = build.attrs.bool("transpose_w")?;
        kernel(build, Form::Dense { transposed })
    }),
];

fn dense_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let x = ctx.with_rank_at_least(0, 1)?;
    let w = ctx.with_rank(1, 2)?;
    let transposed = ctx.attrs().bool("transpose_w")?;
    if let Some((_, outer)) = x.dims().and_then(<[_]>::split_last) {
        let n = w.dim(if transposed { 0 } else { 1 });
        let dims = outer.iter().copied().chain([n]);
        ctx.set(0, PartialShape::of(dims));
    }
    Ok(())
}

/// The kind of product.
enum Form {
    Conv(Rules),
    Depthwise(Rules),
    Dense { transposed: bool },
}

enum Packed {
    Product(Int8Weights),
    Depthwise(DepthwiseWeights),
}

/// The weights of a node and their shape.
struct Weights {
    shape: Shape,
    packed: Packed,
}

struct Product {
    form: Form,
    out_type: DType,
    has_side: bool,
    zero: u8,
    factor: f32,
    limits: (f32, f32),
    /// Constant weights.
    weights: Option<Weights>,
}

/// Returns the code of zero in an attr.
///
/// # Errors
/// INVALID_ARGUMENT if it is not a code.
pub(crate) fn zero_code(attrs: &Attrs, name: &str) -> Result<u8> {
    let zero = attrs.int(name)?;
    u8::try_from(zero)
        .map_err(|_| invalid_argument!("{name} must be a code between 0 and 255, got {zero}"))
}

fn kernel(build: &KernelBuild, form: Form) -> Result<Box<dyn OpKernel>> {
    let attrs = build.attrs;
    let n_side = build.inputs.len().saturating_sub(4);
    if n_side > 1 {
        return Err(invalid_argument!(
            "a product of codes takes at most one side input, got {n_side}"
        ));
    }
    let limits = (attrs.float("low")?, attrs.float("high")?);
    if limits.0.is_nan() || limits.1.is_nan() || limits.0 > limits.1 {
        let (low, high) = limits;
        return Err(invalid_argument!("low {low} must be at most high {high}"));
    }
    let mut product = Product {
        form,
        out_type: build.output(0)?,
        has_side: n_side == 1,
        zero: zero_code(attrs, "x_zero")?,
        factor: attrs.float("factor")?,
        limits,
        weights: None,
    };
    let constants = (1..4).map_while(|i| build.constant(i));
    let constants: Vec<_> = constants.collect();
    if let [weights, scale, bias] = constants[..] {
        let packed = product.pack(&weights.get()?, &scale.get()?, &bias.get()?)?;
        constants.iter().for_each(|c| c.release());
        product.weights = Some(packed);
    }
    Ok(Box::new(product))
}

impl Product {
    fn pack(&self, weights: &Tensor, scale: &Tensor, bias: &Tensor) -> Result<Weights> {
        let shape = weights.shape().clone();
        let codes = weights.slice::<i8>()?;
        let channels = Channels {
            scale: scale.slice()?,
            bias: bias.slice()?,
        };
        let n = match (&self.form, shape.dims()) {
            (Form::Conv(_), &[.., n]) if shape.rank() == 4 => n,
            (Form::Depthwise(_), &[_, _, c, 1]) => c,
            (Form::Dense { transposed: false }, &[_, n]) => n,
            (Form::Dense { transposed: true }, &[n, _]) => n,
            _ => {
                return Err(invalid_argument!(
                    "weights of a product of codes cannot have shape {shape}"
                ));
            }
        };
        if channels.scale.len() != n || channels.bias.len() != n {
            return Err(invalid_argument!(
                "scale and bias must have {n} elements, got {} and {}",
                channels.scale.len(),
                channels.bias.len()
            ));
        }
        let k = codes.len() / n.max(1);
        let packed = as_constants(|| match &self.form {
            Form::Depthwise(rules) => {
                let s = filter_sizes(rules, &shape);
                Packed::Depthwise(DepthwiseWeights::new(codes, &s, self.zero, channels))
            }
            Form::Conv(rules) => {
                let s = Conv2dShape {
                    out_c: n,
                    groups: 1,
                    ..filter_sizes(rules, &shape)
                };
                Packed::Product(Int8Weights::of_filter(codes, &s, self.zero, channels))
            }
            Form::Dense { transposed: true } => {
                let layout = Int8Layout::Columns;
                Packed::Product(Int8Weights::new(codes, [k, n], layout, self.zero, channels))
            }
            Form::Dense { transposed: false } => {
                let layout = Int8Layout::Rows;
                Packed::Product(Int8Weights::new(codes, [k, n], layout, self.zero, channels))
            }
        });
        Ok(Weights { shape, packed })
    }

    /// Returns the windows and the shape of the output.
    fn place(&self, x: &Shape, weights: &Shape) -> Result<(Option<Conv2dShape>, Shape)> {
        let s = match &self.form {
            Form::Conv(rules) => geometry(NHWC, rules, x, weights)?,
            Form::Depthwise(rules) => depthwise_geometry(NHWC, rules, x, weights)?,
            Form::Dense { transposed } => {
                let (k, n) = match transposed {
                    false => (weights[0], weights[1]),
                    true => (weights[1], weights[0]),
                };
                return match x.split_last() {
                    Some((&last, outer)) if last == k => {
                        Ok((None, outer.iter().copied().chain([n]).collect()))
                    }
                    _ => Err(invalid_argument!(
                        "Matrix size-incompatible: In[0]: {x}, In[1]: [{k},{n}]"
                    )),
                };
            }
        };
        if matches!(self.form, Form::Conv(_)) && s.plane.groups != 1 {
            return Err(invalid_argument!(
                "a convolution of codes has one group: {x} with a filter of {weights}"
            ));
        }
        Ok((Some(s.plane), shape_of(&output_dims(NHWC, &s))?))
    }
}

/// Returns a convolution with these strides and dilations and a filter of this shape.
fn filter_sizes(rules: &Rules, shape: &Shape) -> Conv2dShape {
    Conv2dShape {
        batch: 0,
        in_h: 0,
        in_w: 0,
        in_c: shape[2],
        filter_h: shape[0],
        filter_w: shape[1],
        out_c: shape[2],
        stride_h: rules[0].stride as usize,
        stride_w: rules[1].stride as usize,
        dil_h: rules[0].dilation as usize,
        dil_w: rules[1].dilation as usize,
        pad_top: 0,
        pad_left: 0,
        out_h: 0,
        out_w: 0,
        groups: shape[2],
    }
}

impl OpKernel for Product {
    fn prepacks_input(&self, i: usize) -> bool {
        (1..4).contains(&i) && self.weights.is_some()
    }

    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let own;
        let weights = match &self.weights {
            Some(weights) => weights,
            None => {
                own = self.pack(ctx.input(1)?, ctx.input(2)?, ctx.input(3)?)?;
                &own
            }
        };
        let (sizes, shape) = self.place(ctx.shape(0)?, &weights.shape)?;
        let mut out = ctx.alloc(self.out_type, shape.clone())?;
        let side = match self.has_side {
            false => None,
            true => {
                let side = ctx.input(4)?;
                if *side.shape() != shape {
                    return Err(invalid_argument!(
                        "Incompatible shapes: {shape} vs. {}",
                        side.shape()
                    ));
                }
                Some(match side.dtype() {
                    DType::Uint8 => Int8Side::Codes(side.slice()?, self.factor),
                    _ => Int8Side::Floats(side.slice()?, self.factor),
                })
            }
        };
        let epilogue = Int8Epilogue {
            side,
            limits: self.limits,
            out: match self.out_type {
                DType::Uint8 => Int8Out::Codes(out.slice_mut()?),
                _ => Int8Out::Floats(out.slice_mut()?),
            },
        };
        let (par, x) = (ctx.par(), ctx.slice::<u8>(0)?);
        match (&weights.packed, sizes) {
            (Packed::Product(w), None) => {
                let m = x.len().checked_div(w.k());
                let m = m.unwrap_or_else(|| shape.num_elements() / w.n().max(1));
                int8_dense(par, m, x, w, epilogue);
            }
            (packed, Some(s)) => convolve(par, &s, x, self.zero, packed, epilogue),
            (Packed::Depthwise(_), None) => {}
        }
        ctx.set_output(0, out)
    }
}

fn convolve(
    par: &dyn ferroflow_sync::Parallelism,
    s: &Conv2dShape,
    x: &[u8],
    zero: u8,
    weights: &Packed,
    epilogue: Int8Epilogue<'_>,
) {
    let (mut s, mut x, nothing) = (*s, x, vec![zero; s.batch * s.in_c]);
    if x.is_empty() {
        s = over_nothing(&s.solid()).plane;
        x = &nothing;
    }
    match weights {
        Packed::Product(w) => int8_conv2d(par, &s, x, w, epilogue),
        Packed::Depthwise(w) => int8_depthwise2d(par, &s, x, w, epilogue),
    }
}
