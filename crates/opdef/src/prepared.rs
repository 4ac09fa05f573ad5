//! Ops that run one at a time, without a graph: a [`PreparedOp`] is the kernel of an op for fixed
//! input dtypes.

use crate::{
    ArgDef, ArgType, AttrType, AttrValue, Attrs, Cost, KernelBuild, KernelCtx, NodeClass, NodeInfo,
    Op, OpDef, OpKernel, Registry, ShapeCtx, StepServices, Value,
};
use ferroflow_base::{Result, Status, internal, invalid_argument, not_found, unimplemented_error};
use ferroflow_sync::FlushDenormals;
use ferroflow_tensor::{DType, PartialShape, Tensor};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::{Arc, PoisonError, RwLock};

/// An op with its attrs and the types of its inputs, ready to run any number of times.
///
/// ```
/// use ferroflow_opdef::{Attrs, Op, PreparedOp, Registry};
/// use ferroflow_tensor::DType;
/// const OPS: &[Op] = &[Op::new("Same", "x: T -> y: T | T: type").kernel(|_| {
///     Ok(Box::new(|ctx: &mut ferroflow_opdef::KernelCtx| {
///         let x = ctx.take_input(0)?;
///         ctx.set_output(0, x)
///     }))
/// })];
/// let registry = Registry::new(&[("test", &[("same", OPS)])]);
/// let op = PreparedOp::new(&registry, "Same", &Attrs::default(), &[DType::Float])?;
/// assert_eq!(op.outputs(), [DType::Float]);
/// assert!(PreparedOp::new(&registry, "Same", &Attrs::default(), &[]).is_err());
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub struct PreparedOp {
    /// The attrs passed by the caller.
    given: Attrs,
    info: NodeInfo,
    op: &'static Op,
    def: Arc<OpDef>,
    attrs: Attrs,
    inputs: SmallVec<[DType; 4]>,
    outputs: SmallVec<[DType; 4]>,
    kernel: Box<dyn OpKernel>,
}

/// Returns whether engines run the op without a kernel because its outputs are its inputs.
fn is_forwarded(def: &OpDef) -> bool {
    matches!(def.class(), NodeClass::Identity | NodeClass::NoOp)
}

fn forward(ctx: &mut KernelCtx) -> Result<()> {
    for i in 0..ctx.num_outputs() {
        let value = ctx.take_input(i)?;
        ctx.set_output(i, value)?;
    }
    Ok(())
}

impl PreparedOp {
    /// Completes the attrs from the types of the inputs and builds the kernel.
    ///
    /// # Errors
    /// NOT_FOUND if the op is not registered; INVALID_ARGUMENT if attrs or dtypes do not fit its
    /// schema or there is no kernel for them; UNIMPLEMENTED for ops that only run in graphs.
    pub fn new(
        registry: &Registry,
        op: &str,
        attrs: &Attrs,
        inputs: &[DType],
    ) -> Result<PreparedOp> {
        let unknown = || not_found!("Op type not registered '{op}'");
        let row = registry.op(op).ok_or_else(unknown)?;
        let def = registry.def(op)?.ok_or_else(unknown)?;
        let given = attrs;
        let mut attrs = given.clone();
        if let Some((name, _)) = attrs.iter().find(|(n, _)| def.attr(n).is_none()) {
            return Err(invalid_argument!("op {op} has no attr '{name}'"));
        }
        infer_attrs(&def, &mut attrs, inputs)?;
        def.complete_attrs(&mut attrs).map_err(|e| {
            let text = format!("{}\n\t; NodeDef: {{{{node {op}}}}}; {def}", e.message());
            Status::new(e.code(), text).at_node(op, op)
        })?;
        check_inputs(&def, &def.input_dtypes(&attrs)?, inputs)?;
        let outputs = def.output_dtypes(&attrs)?;
        let info = NodeInfo {
            name: op.to_string(),
            op: op.to_string(),
        };
        let kernel = match registry.has_kernel(op) {
            true => registry.build_kernel(&KernelBuild {
                node: op,
                device: "",
                def: &def,
                attrs: &attrs,
                inputs,
                outputs: &outputs,
                constants: &[],
            })?,
            false if is_forwarded(&def) => Box::new(forward),
            false => {
                return Err(unimplemented_error!("op {op} cannot run outside a graph"));
            }
        };
        Ok(PreparedOp {
            given: given.clone(),
            info,
            op: row,
            def,
            attrs,
            inputs: inputs.into(),
            outputs,
            kernel,
        })
    }

