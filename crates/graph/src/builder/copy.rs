//! Copies of nodes within a graph.

use super::GraphBuilder;
use crate::{Node, NodeId, Output};
use ferroflow_base::Result;
use ferroflow_opdef::AttrValue;
use rustc_hash::FxHashMap;

impl GraphBuilder<'_> {
    /// Adds a copy of each node in `nodes` with `name/` before its name; returns the copies in the same
    /// order. They read what `instead` returns for an input, and each other where the originals do;
    /// other inputs stay. `change` may change a copy's attrs and device, which is that of
    /// [`on_device`](Self::on_device), or the original's if there is none.
    ///
    /// The copies of all nodes of a loop are a loop that is independent of it.
    ///
    /// # Errors
    /// Those of adding a node, which do not occur here: names are made unique.
    pub fn copy_nodes(
        &mut self,
        name: &str,
        nodes: &[NodeId],
        instead: impl Fn(Output) -> Option<Output>,
        mut change: impl FnMut(&mut Node),
    ) -> Result<Vec<NodeId>> {
        let mut copies = FxHashMap::default();
        let mut added = Vec::with_capacity(nodes.len());
        for &id in nodes {
            let mut copy = self.graph.node(id).clone();
            copy.name = self.name(&format!("{name}/{}", copy.name));
            if let Some(AttrValue::Str(frame)) = copy.attrs.get("frame_name") {
                let frame = format!("{name}/{}", String::from_utf8_lossy(frame));
                copy.attrs.set("frame_name", AttrValue::str(&frame));
            }
            if !self.device.is_empty() {
                copy.device.clone_from(&self.device);
            }
            change(&mut copy);
            let copy = self.add_raw(copy, None)?;
            copies.insert(id, copy);
            added.push(copy);
        }
        for (&id, &copy) in nodes.iter().zip(&added) {
            let original = self.graph.node(id);
            let mut inputs = original.inputs.clone();
            for input in &mut inputs {
                if let Some(other) = instead(*input) {
                    *input = other;
                } else if let Some(node) = copies.get(&input.node) {
                    input.node = *node;
                }
            }
            let mut controls = original.controls.clone();
            for control in &mut controls {
                *control = copies.get(control).copied().unwrap_or(*control);
            }
            let with = self.copied_classes(id, &copies);
            if let Some(node) = self.graph.node_mut(copy) {
                (node.inputs, node.controls) = (inputs, controls);
                if let Some(with) = with {
                    node.attrs.set("_class", with);
                }
            }
        }
        Ok(added)
    }

    /// The attr `_class` of a node's copy: with the copies of the nodes that the original is with.
    fn copied_classes(&self, id: NodeId, copies: &FxHashMap<NodeId, NodeId>) -> Option<AttrValue> {
        let AttrValue::List(classes) = self.graph.node(id).attrs.get("_class")? else {
            return None;
        };
        let copied = |class: &AttrValue| {
            let AttrValue::Str(text) = class else {
                return None;
            };
            let name = std::str::from_utf8(text).ok()?.strip_prefix("loc:@")?;
            let copy = copies.get(&self.graph.find(name)?)?;
            let name = &self.graph.node(*copy).name;
            Some(AttrValue::str(&format!("loc:@{name}")))
        };
        let classes = classes.iter();
        let classes = classes.map(|class| copied(class).unwrap_or_else(|| class.clone()));
        Some(AttrValue::List(classes.collect()))
    }
}

#[cfg(test)]
mod tests {
    use crate::testing::{graph, registry};
    use crate::{GraphBuilder, NodeId, Output, to_text};

    /// Copies the nodes after the first, `x`, on device `/d`, where they read `z` for `x`.
    fn check(text: &str, expect: &str) {
        let graph = graph(text).expect("valid");
        let before = graph.id_bound();
        let output = |name| Output::new(graph.find(name).expect(name), 0);
        let (x, z) = (output("x"), output("z"));
        let instead = |input| (input == x).then_some(z);
        let nodes: Vec<NodeId> = (2..before).map(NodeId::new).collect();
        let mut b = GraphBuilder::from_graph(graph, registry());
        let copied = b.on_device("/d", |b| b.copy_nodes("c", &nodes, instead, |_| ()));
        assert_eq!(copied.expect("valid").len(), nodes.len());
        let graph = b.finish().expect("valid");
        for (_, node) in graph.iter().skip(before) {
            assert_eq!(node.device, "/d", "{}", node.name);
        }
        let all = to_text(&graph);
        let new: Vec<&str> = all.lines().filter(|l| l.starts_with("c/")).collect();
        assert_eq!(new.join("; "), expect, "{text}");
    }

    #[test]
    fn copies_read_each_other() {
        check(
            "x = Placeholder\nz = Placeholder\na = Neg(x)\nb = Mul(a, x, ^a)",
            "c/a = Neg(z); c/b = Mul(c/a, z, ^c/a)",
        );
    }

    #[test]
    fn loops_are_copied_with_their_frames() {
        check(
            "x = Placeholder\nz = Placeholder\nm = Merge(e, n)\ne = Enter(x)\nl = Less(m, m)\n\
             c = LoopCond(l)\ns = Switch(m, c)\nn = NextIteration(s:1)\ny = Exit(s)",
            "c/e = Enter{frame_name=\"c/loop\"}(z); c/m = Merge(c/e, c/n); c/l = Less(c/m, c/m); c/c = LoopCond(c/l); \
             c/s = Switch(c/m, c/c); c/n = NextIteration(c/s:1); c/y = Exit(c/s)",
        );
    }
}
