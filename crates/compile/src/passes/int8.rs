//! Runs products and convolutions, and what is between them, on 8-bit codes.
//!
//! A tensor has codes if its range is known: a node that rounds to steps (FakeQuantWithMinMaxVars and the
//! like) says it, or a calibration has found it. A product with constant weights whose input has codes
//! becomes one of codes. Its output is codes if its range is known and something reads codes; so are those
//! of additions, concatenations and activations between codes, and what only moves codes (max pooling,
//! reshapes, padding). Everything else reads floats: codes are converted where they meet others.
//!
//! A result differs from that of the graph with rounded tensors by the rounding of sums to steps, ties
//! to even, and by weights that were not rounded before. In a graph without such nodes it differs by the
//! rounding of each tensor to 256 steps.

mod correction;
mod fine;
mod product;
mod steps;
mod weights;

use crate::pass::constant_node;
use crate::view::{View, moves_values, same_shape};
use crate::{Int8, OBSERVED, Pass, PassCtx, Ranges};
use correction::Corrections;
use ferroflow_base::Result;
use ferroflow_graph::{
    Graph, Node, NodeClass, NodeId, Output, Patch, RETVAL, boundary_attrs, topological_order,
};
use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_tensor::{DType, Shape, Tensor};
use product::{ALL, Product, clamp_of, limits};
use rustc_hash::{FxHashMap, FxHashSet};
use smallvec::SmallVec;
use steps::{Steps, range_name};

pub(crate) const PASS: Pass = Pass {
    name: "int8",
    about: "computes products, and what is between them, on 8-bit codes, if asked to",
    run,
};

fn run(graph: &mut Graph, ctx: &PassCtx) -> Result<()> {
    let none = Ranges::default();
    let (ranges, observes) = match ctx.int8 {
        Int8::Off => return Ok(()),
        Int8::On(ranges) | Int8::Correct(ranges) => (&**ranges, false),
        Int8::Observe => (&none, true),
    };
    let view = View::new(graph, ctx.shapes(graph)?);
    let found = Found::new(&view, topological_order(graph)?, ranges, observes);
    if observes {
        let tensors = found.tensors();
        let tensors = tensors.into_iter().map(|t| (range_name(&view, t), t));
        return observe(graph, ctx, tensors.collect());
    }
    let corrections = match ctx.int8 {
        // A result must not be in a loop or a branch.
        Int8::Correct(_) if !moves_values(graph) => {
            let ranks = found.ranks(&view);
            Some(Corrections::new(graph, ctx, &ranks)?)
        }
        _ => None,
    };
    let mut conversion = Conversion {
        ctx,
        patch: Patch::new(),
        codes: FxHashMap::default(),
        steps: found.steps,
        fine: FxHashMap::default(),
        floats: found.floats,
        corrections,
    };
    for part in found.parts {
        conversion.add(graph, part)?;
    }
    conversion.patch.apply(graph);
    Ok(())
}

/// Makes tensors results of the graph.
fn observe(graph: &mut Graph, ctx: &PassCtx, tensors: Vec<(String, Output)>) -> Result<()> {
    let n = graph.iter().filter(|(_, n)| n.class() == NodeClass::Retval);
    let n = n.count();
    let mut patch = Patch::new();
    for (i, (tensor, output)) in tensors.into_iter().enumerate() {
        let attrs = boundary_attrs(DType::Float, n + i).with(OBSERVED, AttrValue::str(&tensor));
        let name = graph.unique_name(&format!("_observed_{i}"));
        let node = ctx.node(name, RETVAL, attrs, &[output], &[])?;
        patch.add(graph, node)?;
    }
    patch.apply(graph);
    Ok(())
}

/// What a node is to the pass.
enum Role {
    Product(Box<Product>),
    /// A sum of two tensors of one shape, or an activation of one.
    Combine,
    /// The last input is the axis.
    Concat,
    /// A node that moves the elements of its first input.
    Move,
    /// A node that rounds to steps.
    Round,
}

/// What follows a node in the node that it becomes.
#[derive(Clone, Copy)]
struct Tail {
    end: Output,
    clamp: (f32, f32),
    /// Whether the end is a node that rounds to steps.
    is_rounded: bool,
}

/// A node to convert.
struct Part {
    id: NodeId,
    role: Role,
    /// The inputs that may be codes.
    inputs: SmallVec<[Output; 2]>,
    tail: Tail,
    /// Whether the end is made as codes.
    to_codes: bool,
}