    /// Returns the dtypes of the inputs.
    #[inline]
    pub fn inputs(&self) -> &[DType] {
        &self.inputs
    }

    /// Returns the dtypes of the outputs.
    #[inline]
    pub fn outputs(&self) -> &[DType] {
        &self.outputs
    }

    /// Returns the scheduling cost.
    #[inline]
    pub fn cost(&self) -> Cost {
        self.op.cost
    }

    /// Returns whether runs have effects besides their outputs.
    pub fn is_stateful(&self) -> bool {
        self.def.flags.stateful || self.inputs.contains(&DType::Resource)
    }

    /// Returns the kernel, for ops of [`Cost::Async`].
    pub fn kernel(&self) -> &dyn OpKernel {
        &*self.kernel
    }

    /// Returns the shapes of the outputs, as far as the input shapes determine them.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if the input shapes do not fit.
    pub fn shapes(
        &self,
        inputs: &[PartialShape],
        values: &[Option<Tensor>],
    ) -> Result<Vec<PartialShape>> {
        let n = self.outputs.len();
        let mut ctx = ShapeCtx::new(&self.attrs, inputs, &self.inputs, values, n);
        if is_forwarded(&self.def) {
            (0..n).for_each(|i| ctx.set(i, inputs.get(i).cloned().unwrap_or_default()));
            return Ok(ctx.into_outputs());
        }
        self.op.infer_shapes(&mut ctx).map_err(|e| self.at(e))?;
        Ok(ctx.into_outputs())
    }

    /// Runs the kernel, which may overwrite buffers that only `inputs` own.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if number or dtypes of the inputs differ from the prepared ones; else those
    /// of the kernel.
    #[inline]
    pub fn run(
        &self,
        inputs: &mut [Value],
        outputs: &mut [Value],
        services: &StepServices,
    ) -> Result<()> {
        let _flush = FlushDenormals::new();
        let mut ctx = KernelCtx::new(&self.info, inputs, &[], outputs, services);
        self.kernel.compute(&mut ctx).map_err(|e| self.at(e))?;
        match outputs.iter().any(|o| matches!(o, Value::Empty)) {
            false => Ok(()),
            true => Err(internal!("op {} left an output unset", self.op.name)),
        }
    }

    #[cold]
    fn at(&self, error: Status) -> Status {
        error.at_node(self.op.name, self.op.name)
    }
}

/// A cache of prepared ops, by name, attrs and dtypes of inputs.
pub struct PreparedOps {
    registry: &'static Registry,
    by_name: RwLock<FxHashMap<String, Vec<Arc<PreparedOp>>>>,
}

/// Ops kept per name, which bounds the memory for attrs that always differ.
const MAX_KEPT: usize = 256;

impl PreparedOps {
    /// Returns an empty cache of ops of `registry`.
    pub fn new(registry: &'static Registry) -> PreparedOps {
        PreparedOps {
            registry,
            by_name: RwLock::default(),
        }
    }

    /// Returns the op, from the cache or new.
    ///
    /// # Errors
    /// As for [`PreparedOp::new`].
    pub fn get(&self, op: &str, attrs: &Attrs, inputs: &[DType]) -> Result<Arc<PreparedOp>> {
        let by_name = self.by_name.read().unwrap_or_else(PoisonError::into_inner);
        let fits = |op: &&Arc<PreparedOp>| op.inputs() == inputs && op.given.same_values(attrs);
        let found = by_name.get(op).and_then(|list| list.iter().find(fits));
        if let Some(op) = found {
            return Ok(op.clone());
        }
        drop(by_name);
        let prepared = Arc::new(PreparedOp::new(self.registry, op, attrs, inputs)?);
        let mut by_name = self.by_name.write().unwrap_or_else(PoisonError::into_inner);
        let list = by_name.entry(op.to_string()).or_default();
        if list.len() < MAX_KEPT {
            list.push(prepared.clone());
        }
        Ok(prepared)
    }
}

