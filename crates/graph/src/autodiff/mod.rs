//! Gradients: [`GraphBuilder::gradients`] adds the nodes that compute the derivatives of some values
//! by others.
//!
//! `reach.rs` finds the nodes between the two and their order, `walk.rs` goes through them backwards
//! and asks each op's gradient function, `emit.rs` is the graph that those functions write to,
//! `loops.rs`, `reverse.rs` and `conditionals.rs` reverse control flow, `calls.rs` makes functions of gradients,
//! `split.rs` splits a function with its gradient into the two.

mod branches;
mod calls;
mod conditionals;
mod emit;
mod loops;
mod reach;
mod reverse;
mod split;
mod sums;
mod walk;

use crate::{Graph, GraphBuilder, Output};
pub(crate) use calls::GradientFunctions;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::NodeClass;
use ferroflow_tensor::DType;

/// A gradient by [`GraphBuilder::gradients_as_slices`].
pub type Gradient = ferroflow_opdef::Gradient<Output>;
/// Slices of a tensor that is zero elsewhere.
pub type IndexedSlices = ferroflow_opdef::IndexedSlices<Output>;

/// The gradients of values that no y depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unconnected {
    /// They have no gradient.
    #[default]
    None,
    /// Their gradient is zero.
    Zero,
}

/// Options for gradients.
#[derive(Clone, Debug)]
pub struct GradientOptions {
    /// The scope of the new nodes.
    pub name: String,
    /// The gradients of the `ys`; ones where it is `None`.
    pub grad_ys: Vec<Option<Output>>,
    /// Values that count as constants.
    pub stop_gradients: Vec<Output>,
    /// The gradient of an `x` that no `y` depends on.
    pub unconnected: Unconnected,
    /// Where the gradient of a node is a function of the program that made the graph
    /// (`tf.custom_gradient`, `gradient_override_map`), take that of its op. It is an error
    /// otherwise: a graph does not hold such functions.
    pub ignore_overrides: bool,
    /// Whether gradients go through integers, too, as they do for TensorFlow's C++ clients.
    pub integers: bool,
}

impl Default for GradientOptions {
    fn default() -> Self {
        GradientOptions {
            name: "gradients".to_string(),
            grad_ys: Vec::new(),
            stop_gradients: Vec::new(),
            unconnected: Unconnected::None,
            ignore_overrides: false,
            integers: false,
        }
    }
}

/// Whether gradients go through values of this dtype. The gradient of a resource is that of the
/// variable behind it, that of a variant a list of gradients.
fn is_differentiable(dtype: DType, integers: bool) -> bool {
    let is_handle = matches!(dtype, DType::Resource | DType::Variant);
    dtype.is_floating() || dtype.is_complex() || is_handle || (integers && dtype.is_integer())
}

/// The handle of the variable that `output` is a read of, where the compiler has put a handle and reads
/// in the place of a variable that hands out references.
fn handle_behind(graph: &Graph, output: Output) -> Option<Output> {
    let node = graph.get(output.node)?;
    let &[handle] = node.inputs.as_slice() else {
        return None;
    };
    let holder = graph.get(handle.node)?.name.strip_suffix("/_handle");
    let is_read = node.class() == NodeClass::ReadVariable && holder == Some(node.name.as_str());
    is_read.then_some(handle)
}

