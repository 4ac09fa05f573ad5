//! Gradients of calls.
//!
//! A function that is called becomes two (`split.rs`): one that also returns what it computed on the
//! way, which the call calls from now on, and one of its gradients: it takes the arguments, what came
//! to the results and what the call returned, and returns the gradients of the arguments. Both are made
//! when the first call asks for them, and their names are known before they are made: a function that
//! calls itself gets a gradient that calls itself.
//!
//! SymbolicGradient has no call to change: as in TensorFlow, it runs the function once more, and what
//! is random there is drawn anew.

use super::split::{JointGraph, split_forward_backward};
use super::walk::Walk;
use super::{Gradient, GradientOptions};
use crate::functions::calls_of;
use crate::{ARG, Function, Graph, GraphBuilder, Library, Node, NodeId, Output, RETVAL};
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_opdef::{AttrValue, Attrs, Expr, FuncRef, NodeClass, Registry};
use ferroflow_tensor::{DType, Shape, Tensor};
use rustc_hash::FxHashMap;

/// On an argument: the dtype of the variable behind the handle.
const VARIABLE: &str = "_variable_dtype";

/// A function and, for each argument that is a handle, the dtype of the variable behind it.
type Key = (String, Vec<Option<DType>>);

/// The functions that a differentiated function becomes.
#[derive(Clone)]
struct Names {
    /// The function with what its gradient reads as one more result.
    forward: String,
    gradient: String,
}

/// The functions of gradients that were asked for.
#[derive(Default)]
pub(crate) struct GradientFunctions {
    names: FxHashMap<Key, Names>,
    /// The original function of each.
    origins: FxHashMap<String, Key>,
    to_make: Vec<Key>,
    /// See [`GradientOptions::ignore_overrides`].
    pub(super) ignore_overrides: bool,
}

/// Whether an argument or result of this dtype has a gradient of the same dtype.
fn is_number_or_list(dtype: DType) -> bool {
    dtype.is_floating() || dtype.is_complex() || dtype == DType::Variant
}

/// The dtype of an argument's gradient.
fn gradient_dtype(dtype: DType, variable: Option<DType>) -> Option<DType> {
    match dtype {
        DType::Resource => variable.filter(|v| is_number_or_list(*v)),
        dtype => is_number_or_list(dtype).then_some(dtype),
    }
}

/// The dtype of the variable behind a handle, as far as that can be seen.
fn variable_behind(graph: &Graph, mut handle: Output) -> Option<DType> {
    for _ in 0..graph.len() {
        let node = graph.get(handle.node)?;
        let from = match node.class() {
            NodeClass::VarHandle => return node.attrs.dtype("dtype").ok(),
            NodeClass::Arg => return node.attrs.dtype(VARIABLE).ok(),
            NodeClass::Identity => node.inputs.get(handle.slot as usize),
            class if class.is_control_flow() => node.inputs.first(),
            _ => None,
        };
        handle = *from?;
    }
    None
}

