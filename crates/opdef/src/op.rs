//! [`Op`]: a row of an op file, with everything about one op.

use crate::{Attrs, GradientFn, GradientRule, KernelBuild, OpKernel, ShapeCtx};
use ferroflow_base::Result;

/// Infers output shapes; see [`ShapeCtx`].
pub type ShapeFn = fn(&mut ShapeCtx) -> Result<()>;

/// The shape function of an op that a program defines while it runs.
pub type DefinedShapeFn = &'static (dyn Fn(&mut ShapeCtx) -> Result<()> + Send + Sync);

/// Builds the kernel of one node, checking attrs once.
pub type KernelFactory = fn(&KernelBuild) -> Result<Box<dyn OpKernel>>;

/// The cost of an execution, for scheduling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cost {
    /// Always tens of nanoseconds: runs inline on the thread that made its inputs ready.
    Cheap,
    /// Proportional to the bytes of inputs and outputs: inexpensive while inputs are small.
    BySize,
    /// Worth a task of its own.
    Expensive,
    /// May wait for other ops: started by [`OpKernel::start`], finished by callback.
    Async,
}

/// An op: name, signature, shape function, CPU kernel and gradient.
///
/// ```
/// use ferroflow_opdef::{Cost, KernelCtx, Op};
/// const NO_OP: Op = Op::new("NoOp", "->")
///     .cost(Cost::Cheap)
///     .kernel(|_| Ok(Box::new(|_: &mut KernelCtx| Ok(()))));
/// assert_eq!(NO_OP.name, "NoOp");
/// ```
#[derive(Clone, Copy)]
pub struct Op {
    /// TensorFlow's op type; names that begin with `_` are internal.
    pub name: &'static str,
    /// The signature text; [`OpDef::parse`](crate::OpDef::parse) has the grammar.
    pub signature: &'static str,
    /// Shape function; the default leaves the outputs unknown.
    pub shape: ShapeFn,
    /// Takes the place of `shape` in ops of [`Registry::define_op`](crate::Registry::define_op).
    pub defined_shape: Option<DefinedShapeFn>,
    /// The CPU kernel; `None` for ops that engines or passes handle themselves.
    pub kernel: Option<KernelFactory>,
    /// Scheduling cost.
    pub cost: Cost,
    /// Scheduling cost of a node, where its attrs decide it.
    pub cost_of: Option<fn(&Attrs) -> Cost>,
    /// The gradient rule.
    pub gradient: GradientRule,
}

impl Op {
    /// Creates an op with unknown output shapes, no kernel and `Cost::BySize`.
    pub const fn new(name: &'static str, signature: &'static str) -> Op {
        Op {
            name,
            signature,
            shape: |_| Ok(()),
            defined_shape: None,
            kernel: None,
            cost: Cost::BySize,
            cost_of: None,
            gradient: GradientRule::Undefined,
        }
    }

    /// Sets the shape function.
    #[must_use]
    pub const fn shape(mut self, shape: ShapeFn) -> Op {
        self.shape = shape;
        self
    }

    /// Infers the shapes of the outputs.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the shapes of the inputs do not fit.
    pub fn infer_shapes(&self, ctx: &mut ShapeCtx) -> Result<()> {
        match self.defined_shape {
            Some(shape) => shape(ctx),
            None => (self.shape)(ctx),
        }
    }

    /// Sets the CPU kernel.
    #[must_use]
    pub const fn kernel(mut self, kernel: KernelFactory) -> Op {
        self.kernel = Some(kernel);
        self
    }

    /// Sets the scheduling cost.
    #[must_use]
    pub const fn cost(mut self, cost: Cost) -> Op {
        self.cost = cost;
        self
    }

    /// Sets the function that returns the scheduling cost of a node with some attrs.
    #[must_use]
    pub const fn cost_of(mut self, cost: fn(&Attrs) -> Cost) -> Op {
        self.cost_of = Some(cost);
        self
    }

    /// Returns the scheduling cost of a node with these attrs.
    pub fn node_cost(&self, attrs: &Attrs) -> Cost {
        self.cost_of.map_or(self.cost, |cost| cost(attrs))
    }

    /// Sets the function that writes the gradient.
    #[must_use]
    pub const fn gradient(mut self, gradient: GradientFn) -> Op {
        self.gradient = GradientRule::Function(gradient);
        self
    }

    /// Declares that the op is not differentiable.
    #[must_use]
    pub const fn not_differentiable(mut self) -> Op {
        self.gradient = GradientRule::None;
        self
    }
}