/// The nodes that can be converted.
struct Found {
    parts: Vec<Part>,
    /// The steps of tensors whose ranges are known.
    steps: FxHashMap<Output, Steps>,
    /// Those that have two codes where convolutions read them, and are floats for sums.
    floats: FxHashSet<Output>,
}

impl Found {
    fn new(view: &View, order: Vec<NodeId>, ranges: &Ranges, observes: bool) -> Found {
        let mut found = Found {
            parts: Vec::new(),
            steps: FxHashMap::default(),
            floats: FxHashSet::default(),
        };
        let mut inner: FxHashSet<NodeId> = FxHashSet::default();
        for id in order {
            if inner.contains(&id) {
                continue;
            }
            let Some(mut role) = role(view, id) else {
                continue;
            };
            if let Role::Product(product) = &mut role {
                product.means = ranges.means(&range_name(view, product.input));
                product.correct(ranges.corrections(&view.node(id).name));
            }
            let inputs = inputs(view, id, &role);
            let tail = tail(view, id, &role, &mut inner);
            for &output in inputs.iter().chain([&tail.end]) {
                let node = view.node(output.node);
                let range = || ranges.get(&range_name(view, output));
                let steps = match observes {
                    // Any steps stand for those that will be known.
                    true => Steps::of_range((0.0, 1.0)),
                    false => {
                        Steps::of_node(view, node).or_else(|| range().and_then(Steps::of_range))
                    }
                };
                if let Some(steps) = steps {
                    found.steps.insert(output, steps);
                }
            }
            found.parts.push(Part {
                id,
                role,
                inputs,
                tail,
                to_codes: false,
            });
        }
        if ranges.two_codes {
            found.floats = fine::choose(&mut found.parts, &found.steps);
        }
        found.keep_codable();
        found.keep_wanted(view);
        found
    }

    /// Drops parts whose inputs cannot be codes, and notes which ends can be: none that have two codes.
    fn keep_codable(&mut self) {
        let mut codable: FxHashSet<Output> = FxHashSet::default();
        let (steps, floats) = (&self.steps, &self.floats);
        self.parts.retain_mut(|part| {
            let is_codable = |input: &Output| codable.contains(input);
            let has_steps = |output: &Output| steps.contains_key(output);
            let (is_kept, to_codes) = match part.role {
                Role::Round => (true, true),
                Role::Product(_) => (
                    is_codable(&part.inputs[0]) || has_steps(&part.inputs[0]),
                    has_steps(&part.tail.end) && !floats.contains(&part.tail.end),
                ),
                Role::Move => (part.inputs.iter().all(is_codable), true),
                Role::Combine | Role::Concat => (
                    part.inputs.iter().all(is_codable) && has_steps(&part.tail.end),
                    true,
                ),
            };
            part.to_codes = to_codes;
            if is_kept && to_codes {
                codable.insert(part.tail.end);
            }
            is_kept
        });
    }

    /// Drops parts whose codes nothing reads, and makes floats of products where that is so.
    fn keep_wanted(&mut self, view: &View) {
        // The nodes that read codes, with the inputs that are.
        let mut readers: FxHashSet<(NodeId, Output)> = FxHashSet::default();
        let mut kept = Vec::with_capacity(self.parts.len());
        while let Some(mut part) = self.parts.pop() {
            let end = part.tail.end;
            let edges = view.consumers.of(end.node).iter();
            let is_wanted = edges
                .filter(|(_, slot)| *slot == Some(end.slot))
                .any(|(reader, _)| readers.contains(&(*reader, end)));
            part.to_codes &= is_wanted || part.tail.is_rounded;
            let is_kept = match part.role {
                Role::Product(_) => true,
                Role::Round => is_wanted,
                _ => part.to_codes,
            };
            if !is_kept {
                continue;
            }
            if !matches!(part.role, Role::Round) {
                readers.extend(part.inputs.iter().map(|input| (part.id, *input)));
            }
            kept.push(part);
        }
        kept.reverse();
        self.parts = kept;
    }

    /// The ranks of the results of products.
    fn ranks(&self, view: &View) -> FxHashMap<NodeId, usize> {
        let products = self
            .parts
            .iter()
            .filter(|p| matches!(p.role, Role::Product(_)));
        let rank = |p: &Part| Some((p.id, view.shape(Output::new(p.id, 0)).rank()?));
        products.filter_map(rank).collect()
    }

