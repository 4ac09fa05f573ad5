//! What a plan of scalars computes, if that is simple: kernels that call functions compute such ones themselves.

use super::body::{Action, NodeIdx};
use super::plan::{EdgeKind, Node, Plan};

/// Ops of pure functions that broadcast their inputs and compute each element of its own.
const ELEMENTWISE: &[&str] = &[
    "Abs",
    "Add",
    "AddV2",
    "BitwiseAnd",
    "BitwiseOr",
    "BitwiseXor",
    "Cast",
    "Ceil",
    "Div",
    "Equal",
    "Exp",
    "Expm1",
    "Floor",
    "Greater",
    "GreaterEqual",
    "Invert",
    "IsFinite",
    "IsNan",
    "Less",
    "LessEqual",
    "Log",
    "Log1p",
    "LogicalAnd",
    "LogicalNot",
    "LogicalOr",
    "Maximum",
    "Minimum",
    "Mul",
    "Neg",
    "NotEqual",
    "Pow",
    "RealDiv",
    "Rsqrt",
    "SelectV2",
    "Sigmoid",
    "Sign",
    "Sqrt",
    "Square",
    "Sub",
    "Tanh",
];

impl Plan {
    /// Returns the op of a plan that is one kernel, of all arguments in their order, whose only output is the only result.
    pub fn only_op(&self) -> Option<&str> {
        let root = self.root();
        let is_arg = |i: &usize| matches!(self.nodes[*i].action, Action::Arg(_));
        let mut others = root.nodes().filter(|i| !is_arg(i));
        let (Some(i), None) = (others.next(), others.next()) else {
            return None;
        };
        let node = &self.nodes[i];
        let is_kernel = matches!(node.action, Action::Kernel(_));
        let leads_to = |from: &Node, kind: EdgeKind, slot: u32| match self.edges_of(from) {
            [edge] => edge.kind == kind && edge.slot == slot,
            _ => false,
        };
        let feeds = |(slot, arg): (usize, &Option<NodeIdx>)| {
            let slot = node.first_slot + slot as u32;
            arg.is_some_and(|arg| leads_to(&self.nodes[arg.index()], EdgeKind::Data, slot))
        };
        let fits = is_kernel
            && (self.frames.len(), root.n_results, node.n_outputs) == (1, 1, 1)
            && root.args.len() == node.n_inputs as usize
            && root.args.iter().enumerate().all(feeds)
            && leads_to(node, EdgeKind::Result, root.first_result);
        fits.then(|| self.info[i].op.as_str())
    }

    /// Returns the argument that is the only result of a plan without kernels.
    pub fn forwarded_arg(&self) -> Option<usize> {
        let root = self.root();
        let has_kernels = self.nodes.len() != root.args.iter().flatten().count();
        if has_kernels || (self.frames.len(), root.n_results) != (1, 1) {
            return None;
        }
        root.args.iter().position(|arg| {
            let edges = arg.map(|arg| self.edges_of(&self.nodes[arg.index()]));
            edges.is_some_and(|edges| edges.iter().any(|edge| edge.kind == EdgeKind::Result))
        })
    }

    /// Returns whether a plan of scalars computes the same of tensors, element by element.
    pub fn is_elementwise(&self) -> bool {
        let fits = |(node, info): (&Node, &ferroflow_opdef::NodeInfo)| match node.action {
            Action::Arg(_) | Action::Forward => true,
            Action::Kernel(_) => ELEMENTWISE.contains(&info.op.as_str()),
            _ => false,
        };
        self.frames.len() == 1
            && self
                .consts
                .iter()
                .all(|constant| constant.shape().is_scalar())
            && self.nodes.iter().zip(&self.info).all(fits)
    }
}
