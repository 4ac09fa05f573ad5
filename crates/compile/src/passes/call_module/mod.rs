//! Makes functions of graphs of the StableHLO programs that XlaCallModule calls (TensorFlow:
//! `compiler/tf2xla/kernels/xla_call_module_op.cc`; the ops: <https://openxla.org/stablehlo/spec>).
//!
//! Each function and each region of a program becomes a function of the library. In reading order: `scope.rs`, a function
//! while it is made; the ops by kind.

mod attrs;
mod control;
mod custom;
mod elementwise;
mod gradients;
mod indexing;
mod products;
mod reductions;
mod scope;
mod shapes;
mod sort;
mod threefry;
mod windows;

use super::composite::Expansion;
use crate::PassCtx;
use ferroflow_base::{
    Result, invalid_argument, not_found, resource_exhausted, unimplemented_error,
};
use ferroflow_graph::{Function, Node, Output};
use ferroflow_opdef::{AttrValue, Attrs, FuncRef};
use ferroflow_stablehlo::{Block, Module, Op, Type, ValueId};
use ferroflow_tensor::{DType, Tensor};
use rustc_hash::FxHashMap;
use scope::{Scope, Value};

/// The device that the program runs on, as the attr `platforms` names it.
const PLATFORM: &str = "CPU";

/// How deep functions may call each other, and how many ops there may be when all calls are inlined.
const MAX_DEPTH: usize = 500;
const MAX_OPS: usize = 2_000_000;

/// A module while its functions become those of a graph.
pub(super) struct Translator<'a> {
    ctx: &'a PassCtx<'a>,
    module: &'a Module,
    /// What the names of its functions begin with.
    prefix: String,
    /// The functions of the module that are done, by name.
    called: FxHashMap<String, String>,
    functions: Vec<(String, Function)>,
    /// The functions whose bodies are being made, which must not call themselves.
    open: Vec<String>,
    n_blocks: usize,
    /// The ops of the functions that are done, with those of the functions that they call.
    sizes: FxHashMap<String, usize>,
    /// The functions of the graph that the program calls.
    host_functions: Vec<FuncRef>,
}

/// XlaCallModule as a call of its program's function `main`.
pub(super) fn expand(this: &mut Expansion, mut node: Node) -> Result<Node> {
    let module = Module::read(&bytes(&node)?)?;
    let main = module.function("main");
    let main = main.ok_or_else(|| invalid_argument!("the program has no function main"))?;
    let mut inputs: Vec<Output> = platform_index(this, &node)?.into_iter().collect();
    inputs.extend(dimension_args(
        this,
        &node,
        main.body.args.get(inputs.len()),
    )?);
    let n_own = inputs.len();
    inputs.extend(node.inputs.iter().copied());
    let args = dtypes(main.body.args.iter().map(|(_, t)| t))?;
    if args.len() != inputs.len() {
        return Err(invalid_argument!(
            "Incorrect number of arguments passed to XlaCallModule = {}. It must be called with {} because the module \
             main function takes {} arguments and {n_own} platform index arguments, and dimension arguments.",
            node.inputs.len(),
            args.len() - n_own.min(args.len()),
            args.len()
        ));
    }
    let results = dtypes(main.results.iter())?;
    let (own, expected) = (node.attrs.dtypes("Tin")?, node.attrs.dtypes("Tout")?);
    if own != args[n_own..] || expected != results {
        return Err(invalid_argument!(
            "the program takes {:?} and returns {results:?}, but the node has {own:?} and {expected:?}",
            &args[n_own..]
        ));
    }
    let host_functions = match node.attrs.get("function_list") {
        Some(AttrValue::List(list)) => list.iter().filter_map(func).collect(),
        _ => Vec::new(),
    };
    let mut translator = Translator {
        ctx: this.ctx,
        module: &module,
        prefix: format!("__stablehlo_{}", node.name),
        called: FxHashMap::default(),
        functions: Vec::new(),
        open: Vec::new(),
        n_blocks: 0,
        sizes: FxHashMap::default(),
        host_functions,
    };
    let name = translator.function("main")?;
    for (name, function) in translator.functions {
        this.patch.add_function(this.graph, &name, function);
    }
    node.inputs = inputs.into_iter().collect();
    node.attrs = Attrs::default()
        .with("Tin", type_list(&args))
        .with("Tout", type_list(&results))
        .with("f", function_ref(&name));
    this.ctx.become_op(node, "PartitionedCall")
}