    /// The tensors whose ranges matter.
    fn tensors(&self) -> Vec<Output> {
        let mut seen = FxHashSet::default();
        let mut tensors = Vec::new();
        for part in &self.parts {
            let ends = match part.role {
                Role::Product(_) => vec![part.inputs[0], part.tail.end],
                Role::Combine | Role::Concat => vec![part.tail.end],
                Role::Move | Role::Round => Vec::new(),
            };
            tensors.extend(ends.into_iter().filter(|t| seen.insert(*t)));
        }
        let rounded = self.parts.iter().filter(|p| p.tail.is_rounded);
        let rounded: FxHashSet<Output> = rounded.map(|p| p.tail.end).collect();
        tensors.retain(|t| !rounded.contains(t));
        tensors
    }
}

/// Returns the role of a node, if it has one.
fn role(view: &View, id: NodeId) -> Option<Role> {
    let node = view.node(id);
    if node.outputs[..] != [DType::Float] || !view.is_pure(id) || node.inputs.is_empty() {
        return None;
    }
    if Steps::of_node(view, node).is_some() {
        return Some(Role::Round);
    }
    let is_variable = |output: &Output| view.constant(*output).is_none();
    match node.op() {
        "Add" | "AddV2" => {
            let [a, b] = node.inputs[..] else { return None };
            let fits = same_shape(&view.shape(a), &view.shape(b)) && a != b;
            (fits && is_variable(&a) && is_variable(&b)).then_some(Role::Combine)
        }
        "Relu" | "Relu6" => Some(Role::Combine),
        "ConcatV2" => {
            let (_, parts) = node.inputs.split_last()?;
            parts.iter().all(is_variable).then_some(Role::Concat)
        }
        "MaxPool" => {
            let format = node.attrs.str("data_format").ok()?;
            (format == "NHWC").then_some(Role::Move)
        }
        "Reshape" | "Squeeze" | "ExpandDims" | "Identity" | "Pad" => Some(Role::Move),
        _ => Product::of(view, id).map(|p| Role::Product(Box::new(p))),
    }
}

/// The inputs of a node that may be codes.
fn inputs(view: &View, id: NodeId, role: &Role) -> SmallVec<[Output; 2]> {
    let all = &view.node(id).inputs;
    match role {
        Role::Product(product) => [product.input].into_iter().chain(product.side).collect(),
        Role::Combine => SmallVec::from_slice(all),
        Role::Concat => SmallVec::from_slice(&all[..all.len() - 1]),
        Role::Move | Role::Round => SmallVec::from_slice(&all[..1]),
    }
}

/// What follows a node: an activation, and a node that rounds to steps.
fn tail(view: &View, id: NodeId, role: &Role, inner: &mut FxHashSet<NodeId>) -> Tail {
    let mut tail = Tail {
        end: Output::new(id, 0),
        clamp: ALL,
        is_rounded: matches!(role, Role::Round),
    };
    let takes_activation = match role {
        Role::Product(product) => {
            tail.clamp = product.clamp;
            false
        }
        Role::Combine => match clamp_of(view.node(id).op()) {
            Some(clamp) => {
                tail.clamp = clamp;
                false
            }
            None => true,
        },
        Role::Concat => false,
        Role::Move | Role::Round => return tail,
    };
    let next = |tail: &Tail| {
        let reader = view.only_reader(tail.end)?;
        let node = view.node(reader);
        let is_first = node.inputs.first() == Some(&tail.end);
        (is_first && view.is_pure(reader)).then_some((reader, node))
    };
    if takes_activation
        && let Some((reader, node)) = next(&tail)
        && let Some(clamp) = clamp_of(node.op())
    {
        (tail.clamp, tail.end) = (clamp, Output::new(reader, 0));
        inner.insert(reader);
    }
    if let Some((reader, node)) = next(&tail)
        && Steps::of_node(view, node).is_some()
    {
        (tail.is_rounded, tail.end) = (true, Output::new(reader, 0));
        inner.insert(reader);
    }
    tail
}

struct Conversion<'a, 'b> {
    ctx: &'a PassCtx<'b>,
    patch: Patch,
    /// The codes of tensors, with their steps.
    codes: FxHashMap<Output, (Output, Steps)>,
    steps: FxHashMap<Output, Steps>,
    /// The two codes of tensors that have them.
    fine: FxHashMap<Output, (Output, Steps)>,
    floats: FxHashSet<Output>,
    corrections: Option<Corrections>,
}

