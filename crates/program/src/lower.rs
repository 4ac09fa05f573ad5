//! Plan → host program: the functions of a plan as functions of the engine `async`.
//!
//! A node is a kernel `tf.OP`; its attribute `node` is its number in the plan, which has what the node
//! is made of. Constants that kernels read are in the plan as well. Calls, branches and loops
//! become `tfrt.call`, `tfrt.cond`, `tfrt.case` and `tfrt.while`. As everywhere in TFRT a function takes a chain
//! and gives one: everything in it begins after the first, everything in it has ended when the
//! second is there. Where a node waits for another without reading anything, it reads a chain.

use crate::mlir::{Attr, COST, FunctionType, Loc, Module, Op, Region, Type, Value};
use crate::plan::{Action, FrameIdx, NodeIdx, Plan};
use crate::sizes::{HEAVY, Size, THRESHOLD, sizes};
use crate::wiring::{Producer, Wiring, nodes_of};
use ferroflow_opdef::{Cost, Value as Slot};
use std::collections::{BTreeMap, HashMap, HashSet};

/// The name of the function that a step calls.
pub const MAIN: &str = "main";
/// What the kernels of nodes are called: this, and the op.
pub const PREFIX: &str = "tf.";
/// The kernel that gives constant `index` of the plan.
pub const CONSTANT: &str = "tf.constant";
/// The kernel that says whether a tensor is true, for node `node`.
pub const PREDICATE: &str = "tf.predicate";
/// The kernel that gives the number in a tensor, by which node `node` chooses a branch.
pub const BRANCH_INDEX: &str = "tf.branch_index";
/// The kernel that gives its last arguments, one for each result, when all are there.
pub const AFTER: &str = "tf.after";

/// Conditions of loops with at most so many nodes become part of who asks them.
const SMALL: usize = 64;

/// The plan as a host program whose function [`MAIN`] takes a chain and the plan's arguments;
/// `None` if the plan has dead values, loops of frames or recursion, which only the engine
/// `dataflow` knows.
///
/// ```
/// use ferroflow_program::{Action, BuildNode, PlanBuilder, Source, mlir, to_host_program};
/// use ferroflow_opdef::{Cost, KernelCtx, NodeInfo};
/// let mut builder = PlanBuilder::new();
/// let main = builder.function("", 1, 1);
/// let mut add = |op: &str, action, inputs| {
///     let info = NodeInfo { name: op.to_lowercase(), op: op.into() };
///     let (controls, cost) = (vec![], Cost::Cheap);
///     builder.add(main, BuildNode { info, action, inputs, controls, n_outputs: 1, cost })
/// };
/// let x = add("_Arg", Action::Arg(0), vec![]);
/// let kernel = |ctx: &mut KernelCtx| { let x = ctx.take_input(0)?; ctx.set_output(0, x) };
/// let y = add("Relu", Action::Kernel(Box::new(kernel)), vec![Source::Node(x, 0)]);
/// builder.result(main, 0, Source::Node(y, 0))?;
/// let module = to_host_program(&builder.finish()?).expect("no loops");
/// let text = mlir::print(&module, mlir::PrintOptions::default());
/// let relu = "\"tf.Relu\"(%arg1) {_tfrt_cost = 1, name = \"relu\", node = 1 : i32}";
/// assert!(text.contains(relu), "{text}");
/// # Ok::<(), ferroflow_base::Status>(())
/// ```
pub fn to_host_program(plan: &Plan) -> Option<Module> {
    let (names, taken) = names(plan);
    let mut lowering = Lowering {
        sizes: sizes(plan)?,
        plan,
        wiring: Wiring::of(plan),
        module: Module::default(),
        names,
        taken,
        steps: BTreeMap::new(),
        called: vec![FrameIdx::new(0)],
        is_called: HashSet::from([0]),
        open: Vec::new(),
    };
    let mut next = 0;
    loop {
        let function = match (lowering.open.pop(), lowering.called.get(next).copied()) {
            (Some(step), _) => lowering.step(&step)?,
            (None, Some(frame)) => {
                next += 1;
                lowering.function(frame.index())?
            }
            (None, None) => break,
        };
        lowering.module.ops.push(function);
    }
    let threshold = Attr::Int(THRESHOLD, Type::new("i64"));
    let attrs = &mut lowering.module.attrs;
    attrs.push(("tfrt.cost_threshold".to_string(), threshold));
    Some(lowering.module)
}

