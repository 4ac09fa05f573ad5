//! The reverse traversal from the ys to the xs.

use super::emit::{Emit, Emitter, NodeScope};
use super::is_differentiable;
use super::reach::{GradientRequest, Reach, Unit};
use super::{Gradient, GradientOptions, IndexedSlices, Unconnected};
use crate::{GraphBuilder, Node, NodeId, Output};
use ferroflow_base::{Result, Status, internal, invalid_argument, not_found, unimplemented_error};
use ferroflow_opdef::{Expr, GradientCtx, GradientNode, GradientRule, NodeClass, Op};
use ferroflow_tensor::DType;
use rustc_hash::{FxHashMap, FxHashSet};

/// On a node whose gradient is not that of its op; on calls it has no meaning.
const OVERRIDE: &str = "_gradient_op_type";

/// Adds the gradients; without slices when `dense`.
pub(super) fn gradients(
    builder: &mut GraphBuilder,
    ys: &[Output],
    xs: &[Output],
    options: &GradientOptions,
    dense: bool,
) -> Result<Vec<Option<Gradient>>> {
    check(builder, ys, xs, options)?;
    let home = builder.current;
    let xs: Vec<Output> = xs
        .iter()
        .map(|x| builder.route(*x, home))
        .collect::<Result<_>>()?;
    let frames = crate::loop_frames(&builder.graph)?;
    let shapes = crate::infer_shapes(&builder.graph, builder.registry).unwrap_or_default();
    let scope = builder.unique_scope(&options.name);
    let scope = scope.trim_end_matches('/').to_string();
    let stops: FxHashSet<Output> = options.stop_gradients.iter().copied().collect();
    let ends = GradientRequest {
        ys,
        xs: &xs,
        stops: &stops,
        integers: options.integers,
    };
    let reach = Reach::new(&builder.graph, &frames, &ends)?;
    // Of nothing there are gradients too: none, or zeros where the xs are.
    let anchor = ys.first().or(xs.first()).copied();
    let base = anchor.and_then(|a| frames.after(&builder.graph, a.node));
    let pivot = anchor.map(|a| a.node).filter(|_| base.is_some());
    let emit = Emit::new(builder, frames, shapes, scope, base, pivot);
    for value in ys.iter().chain(&xs) {
        let place = emit.place(*value);
        if place != NodeScope::Forward(base) && place != NodeScope::Anywhere {
            return Err(invalid_argument!(
                "'{}' is in another loop than '{}': gradients are taken of and by values of one loop",
                emit.builder.graph.output_name(*value),
                emit.builder.graph.output_name(anchor.unwrap_or(*value))
            ));
        }
    }
    let mut emit = emit;
    if !emit.frames.loops.is_empty() {
        emit.find_loops()?;
    }
    let emitter = Emitter::new(emit);
    let mut walk = Walk {
        emitter: &emitter,
        reach: &reach,
        xs: xs.iter().copied().collect(),
        stops,
        found: FxHashMap::default(),
    };
    walk.start(ys, &options.grad_ys)?;
    walk.frame(base, 0)?;
    let mut results = Vec::with_capacity(xs.len());
    for x in &xs {
        emitter.turn_to(0, "");
        results.push(walk.result(*x, options.unconnected, dense)?);
    }
    emitter.emit().pin_constants()?;
    Ok(results)
}

fn check(
    builder: &GraphBuilder,
    ys: &[Output],
    xs: &[Output],
    options: &GradientOptions,
) -> Result<()> {
    for value in xs.iter().chain(&options.stop_gradients) {
        builder.dtype(*value)?;
    }
    let given = &options.grad_ys;
    if !given.is_empty() && given.len() != ys.len() {
        return Err(invalid_argument!(
            "Passed {} grad_ys for {} ys",
            given.len(),
            ys.len()
        ));
    }
    for (i, y) in ys.iter().enumerate() {
        let dtype = builder.dtype(*y)?;
        let name = builder.graph.output_name(*y);
        if !is_differentiable(dtype, options.integers) {
            return Err(invalid_argument!(
                "the gradient of '{name}' was asked for, but it is {dtype}: only floating-point and \
                 complex tensors have gradients"
            ));
        }
        match given.get(i).copied().flatten() {
            Some(gradient) => {
                let got = builder.dtype(gradient)?;
                if got != dtype && dtype != DType::Resource {
                    return Err(invalid_argument!(
                        "Gradient type {got} generated for tensor '{name}' of type {dtype} must \
                         match it"
                    ));
                }
            }
            None if dtype.is_complex() => {
                return Err(invalid_argument!(
                    "Gradients of complex tensors must set grad_ys ('{name}' is {dtype})"
                ));
            }
            None => {}
        }
    }
    Ok(())
}

/// A gradient while it is written.
pub(super) type Term<'w> = ferroflow_opdef::Gradient<Expr<'w>>;

