//! Rules of neural networks and of images (`tensorflow/cc/gradients/nn_grad.cc`, `image_grad.cc`).

use super::backprop::Call;
use super::rules::{Rules, all, first};
use super::scope::{Scope, op};
use crate::Output;
use ferroflow_base::Result;
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::DType;

type Gradients = Result<Vec<Option<Output>>>;

pub(super) const RULES: Rules = &[
    ("Softmax", |s, c| {
        let product = op!(s, Mul, c.dy(0), c.y(0));
        let sum = op!(s, Sum, product, -1; keep_dims = true);
        let rest = op!(s, Sub, c.dy(0), sum);
        all([op!(s, Mul, rest, c.y(0))])
    }),
    ("LogSoftmax", |s, c| {
        let softmax = op!(s, Exp, c.y(0));
        let sum = op!(s, Sum, c.dy(0), [1]; keep_dims = true);
        let product = op!(s, Mul, sum, softmax);
        all([op!(s, Sub, c.dy(0), product)])
    }),
    ("SoftmaxCrossEntropyWithLogits", cross_entropy),
    ("Relu", |s, c| all([op!(s, ReluGrad, c.dy(0), c.x(0))])),
    ("Relu6", |s, c| all([op!(s, Relu6Grad, c.dy(0), c.x(0))])),
    ("LeakyRelu", |s, c| {
        all([op!(s, LeakyReluGrad, c.dy(0), c.x(0); alpha = c.attr("alpha")?)])
    }),
    ("LeakyReluGrad", |s, c| {
        first(
            op!(s, LeakyReluGrad, c.dy(0), c.x(1); alpha = c.attr("alpha")?),
            2,
        )
    }),
    ("Elu", |s, c| all([op!(s, EluGrad, c.dy(0), c.y(0))])),
    ("Selu", |s, c| all([op!(s, SeluGrad, c.dy(0), c.y(0))])),
    ("Softplus", |s, c| {
        all([op!(s, SoftplusGrad, c.dy(0), c.x(0))])
    }),
    ("Softsign", |s, c| {
        all([op!(s, SoftsignGrad, c.dy(0), c.x(0))])
    }),
    ("L2Loss", |s, c| all([op!(s, Mul, c.x(0), c.dy(0))])),
    ("BiasAdd", |s, c| {
        let sum = op!(s, BiasAddGrad, c.dy(0); data_format = c.attr("data_format")?);
        all([op!(s, Identity, c.dy(0)), sum])
    }),
    ("LRN", |s, c| {
        all([op!(s, LRNGrad, c.dy(0), c.x(0), c.y(0))])
    }),
    ("Conv2D", |s, c| {
        let attrs = copied(
            c,
            &["strides", "padding", "data_format", "use_cudnn_on_gpu"],
        )?;
        let shape = op!(s, Shape, c.x(0));
        let args = vec![shape.into(), c.x(1).into(), c.dy(0).into()];
        let dx = s.add("Conv2DBackpropInput", args, &attrs);
        let shape = op!(s, Shape, c.x(1));
        let args = vec![c.x(0).into(), shape.into(), c.dy(0).into()];
        all([dx, s.add("Conv2DBackpropFilter", args, &attrs)])
    }),
    ("Conv2DBackpropInput", |s, c| {
        let mut attrs = copied(c, &CONVOLUTION)?;
        attrs.push(("use_cudnn_on_gpu", c.attr("use_cudnn_on_gpu")?));
        let shape = op!(s, Shape, c.x(1));
        let args = vec![c.dy(0).into(), shape.into(), c.x(2).into()];
        let dfilter = s.add("Conv2DBackpropFilter", args, &attrs);
        let dx = s.add("Conv2D", vec![c.dy(0).into(), c.x(1).into()], &attrs);
        Ok(vec![None, Some(dfilter), Some(dx)])
    }),
    ("DepthwiseConv2dNative", |s, c| {
        let attrs = copied(c, &CONVOLUTION)?;
        let shape = op!(s, Shape, c.x(0));
        let args = vec![shape.into(), c.x(1).into(), c.dy(0).into()];
        let dx = s.add("DepthwiseConv2dNativeBackpropInput", args, &attrs);
        let shape = op!(s, Shape, c.x(1));
        let args = vec![c.x(0).into(), shape.into(), c.dy(0).into()];
        all([
            dx,
            s.add("DepthwiseConv2dNativeBackpropFilter", args, &attrs),
        ])
    }),
    ("MaxPool", |s, c| max_pool(s, c, "MaxPoolGrad")),
    ("MaxPool3D", |s, c| max_pool(s, c, "MaxPool3DGrad")),
    ("MaxPoolV2", |s, c| {
        let gradient = op!(s, MaxPoolGradV2, c.x(0), c.y(0), c.dy(0), c.x(1), c.x(2);
            padding = c.attr("padding")?, data_format = c.attr("data_format")?);
        first(gradient, 3)
    }),
    ("AvgPool", |s, c| average_pool(s, c, "AvgPoolGrad")),
    ("AvgPool3D", |s, c| average_pool(s, c, "AvgPool3DGrad")),
    ("FractionalAvgPool", |s, c| {
        let shape = op!(s, Shape, c.x(0); out_type = DType::Int64);
        let gradient = op!(s, FractionalAvgPoolGrad, shape, c.dy(0), c.y(1), c.y(2);
            overlapping = c.attr("overlapping")?);
        all([gradient])
    }),
    ("FractionalMaxPool", |s, c| {
        let gradient = op!(s, FractionalMaxPoolGrad, c.x(0), c.y(0), c.dy(0), c.y(1), c.y(2);
            overlapping = c.attr("overlapping")?);
        all([gradient])
    }),
    ("FusedBatchNormV3", batch_norm),
    ("ResizeNearestNeighbor", |s, c| {
        let shape = op!(s, Shape, c.x(0));
        let size = op!(s, Slice, shape, [1], [2]);
        let args = vec![c.dy(0).into(), size.into()];
        first(
            s.add("ResizeNearestNeighborGrad", args, &copied(c, &RESIZE)?),
            2,
        )
    }),
    ("ResizeBilinear", |s, c| {
        let args = vec![c.dy(0).into(), c.x(0).into()];
        first(s.add("ResizeBilinearGrad", args, &copied(c, &RESIZE)?), 2)
    }),
    ("ResizeBicubic", |s, c| {
        let args = vec![c.dy(0).into(), c.x(0).into()];
        first(s.add("ResizeBicubicGrad", args, &copied(c, &RESIZE)?), 2)
    }),
    ("ScaleAndTranslate", |s, c| {
        let gradient = op!(s, ScaleAndTranslateGrad, c.dy(0), c.x(0), c.x(2), c.x(3);
            kernel_type = c.attr("kernel_type")?, antialias = c.attr("antialias")?);
        first(gradient, 4)
    }),
    ("CropAndResize", |s, c| {
        let shape = op!(s, Shape, c.x(0));
        let dx = op!(s, CropAndResizeGradImage, c.dy(0), c.x(1), c.x(2), shape;
            T = c.attr("T")?, method = c.attr("method")?);
        let boxes = op!(s, CropAndResizeGradBoxes, c.dy(0), c.x(0), c.x(1), c.x(2));
        Ok(vec![Some(dx), Some(boxes), None, None])
    }),
];

