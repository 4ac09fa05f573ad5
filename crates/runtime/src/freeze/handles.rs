//! Where the handles of variables go: to reads, and through the arguments of the functions that While, If, Case and
//! calls run.

use ferroflow_base::Result;
use ferroflow_graph::{Consumers, Graph, Node, NodeClass, NodeId, Output, referred_functions};
use ferroflow_opdef::{AttrValue, Registry, Resources};
use ferroflow_resources::resource::container_and_name;
use rustc_hash::FxHashMap;

/// The signature's graph, which is the first, or the body of a function that it can run.
pub(super) struct Scope<'g> {
    /// The function.
    pub(super) name: Option<String>,
    pub(super) graph: &'g Graph,
    consumers: Consumers,
    /// The arguments by position.
    args: FxHashMap<usize, NodeId>,
    /// What is returned, by position.
    results: FxHashMap<usize, Output>,
    calls: FxHashMap<NodeId, CallSite<'g>>,
}

/// A variable or table that the graph names.
pub(super) struct Variable {
    pub(super) kind: Kind,
    pub(super) container: String,
    pub(super) name: String,
    /// The nodes that read it, by scope.
    pub(super) reads: Vec<(usize, NodeId)>,
    /// Whether its handle only goes to reads, on ways that are known.
    is_only_read: bool,
    /// Whether its handle is passed on before it is read.
    pub(super) is_passed: bool,
    /// The nodes that ask for its shape, or whether it is initialized, by scope.
    pub(super) questions: Vec<(usize, NodeId)>,
}

/// What a handle refers to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Variable,
    /// A lookup table with scalar keys.
    Table,
}

impl Kind {
    /// Returns the kind of what a node makes a handle of.
    pub(super) fn of(node: &Node) -> Option<Kind> {
        match (node.op(), node.class()) {
            (_, NodeClass::VarHandle) => Some(Kind::Variable),
            ("HashTableV2" | "MutableHashTableV2" | "MutableHashTableOfTensorsV2", _) => {
                Some(Kind::Table)
            }
            _ => None,
        }
    }

    /// Returns whether a node reads what its input is a handle of.
    fn is_read_by(self, node: &Node) -> bool {
        match self {
            Kind::Variable => node.class() == NodeClass::ReadVariable || is_gather(node),
            Kind::Table => matches!(node.op(), "LookupTableFindV2" | "LookupTableSizeV2"),
        }
    }
}

/// Returns whether a node gathers rows of a variable.
pub(super) fn is_gather(node: &Node) -> bool {
    matches!(node.op(), "ResourceGather" | "ResourceGatherNd")
}

impl Variable {
    /// Returns whether its value can stand where it is read.
    pub(super) fn is_replaceable(&self) -> bool {
        self.is_only_read && !(self.reads.is_empty() && self.questions.is_empty())
    }
}

/// The handles of all variables.
pub(super) struct Handles<'g> {
    pub(super) scopes: Vec<Scope<'g>>,
    pub(super) variables: Vec<Variable>,
    /// The variable that an output of a scope is the handle of.
    pub(super) of: FxHashMap<(usize, Output), usize>,
    by_name: FxHashMap<String, usize>,
}

/// The functions that a call runs on its inputs from number `first`, by attr.
pub(super) struct CallSite<'n> {
    pub(super) functions: Vec<&'n str>,
    pub(super) first: usize,
    /// The attr with the dtypes of these inputs.
    pub(super) types: &'static str,
}