/// Returns the number of inputs of an argument, if attrs say it.
fn given_count(arg: &ArgDef, attrs: &Attrs) -> Result<Option<usize>> {
    Ok(match arg {
        ArgDef::Single { .. } => Some(1),
        ArgDef::Repeated { number, .. } => match attrs.get(number) {
            Some(_) => usize::try_from(attrs.int(number)?).ok(),
            None => None,
        },
        ArgDef::List { types, .. } => match attrs.get(types) {
            Some(_) => Some(attrs.dtypes(types)?.len()),
            None => None,
        },
    })
}

/// Infers dtypes and counts from the inputs.
fn infer_attrs(def: &OpDef, attrs: &mut Attrs, inputs: &[DType]) -> Result<()> {
    let op = &def.name;
    let is_long = |arg: &&ArgDef| !matches!(arg, ArgDef::Single { .. });
    let n_single = def.inputs.iter().filter(|a| !is_long(a)).count();
    let n_long = def.inputs.len() - n_single;
    let wrong_count = || {
        invalid_argument!(
            "op {op} expects {}{n_single} inputs, got {}",
            if n_long > 0 { "at least " } else { "" },
            inputs.len()
        )
    };
    let spread = inputs.len().checked_sub(n_single).ok_or_else(wrong_count)?;
    if n_long == 0 && spread > 0 {
        return Err(wrong_count());
    }
    let mut rest = inputs;
    let mut n_left = n_long;
    let mut left = spread;
    for arg in &def.inputs {
        let given = given_count(arg, attrs)?;
        // Lists of unspecified length share the remaining inputs.
        let count = given.unwrap_or(left / n_left.max(1));
        let (mine, others) = rest.split_at_checked(count).ok_or_else(wrong_count)?;
        rest = others;
        if is_long(&arg) {
            left = left.saturating_sub(count);
            n_left = n_left.saturating_sub(1);
        }
        let set_type = |ty: &ArgType, attrs: &mut Attrs| {
            if let (ArgType::Attr(name), Some(first)) = (ty, mine.first())
                && attrs.get(name).is_none()
            {
                attrs.set(name.clone(), AttrValue::Type(*first));
            }
        };
        match arg {
            ArgDef::Single { ty, .. } => set_type(ty, attrs),
            ArgDef::Repeated { number, ty, .. } => {
                set_type(ty, attrs);
                if given.is_none() {
                    attrs.set(number.clone(), AttrValue::Int(count as i64));
                }
            }
            ArgDef::List { types, .. } => {
                if given.is_none() {
                    let list = mine.iter().map(|t| AttrValue::Type(*t)).collect();
                    attrs.set(types.clone(), AttrValue::List(list));
                }
            }
        }
    }
    // An attr that is neither inferred nor has a default must be passed; report type attrs first.
    match def
        .attrs
        .iter()
        .find(|a| a.ty == AttrType::Type && a.default.is_none() && attrs.get(&a.name).is_none())
    {
        Some(attr) => Err(not_found!(
            "No attr named '{}' in NodeDef:\n\t [[{{{{node {op}}}}}]]",
            attr.name
        )),
        None => Ok(()),
    }
}

fn check_inputs(def: &OpDef, expected: &[DType], inputs: &[DType]) -> Result<()> {
    let op = &def.name;
    if expected.len() != inputs.len() {
        return Err(invalid_argument!(
            "op {op} expects {} inputs, got {}",
            expected.len(),
            inputs.len()
        ));
    }
    let mut pairs = expected.iter().zip(inputs).enumerate();
    match pairs.find(|(_, (want, got))| want != got) {
        None => Ok(()),
        Some((i, (want, got))) => Err(invalid_argument!(
            "cannot compute {op} as input #{i}(zero-based) was expected to be a {want} tensor but is \
             a {got} tensor"
        )),
    }
}
