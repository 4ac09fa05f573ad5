//! Expands ops that stand for several others.

use crate::PassCtx;
use crate::pass::keep_attrs;
use crate::passes::rewritten;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Graph, Node, NodeClass, NodeId, Output, Patch};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::DType;

pub(crate) fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let ids: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
    let mut patch = Patch::new();
    for id in ids {
        let node = graph.node(id);
        let expand: Expand = match node.op() {
            "OneShotIterator" => factory_call,
            "XlaCallModule" => super::call_module::expand,
            "FusedPadConv2D" => |this, node| padded_convolution(this, node, false),
            "FusedResizeAndPadConv2D" => |this, node| padded_convolution(this, node, true),
            _ if node.class() == NodeClass::RemoteCall => local_call,
            _ => match rewritten::expansion(node) {
                Some(expand) => expand,
                None => continue,
            },
        };
        let node = node.clone();
        let (name, op) = (node.name.clone(), node.op().to_string());
        let mut expansion = Expansion {
            graph,
            patch: &mut patch,
            ctx,
            id,
            name: &name,
            device: &node.device.clone(),
        };
        let last = expand(&mut expansion, node).map_err(|e| e.at_node(&name, &op))?;
        *patch.edit(graph, id) = last;
    }
    rewritten::join_parallel_concats(graph, &mut patch, ctx)?;
    patch.apply(graph);
    Ok(())
}

/// Adds the nodes before the last one, and returns that: it replaces the node.
pub(super) type Expand = fn(&mut Expansion, Node) -> Result<Node>;

/// The nodes that one node becomes.
pub(super) struct Expansion<'a> {
    pub(super) graph: &'a mut Graph,
    pub(super) patch: &'a mut Patch,
    pub(super) ctx: &'a PassCtx<'a>,
    pub(super) id: NodeId,
    name: &'a str,
    device: &'a str,
}

impl Expansion<'_> {
    /// Adds a node before the last one, named after it; returns its output.
    pub(super) fn part(
        &mut self,
        name: &str,
        op: &str,
        inputs: &[Output],
        controls: &[NodeId],
        attrs: Attrs,
    ) -> Result<Output> {
        let name = self.graph.unique_name(&format!("{}/_{name}", self.name));
        let mut node = self.ctx.node(name, op, attrs, inputs, controls)?;
        node.device = self.device.to_string();
        Ok(Output::new(self.patch.add(self.graph, node)?, 0))
    }
}

/// A RemoteCall as a call: every device is in this process, so the target only comes first.
fn local_call(this: &mut Expansion, mut node: Node) -> Result<Node> {
    if node.inputs.is_empty() {
        return Err(invalid_argument!("the call has no target"));
    }
    let target = node.inputs.remove(0).node;
    if !node.controls.contains(&target) {
        node.controls.push(target);
    }
    this.ctx.become_op(node, "StatefulPartitionedCall")
}

/// The attr of a call whose function runs on the device of the call, whatever its nodes ask for.
pub(crate) const ON_ONE_DEVICE: &str = "_on_one_device";

/// An iterator that takes its dataset as an input, after the call that makes the dataset.
fn factory_call(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let factory = node.attrs.remove("dataset_factory");
    let factory = factory.ok_or_else(|| invalid_argument!("the node has no dataset_factory"))?;
    let attrs = Attrs::default()
        .with("f", factory)
        .with("Tin", AttrValue::List(Vec::new()))
        .with("Tout", AttrValue::List(vec![DType::Variant.into()]))
        .with(ON_ONE_DEVICE, AttrValue::Bool(true));
    let controls = node.controls.clone();
    let dataset = this.part("dataset", "StatefulPartitionedCall", &[], &controls, attrs)?;
    node.inputs.insert(0, dataset);
    this.ctx.become_op(node, "_OneShotIterator")
}

/// A convolution of a tensor that is padded with its mirror image, and resized before if `resizes`.
fn padded_convolution(this: &mut Expansion, mut node: Node, resizes: bool) -> Result<Node> {
    let dtype = node.attrs.dtype("T")?;
    let typed = |dtype: DType| Attrs::default().with("T", AttrValue::Type(dtype));
    let (mut image, paddings, filter) = match (resizes, &node.inputs[..]) {
        (true, &[image, size, paddings, filter]) => {
            let align = node.attrs.bool("resize_align_corners").unwrap_or(false);
            let attrs = typed(dtype)
                .with("align_corners", AttrValue::Bool(align))
                .with("half_pixel_centers", AttrValue::Bool(false));
            let resized = this.part("resize", "ResizeBilinear", &[image, size], &[], attrs)?;
            (resized, paddings, filter)
        }
        (false, &[image, paddings, filter]) => (image, paddings, filter),
        _ => {
            return Err(invalid_argument!(
                "the op takes {} inputs, not {}",
                if resizes { 4 } else { 3 },
                node.inputs.len()
            ));
        }
    };
    if resizes && dtype != DType::Float {
        // A resized image is float.
        image = this.cast("cast", image, DType::Float, dtype)?;
    }
    let attrs = typed(dtype)
        .with("Tpaddings", AttrValue::Type(DType::Int32))
        .with("mode", AttrValue::str(node.attrs.str("mode")?));
    let padded = this.part("pad", "MirrorPad", &[image, paddings], &[], attrs)?;
    node.inputs = smallvec::smallvec![padded, filter];
    keep_attrs(&mut node.attrs, &["T", "strides", "padding"]);
    this.ctx.become_op(node, "Conv2D")
}