/// A walk through the graph against its edges.
pub(super) struct Walk<'w, 'a, 'r> {
    pub(super) emitter: &'w Emitter<'a, 'r>,
    pub(super) reach: &'w Reach,
    pub(super) xs: FxHashSet<Output>,
    stops: FxHashSet<Output>,
    /// The terms of each value's gradient.
    pub(super) found: FxHashMap<Output, Vec<Gradient>>,
}

impl<'w> Walk<'w, '_, '_> {
    fn start(&mut self, ys: &[Output], given: &[Option<Output>]) -> Result<()> {
        for (i, y) in ys.iter().enumerate() {
            self.emitter.turn_to(0, &format!("grad_ys_{i}"));
            let start = match given.get(i).copied().flatten() {
                Some(gradient) => {
                    let (own, its) = (self.shape(*y), self.shape(gradient));
                    if !own.is_compatible_with(&its) {
                        return Err(invalid_argument!(
                            "grad_ys has shape {its} for '{}', which has shape {own}",
                            self.emitter.emit().builder.graph.output_name(*y)
                        ));
                    }
                    gradient
                }
                None => self.ones(*y),
            };
            self.emitter.check()?;
            self.add(*y, Gradient::Dense(start));
        }
        Ok(())
    }

    fn shape(&self, value: Output) -> ferroflow_tensor::PartialShape {
        self.emitter.expr(value).shape()
    }

    fn ones(&self, y: Output) -> Output {
        let y = self.emitter.expr(y);
        let ones = match y.shape().to_full() {
            Some(shape) if shape.is_scalar() => y.number(1.0),
            Some(_) => y.shape_of().op("Fill", &[y.number(1.0)]),
            None => y.op("OnesLike", &[]),
        };
        ones.output()
    }

    /// The gradient of `x`; without slices when `dense`.
    fn result(
        &mut self,
        x: Output,
        unconnected: Unconnected,
        dense: bool,
    ) -> Result<Option<Gradient>> {
        let result = match self.total(x)? {
            Some(total @ Gradient::Slices(_)) if dense => {
                Some(Gradient::Dense(self.term(total).dense().output()))
            }
            None if unconnected == Unconnected::Zero => {
                let zeros = self.emitter.expr(x).zeros_like();
                Some(Gradient::Dense(zeros.output()))
            }
            total => total,
        };
        self.emitter.check()?;
        Ok(result)
    }

    /// Notes a term of the gradient of `value`.
    pub(super) fn add(&mut self, value: Output, gradient: Gradient) {
        self.found.entry(value).or_default().push(gradient);
    }