/// Names of the frames as symbols, each once, and all that are taken.
fn names(plan: &Plan) -> (Vec<String>, HashSet<String>) {
    let mut taken = HashSet::new();
    let name = |(i, frame): (usize, &crate::FramePlan)| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '$');
        let mut name: String = match i {
            0 => MAIN.to_string(),
            _ => frame
                .name
                .chars()
                .map(|c| if is_plain(c) { c } else { '_' })
                .collect(),
        };
        if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
            name.insert(0, '_');
        }
        unique(&mut taken, name)
    };
    (plan.frames.iter().enumerate().map(name).collect(), taken)
}

/// `name`, or as it is followed by a number that makes it new.
fn unique(taken: &mut HashSet<String>, name: String) -> String {
    let mut candidate = name.clone();
    let mut n = 2;
    while !taken.insert(candidate.clone()) {
        candidate = format!("{name}.{n}");
        n += 1;
    }
    candidate
}

/// The program of a plan that only the engine `dataflow` runs: the function [`MAIN`] without a body.
pub fn dataflow_program(plan: &Plan) -> Module {
    let root = plan.root();
    let ty = FunctionType {
        inputs: signature(root.args.len()),
        results: signature(root.n_results),
    };
    let mut op = function_op(MAIN, ty, Region::default());
    op.set_attr("sym_visibility", Attr::string("private"));
    op.set_attr("tfrt.dataflow", Attr::Unit);
    Module {
        ops: vec![op],
        ..Module::default()
    }
}

fn function_op(name: &str, ty: FunctionType, body: Region) -> Op {
    let mut op = Op::new("func", &Loc::default());
    op.regions.push(body);
    op.set_attr("sym_name", Attr::string(name));
    op.set_attr("type", Attr::Type(Type::Function(ty.into())));
    op
}

struct Lowering<'a> {
    plan: &'a Plan,
    sizes: Vec<Size>,
    wiring: Wiring,
    module: Module,
    names: Vec<String>,
    taken: HashSet<String>,
    /// Names of the functions that are one iteration of a loop, by condition and body.
    steps: BTreeMap<(FrameIdx, FrameIdx), String>,
    /// Those that are still to be made.
    open: Vec<Step>,
    /// Functions that are called, each once.
    called: Vec<FrameIdx>,
    is_called: HashSet<usize>,
}

/// One iteration of a loop.
struct Step {
    name: String,
    cond: FrameIdx,
    body: FrameIdx,
    /// The node that was the first to need it.
    node: NodeIdx,
}

/// A function that is being made.
struct Body {
    chain: Value,
    /// The chain that the function takes.
    begin: Value,
    ops: Vec<Op>,
    outputs: HashMap<Producer, Value>,
    chains: HashMap<NodeIdx, Value>,
    constants: HashMap<u32, Value>,
    /// Chains that nobody in the function waits for.
    sinks: Vec<Value>,
}

fn chain() -> Type {
    Type::new("!tfrt.chain")
}

fn tensor() -> Type {
    Type::new("!tf.tensor")
}

fn cost(cost: i64) -> Attr {
    Attr::Int(cost, Type::new("i64"))
}

fn node_attr(id: NodeIdx) -> Option<(&'static str, Attr)> {
    Some(("node", Attr::i32(i32::try_from(id.index()).ok()?)))
}

/// A chain and `n` tensors.
fn signature(n: usize) -> Vec<Type> {
    std::iter::once(chain())
        .chain(std::iter::repeat_n(tensor(), n))
        .collect()
}

