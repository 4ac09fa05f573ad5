//! Makes convolutions between SpaceToBatchND and BatchToSpaceND dilated ones, which read their input where it is and
//! fuse with what follows. `tf.nn.convolution` spells dilations that way; with one spatial dimension there are an
//! ExpandDims before and a Squeeze behind the convolution.

use crate::view::View;
use crate::{Pass, PassCtx};
use ferroflow_base::Result;
use ferroflow_graph::{Graph, NodeId, Output, Patch};
use ferroflow_opdef::AttrValue;
use ferroflow_tensor::PartialShape;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub(crate) const PASS: Pass = Pass {
    name: "dilated_conv",
    about: "makes convolutions of batches of pixels that are apart dilated ones",
    run,
};

/// A convolution of the pixels that are `dilations` apart.
struct Found {
    conv: NodeId,
    /// What SpaceToBatchND reads.
    x: Output,
    /// The ExpandDims and the Squeeze around a convolution along one dimension.
    flat: Option<(NodeId, NodeId)>,
    batch_to_space: NodeId,
    /// Along height and width.
    dilations: [i64; 2],
    /// Pixels before and behind, for both.
    paddings: [i64; 4],
}

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    if !graph.iter().any(|(_, n)| n.op() == "SpaceToBatchND") {
        return Ok(());
    }
    let view = View::new(graph, ctx.shapes(graph)?);
    let found: Vec<Found> = graph.iter().filter_map(|(id, _)| find(&view, id)).collect();
    let mut patch = Patch::new();
    let mut expanded: FxHashMap<NodeId, Output> = FxHashMap::default();
    for f in found {
        let (input, end) = match f.flat {
            None => (f.x, f.conv),
            Some((expand, squeeze)) => {
                let input = match expanded.get(&expand) {
                    Some(input) => *input,
                    None => {
                        let mut node = graph.node(expand).clone();
                        node.name = graph.unique_name(&format!("{}/whole", node.name));
                        node.inputs[0] = f.x;
                        *expanded
                            .entry(expand)
                            .or_insert(Output::new(patch.add(graph, node)?, 0))
                    }
                };
                (input, squeeze)
            }
        };
        let node = patch.edit(graph, f.conv);
        node.inputs[0] = input;
        let ([dy, dx], [top, bottom, left, right]) = (f.dilations, f.paddings);
        node.attrs
            .set("dilations", AttrValue::ints(&[1, dy, dx, 1]));
        if f.paddings != [0; 4] {
            let paddings = [0, 0, top, bottom, left, right, 0, 0];
            node.attrs.set("padding", AttrValue::str("EXPLICIT"));
            node.attrs
                .set("explicit_paddings", AttrValue::ints(&paddings));
        }
        patch.redirect(Output::new(f.batch_to_space, 0), Output::new(end, 0));
        patch.redirect_control(f.batch_to_space, Some(end));
    }
    patch.apply(graph);
    Ok(())
}

/// The convolution `conv`, if it is between a SpaceToBatchND and the BatchToSpaceND that reverses it.
fn find(view: &View, conv: NodeId) -> Option<Found> {
    let node = view.node(conv);
    if !matches!(node.op(), "Conv2D" | "DepthwiseConv2dNative") || !view.is_pure(conv) {
        return None;
    }
    let attrs = &node.attrs;
    let is_ones = |name| Some(attrs.ints(name).ok()? == [1; 4]);
    let is_plain = is_ones("strides")? && is_ones("dilations")?;
    if !is_plain
        || attrs.str("padding").ok()? != "VALID"
        || attrs.str("data_format").ok()? != "NHWC"
    {
        return None;
    }
    let (mut input, mut end) = (*node.inputs.first()?, conv);
    let mut flat = None;
    if let Some(expand) = view.producer(input, "ExpandDims") {
        let squeeze = view.only_reader(Output::new(conv, 0))?;
        let is_height = |axis: i64| matches!(axis, 1 | -3);
        let squeezed = view.node(squeeze).attrs.ints("squeeze_dims").ok()?;
        let [axis] = squeezed[..] else {
            return None;
        };
        let fits = matches!(view.ints(expand.inputs[1])?[..], [dim] if is_height(dim));
        if !fits || !is_height(axis) || !view.is_pure(squeeze) || !view.is_pure(input.node) {
            return None;
        }
        flat = Some((input.node, squeeze));
        (input, end) = (expand.inputs[0], squeeze);
    }
    let to_batch = view.producer(input, "SpaceToBatchND")?;
    let batch_to_space = view.only_reader(Output::new(end, 0))?;
    let back = view.node(batch_to_space);
    if back.op() != "BatchToSpaceND" || !view.is_pure(batch_to_space) || !view.is_pure(input.node) {
        return None;
    }
    let block = view.ints(to_batch.inputs[1])?;
    let (pads, crops) = (view.ints(to_batch.inputs[2])?, view.ints(back.inputs[2])?);
    let n = if flat.is_some() { 1 } else { 2 };
    let sizes = [block.len(), pads.len() / 2, crops.len() / 2];
    if view.ints(back.inputs[1])? != block || sizes != [n; 3] {
        return None;
    }
    let x = to_batch.inputs[0];
    let (dilations, paddings) = windows(&view.shape(x), &block, &pads, &crops)?;
    Some(Found {
        conv,
        x,
        flat,
        batch_to_space,
        dilations,
        paddings,
    })
}

/// The dilations and paddings of rows and columns; those of columns alone if `block` has one size.
fn windows(
    shape: &PartialShape,
    block: &[i64],
    pads: &[i64],
    crops: &[i64],
) -> Option<([i64; 2], [i64; 4])> {
    let mut dilations: SmallVec<[i64; 2]> = SmallVec::new();
    let mut paddings: SmallVec<[i64; 4]> = SmallVec::new();
    if block.len() == 1 {
        dilations.push(1);
        paddings.extend([0, 0]);
    }
    for (i, &by) in block.iter().enumerate() {
        let size = i64::try_from(shape.dim(i as isize + 1)?).ok()?;
        // SpaceToBatchND refuses other sizes.
        if by < 1 || (size + pads[2 * i] + pads[2 * i + 1]) % by != 0 {
            return None;
        }
        dilations.push(by);
        paddings.extend([
            pads[2 * i] - crops[2 * i],
            pads[2 * i + 1] - crops[2 * i + 1],
        ]);
    }
    let mut all = paddings.iter().chain(pads).chain(crops);
    all.all(|p| *p >= 0).then_some(())?;
    Some((
        dilations[..].try_into().ok()?,
        paddings[..].try_into().ok()?,
    ))
}
