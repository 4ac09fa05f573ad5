//! Recv scheduling (TensorFlow: `core/distributed_runtime/scheduler.cc`, `AddControlEdges` of
//! `core/graph/graph_partition.cc`).
//!
//! The master estimates when each node can start at the earliest, and sends this along with the parts of
//! a graph. Each part divides the time that it takes into epochs; a `_Recv` waits for what runs before
//! the epoch that is [`PREFETCH`] before its own, so that tensors which are needed late do not arrive,
//! and occupy memory, early.
//!
//! No step waits for ever because of that: times never decrease along an edge from part to part, and a
//! `_Recv` only waits for nodes of an earlier time. A loop counts as one node in this respect, as its nodes
//! wait for each other in both directions; `_Recv` nodes in loops, which have their own triggers, are left
//! alone. TensorFlow makes neither exception.

use crate::{Consumers, Graph, Node, NodeId, loop_frames, topological_order};
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Attrs, NodeClass, Registry};
use rustc_hash::FxHashMap;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// The attr with the earliest time at which a node can start, in microseconds.
pub(crate) const START: &str = "_start_time";
/// The estimate of every node, in microseconds.
const NODE: i64 = 1;
/// The estimate of a copy between devices, in microseconds.
const COPY: i64 = 10;
/// The number of epochs of a part.
const EPOCHS: i64 = 100;
/// How many epochs before a tensor is needed it may be received.
const PREFETCH: i64 = 6;

fn start_time(node: &Node) -> Option<i64> {
    node.attrs.int(START).ok()
}

fn has_start_times(graph: &Graph) -> bool {
    graph.iter().any(|(_, node)| start_time(node).is_some())
}

/// Whether the edge from `from` to `to` closes a loop.
fn is_back(graph: &Graph, from: NodeId) -> bool {
    graph.node(from).class() == NodeClass::NextIteration
}

/// Sets the start times of all nodes of a graph that is going to be cut, unless its master has;
/// `places` are their devices.
///
/// # Errors
/// INVALID_ARGUMENT if a loop is malformed.
pub(crate) fn set_start_times(graph: &mut Graph, places: &[usize]) -> Result<()> {
    if has_start_times(graph) {
        return Ok(());
    }
    let frames = loop_frames(graph)?;
    let order = topological_order(graph)?;
    let mut times = vec![0; graph.id_bound()];
    // When the last node of each loop starts. Each round finds that of one more loop, at least.
    let mut ends = vec![0; frames.loops.len()];
    for _ in 0..=frames.loops.len() {
        for &id in &order {
            let node = graph.node(id);
            let data = node.inputs.iter().map(|i| {
                let is_copied = places.get(i.node.index()) != places.get(id.index());
                (i.node, if is_copied { COPY } else { 0 })
            });
            let controls = node.controls.iter().map(|c| (*c, 0));
            let before = data.chain(controls).filter(|(p, _)| !is_back(graph, *p));
            let ready = before.map(|(p, copy)| times[p.index()] + NODE + copy);
            let mut time = ready.max().unwrap_or(0);
            if let (NodeClass::Exit, Some(of)) = (node.class(), frames.of(id)) {
                time = time.max(ends[of] + NODE);
            }
            times[id.index()] = time;
        }
        let before = ends.clone();
        for (id, node) in graph.iter() {
            let mut within = match node.class() {
                NodeClass::Exit => frames.after(graph, id),
                _ => frames.of(id),
            };
            while let Some(of) = within {
                ends[of] = times[id.index()].max(ends[of]);
                within = frames.loops[of].parent;
            }
        }
        if ends == before {
            break;
        }
    }
    for id in order {
        set_start_time(graph, id, times[id.index()]);
    }
    Ok(())
}

fn set_start_time(graph: &mut Graph, id: NodeId, time: i64) {
    if let Some(node) = graph.node_mut(id) {
        node.attrs.set(START, AttrValue::Int(time));
    }
}

