//! The streams of a function: operations that run one after the other on one thread.
//!
//! Costs decide. An operation starts when its last operand is available, which is probably the
//! end of the most expensive path to it: that is its parent, and all operations make a tree below
//! the start of the function. Going back from the leaves, an operation continues the most expensive
//! stream of its children; children that are cheaper than a threshold are put together until they
//! are worth a thread.

use super::diagnostic::Diagnostic;
use super::ir::{Attr, Module, Op, Region, Value};
use ferroflow_base::ordered_set;
use std::collections::{BTreeSet, HashMap};

/// The attribute with the cost of an operation; kernels do not see it.
pub const COST: &str = "_tfrt_cost";

const THRESHOLD: &str = "tfrt.cost_threshold";
const UPPER_THRESHOLD: &str = "tfrt.upper_cost_threshold";
const MERGE_DEPENDENT: &str = "tfrt.merge_inter_dependent_streams";

/// The start of the function, which is not an operation. Operation `i` is node `i + 1`.
const ROOT: usize = 0;

/// Operations that run one after the other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Stream {
    /// Its number in the function.
    pub id: usize,
    /// The cost of all its operations.
    pub cost: i64,
    /// The stream that starts it; `None` for the stream that the function begins with.
    pub parent: Option<usize>,
}

/// The streams of a function.
///
/// ```
/// use ferroflow_program::mlir;
/// let text = "func @f() -> (i32, i32) {
///   %a = tfrt.constant.i32 1
///   %b = tfrt.constant.i32 2
///   tfrt.return %a, %b : i32, i32
/// }";
/// let module = mlir::parse(text, "f.mlir", 0).expect("well formed");
/// let streams = mlir::Streams::of(&module, &module.ops[0]).expect("it has a body");
/// // Independent operations are in different streams.
/// assert_ne!(streams.of_op(0), streams.of_op(1));
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Streams {
    /// Of the start and of each operation.
    of_node: Vec<Stream>,
}

impl Streams {
    /// The streams of `op`, a function; `None` if it has no body.
    pub fn of(module: &Module, op: &Op) -> Option<Streams> {
        let region = op.regions.first().filter(|r| r.n_blocks == 1)?;
        Some(Self::of_region(module, region, op))
    }

    /// The streams of a region of `op`, whose attributes come before those of the module.
    pub fn of_region(module: &Module, region: &Region, op: &Op) -> Streams {
        let own = if op.is_func() { &op.attrs[..] } else { &[] };
        let option = |name: &str| {
            let all = own.iter().chain(&module.attrs);
            all.into_iter().find(|(n, _)| n == name).map(|(_, a)| a)
        };
        let number = |name: &str| match option(name) {
            Some(Attr::Int(n, _)) => Some(*n),
            _ => None,
        };
        let mut analysis = Analysis {
            threshold: number(THRESHOLD).unwrap_or(1).max(1),
            upper: number(UPPER_THRESHOLD).filter(|n| *n >= 0),
            merges_dependent: option(MERGE_DEPENDENT) == Some(&Attr::Bool(true)),
            nodes: Vec::new(),
            streams: Vec::new(),
        };
        analysis.schedule(module, region);
        for node in (0..analysis.nodes.len()).rev() {
            analysis.assign(node);
        }
        analysis.finish()
    }

    /// The stream that the function begins with.
    pub fn root(&self) -> Stream {
        self.node(ROOT)
    }

    /// The stream of operation `i` of the body.
    pub fn of_op(&self, i: usize) -> Stream {
        self.node(i + 1)
    }

    fn node(&self, i: usize) -> Stream {
        let found = self.of_node.get(i).or(self.of_node.first()).copied();
        found.unwrap_or(Stream {
            id: 0,
            cost: 1,
            parent: None,
        })
    }
}

/// Whether the program declares costs, so that its streams matter.
pub(crate) fn says_costs(module: &Module) -> bool {
    fn in_op(op: &Op) -> bool {
        let options = [COST, THRESHOLD, UPPER_THRESHOLD, MERGE_DEPENDENT];
        let is_cost = |(name, _): &(String, Attr)| options.contains(&name.as_str());
        let mut inner = op.regions.iter().flat_map(|r| &r.ops);
        op.attrs.iter().any(is_cost) || inner.any(in_op)
    }
    let of_module = module.attrs.iter().any(|(n, _)| n == THRESHOLD);
    of_module || module.ops.iter().any(in_op)
}