impl Lowering<'_> {
    fn value(&mut self, ty: Type) -> Value {
        self.module.add_value(ty, Loc::default())
    }

    fn values(&mut self, types: Vec<Type>) -> Vec<Value> {
        types.into_iter().map(|t| self.value(t)).collect()
    }

    /// Adds an operation; its results.
    fn op(
        &mut self,
        body: &mut Body,
        name: &str,
        operands: Vec<Value>,
        results: Vec<Type>,
        attrs: &[(&str, Attr)],
    ) -> Vec<Value> {
        let results = self.values(results);
        let mut op = Op::new(name, &Loc::default());
        op.operands = operands;
        op.results.clone_from(&results);
        for (name, value) in attrs {
            op.set_attr(name, value.clone());
        }
        if op.attr(COST).is_none() {
            op.set_attr(COST, cost(1));
        }
        body.ops.push(op);
        results
    }

    fn begin(&mut self, n_args: usize) -> (Vec<Value>, Body) {
        let args = self.values(signature(n_args));
        let chain = args[0];
        let body = Body {
            chain,
            begin: chain,
            ops: Vec::new(),
            outputs: HashMap::new(),
            chains: HashMap::new(),
            constants: HashMap::new(),
            sinks: Vec::new(),
        };
        (args, body)
    }

    fn finish(&mut self, name: &str, args: Vec<Value>, mut body: Body, results: Vec<Value>) -> Op {
        let ty = FunctionType {
            inputs: self.module.types(&args),
            results: self.module.types(&results),
        };
        self.op(&mut body, "tfrt.return", results, Vec::new(), &[]);
        let region = Region {
            args,
            ops: body.ops,
            n_blocks: 1,
            ..Region::default()
        };
        function_op(name, ty, region)
    }

    /// The name of a function that is called.
    fn symbol(&mut self, frame: FrameIdx) -> Option<Attr> {
        if self.is_called.insert(frame.index()) {
            self.called.push(frame);
        }
        Some(Attr::Symbol(vec![self.names.get(frame.index())?.clone()]))
    }

    fn function(&mut self, frame: usize) -> Option<Op> {
        let n_args = self.plan.frames.get(frame)?.args.len();
        let (args, mut body) = self.begin(n_args);
        let results = self.inside(&mut body, frame, args.clone())?;
        let name = self.names.get(frame)?.clone();
        Some(self.finish(&name, args, body, results))
    }

    /// What a function does, with these values for its arguments; its results.
    fn inside(&mut self, body: &mut Body, frame: usize, args: Vec<Value>) -> Option<Vec<Value>> {
        let plan = self.plan;
        let this = plan.frames.get(frame)?;
        let outer = std::mem::replace(&mut body.chain, *args.first()?);
        let outer_sinks = std::mem::take(&mut body.sinks);
        for i in nodes_of(plan, frame) {
            self.node(body, frame, NodeIdx::new(i), args.get(1..)?)?;
        }
        let results = self.wiring.results.get(frame)?.clone();
        let sinks = std::mem::replace(&mut body.sinks, outer_sinks);
        let mut values = vec![self.joined(body, sinks)];
        for (i, result) in results.iter().enumerate() {
            values.push(match result {
                Some(producer) => *body.outputs.get(producer)?,
                None => {
                    let constant = this.const_results.iter().find(|(r, _)| *r as usize == i)?.1;
                    self.constant(body, constant)
                }
            });
        }
        body.chain = outer;
        Some(values)
    }

    /// One chain for several.
    fn joined(&mut self, body: &mut Body, chains: Vec<Value>) -> Value {
        match chains[..] {
            [] => body.chain,
            [one] => one,
            _ => self.op(body, "tfrt.merge.chains", chains, vec![chain()], &[])[0],
        }
    }

    fn constant(&mut self, body: &mut Body, index: u32) -> Value {
        if let Some(value) = body.constants.get(&index) {
            return *value;
        }
        let attr = Attr::i32(index.cast_signed());
        let value = self.op(
            body,
            CONSTANT,
            vec![body.begin],
            vec![tensor()],
            &[("index", attr)],
        )[0];
        body.constants.insert(index, value);
        value
    }

    fn node(&mut self, body: &mut Body, frame: usize, id: NodeIdx, args: &[Value]) -> Option<()> {
        let plan = self.plan;
        let node = plan.nodes.get(id.index())?;
        if let Action::Arg(i) = node.action {
            let value = *args.get(i as usize)?;
            body.outputs.insert((id, 0), value);
            body.chains.insert(id, value);
            return Some(());
        }
        let mut controls = Vec::new();
        for other in self.wiring.controls.get(id.index())? {
            controls.push(*body.chains.get(other)?);
        }
        let is_sink = node.n_edges == 0;
        let has_waiters = *self.wiring.has_control_readers.get(id.index())?;
        let (chain, outputs) = match node.action {
            Action::Kernel(_) | Action::Const(_) | Action::Forward => {
                self.kernel(body, id, controls, is_sink || has_waiters)?
            }
            _ => self.call(body, frame, id, controls)?,
        };
        for (i, output) in (0..).zip(outputs) {
            body.outputs.insert((id, i), output);
        }
        if let Some(chain) = chain {
            if !has_waiters {
                body.sinks.push(chain);
            }
            body.chains.insert(id, chain);
        }
        Some(())
    }

    /// A node that is a kernel of its own: its chain, if somebody waits for it, and its outputs.
    fn kernel(
        &mut self,
        body: &mut Body,
        id: NodeIdx,
        controls: Vec<Value>,
        needs_chain: bool,
    ) -> Option<(Option<Value>, Vec<Value>)> {
        let plan = self.plan;
        let (node, info) = (plan.nodes.get(id.index())?, plan.info.get(id.index())?);
        let mut operands = Vec::new();
        for source in self.wiring.inputs.get(id.index())?.iter().flatten() {
            operands.push(*body.outputs.get(source)?);
        }
        let is_forward = matches!(node.action, Action::Forward);
        if is_forward && controls.is_empty() && !needs_chain {
            // Nothing is left of it, unless it gives a constant.
            if operands.len() == node.n_outputs as usize {
                return Some((None, operands));
            }
        }
        operands.extend(controls);
        if operands.is_empty() {
            operands.push(body.chain);
        }
        let n_outputs = node.n_outputs as usize;
        let mut results = vec![tensor(); n_outputs];
        results.extend(needs_chain.then(chain));
        let mut attrs = vec![("name", Attr::string(&info.name)), node_attr(id)?];
        if node.cost == Cost::Expensive {
            attrs.push((COST, cost(HEAVY)));
        }
        let name = format!("{PREFIX}{}", info.op);
        let mut outputs = self.op(body, &name, operands, results, &attrs);
        let chain = outputs.get(n_outputs).copied();
        outputs.truncate(n_outputs);
        Some((chain, outputs))
    }

    /// A node that calls functions: its chain and its outputs.
    fn call(
        &mut self,
        body: &mut Body,
        frame: usize,
        id: NodeIdx,
        controls: Vec<Value>,
    ) -> Option<(Option<Value>, Vec<Value>)> {
        let plan = self.plan;
        let node = plan.nodes.get(id.index())?;
        let first = node.first_slot as usize;
        let mut inputs = vec![body.chain];
        let sources = self.wiring.inputs.get(id.index())?.clone();
        for (i, source) in sources.iter().enumerate() {
            inputs.push(match source {
                Some(source) => *body.outputs.get(source)?,
                None => match plan.frames.get(frame)?.slots.get(first + i)? {
                    Slot::Const(index) => self.constant(body, *index),
                    _ => return None,
                },
            });
        }
        if !controls.is_empty() {
            // What the function does begins after them.
            let types = self.module.types(&inputs);
            let operands = controls.into_iter().chain(inputs).collect();
            inputs = self.op(body, AFTER, operands, types, &[]);
        }
        let results = signature(node.n_outputs as usize);
        let mut size = Size::default();
        let values = match &node.action {
            Action::Call(f) => {
                size = *self.sizes.get(f.index())?;
                let attrs = [("callee", self.symbol(*f)?)];
                self.op(body, "tfrt.call", inputs, results, &attrs)
            }
            Action::Branch { branches, by_truth } => {
                for branch in branches {
                    size.add(*self.sizes.get(branch.index())?);
                }
                let selector = inputs.remove(1);
                let list = branches.iter().map(|b| self.symbol(*b));
                let list: Vec<Attr> = list.collect::<Option<_>>()?;
                let (kernel, ty, name, attrs) = match (by_truth, &list[..]) {
                    (true, [then, otherwise]) => {
                        let attrs = vec![
                            ("a_true_fn", then.clone()),
                            ("b_false_fn", otherwise.clone()),
                        ];
                        (PREDICATE, "i1", "tfrt.cond", attrs)
                    }
                    (true, _) => return None,
                    (false, _) => {
                        let attrs = vec![("branches", Attr::Array(list))];
                        (BRANCH_INDEX, "i32", "tfrt.case", attrs)
                    }
                };
                let chosen = self.op(
                    body,
                    kernel,
                    vec![selector],
                    vec![Type::new(ty)],
                    &[node_attr(id)?],
                )[0];
                inputs.insert(0, chosen);
                self.op(body, name, inputs, results, &attrs)
            }
            Action::While { cond, body: inner } => {
                size.add(*self.sizes.get(cond.index())?);
                size.add(*self.sizes.get(inner.index())?);
                let n_vars = inputs.len() - 1;
                let (begin, go_on) = self.condition(body, *cond, id, &inputs)?;
                let mut operands = vec![go_on, begin];
                operands.extend(inputs.into_iter().skip(1));
                let name = match self.steps.get(&(*cond, *inner)) {
                    Some(name) => name.clone(),
                    None => self.new_step(*cond, *inner, id)?,
                };
                let attrs = [
                    ("body_fn", Attr::Symbol(vec![name])),
                    ("parallel_iterations", Attr::Int(1, Type::new("i64"))),
                ];
                let results = signature(n_vars);
                self.op(body, "tfrt.while", operands, results, &attrs)
            }
            _ => return None,
        };
        let mut values = self.ended(body, values, size);
        let outputs = values.split_off(1);
        Some((values.pop(), outputs))
    }

    /// A chain and results of what has this size, when all of it has ended.
    fn ended(&mut self, body: &mut Body, values: Vec<Value>, size: Size) -> Vec<Value> {
        if size.ends_at_once() {
            return values;
        }
        let types = self.module.types(&values);
        self.op(body, AFTER, values, types, &[])
    }

    /// The name of the function that will be one iteration of a loop.
    fn new_step(&mut self, cond: FrameIdx, body: FrameIdx, node: NodeIdx) -> Option<String> {
        let name = format!("{}.step", self.names.get(body.index())?);
        let name = unique(&mut self.taken, name);
        self.steps.insert((cond, body), name.clone());
        self.open.push(Step {
            name: name.clone(),
            cond,
            body,
            node,
        });
        Some(name)
    }

    /// Whether a function is a few kernels, and calls no other.
    fn is_small(&self, frame: usize) -> bool {
        let nodes = self
            .plan
            .nodes
            .get(nodes_of(self.plan, frame))
            .unwrap_or(&[]);
        let calls = |n: &crate::PlanNode| {
            matches!(
                n.action,
                Action::Call(_) | Action::Branch { .. } | Action::While { .. }
            )
        };
        nodes.len() <= SMALL && !nodes.iter().any(calls)
    }

    /// Asks the condition of a loop about a chain and the variables: the chain behind it, and the
    /// answer.
    fn condition(
        &mut self,
        body: &mut Body,
        cond: FrameIdx,
        node: NodeIdx,
        inputs: &[Value],
    ) -> Option<(Value, Value)> {
        let size = *self.sizes.get(cond.index())?;
        let asked = match self.is_small(cond.index()) {
            true => self.inside(body, cond.index(), inputs.to_vec())?,
            false => {
                let attrs = [("callee", self.symbol(cond)?)];
                self.op(body, "tfrt.call", inputs.to_vec(), signature(1), &attrs)
            }
        };
        // Without effects of its own it has ended when the answer is there.
        let asked = match asked.first() == inputs.first() {
            true => asked,
            false => self.ended(body, asked, size),
        };
        let answer = vec![*asked.get(1)?];
        let truth = self.op(
            body,
            PREDICATE,
            answer,
            vec![Type::new("i1")],
            &[node_attr(node)?],
        );
        Some((*asked.first()?, *truth.first()?))
    }

    /// One iteration of a loop: the body, and the condition of what it gives.
    fn step(&mut self, step: &Step) -> Option<Op> {
        let inner = step.body.index();
        let (args, mut body) = self.begin(self.plan.frames.get(inner)?.args.len());
        let mut size = *self.sizes.get(inner)?;
        size.add(*self.sizes.get(step.cond.index())?);
        let vars = self.inside(&mut body, inner, args.clone())?;
        let mut vars = self.ended(&mut body, vars, size);
        let (end, go_on) = self.condition(&mut body, step.cond, step.node, &vars)?;
        *vars.first_mut()? = end;
        vars.push(go_on);
        Some(self.finish(&step.name, args, body, vars))
    }
}