/// Sets the start times of the nodes of a part that have none, as those that cutting has added: nodes on
/// the way out start with the one whose tensor they send, nodes on the way in with the first one that reads
/// theirs. A worker may refuse a part in which one is missing, as TensorFlow's does.
///
/// # Errors
/// INVALID_ARGUMENT if the graph has a cycle.
pub fn complete_start_times(graph: &mut Graph) -> Result<()> {
    let order = topological_order(graph)?;
    let consumers = Consumers::new(graph);
    for &id in order.iter().rev() {
        let node = graph.node(id);
        let is_new = |id: NodeId| start_time(graph.node(id)).is_none();
        let of_recv = |id: NodeId| graph.node(id).class() == NodeClass::Recv && is_new(id);
        let comes_in = of_recv(id) || node.inputs.iter().any(|i| of_recv(i.node));
        if is_new(id) && comes_in {
            let readers = consumers.of(id).iter();
            let first = readers
                .filter_map(|(r, _)| start_time(graph.node(*r)))
                .min();
            set_start_time(graph, id, first.unwrap_or(0));
        }
    }
    for id in order {
        let node = graph.node(id);
        if start_time(node).is_none() {
            let before = node.predecessors();
            let last = before.filter_map(|p| start_time(graph.node(p))).max();
            set_start_time(graph, id, last.unwrap_or(0));
        }
    }
    Ok(())
}

/// Lets the `_Recv` nodes of a part wait for nodes that start early enough, if its nodes have start
/// times, and removes these.
///
/// # Errors
/// INVALID_ARGUMENT if a loop is malformed; INTERNAL if the registry lacks ControlTrigger.
pub fn schedule_recvs(graph: &mut Graph, registry: &Registry) -> Result<()> {
    if !has_start_times(graph) {
        return Ok(());
    }
    let frames = loop_frames(graph)?;
    let order = by_time(graph);
    let makespan = order.last().map_or(0, |(time, _)| *time);
    let epoch = makespan / EPOCHS + 1;
    let recvs = order.iter().filter(|(_, id)| {
        let node = graph.node(*id);
        node.op() == "_Recv" && frames.of(*id).is_none()
    });
    let recvs: Vec<(i64, NodeId)> = recvs.copied().collect();
    let mut triggers: FxHashMap<i64, Option<NodeId>> = FxHashMap::default();
    for (time, recv) in recvs {
        let wanted = time / epoch - PREFETCH;
        let trigger = match triggers.get(&wanted) {
            Some(trigger) => *trigger,
            None => {
                let n = order.partition_point(|(time, _)| *time < wanted * epoch);
                let mut before = order[..n].iter().rev().map(|(_, id)| *id);
                let last = before.find(|id| {
                    // Nothing comes after a result.
                    graph.node(*id).class() != NodeClass::Retval
                        && frames.after(graph, *id).is_none()
                        && frames.of(*id).is_none()
                });
                let added = last.map(|last| trigger_after(graph, last, wanted, registry));
                let added = added.transpose()?;
                triggers.insert(wanted, added);
                added
            }
        };
        if let (Some(trigger), Some(node)) = (trigger, graph.node_mut(recv)) {
            node.controls.push(trigger);
        }
    }
    let all: Vec<NodeId> = graph.iter().map(|(id, _)| id).collect();
    for id in all {
        if let Some(node) = graph.node_mut(id) {
            node.attrs.remove(START);
        }
    }
    Ok(())
}

/// Adds the node that starts epoch `number` after `last`, dead or alive.
fn trigger_after(
    graph: &mut Graph,
    last: NodeId,
    number: i64,
    registry: &Registry,
) -> Result<NodeId> {
    let name = graph.unique_name(&format!("synch_{number}"));
    let attrs = Attrs::default();
    let mut node = Node::new(registry, name, "ControlTrigger", attrs, &[], &[last])?;
    node.device.clone_from(&graph.node(last).device);
    graph.add(node)
}