fn func(value: &AttrValue) -> Option<FuncRef> {
    match value {
        AttrValue::Func(f) => Some(f.clone()),
        _ => None,
    }
}

pub(super) fn function_ref(name: &str) -> AttrValue {
    AttrValue::Func(FuncRef {
        name: name.to_string(),
        attrs: Attrs::default(),
    })
}

/// A list of dtypes as an attr.
pub(super) fn type_list(dtypes: &[DType]) -> AttrValue {
    AttrValue::List(dtypes.iter().map(|t| (*t).into()).collect())
}

fn bytes(node: &Node) -> Result<Vec<u8>> {
    match node.attrs.get("module") {
        Some(AttrValue::Str(bytes)) => Ok(bytes.to_vec()),
        _ => Err(invalid_argument!("the node has no attr 'module'")),
    }
}

fn dtypes<'t>(types: impl Iterator<Item = &'t Type>) -> Result<Vec<DType>> {
    types.map(|t| Ok(scope::tensor_type(t)?.dtype)).collect()
}

/// The index of the CPU among the platforms of a program for several, which is its first argument.
fn platform_index(this: &mut Expansion, node: &Node) -> Result<Option<Output>> {
    let platforms = node.attrs.strs("platforms").unwrap_or_default();
    let is_off = |check: &str| {
        let disabled = node.attrs.strs("disabled_checks").unwrap_or_default();
        disabled.contains(&check)
    };
    let found = platforms.iter().position(|p| *p == PLATFORM);
    if found.is_none() && !platforms.is_empty() && !is_off("platform") {
        return Err(not_found!(
            "The current platform {PLATFORM} is not among the platforms required by the module: [{}]",
            platforms.join(", ")
        ));
    }
    if platforms.len() < 2 {
        return Ok(None);
    }
    let value = Tensor::scalar(found.unwrap_or(0) as i32);
    constant(this, "platform", value).map(Some)
}

fn constant(this: &mut Expansion, name: &str, value: Tensor) -> Result<Output> {
    let attrs = Attrs::default()
        .with("dtype", AttrValue::Type(value.dtype()))
        .with("value", AttrValue::Tensor(value.into()));
    this.part(name, "Const", &[], &[], attrs)
}

/// The sizes of dimensions that programs of old versions take as arguments before those of the node.
fn dimension_args(
    this: &mut Expansion,
    node: &Node,
    first: Option<&(ValueId, Type)>,
) -> Result<Vec<Output>> {
    let specs = node.attrs.strs("dim_args_spec").unwrap_or_default();
    let specs: Vec<String> = specs.into_iter().map(str::to_string).collect();
    let dtype = match first {
        Some((_, t)) => scope::tensor_type(t)?.dtype,
        None => DType::Int32,
    };
    let mut sizes = Vec::new();
    for spec in specs {
        let malformed = || invalid_argument!("dim_args_spec has the malformed entry '{spec}'");
        let (arg, axis) = spec.split_once('.').ok_or_else(malformed)?;
        let arg: usize = arg.parse().map_err(|_| malformed())?;
        let axis: i32 = axis.parse().map_err(|_| malformed())?;
        let input = *node.inputs.get(arg).ok_or_else(malformed)?;
        let own = node
            .attrs
            .dtypes("Tin")?
            .get(arg)
            .copied()
            .ok_or_else(malformed)?;
        let attrs = |t: DType, name: &'static str, other: DType| {
            Attrs::default()
                .with("T", AttrValue::Type(t))
                .with(name, AttrValue::Type(other))
        };
        let shape = this.part(
            "shape",
            "Shape",
            &[input],
            &[],
            attrs(own, "out_type", dtype),
        )?;
        let at = constant(this, "axis", Tensor::scalar(axis))?;
        let first = constant(this, "zero", Tensor::scalar(0i32))?;
        let gather = Attrs::default()
            .with("Tparams", AttrValue::Type(dtype))
            .with("Tindices", AttrValue::Type(DType::Int32))
            .with("Taxis", AttrValue::Type(DType::Int32));
        sizes.push(this.part("size", "GatherV2", &[shape, at, first], &[], gather)?);
    }
    Ok(sizes)
}