/// Remarks that name the stream of every function's start and of its operations.
pub fn stream_remarks(module: &Module) -> Vec<Diagnostic> {
    let mut remarks = Vec::new();
    for op in module.ops.iter().filter(|op| op.is_func()) {
        let (Some(streams), Some(body)) = (Streams::of(module, op), op.regions.first()) else {
            continue;
        };
        let mut say = |loc, stream: Stream| {
            let parent = stream.parent.map_or("-1".to_string(), |p| p.to_string());
            let Stream { id, cost, .. } = stream;
            let text = format!("stream id: {id}, stream cost: {cost}, parent stream: {parent}");
            remarks.push(Diagnostic::remark(loc, text));
        };
        say(&op.loc, streams.root());
        for (i, inner) in body.ops.iter().enumerate() {
            say(&inner.loc, streams.of_op(i));
        }
    }
    remarks
}

#[derive(Default)]
struct Node {
    cost: i64,
    /// Nodes whose parent this is.
    children: Vec<usize>,
    /// Whose values this reads besides its parent's.
    others: BTreeSet<usize>,
    stream: Option<usize>,
}

#[derive(Default)]
struct Building {
    cost: i64,
    parent_node: Option<usize>,
    merged_into: Option<usize>,
    /// Nodes of other streams that this one needs values of.
    needs: BTreeSet<usize>,
}

struct Analysis {
    threshold: i64,
    upper: Option<i64>,
    merges_dependent: bool,
    nodes: Vec<Node>,
    streams: Vec<Building>,
}

impl Analysis {
    fn cost(&self, op: &Op) -> i64 {
        match &*op.name {
            "tfrt.return" | "tfrt.merge.chains" => return 1,
            _ => {}
        }
        match op.attr(COST) {
            Some(Attr::Int(cost, _)) => (*cost).max(1),
            // Expensive, but not more so than operations with known costs.
            _ => self.threshold,
        }
    }

    /// Finds each node's parent.
    fn schedule(&mut self, module: &Module, region: &Region) {
        let mut definitions: HashMap<Value, usize> = HashMap::new();
        let mut from_root = vec![1i64];
        self.nodes.push(Node {
            cost: 1,
            ..Node::default()
        });
        for (i, op) in region.ops.iter().enumerate() {
            let mut node = Node {
                cost: self.cost(op),
                ..Node::default()
            };
            let mut parent = (ROOT, 0);
            for operand in &op.operands {
                let definition = definitions.get(operand).copied().unwrap_or(ROOT);
                if !module.ty(*operand).is("!tfrt.chain") {
                    node.others.insert(definition);
                }
                if from_root[definition] > parent.1 {
                    parent = (definition, from_root[definition]);
                }
            }
            node.others.remove(&parent.0);
            from_root.push(node.cost.saturating_add(parent.1));
            self.nodes[parent.0].children.push(i + 1);
            definitions.extend(op.results.iter().map(|result| (*result, i + 1)));
            self.nodes.push(node);
        }
    }

    /// The stream that a node has, which may have become part of another one.
    fn stream_of(&self, node: usize) -> Option<usize> {
        let mut stream = self.nodes[node].stream?;
        while let Some(next) = self.streams[stream].merged_into {
            stream = next;
        }
        Some(stream)
    }

    fn is_cheap(&self, stream: usize) -> bool {
        self.streams[stream].cost < self.threshold
    }

    fn merge(&mut self, from: usize, to: usize) {
        let source = &mut self.streams[from];
        source.merged_into = Some(to);
        let (cost, mut needs) = (source.cost, std::mem::take(&mut source.needs));
        needs.append(&mut self.streams[to].needs);
        needs.retain(|node| self.stream_of(*node) != Some(to));
        let target = &mut self.streams[to];
        target.cost = target.cost.saturating_add(cost);
        target.needs = needs;
    }

    /// Joins cheap children with those that need their values.
    fn merge_dependent(&mut self, children: &mut Vec<usize>) {
        let candidates = ordered_set(children.iter().copied());
        let mut gone = BTreeSet::new();
        for child in children.iter().copied() {
            if gone.contains(&child) {
                continue;
            }
            let needs = self.streams[child].needs.iter();
            let sources = needs.filter_map(|node| self.stream_of(*node));
            let joins = |s: &usize| *s != child && candidates.contains(s) && self.is_cheap(*s);
            let sources = ordered_set(sources.filter(joins));
            for source in sources {
                self.merge(source, child);
                gone.insert(source);
                if !self.is_cheap(child) {
                    break;
                }
            }
        }
        children.retain(|child| !gone.contains(child));
    }