/// The nodes of a part with the times at which they start if each starts after what it reads, in that
/// order.
fn by_time(graph: &Graph) -> Vec<(i64, NodeId)> {
    let consumers = Consumers::new(graph);
    let mut times = vec![0; graph.id_bound()];
    let mut pending = vec![0; graph.id_bound()];
    let mut ready = BinaryHeap::new();
    for (id, node) in graph.iter() {
        let i = id.index();
        times[i] = start_time(node).unwrap_or(0);
        pending[i] = node.predecessors().filter(|p| !is_back(graph, *p)).count();
        if pending[i] == 0 {
            ready.push(Reverse((times[i], id)));
        }
    }
    let mut order = Vec::with_capacity(graph.len());
    while let Some(Reverse((time, id))) = ready.pop() {
        order.push((time, id));
        if is_back(graph, id) {
            continue;
        }
        for (reader, _) in consumers.of(id) {
            let i = reader.index();
            times[i] = times[i].max(time + 1);
            pending[i] -= 1;
            if pending[i] == 0 {
                ready.push(Reverse((times[i], *reader)));
            }
        }
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{graph, registry};
    use crate::to_text;

    /// A chain of `n` nodes after `begin`, named `name` with a number.
    fn chain(name: &str, begin: &str, n: usize) -> String {
        let mut text = String::new();
        for i in 0..n {
            let before = match i {
                0 => begin.to_string(),
                _ => format!("{name}{}", i - 1),
            };
            text += &format!("{name}{i} = Neg({before})\n");
        }
        text
    }

    const KEY: &str =
        "{tensor_type=float,tensor_name=k,send_device=A,send_device_incarnation=1,recv_device=B}";

    /// The control edges that scheduling adds, from what `_Recv` nodes wait for; times are attrs.
    fn check(text: &str, expect: &[&str]) {
        let text = text.replace("_Recv{", &format!("_Recv{},", KEY.trim_end_matches('}')));
        let mut graph = graph(&text).expect("valid");
        schedule_recvs(&mut graph, registry()).expect("schedulable");
        graph.verify().expect("no cycle");
        assert!(!to_text(&graph).contains(START));
        let name = |id: &NodeId| graph.node(*id).name.clone();
        let edges = graph.iter().flat_map(|(id, node)| {
            let controls = node.controls.iter();
            controls.map(move |c| (*c, id)).collect::<Vec<_>>()
        });
        let edges = edges.map(|(from, to)| format!("{} -> {}", name(&from), name(&to)));
        assert_eq!(edges.collect::<Vec<_>>(), expect, "{text}");
    }

    #[test]
    fn recvs_wait_for_what_starts_six_epochs_before() {
        let steps = chain("n", "x", 20);
        // An epoch is a microsecond: the node that starts last before 20 - 6.
        check(
            &format!(
                "x = Placeholder{{_start_time=0}}\nr = _Recv{{_start_time=20}}\n{steps}y = Mul(n19, r)"
            ),
            &["synch_14 -> r", "n12 -> synch_14"],
        );
        // Tensors that are needed soon, or are alone in their part, do not wait.
        check(
            &format!(
                "x = Placeholder{{_start_time=0}}\nr = _Recv{{_start_time=6}}\n{steps}y = Mul(n19, r)"
            ),
            &[],
        );
        check("r = _Recv{_start_time=90}\ny = Neg(r)", &[]);
        // Without times there is nothing to do.
        let untimed = steps.replace("_start_time", "other");
        check(
            &format!("x = Placeholder\nr = _Recv{{_time=9}}\n{untimed}"),
            &[],
        );
    }

    #[test]
    fn an_epoch_is_a_hundredth_of_the_time() {
        // Of 1000 microseconds, an epoch has 11: 900 is in epoch 81, and 75 begins at 825.
        check(
            "x = Placeholder{_start_time=0}\na = Neg{_start_time=700}(x)\nb = Neg{_start_time=824}(a)\n\
             c = Neg{_start_time=825}(b)\nr = _Recv{_start_time=900}\nq = _Recv{_start_time=901}\n\
             d = Mul{_start_time=1000}(c, r)\ne = Mul{_start_time=1000}(d, q)",
            &["synch_75 -> r", "synch_75 -> q", "b -> synch_75"],
        );
    }

    #[test]
    fn results_are_not_awaited() {
        check(
            "x = Placeholder{_start_time=0}\na = Neg{_start_time=1}(x)\nz = _Retval{T=float,index=0,_start_time=2}(a)\n\
             r = _Recv{_start_time=50}\ny = Mul{_start_time=50}(a, r)",
            &["synch_44 -> r", "a -> synch_44"],
        );
    }

    #[test]
    fn loops_are_neither_awaited_nor_delayed() {
        check(
            "x = Placeholder{_start_time=0}\ne = Enter{_start_time=1}(x)\nm = Merge{_start_time=2}(e, n)\n\
             l = Less{_start_time=3}(m, m)\nc = LoopCond{_start_time=4}(l)\ns = Switch{_start_time=5}(m, c)\n\
             n = NextIteration{_start_time=6}(s:1)\ny = Exit{_start_time=7}(s)\nr = _Recv{_start_time=50}\n\
             z = Mul{_start_time=50}(y, r)",
            &["synch_44 -> r", "x -> synch_44"],
        );
    }

    /// The start times of nodes that are on the device of their first letter.
    fn times(text: &str, expect: &str) {
        let mut graph = graph(text).expect("valid");
        let mut places = vec![0; graph.id_bound()];
        for (id, node) in graph.iter() {
            places[id.index()] = usize::from(node.name.starts_with('b'));
        }
        set_start_times(&mut graph, &places).expect("valid");
        let times = graph.iter().map(|(_, node)| {
            let time = start_time(node).expect("set");
            format!("{} {time}", node.name)
        });
        assert_eq!(times.collect::<Vec<_>>().join(", "), expect, "{text}");
    }

    #[test]
    fn nodes_take_one_and_copies_ten_microseconds() {
        times(
            "a = Placeholder\na2 = Neg(a)\nb = Mul(a, a)\nb2 = Mul(b, a2, ^a)\na3 = NoOp(^b2)",
            "a 0, a2 1, b 11, b2 12, a3 13",
        );
    }

    #[test]
    fn tensors_travel_at_the_times_of_their_ends() {
        let devices = crate::DeviceSet {
            names: vec!["A".to_string(), "B".to_string()],
            schedules_recvs: true,
            ..Default::default()
        };
        let text = "a = Placeholder\na2 = Neg(a)\nb = Neg(a2)\nb2 = NoOp(^a)\nb3 = Mul(b, a2)";
        let graph = graph(text).expect("valid");
        let places: Vec<usize> = (0..5).map(|i| usize::from(i > 1)).collect();
        let parts = crate::partition(&graph, &places, &devices, registry());
        let parts = parts.expect("valid").expect("two parts");
        let times = parts.iter().map(|part| {
            let nodes = part.graph.graph().iter();
            let times = nodes.map(|(_, n)| (start_time(n).expect("set"), n.name.clone()));
            let times = times.map(|(time, name)| format!("{name} {time}"));
            times.collect::<Vec<_>>().join(", ")
        });
        let expect = [
            "a 0, a2 1, a2/_send_0 1, a/_ctrl_1 0, a/_send_1 0",
            "b 12, b2 1, b3 13, a2/_recv_0 12, a/_recv_1 1, a/_done_1 1",
        ];
        assert_eq!(times.collect::<Vec<_>>(), expect);
    }

    #[test]
    fn a_part_without_start_times_starts_at_once() {
        let mut graph = graph("a = Placeholder\nb = Neg(a)\nc = NoOp(^b)").expect("valid");
        complete_start_times(&mut graph).expect("no cycle");
        assert!(graph.iter().all(|(_, node)| start_time(node) == Some(0)));
    }

    #[test]
    fn what_a_loop_yields_is_later_than_all_of_it() {
        times(
            "a = Placeholder\nae = Enter(a)\nam = Merge(ae, an)\nal = Less(am, am)\nac = LoopCond(al)\n\
             as = Switch(am, ac)\na1 = Neg(as:1)\na2 = Neg(a1)\nan = NextIteration(a2)\nay = Exit(as)\n\
             az = Neg(ay)",
            "a 0, ae 1, am 2, al 3, ac 4, as 5, a1 6, a2 7, an 8, ay 9, az 10",
        );
    }
}
