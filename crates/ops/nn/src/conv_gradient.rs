//! Gradients of convolutions, and of those gradients.

use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Expr, GradientCtx};

const WINDOW: [&str; 5] = [
    "strides",
    "padding",
    "explicit_paddings",
    "data_format",
    "dilations",
];

/// The three ops of a kind of convolution: output, gradient of the input, of the filter.
struct Family(&'static str, &'static str, &'static str);

const FULL: Family = Family("Conv2D", "Conv2DBackpropInput", "Conv2DBackpropFilter");
const VOLUME: Family = Family("Conv3D", "Conv3DBackpropInputV2", "Conv3DBackpropFilterV2");
const DEPTHWISE: Family = Family(
    "DepthwiseConv2dNative",
    "DepthwiseConv2dNativeBackpropInput",
    "DepthwiseConv2dNativeBackpropFilter",
);

fn family(op: &str) -> Family {
    if op.starts_with("Conv3D") {
        VOLUME
    } else if op.starts_with("Depthwise") {
        DEPTHWISE
    } else {
        FULL
    }
}

fn attrs(g: &GradientCtx) -> Vec<(&'static str, AttrValue)> {
    let given = WINDOW.iter().filter(|name| g.attrs().get(name).is_some());
    given.map(|name| g.attr(name)).collect()
}

fn of_output(g: &mut GradientCtx, family: &Family) -> Result<()> {
    let (x, filter, d, attrs) = (g.x(0), g.x(1), g.dy(0), attrs(g));
    if g.needs(0) {
        g.set(0, x.make(family.1, &[x.shape_of(), filter, d], &attrs))?;
    }
    if g.needs(1) {
        g.set(1, x.make(family.2, &[x, filter.shape_of(), d], &attrs))?;
    }
    Ok(())
}

pub(crate) fn conv2d(g: &mut GradientCtx) -> Result<()> {
    of_output(g, &FULL)
}

pub(crate) fn conv3d(g: &mut GradientCtx) -> Result<()> {
    of_output(g, &VOLUME)
}

pub(crate) fn depthwise(g: &mut GradientCtx) -> Result<()> {
    of_output(g, &DEPTHWISE)
}

/// Of the gradient of an input: it is linear in the filter and in what came.
pub(crate) fn of_input(g: &mut GradientCtx) -> Result<()> {
    let (filter, came, d, attrs): (Expr, Expr, Expr, _) = (g.x(1), g.x(2), g.dy(0), attrs(g));
    let family = family(g.op_name());
    if g.needs(1) {
        g.set(1, d.make(family.2, &[d, filter.shape_of(), came], &attrs))?;
    }
    if g.needs(2) {
        g.set(2, d.make(family.0, &[d, filter], &attrs))?;
    }
    Ok(())
}

/// Of the gradient of a filter: it is linear in the input and in what came.
pub(crate) fn of_filter(g: &mut GradientCtx) -> Result<()> {
    let (x, came, d, attrs) = (g.x(0), g.x(2), g.dy(0), attrs(g));
    let family = family(g.op_name());
    if g.needs(0) {
        g.set(0, d.make(family.1, &[x.shape_of(), d, came], &attrs))?;
    }
    if g.needs(2) {
        g.set(2, d.make(family.0, &[x, d], &attrs))?;
    }
    Ok(())
}