    /// Puts a node into a stream, when all nodes below it have theirs.
    fn assign(&mut self, node: usize) {
        let children = self.nodes[node].children.iter();
        let mut children: Vec<usize> = children.filter_map(|c| self.stream_of(*c)).collect();
        for child in &children {
            self.streams[*child].parent_node = Some(node);
        }
        if self.merges_dependent {
            self.merge_dependent(&mut children);
        }
        // Cheap children join until they are worth a stream of their own.
        let mut heap: Option<usize> = None;
        let mut dearest: Option<(i64, usize)> = None;
        for child in children {
            let mut candidate = child;
            if self.is_cheap(child) {
                match heap.filter(|h| self.is_cheap(*h)) {
                    Some(open) => {
                        self.merge(child, open);
                        candidate = open;
                    }
                    None => heap = Some(child),
                }
            }
            let cost = self.streams[candidate].cost;
            let fits = self.upper.is_none_or(|upper| cost < upper);
            if fits && dearest.is_none_or(|(most, _)| cost > most) {
                dearest = Some((cost, candidate));
            }
        }
        let stream = dearest.map_or(self.streams.len(), |(_, stream)| stream);
        if dearest.is_none() {
            self.streams.push(Building::default());
        }
        self.put(node, stream);
        // At most one is still too cheap to stand alone.
        if dearest.is_some()
            && let Some(left) = heap.filter(|h| *h != stream && self.is_cheap(*h))
        {
            self.merge(left, stream);
        }
    }

    fn put(&mut self, node: usize, stream: usize) {
        let (this, target) = (&mut self.nodes[node], &mut self.streams[stream]);
        this.stream = Some(stream);
        target.parent_node = None;
        target.cost = target.cost.saturating_add(this.cost);
        if self.merges_dependent {
            target.needs.remove(&node);
            target.needs.extend(&this.others);
        }
    }

    fn finish(&self) -> Streams {
        let of_node = (0..self.nodes.len()).map(|node| {
            let id = self.stream_of(node).unwrap_or(0);
            let building = &self.streams[id];
            Stream {
                id,
                cost: building.cost,
                parent: building.parent_node.and_then(|node| self.stream_of(node)),
            }
        });
        Streams {
            of_node: of_node.collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse;
    use super::*;

    /// `stream:parent` of the start and of each operation of the only function.
    fn check(attributes: &str, body: &str, want: &str) {
        let text = format!("func @f(%a: i32) attributes {{{attributes}}} {{\n{body}\n}}");
        let module = parse(&text, "f.mlir", 0).expect("well formed");
        let streams = Streams::of(&module, &module.ops[0]).expect("a body");
        let texts: Vec<String> = streams
            .of_node
            .iter()
            .map(|s| format!("{}/{}", s.id, s.cost))
            .collect();
        assert_eq!(texts.join(" "), want, "{attributes}\n{body}");
    }

    fn op(result: &str, cost: i64, operands: &[&str]) -> String {
        let types = vec!["i32"; operands.len()].join(", ");
        let operands = operands.join(", ");
        format!(
            "%{result} = \"my.op\"({operands}) {{_tfrt_cost = {cost} : i64}} : ({types}) -> i32\n"
        )
    }

    #[test]
    fn operations_are_put_into_streams() {
        let apart = [
            op("x", 5, &["%a"]),
            op("y", 5, &["%a"]),
            "tfrt.return".into(),
        ]
        .concat();
        // Apart by default; together if they are cheap; the return has a place of its own.
        check("", &apart, "2/6 2/6 1/5 0/1");
        check("tfrt.cost_threshold = 8", &apart, "2/12 2/12 2/12 2/12");
        let chain = [
            op("x", 5, &["%a"]),
            op("y", 5, &["%x"]),
            op("z", 1, &["%y", "%x"]),
            "tfrt.return".into(),
        ]
        .concat();
        check("", &chain, "1/12 1/12 1/12 1/12 0/1");
        // A chain is cut where it becomes too expensive.
        check(
            "tfrt.upper_cost_threshold = 6",
            &chain,
            "2/6 2/6 1/6 1/6 0/1",
        );
    }
}