impl Translator<'_> {
    /// Returns the name of the graph's function for a function of the module, which is made at its first call.
    fn function(&mut self, name: &str) -> Result<String> {
        if let Some(known) = self.called.get(name) {
            return Ok(known.clone());
        }
        if self.open.iter().any(|open| open == name) {
            return Err(invalid_argument!("the function {name} calls itself"));
        }
        if self.open.len() >= MAX_DEPTH {
            return Err(resource_exhausted!(
                "functions of the program call each other more than {MAX_DEPTH} deep"
            ));
        }
        let module = self.module;
        let function = module.function(name);
        let function = function.ok_or_else(|| invalid_argument!("there is no function {name}"))?;
        self.open.push(name.to_string());
        let made = self.block(&function.body, &[], &FxHashMap::default(), name)?;
        self.open.pop();
        let size = self.size(&function.body);
        if size > MAX_OPS {
            return Err(resource_exhausted!(
                "the program has more than {MAX_OPS} ops when its functions are inlined"
            ));
        }
        self.sizes.insert(name.to_string(), size);
        self.called.insert(name.to_string(), made.clone());
        Ok(made)
    }

    /// The ops of a block, with those of regions and of called functions.
    fn size(&self, block: &Block) -> usize {
        let of = |op: &Op| {
            let callee = ["callee", "decomposition"].into_iter();
            let callee = callee.filter_map(|attr| attrs::text(op, attr).ok());
            let called = callee
                .filter_map(|name| self.sizes.get(name))
                .sum::<usize>();
            let regions = op.regions.iter().map(|r| self.size(r)).sum::<usize>();
            1 + called.saturating_add(regions)
        };
        block.ops.iter().map(of).fold(0, usize::saturating_add)
    }

    /// Makes a function of a block, whose last arguments are the `captured` values of the blocks around it, and returns its
    /// name.
    fn block(
        &mut self,
        block: &Block,
        captured: &[ValueId],
        outer: &FxHashMap<ValueId, Value>,
        name: &str,
    ) -> Result<String> {
        self.n_blocks += 1;
        let name = format!("{}/{name}_{}", self.prefix, self.n_blocks);
        let mut scope = Scope::new(self);
        for (id, t) in &block.args {
            scope.arg(*id, scope::tensor_type(t)?.clone())?;
        }
        for id in captured {
            let value = outer.get(id).ok_or_else(|| unknown(*id))?;
            scope.arg(*id, value.ty.clone())?;
        }
        for op in &block.ops {
            if op.name == "return" {
                scope.results(&op.operands)?;
                continue;
            }
            scope
                .op(op)
                .map_err(|e| e.note(format!("in the StableHLO op {}", op.name)))?;
        }
        let function = scope.finish()?;
        self.functions.push((name.clone(), function));
        Ok(name)
    }
}

fn unknown(id: ValueId) -> ferroflow_base::Status {
    invalid_argument!("the value %{} is not defined", id.0)
}

impl Scope<'_, '_> {
    /// Adds the nodes of an op.
    fn op(&mut self, op: &Op) -> Result<()> {
        let kinds: [fn(&mut Self, &Op) -> Result<bool>; 7] = [
            Self::elementwise,
            Self::shape_op,
            Self::product,
            Self::indexing,
            Self::reduction,
            Self::control,
            Self::custom,
        ];
        for kind in kinds {
            if kind(self, op)? {
                return Ok(());
            }
        }
        Err(unimplemented_error!(
            "StableHLO's op {} is not implemented",
            op.name
        ))
    }
}