const CONVOLUTION: [&str; 5] = [
    "strides",
    "padding",
    "explicit_paddings",
    "data_format",
    "dilations",
];
const POOL: [&str; 4] = ["ksize", "strides", "padding", "data_format"];
const RESIZE: [&str; 2] = ["align_corners", "half_pixel_centers"];

/// Attrs of the node.
fn copied<'n>(c: &Call, names: &[&'n str]) -> Result<Vec<(&'n str, AttrValue)>> {
    names
        .iter()
        .map(|name| Ok((*name, c.attr(name)?)))
        .collect()
}

fn max_pool(s: &Scope, c: &Call, op: &str) -> Gradients {
    let args = vec![c.x(0).into(), c.y(0).into(), c.dy(0).into()];
    all([s.add(op, args, &copied(c, &POOL)?)])
}

fn average_pool(s: &Scope, c: &Call, op: &str) -> Gradients {
    let shape = op!(s, Shape, c.x(0));
    all([s.add(op, vec![shape.into(), c.dy(0).into()], &copied(c, &POOL)?)])
}

fn of_rows(s: &Scope, rows: Output, matrix: Output) -> Output {
    let column = op!(s, ExpandDims, rows, -1);
    op!(s, Mul, column, matrix)
}

fn cross_entropy(s: &Scope, c: &Call) -> Gradients {
    let (loss, backprop) = (c.dy(0), c.dy(1));
    let mut gradient = of_rows(s, loss, c.y(1));
    let is_zero = s.graph(|g| g.node(backprop.node).is_some_and(|n| n.op() == "ZerosLike"));
    if !is_zero {
        let softmax = op!(s, Softmax, c.x(0));
        let row = op!(s, ExpandDims, backprop, 1);
        let column = op!(s, ExpandDims, softmax, 2);
        let product = op!(s, BatchMatMul, row, column);
        let product = op!(s, Squeeze, product; squeeze_dims = AttrValue::ints(&[1]));
        let rest = op!(s, Sub, backprop, product);
        let term = op!(s, Mul, rest, softmax);
        gradient = op!(s, Add, gradient, term);
    }
    let minus_log = op!(s, Mul, op!(s, LogSoftmax, c.x(0)), -1f32);
    all([gradient, of_rows(s, loss, minus_log)])
}

fn batch_norm(s: &Scope, c: &Call) -> Gradients {
    let attrs = &c.node.attrs;
    let (is_training, format) = (attrs.bool("is_training")?, attrs.str("data_format")?);
    let (mut x, mut dy) = (c.x(0), c.dy(0));
    let (mut mean, mut variance) = (c.y(3), c.y(4));
    let mut channels_last = format;
    let mut back = None;
    if !is_training {
        (mean, variance) = (c.x(3), c.x(4));
        match format {
            "NCHW" => {
                x = op!(s, Transpose, x, [0, 2, 3, 1]);
                dy = op!(s, Transpose, dy, [0, 2, 3, 1]);
                back = Some([0, 3, 1, 2].as_slice());
            }
            "NCDHW" => {
                x = op!(s, Transpose, x, [0, 2, 3, 4, 1]);
                dy = op!(s, Transpose, dy, [0, 2, 3, 4, 1]);
                back = Some([0, 4, 1, 2, 3].as_slice());
            }
            _ => {}
        }
        channels_last = match format {
            "NCHW" | "NHWC" => "NHWC",
            _ => "NDHWC",
        };
    }
    let gradient = op!(s, FusedBatchNormGradV3, dy, x, c.x(1), mean, variance, c.y(5);
        epsilon = c.attr("epsilon")?, data_format = channels_last, is_training = is_training);
    let dx = match back {
        None => gradient,
        Some(order) => op!(s, Transpose, gradient, super::scope::vector(order)),
    };
    let [scale, offset] = [1, 2].map(|slot| Some(Output::new(gradient.node, slot)));
    Ok(vec![Some(dx), scale, offset, None, None])
}
