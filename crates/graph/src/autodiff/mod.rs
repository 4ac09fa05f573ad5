//! Gradients: [`GraphBuilder::gradients`] adds the nodes that compute the derivatives of some values
//! by others.
//!
//! `reach.rs` finds the nodes between the two and their order, `walk.rs` goes through them backwards
//! and asks each op's gradient function, `emit.rs` is the graph that those functions write to,
//! `loops.rs` and `conditionals.rs` turn control flow round, `calls.rs` makes functions of gradients,
//! `apart.rs` says what a function keeps for its gradient.

mod apart;
mod branches;
mod calls;
mod conditionals;
mod emit;
mod loops;
mod reach;
mod sums;
mod walk;

use crate::{GraphBuilder, Output};
pub(crate) use calls::GradientFunctions;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::Symbol;
use ferroflow_tensor::DType;

/// A gradient by [`GraphBuilder::gradients_as_slices`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Gradient {
    /// A tensor.
    Dense(Output),
    /// Slices of a tensor that is zero elsewhere, as the gradient of a Gather is.
    Slices(IndexedSlices),
}

/// Slices of a tensor; several may belong to the same place and count together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct IndexedSlices {
    /// The slices, one behind the other.
    pub values: Output,
    /// Where in the first dimension each belongs.
    pub indices: Output,
    /// The shape of the tensor.
    pub dense_shape: Output,
}

/// What becomes of values that nothing connects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Unconnected {
    /// They have no gradient.
    #[default]
    None,
    /// Their gradient is zero.
    Zero,
}

/// How gradients are made.
#[derive(Clone, Debug)]
pub struct GradientOptions {
    /// The scope of the new nodes.
    pub name: String,
    /// The gradients of the `ys`; ones where there is none.
    pub grad_ys: Vec<Option<Output>>,
    /// Values that count as constants.
    pub stop_gradients: Vec<Output>,
    /// What becomes of an `x` that no `y` depends on.
    pub unconnected: Unconnected,
    /// Where a node says that its gradient is a function of the program that made the graph
    /// (`tf.custom_gradient`, `gradient_override_map`), take that of its op. It is an error
    /// otherwise: a graph does not hold such functions.
    pub ignore_overrides: bool,
}

impl Default for GradientOptions {
    fn default() -> Self {
        GradientOptions {
            name: "gradients".to_string(),
            grad_ys: Vec::new(),
            stop_gradients: Vec::new(),
            unconnected: Unconnected::None,
            ignore_overrides: false,
        }
    }
}

fn symbol(output: Output) -> Symbol {
    Symbol {
        node: output.node.index() as u32,
        slot: output.slot,
    }
}

fn output(symbol: Symbol) -> Output {
    Output::new(
        crate::NodeId::new(symbol.node as usize),
        symbol.slot as usize,
    )
}

/// Whether gradients go through values of this dtype. The gradient of a resource is that of the
/// variable behind it, that of a variant a list of gradients.
fn is_differentiable(dtype: DType) -> bool {
    let is_handle = matches!(dtype, DType::Resource | DType::Variant);
    dtype.is_floating() || dtype.is_complex() || is_handle
}

impl GraphBuilder<'_> {
    /// Adds the derivatives of the sum of `ys` by each of `xs`: for an x that no y depends on
    /// there is none. The handle of a variable, or a `VariableV2`, stands for all that reads the variable.
    /// An example is at the runtime's `building`.
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
        let xs = xs
            .iter()
            .map(|x| crate::references::variable(&self.graph, *x));
        let xs: Vec<Output> = xs.collect();
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