impl Walk<'_, '_, '_> {
    /// The gradients of a node that calls functions on its inputs; `None` for others.
    pub(super) fn of_call(
        &self,
        id: NodeId,
        node: &Node,
        needed: &[bool],
        arrived: &[Option<Gradient>],
    ) -> Result<Option<Vec<Option<Gradient>>>> {
        let n_before = match node.class() {
            NodeClass::Call => 0,
            NodeClass::If | NodeClass::Case => 1,
            _ => return Ok(None),
        };
        let args = node.inputs.get(n_before..).unwrap_or_default();
        let (mut variables, mut dtypes) = (Vec::new(), Vec::new());
        for (arg, needed) in args.iter().zip(needed.get(n_before..).unwrap_or_default()) {
            let graph = &self.emitter.emit().builder.graph;
            let dtype = graph.dtype(*arg).unwrap_or(DType::Resource);
            let variable = match dtype {
                DType::Resource => variable_behind(graph, *arg),
                _ => None,
            };
            if dtype == DType::Resource && variable.is_none() && *needed {
                return Err(unimplemented_error!(
                    "the gradient of a call by the handle '{}' needs to know what it is of",
                    graph.output_name(*arg)
                ));
            }
            variables.push(variable);
            dtypes.push(gradient_dtype(dtype, variable));
        }
        let tout: Vec<AttrValue> = dtypes.iter().flatten().map(|t| (*t).into()).collect();
        if tout.is_empty() {
            return Ok(Some(Vec::new()));
        }
        let names = self.functions_of(node, &variables, arrived)?;
        let mut attrs = with_functions(node, names.iter().map(|n| n.gradient.as_str()))?;
        attrs.push(("Tout", AttrValue::List(tout)));
        let n_results = self.with_kept(id, node, &names)?;
        let mut inputs: Vec<Expr> = node.inputs.iter().map(|i| self.expr(*i)).collect();
        for (slot, dtype) in node.outputs.iter().enumerate().take(n_results) {
            if is_number_or_list(*dtype) {
                inputs.push(match arrived.get(slot).copied().flatten() {
                    Some(gradient) => self.term(gradient).dense(),
                    None => self.expr(Output::new(id, slot)).zeros_like(),
                });
            }
        }
        inputs.push(self.expr(Output::new(id, n_results)));
        let Some(first) = inputs.first().copied() else {
            return Ok(Some(Vec::new()));
        };
        let mut found = first.node(node.op(), &inputs, &attrs).into_iter();
        self.emitter.check()?;
        let mut results = vec![None; n_before];
        results.extend(dtypes.iter().map(|dtype| {
            let gradient = dtype.and_then(|_| found.next());
            gradient.map(|g| Gradient::Dense(g.output()))
        }));
        Ok(Some(results))
    }

    /// The differentiated functions of those that a node calls.
    fn functions_of(
        &self,
        node: &Node,
        variables: &[Option<DType>],
        arrived: &[Option<Gradient>],
    ) -> Result<Vec<Names>> {
        let builder = &mut self.emitter.emit().builder;
        let calls = calls_of(node);
        // A call that was differentiated before returns already what is needed.
        if arrived.last().is_none_or(Option::is_none) {
            let functions = &builder.gradient_functions;
            let known = calls.iter().map(|(function, ..)| {
                let key = functions.origins.get(&function.name)?;
                functions.names.get(key).filter(|_| key.1 == variables)
            });
            if let Some(known) = known.collect::<Option<Vec<_>>>() {
                return Ok(known.into_iter().cloned().collect());
            }
        }
        let made = calls.iter();
        made.map(|(function, ..)| builder.gradient_functions_of(&function.name, variables))
            .collect()
    }

    /// Makes a node call the function that also returns what the gradients need; returns the slot of that.
    fn with_kept(&self, id: NodeId, node: &Node, names: &[Names]) -> Result<usize> {
        let calls = calls_of(node);
        let mut both = calls.iter().zip(names);
        if both.all(|((function, ..), names)| function.name == names.forward) {
            return Ok(node.outputs.len().saturating_sub(1));
        }
        let mut changed = node.clone();
        for (name, value) in with_functions(node, names.iter().map(|n| n.forward.as_str()))? {
            changed.attrs.set(name, value);
        }
        changed.outputs.push(DType::Variant);
        let tout = changed.outputs.iter().map(|t| AttrValue::Type(*t));
        changed.attrs.set("Tout", AttrValue::List(tout.collect()));
        if changed.attrs.get("output_shapes").is_some() {
            changed
                .attrs
                .set("output_shapes", AttrValue::List(Vec::new()));
        }
        self.emitter.emit().replace(id, changed);
        Ok(node.outputs.len())
    }
}

/// The attrs by which a node like `node` calls functions of these names.
fn with_functions<'n>(
    node: &Node,
    names: impl Iterator<Item = &'n str>,
) -> Result<Vec<(&'static str, AttrValue)>> {
    let named: Vec<AttrValue> = names
        .map(|name| {
            let (name, attrs) = (name.to_string(), Attrs::default());
            AttrValue::Func(FuncRef { name, attrs })
        })
        .collect();
    Ok(match (node.class() == NodeClass::Case, &named[..]) {
        (true, _) => vec![("branches", AttrValue::List(named))],
        (false, [f]) => vec![("f", f.clone())],
        (false, [then, other]) => vec![
            ("then_branch", then.clone()),
            ("else_branch", other.clone()),
        ],
        _ => return Err(invalid_argument!("the node names no function")),
    })
}