impl Conversion<'_, '_> {
    fn add(&mut self, graph: &mut Graph, part: Part) -> Result<()> {
        let Part {
            id, inputs, tail, ..
        } = &part;
        let to = self.steps.get(&tail.end).copied();
        let to = to.filter(|_| part.to_codes);
        let (made, steps) = match (&part.role, to) {
            (Role::Product(product), to) => {
                let codes = match product.is_fine {
                    true => self.fine_codes_of(graph, inputs[0])?,
                    false => self.codes_of(graph, inputs[0])?,
                };
                let Some(codes) = codes else { return Ok(()) };
                let side = product.side.map(|side| match self.codes.get(&side) {
                    Some((codes, steps)) if !self.floats.contains(&side) => (*codes, Some(*steps)),
                    _ => (side, None),
                });
                let made = self.product(graph, product, codes, side, (to, tail.clamp))?;
                let Some(steps) = to else {
                    self.patch.redirect(tail.end, made);
                    return Ok(());
                };
                (made, steps)
            }
            (Role::Move, _) => match self.codes_of(graph, inputs[0])? {
                Some((codes, steps)) => (self.moved(graph, *id, codes, steps)?, steps),
                None => return Ok(()),
            },
            (Role::Round, Some(to)) => (self.quantized(graph, inputs[0], to)?, to),
            (Role::Combine, Some(to)) => {
                let parts = inputs.iter().map(|i| self.codes_of(graph, *i));
                let parts = parts.collect::<Result<Option<Vec<_>>>>()?;
                let Some(parts) = parts else { return Ok(()) };
                (self.combined(graph, *id, &parts, to, tail.clamp)?, to)
            }
            (Role::Concat, Some(to)) => match self.joined(graph, *id, inputs, to)? {
                Some(made) => (made, to),
                None => return Ok(()),
            },
            (_, None) => return Ok(()),
        };
        self.codes.insert(tail.end, (made, steps));
        // What does not read codes reads their numbers.
        let floats = self.node(graph, *id, "_Int8Dequantize", steps_attrs(steps), &[made])?;
        self.patch.redirect(tail.end, floats);
        Ok(())
    }

    /// Adds the node of a product, or the nodes of one that is corrected.
    fn product(
        &mut self,
        graph: &mut Graph,
        product: &Product,
        codes: (Output, Steps),
        side: Option<(Output, Option<Steps>)>,
        (to, clamp): (Option<Steps>, (f32, f32)),
    ) -> Result<Output> {
        let (ctx, patch) = (self.ctx, &mut self.patch);
        let Some(corrections) = &mut self.corrections else {
            return product.node(graph, ctx, patch, codes, side, (to, clamp));
        };
        let sums = product.node(graph, ctx, patch, codes, side, (None, ALL))?;
        let sums = corrections.add(graph, ctx, patch, product.id, sums)?;
        let Some(to) = to else {
            return correction::activated(graph, ctx, patch, sums, clamp);
        };
        let made = self.quantized(graph, sums, to)?;
        match clamp == ALL {
            true => Ok(made),
            false => self.combined(graph, product.id, &[(made, to)], to, clamp),
        }
    }

    /// Adds a node that is named after `of`, on its device.
    fn node(
        &mut self,
        graph: &mut Graph,
        of: NodeId,
        op: &str,
        attrs: Attrs,
        inputs: &[Output],
    ) -> Result<Output> {
        let old = graph.node(of);
        let (name, device) = (format!("{}/{}", old.name, &op[1..]), old.device.clone());
        let mut node = self
            .ctx
            .node(graph.unique_name(&name), op, attrs, inputs, &[])?;
        node.device = device;
        Ok(Output::new(self.patch.add(graph, node)?, 0))
    }

    /// The codes of a tensor and their steps, which are made if the range is known.
    fn codes_of(&mut self, graph: &mut Graph, of: Output) -> Result<Option<(Output, Steps)>> {
        if let Some(known) = self.codes.get(&of) {
            return Ok(Some(*known));
        }
        let Some(steps) = self.steps.get(&of).copied() else {
            return Ok(None);
        };
        let made = (self.quantized(graph, of, steps)?, steps);
        self.codes.insert(of, made);
        Ok(Some(made))
    }