impl<'n> CallSite<'n> {
    /// Returns what a node calls, if it is known how.
    fn of(node: &'n Node) -> Option<CallSite<'n>> {
        let (attrs, first, types): (&[&str], _, _) = match node.class() {
            NodeClass::While => (&["cond", "body"], 0, "T"),
            NodeClass::If => (&["then_branch", "else_branch"], 1, "Tin"),
            NodeClass::Case => (&["branches"], 1, "Tin"),
            NodeClass::Call => (&["f"], 0, "Tin"),
            _ => return None,
        };
        let values = attrs.iter().filter_map(|name| node.attrs.get(name));
        let values = values.flat_map(|value| match value {
            AttrValue::List(items) => &items[..],
            one => std::slice::from_ref(one),
        });
        let functions = values.filter_map(|value| match value {
            AttrValue::Func(f) => Some(f.name.as_str()),
            _ => None,
        });
        Some(CallSite {
            functions: functions.collect(),
            first,
            types,
        })
    }
}

impl<'g> Scope<'g> {
    fn new(name: Option<String>, graph: &'g Graph) -> Result<Scope<'g>> {
        let (mut args, mut results) = (FxHashMap::default(), FxHashMap::default());
        for (id, node) in graph.iter().filter(|_| name.is_some()) {
            match node.class() {
                NodeClass::Arg => drop(args.insert(node.attrs.int("index")? as usize, id)),
                NodeClass::Retval => {
                    results.insert(node.attrs.int("index")? as usize, node.inputs[0]);
                }
                _ => {}
            }
        }
        let calls = graph.iter();
        let calls = calls.filter_map(|(id, node)| Some((id, CallSite::of(node)?)));
        Ok(Scope {
            name,
            graph,
            consumers: Consumers::new(graph),
            args,
            results,
            calls: calls.collect(),
        })
    }

    /// What a node calls, if it is known how.
    pub(super) fn call(&self, id: NodeId) -> Option<&CallSite<'g>> {
        self.calls.get(&id)
    }

    /// The nodes that read an output, with the numbers of their inputs.
    pub(super) fn readers(&self, output: Output) -> Vec<(NodeId, usize)> {
        let consumers = self.consumers.of(output.node).iter();
        let mut nodes: Vec<NodeId> = consumers.map(|(reader, _)| *reader).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let inputs = |id: NodeId| self.graph.node(id).inputs.iter().enumerate();
        let reads = |id: NodeId| inputs(id).filter(move |(_, input)| **input == output);
        let readers = nodes
            .into_iter()
            .flat_map(|id| reads(id).map(move |(slot, _)| (id, slot)));
        readers.collect()
    }
}

impl<'g> Handles<'g> {
    /// Follows all handles. `None` if a function is not known or handles are made otherwise.
    pub(super) fn of(
        graph: &'g Graph,
        registry: &Registry,
        resources: &Resources,
    ) -> Result<Option<Handles<'g>>> {
        let mut scopes = vec![Scope::new(None, graph)?];
        let library = graph.library();
        for name in library.reachable(graph) {
            let Ok(function) = library.get(&name) else {
                return Ok(None);
            };
            scopes.push(Scope::new(Some(name), &function.graph)?);
        }
        let mut nodes = scopes.iter().flat_map(|s| s.graph.iter());
        if nodes.any(|(_, n)| n.op() == "_VarHandlesOp" || registry.op(n.op()).is_none()) {
            return Ok(None);
        }
        let names = scopes.iter().enumerate();
        let by_name = names.filter_map(|(i, scope)| Some((scope.name.clone()?, i)));
        let mut handles = Handles {
            by_name: by_name.collect(),
            variables: Vec::new(),
            of: FxHashMap::default(),
            scopes,
        };
        handles.follow_all(resources)?;
        handles.check_calls();
        handles.leave_functions_of_others();
        Ok(Some(handles))
    }

    fn follow_all(&mut self, resources: &Resources) -> Result<()> {
        let mut numbers: FxHashMap<(Kind, String, String), usize> = FxHashMap::default();
        let mut found = Vec::new();
        for (i, scope) in self.scopes.iter().enumerate() {
            for (id, node) in scope.graph.iter() {
                if let Some(kind) = Kind::of(node) {
                    let next = numbers.len();
                    let (container, name) = container_and_name(&node.attrs)?;
                    if kind == Kind::Table && name.is_empty() {
                        // Named by its node, or private to it.
                        continue;
                    }
                    let container = resources.container(&container).to_string();
                    let number = numbers.entry((kind, container, name));
                    found.push((i, Output::new(id, 0), *number.or_insert(next)));
                }
            }
        }
        let mut names: Vec<_> = numbers.into_iter().collect();
        names.sort_unstable_by_key(|(_, number)| *number);
        let variables = names
            .into_iter()
            .map(|((kind, container, name), _)| Variable {
                kind,
                container,
                name,
                reads: Vec::new(),
                is_only_read: true,
                is_passed: false,
                questions: Vec::new(),
            });
        self.variables = variables.collect();
        while let Some((scope, output, variable)) = found.pop() {
            match self.of.insert((scope, output), variable) {
                None => self.follow(scope, output, variable, &mut found),
                Some(other) => {
                    self.variables[variable].is_only_read &= other == variable;
                    self.variables[other].is_only_read &= other == variable;
                }
            }
        }
        Ok(())
    }