impl GraphBuilder<'_> {
    /// The names of a function's forward and gradient functions.
    fn gradient_functions_of(&mut self, of: &str, variables: &[Option<DType>]) -> Result<Names> {
        self.library.get(of)?;
        let key = (of.to_string(), variables.to_vec());
        if let Some(names) = self.gradient_functions.names.get(&key) {
            return Ok(names.clone());
        }
        let unfinished = invalid_argument!("the gradient of '{of}' could not be made");
        let mut reserve = |suffix: &str| {
            let name = self.library.unique_name(&format!("{of}_{suffix}"));
            self.library.insert_bad(&name, unfinished.clone());
            name
        };
        let names = Names {
            forward: reserve("forward"),
            gradient: reserve("gradient"),
        };
        let functions = &mut self.gradient_functions;
        functions.origins.insert(names.forward.clone(), key.clone());
        functions.names.insert(key.clone(), names.clone());
        functions.to_make.push(key);
        Ok(names)
    }

    /// Makes the functions of gradients that calls have asked for.
    pub(crate) fn make_gradient_functions(&mut self) -> Result<()> {
        while let Some(key) = self.gradient_functions.to_make.pop() {
            let (of, variables) = &key;
            let function = self.library.get(of)?.as_ref().clone();
            let made = self
                .differentiated(function, Some(variables))
                .and_then(|joint| split_forward_backward(joint, self.registry))
                .and_then(|(forward, gradient)| {
                    Ok((Function::new(forward)?, Function::new(gradient)?))
                })
                .map_err(|e| e.note(format!("in the gradient of function '{of}'")));
            let (forward, gradient) = match made {
                Ok(made) => made,
                Err(e) => {
                    self.gradient_functions = GradientFunctions::default();
                    return Err(e);
                }
            };
            if let Some(names) = self.gradient_functions.names.get(&key) {
                self.library.insert(&names.forward, forward);
                self.library.insert(&names.gradient, gradient);
            }
        }
        Ok(())
    }

    /// The gradient of `function` as SymbolicGradient has it: runs the function once more, and has
    /// an argument or result for each of the function's, of any dtype.
    pub(crate) fn gradient_function(&mut self, function: Function) -> Result<Function> {
        // As TensorFlow's.
        self.gradient_functions.ignore_overrides = true;
        Function::new(self.differentiated(function, None)?.graph)
    }

    /// The body of `function` with its gradient: takes its arguments and what came to its results,
    /// returns the gradients of the arguments, zeros where nothing connects them. Without `variables`, one
    /// for every argument and result.
    fn differentiated(
        &mut self,
        function: Function,
        variables: Option<&[Option<DType>]>,
    ) -> Result<JointGraph> {
        let mut graph = function.graph;
        let mut args: Vec<(i64, NodeId)> = Vec::new();
        let mut results: Vec<(i64, NodeId, Output)> = Vec::new();
        for (id, node) in graph.iter() {
            match (node.class(), node.inputs.first()) {
                (NodeClass::Arg, _) => args.push((node.attrs.int("index")?, id)),
                (NodeClass::Retval, Some(from)) => {
                    results.push((node.attrs.int("index")?, id, *from))
                }
                _ => {}
            }
        }
        args.sort_unstable_by_key(|(i, _)| *i);
        results.sort_unstable_by_key(|(i, ..)| *i);
        for (_, id, _) in &results {
            graph.remove(*id);
        }
        if let Some(variables) = variables {
            for ((_, id), variable) in args.iter().zip(variables) {
                if let (Some(dtype), Some(arg)) = (variable, graph.node_mut(*id)) {
                    arg.attrs.set(VARIABLE, (*dtype).into());
                }
            }
        }
        let mut body = GraphBuilder::from_graph(graph, self.registry);
        std::mem::swap(&mut body.library, &mut self.library);
        std::mem::swap(&mut body.gradient_functions, &mut self.gradient_functions);
        let xs: Vec<Output> = args.iter().map(|(_, id)| Output::new(*id, 0)).collect();
        let ys: Vec<Output> = results.iter().map(|(.., y)| *y).collect();
        let done = body.add_gradients(&xs, &ys, variables);
        let done = done.and_then(|()| body.check());
        std::mem::swap(&mut body.library, &mut self.library);
        std::mem::swap(&mut body.gradient_functions, &mut self.gradient_functions);
        done?;
        let mut graph = body.graph;
        graph.set_library(Default::default());
        Ok(JointGraph {
            graph,
            results: ys,
            n_args: xs.len(),
        })
    }

    /// Makes the body of a function that of its gradient.
    fn add_gradients(
        &mut self,
        xs: &[Output],
        ys: &[Output],
        variables: Option<&[Option<DType>]>,
    ) -> Result<()> {
        let with_all = variables.is_none();
        let is_number = |t: DType| match with_all {
            true => t.is_floating() || t.is_complex(),
            false => is_number_or_list(t),
        };
        let (mut from, mut grad_ys) = (Vec::new(), Vec::new());
        let mut index = xs.len() as i64;
        for y in ys {
            let dtype = self.dtype(*y)?;
            if !with_all && !is_number(dtype) {
                continue;
            }
            let arg = self.op(ARG).name("grad").attr("T", dtype.into());
            let arg = arg.attr("index", AttrValue::Int(index)).output()?;
            index += 1;
            if is_number(dtype) {
                from.push(*y);
                grad_ys.push(Some(arg));
            }
        }
        let mut wanted = Vec::new();
        for (i, x) in xs.iter().enumerate() {
            let dtype = self.dtype(*x)?;
            let variable = variables.and_then(|v| v.get(i).copied().flatten());
            wanted.push(match with_all {
                true => is_number(dtype).then_some(dtype),
                false => gradient_dtype(dtype, variable),
            });
        }
        let by = xs.iter().zip(&wanted).filter(|(_, w)| w.is_some());
        let by: Vec<Output> = by.map(|(x, _)| *x).collect();
        let options = GradientOptions {
            grad_ys,
            ..Default::default()
        };
        let mut found = match from.is_empty() {
            true => Vec::new(),
            false => super::walk::gradients(self, &from, &by, &options, true)?,
        }
        .into_iter();
        let mut index = 0;
        for (x, wanted) in xs.iter().zip(wanted) {
            if wanted.is_none() && !with_all {
                continue;
            }
            let gradient = wanted.and_then(|_| found.next().flatten());
            let gradient = match gradient {
                Some(Gradient::Dense(value)) => value,
                _ => self.zeros(*x, wanted)?,
            };
            let retval = self.op(RETVAL).name("gradient").input(gradient);
            retval.attr("index", AttrValue::Int(index)).build()?;
            index += 1;
        }
        Ok(())
    }

    /// Zeros like a value, or like the variable of a dtype behind a handle.
    fn zeros(&mut self, x: Output, dtype: Option<DType>) -> Result<Output> {
        match (self.dtype(x)?, dtype) {
            (DType::Resource, Some(dtype)) => {
                let shape = self.op("VariableShape").input(x).output()?;
                let zero = self.constant("zero", Tensor::zeros(dtype, Shape::scalar())?)?;
                self.op("Fill").input(shape).input(zero).output()
            }
            _ => self.op("ZerosLike").input(x).output(),
        }
    }
}

impl Library {
    /// Adds the gradient of a function as `name`, one that runs the function once more and has an argument or
    /// result for each of the function's. If it cannot be made, calls of it return the error.
    pub fn add_symbolic_gradient(&mut self, name: &str, of: Function, registry: &Registry) {
        let mut b = GraphBuilder::new(registry);
        std::mem::swap(&mut b.library, self);
        let made = b.gradient_function(of);
        let made = made.and_then(|made| b.make_gradient_functions().map(|()| made));
        std::mem::swap(&mut b.library, self);
        match made {
            Ok(made) => self.insert(name, made),
            Err(e) => self.insert_bad(name, e),
        }
    }
}