    /// Two codes of each number of a tensor of floats.
    fn fine_codes_of(&mut self, graph: &mut Graph, of: Output) -> Result<Option<(Output, Steps)>> {
        if let Some(known) = self.fine.get(&of) {
            return Ok(Some(*known));
        }
        let Some(steps) = self.steps.get(&of).copied() else {
            return Ok(None);
        };
        let attrs = steps_attrs(steps).with("parts", AttrValue::Int(i64::from(fine::PARTS)));
        let made = self.node(graph, of.node, "_Int8Quantize", attrs, &[of])?;
        self.fine.insert(of, (made, steps));
        Ok(Some((made, steps)))
    }

    fn quantized(&mut self, graph: &mut Graph, of: Output, steps: Steps) -> Result<Output> {
        if let Some((codes, from)) = self.codes.get(&of).copied() {
            return match from == steps {
                true => Ok(codes),
                false => self.combined(graph, of.node, &[(codes, from)], steps, ALL),
            };
        }
        let made = self.node(graph, of.node, "_Int8Quantize", steps_attrs(steps), &[of])?;
        match (steps.low, steps.high) {
            (0, 255) => Ok(made),
            _ => self.combined(graph, of.node, &[(made, steps)], steps, ALL),
        }
    }

    /// Adds a node that moves codes as `id` moves numbers.
    fn moved(
        &mut self,
        graph: &mut Graph,
        id: NodeId,
        codes: Output,
        steps: Steps,
    ) -> Result<Output> {
        let mut node: Node = graph.node(id).clone();
        node.name = graph.unique_name(&format!("{}/int8", node.name));
        node.inputs[0] = codes;
        node.attrs.set("T", AttrValue::Type(DType::Uint8));
        node.outputs[0] = DType::Uint8;
        if node.op() == "Pad" {
            let name = graph.unique_name(&format!("{}/zero", node.name));
            let zero = Tensor::from_slice(Shape::scalar(), &[steps.zero])?;
            let zero = constant_node(self.ctx, name, zero)?;
            node.inputs
                .push(Output::new(self.patch.add(graph, zero)?, 0));
            node.def = self.ctx.def("PadV2")?;
        }
        Ok(Output::new(self.patch.add(graph, node)?, 0))
    }

    /// Adds a node that sums up tensors of codes.
    fn combined(
        &mut self,
        graph: &mut Graph,
        of: NodeId,
        parts: &[(Output, Steps)],
        to: Steps,
        clamp: (f32, f32),
    ) -> Result<Output> {
        let mut offset = f64::from(to.zero);
        let mut factors = Vec::new();
        for (_, from) in parts {
            let factor = f64::from(from.scale) / f64::from(to.scale);
            offset -= f64::from(from.zero) * factor;
            factors.push(AttrValue::Float(factor as f32));
        }
        let (low, high) = limits(Some(to), clamp);
        let code = |x: f32| AttrValue::Int(x.round_ties_even() as i64);
        let attrs = Attrs::default()
            .with("N", AttrValue::Int(parts.len() as i64))
            .with("factors", AttrValue::List(factors))
            .with("offset", AttrValue::Float(offset as f32))
            .with("low", code(low))
            .with("high", code(high));
        let inputs: Vec<Output> = parts.iter().map(|(codes, _)| *codes).collect();
        self.node(graph, of, "_Int8Combine", attrs, &inputs)
    }

    /// Adds a node that joins tensors of codes.
    fn joined(
        &mut self,
        graph: &mut Graph,
        id: NodeId,
        inputs: &[Output],
        to: Steps,
    ) -> Result<Option<Output>> {
        let mut parts = Vec::new();
        for input in inputs {
            let Some((codes, from)) = self.codes_of(graph, *input)? else {
                return Ok(None);
            };
            parts.push(match from == to {
                true => codes,
                false => self.combined(graph, id, &[(codes, from)], to, ALL)?,
            });
        }
        let mut node: Node = graph.node(id).clone();
        node.name = graph.unique_name(&format!("{}/int8", node.name));
        for (input, codes) in node.inputs.iter_mut().zip(parts) {
            *input = codes;
        }
        node.attrs.set("T", AttrValue::Type(DType::Uint8));
        node.outputs[0] = DType::Uint8;
        Ok(Some(Output::new(self.patch.add(graph, node)?, 0)))
    }
}

fn steps_attrs(steps: Steps) -> Attrs {
    Attrs::default()
        .with("scale", AttrValue::Float(steps.scale))
        .with("zero", AttrValue::Int(i64::from(steps.zero)))
}