impl GraphBuilder<'_> {
    /// Adds the derivatives of the sum of `ys` by each of `xs`: for an x that no y depends on
    /// it is `None`. The handle of a variable, or a `VariableV2`, stands for all that reads the variable.
    /// An example is at the runtime's `building`.
    ///
    /// # Errors
    /// An op between the two has no gradient, or a value has a dtype without gradients; the graph is then
    /// unchanged.
    pub fn gradients(
        &mut self,
        ys: &[Output],
        xs: &[Output],
        options: &GradientOptions,
    ) -> Result<Vec<Option<Output>>> {
        let all = self.all_gradients(ys, xs, options, true)?;
        all.into_iter()
            .map(|g| match g {
                None => Ok(None),
                Some(Gradient::Dense(value)) => Ok(Some(value)),
                Some(Gradient::Slices(_)) => {
                    Err(invalid_argument!("a gradient was left as slices"))
                }
            })
            .collect()
    }

    /// The same; gradients of gathered values stay slices.
    ///
    /// # Errors
    /// As [`gradients`](Self::gradients).
    pub fn gradients_as_slices(
        &mut self,
        ys: &[Output],
        xs: &[Output],
        options: &GradientOptions,
    ) -> Result<Vec<Option<Gradient>>> {
        self.all_gradients(ys, xs, options, false)
    }

    /// Adds the gradients and the functions they call; nothing when there is an error.
    fn all_gradients(
        &mut self,
        ys: &[Output],
        xs: &[Output],
        options: &GradientOptions,
        dense: bool,
    ) -> Result<Vec<Option<Gradient>>> {
        let n_before = self.graph.id_bound();
        let xs: Vec<Output> = xs
            .iter()
            .map(|x| handle_behind(&self.graph, *x).unwrap_or(*x))
            .collect();
        self.gradient_functions.ignore_overrides = options.ignore_overrides;
        let all = walk::gradients(self, ys, &xs, options, dense)
            .and_then(|all| self.make_gradient_functions().map(|()| all));
        let changed = std::mem::take(&mut self.changed);
        if all.is_err() {
            for (id, node) in changed.into_iter().rev() {
                self.graph.replace(id, node);
            }
            for id in n_before..self.graph.id_bound() {
                self.graph.remove(crate::NodeId::new(id));
            }
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{graph, registry};
    use crate::{GradientOptions, GraphBuilder, Output, to_text};

    /// The nodes that `dy/dx` adds to a graph, or the error.
    fn check(text: &str, expect: &str) {
        let graph = graph(text).expect("valid");
        let before = to_text(&graph);
        let output = |name| Output::new(graph.find(name).expect(name), 0);
        let (y, x) = (output("y"), output("x"));
        let mut b = GraphBuilder::from_graph(graph, registry());
        let got = match b.gradients(&[y], &[x], &GradientOptions::default()) {
            Ok(found) => {
                let found = found[0].map(|g| format!("return {}", b.graph().output_name(g)));
                let text = to_text(b.graph());
                let new = text
                    .lines()
                    .filter(|l| !before.lines().any(|old| old == *l));
                let new = new.map(|l| l.replace("gradients/", ""));
                new.chain(found).collect::<Vec<_>>().join("; ")
            }
            Err(e) => e.message().to_string(),
        };
        assert_eq!(got, expect, "{text}");
    }

    #[test]
    fn chains_and_sums() {
        check(
            "x = Placeholder\ny = Neg(x)",
            "grad_ys_0/OnesLike = OnesLike(y); y_grad/Neg = Neg(grad_ys_0/OnesLike); \
             return gradients/y_grad/Neg",
        );
        check(
            "x = Placeholder\ny = Mul(x, x)",
            "grad_ys_0/OnesLike = OnesLike(y); y_grad/Mul = Mul(grad_ys_0/OnesLike, x); \
             y_grad/Mul_1 = Mul(grad_ys_0/OnesLike, x); \
             AddN = AddN{N=2}(y_grad/Mul, y_grad/Mul_1); return gradients/AddN",
        );
        check(
            "x = Placeholder\nz = Placeholder\ny = Neg(z)",
            "grad_ys_0/OnesLike = OnesLike(y)",
        );
        check(
            "x = Placeholder\ny = Round(x)",
            "grad_ys_0/OnesLike = OnesLike(y)",
        );
        check(
            "x = Placeholder\ny = Hard(x)",
            "No gradient defined for operation 'y' (op type: Hard)",
        );
    }

    #[test]
    fn a_variable_that_hands_out_references() {
        check(
            "x = VariableV2\nr = Identity(x)\ny = Neg(r)",
            "grad_ys_0/OnesLike = OnesLike(y); y_grad/Neg = Neg(grad_ys_0/OnesLike); \
             return gradients/y_grad/Neg",
        );
    }
}