    /// A gradient as an expression.
    pub(super) fn term(&self, gradient: Gradient) -> Term<'w> {
        gradient.map(|value| Expr::new(self.emitter, value))
    }

    /// The sum of all that came to `value`.
    pub(super) fn total(&mut self, value: Output) -> Result<Option<Gradient>> {
        let Some(terms) = self.found.remove(&value) else {
            return Ok(None);
        };
        let total = match terms[..] {
            [one] => one,
            _ => self.sum(&terms),
        };
        self.emitter.check()?;
        self.found.insert(value, vec![total]);
        Ok(Some(total))
    }

    fn sum(&self, terms: &[Gradient]) -> Gradient {
        let all: Vec<Term> = terms.iter().map(|t| self.term(*t)).collect();
        let slices: Option<Vec<_>> = all
            .iter()
            .map(|t| match t {
                Term::Slices(s) => Some(*s),
                Term::Dense(_) => None,
            })
            .collect();
        match slices.as_deref() {
            Some(slices @ [first, ..]) => {
                let zero = first.values.int(0);
                let joined = |of: fn(&ferroflow_opdef::IndexedSlices<Expr<'w>>) -> Expr<'w>| {
                    let mut parts: Vec<Expr> = slices.iter().map(of).collect();
                    parts.push(zero);
                    zero.make("ConcatV2", &parts, &[]).output()
                };
                // Indices of different widths meet as int64.
                let wide = slices.iter().any(|s| s.indices.dtype() != DType::Int32);
                let indices = match wide {
                    false => joined(|s| s.indices),
                    true => joined(|s| s.indices.cast(DType::Int64)),
                };
                Gradient::Slices(IndexedSlices {
                    values: joined(|s| s.values),
                    indices,
                    dense_shape: first.dense_shape.output(),
                })
            }
            _ => {
                let parts: Vec<Expr> = all.into_iter().map(Term::dense).collect();
                let sum = parts.first().map(|p| p.make("AddN", &parts, &[]).output());
                sum.map_or(terms[0], Gradient::Dense)
            }
        }
    }

    /// Goes through the units of a loop, or of the graph, and writes into `region`.
    pub(super) fn frame(&mut self, frame: Option<usize>, region: usize) -> Result<()> {
        let reach = self.reach;
        for unit in reach.units(frame).iter().rev() {
            match *unit {
                Unit::Node(id) => self.node(id, region)?,
                Unit::Loop(of) => self.reverse(of, region)?,
            }
        }
        Ok(())
    }

    /// Whether the gradient of `value` is of use.
    pub(super) fn is_needed(&self, value: Output) -> bool {
        let dtype = self.emitter.emit().builder.graph.dtype(value);
        let on_the_way = self.reach.is_between(value.node) && !self.stops.contains(&value);
        dtype.is_some_and(|t| self.reach.goes_through(t))
            && (on_the_way || self.xs.contains(&value))
    }

    fn node(&mut self, id: NodeId, region: usize) -> Result<()> {
        let node = self.emitter.emit().builder.graph.node(id).clone();
        let needed: Vec<bool> = node.inputs.iter().map(|i| self.is_needed(*i)).collect();
        if !needed.contains(&true) {
            return Ok(());
        }
        self.emitter.turn_to(region, &format!("{}_grad", node.name));
        let mut arrived = Vec::with_capacity(node.outputs.len());
        for slot in 0..node.outputs.len() {
            let value = Output::new(id, slot);
            arrived.push(match self.stops.contains(&value) {
                true => None,
                false => self.total(value)?,
            });
        }
        if arrived.iter().all(Option::is_none) {
            return Ok(());
        }
        let at = |e: Status| {
            e.at_node(&node.name, node.op()).note(format!(
                "(its gradient was being written, on the way {})",
                self.path(id)
            ))
        };
        let results = self.of_node(id, &node, &needed, &arrived).map_err(at)?;
        for ((input, needed), result) in node.inputs.iter().zip(needed).zip(results) {
            if let Some(gradient) = result.filter(|_| needed) {
                self.add(*input, gradient);
            }
        }
        Ok(())
    }

    fn path(&self, id: NodeId) -> String {
        self.reach.path(&self.emitter.emit().builder.graph, id)
    }

    fn of_node(
        &self,
        id: NodeId,
        node: &Node,
        needed: &[bool],
        arrived: &[Option<Gradient>],
    ) -> Result<Vec<Option<Gradient>>> {
        if let Some(results) = self.of_control_flow(id, node, arrived)? {
            return Ok(results);
        }
        if let Some(results) = self.of_call(id, node, needed, arrived)? {
            return Ok(results);
        }
        if let Ok(of) = node.attrs.str(OVERRIDE)
            && !self
                .emitter
                .emit()
                .builder
                .gradient_functions
                .ignore_overrides
        {
            return Err(unimplemented_error!(
                "the gradient of '{}' is '{of}' (attr '{OVERRIDE}'), a function of the program that \
                 made the graph; with `ignore_overrides` the gradient of op {} is taken instead",
                node.name,
                node.op()
            ));
        }
        let registry = self.emitter.emit().builder.registry;
        let rule = registry.op(node.op()).map(|op: &Op| op.gradient);
        let function = match rule {
            Some(GradientRule::Function(function)) => function,
            Some(GradientRule::None) => return Ok(Vec::new()),
            Some(GradientRule::Undefined) | None => {
                let hint = match node.class() == NodeClass::While {
                    true => "; lower the graph first: gradients go through Switch, Merge and loops",
                    false => "",
                };
                return Err(not_found!(
                    "No gradient defined for operation '{}' (op type: {}){hint}",
                    node.name,
                    node.op()
                ));
            }
        };
        let outputs: Vec<Output> = (0..node.outputs.len())
            .map(|slot| Output::new(id, slot))
            .collect();
        let terms = arrived.iter().map(|g| g.map(|g| self.term(g)));
        let described = GradientNode {
            name: &node.name,
            op: node.op(),
            attrs: &node.attrs,
            inputs: &node.inputs,
            outputs: &outputs,
            needed,
        };
        let mut ctx = GradientCtx::new(self.emitter, described, terms.collect());
        function(&mut ctx)?;
        let results: Vec<Option<Gradient>> = ctx
            .into_results()
            .into_iter()
            .map(|r| Some(r?.map(Expr::output)))
            .collect();
        self.emitter.check()?;
        for (input, result) in node.inputs.iter().zip(&results) {
            self.check_dtype(*input, *result)?;
        }
        Ok(results)
    }

    fn check_dtype(&self, input: Output, result: Option<Gradient>) -> Result<()> {
        let value = match result {
            None => return Ok(()),
            Some(Gradient::Dense(value)) => value,
            Some(Gradient::Slices(slices)) => slices.values,
        };
        let emit = self.emitter.emit();
        let (got, want) = (emit.builder.dtype(value)?, emit.builder.dtype(input)?);
        if got != want && want != DType::Resource {
            return Err(internal!("the gradient of a {want} input is {got}"));
        }
        Ok(())
    }
}