    /// Notes what reads an output, and adds where its value comes out again to `found`.
    fn follow(
        &mut self,
        scope: usize,
        output: Output,
        variable: usize,
        found: &mut Vec<(usize, Output, usize)>,
    ) {
        let graph = self.scopes[scope].graph;
        for (id, slot) in self.scopes[scope].readers(output) {
            let node = graph.node(id);
            let is_known = match (node.op(), node.class()) {
                // The loops that run the function as their body are checked.
                (_, NodeClass::Retval) => scope > 0,
                ("Identity", _) => {
                    found.push((scope, Output::new(id, 0), variable));
                    true
                }
                _ => self.follow_call(scope, id, slot, variable, found),
            };
            let variable = &mut self.variables[variable];
            match (node.op(), node.class()) {
                _ if variable.kind.is_read_by(node) => variable.reads.push((scope, id)),
                ("VarIsInitializedOp" | "VariableShape", _) => variable.questions.push((scope, id)),
                _ => {
                    variable.is_passed = true;
                    variable.is_only_read &= is_known;
                }
            }
        }
    }

    /// Returns whether `node` passes the input to functions.
    fn follow_call(
        &self,
        scope: usize,
        id: NodeId,
        slot: usize,
        variable: usize,
        found: &mut Vec<(usize, Output, usize)>,
    ) -> bool {
        let node = self.scopes[scope].graph.node(id);
        let call = self.scopes[scope]
            .call(id)
            .filter(|call| slot >= call.first);
        let Some(call) = call else { return false };
        for function in &call.functions {
            let Some(callee) = self.by_name.get(*function) else {
                return false;
            };
            if let Some(arg) = self.scopes[*callee].args.get(&(slot - call.first)) {
                found.push((*callee, Output::new(*arg, 0), variable));
            }
        }
        if node.class() == NodeClass::While {
            found.push((scope, Output::new(id, slot), variable));
        }
        true
    }

    /// Checks that what is a handle in a function is that of the same variable at every call, and that bodies of loops
    /// pass it on.
    fn check_calls(&mut self) {
        let mut unknown = Vec::new();
        for (i, scope) in self.scopes.iter().enumerate() {
            for (id, call) in &scope.calls {
                self.check_call(i, scope.graph.node(*id), call, &mut unknown);
            }
        }
        for variable in unknown {
            self.variables[variable].is_only_read = false;
        }
    }

    /// Gives up variables whose handles are in functions that other nodes refer to, such as those of datasets: these may
    /// outlive the step.
    fn leave_functions_of_others(&mut self) {
        let mut names: Vec<&str> = Vec::new();
        for scope in &self.scopes {
            let others = scope
                .graph
                .iter()
                .filter(|(id, _)| scope.call(*id).is_none());
            names.extend(others.flat_map(|(_, node)| referred_functions(node)));
        }
        let mut is_other = vec![false; self.scopes.len()];
        while let Some(name) = names.pop() {
            let Some(&scope) = self.by_name.get(name) else {
                continue;
            };
            if !std::mem::replace(&mut is_other[scope], true) {
                let nodes = self.scopes[scope].graph.iter();
                names.extend(nodes.flat_map(|(_, node)| referred_functions(node)));
            }
        }
        for ((scope, _), variable) in &self.of {
            self.variables[*variable].is_only_read &= !is_other[*scope];
        }
    }

    fn check_call(&self, scope: usize, node: &Node, call: &CallSite, unknown: &mut Vec<usize>) {
        let is_loop = node.class() == NodeClass::While;
        for (number, function) in call.functions.iter().enumerate() {
            let Some(&callee) = self.by_name.get(*function) else {
                continue;
            };
            let body = &self.scopes[callee];
            let is_condition = is_loop && number == 0;
            let passed = |i: usize| {
                let input = node.inputs.get(call.first + i)?;
                self.of.get(&(scope, *input)).copied()
            };
            let args = body.args.iter().map(|(i, arg)| (*i, Output::new(*arg, 0)));
            // What a loop returns goes into its next iteration; what others return is not followed.
            let results = body.results.iter().filter(|_| !is_condition);
            let results = results.map(|(i, output)| (is_loop.then_some(*i), *output));
            for (i, output) in args.map(|(i, output)| (Some(i), output)).chain(results) {
                let inside = self.of.get(&(callee, output)).copied();
                let outside = i.and_then(passed);
                if inside != outside {
                    unknown.extend(inside.into_iter().chain(outside));
                }
            }
        }
    }
}
