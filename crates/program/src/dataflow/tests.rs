//! Bodies against the verifier's rules, and through their binary form.

use super::codec::{Numbers, References, decode, encode};
use super::*;
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Attrs, Cost, FuncRef, NodeInfo, Value};
use ferroflow_tensor::{DType, LazyTensor, PartialShape, Tensor};
use std::sync::Arc;

fn node(op: &str, action: Action<Box<KernelEntry>>, inputs: Vec<Source>, n: usize) -> BuildNode {
    BuildNode {
        info: NodeInfo {
            name: format!("my_{op}"),
            op: op.to_string(),
        },
        action,
        inputs,
        controls: Vec::new(),
        n_outputs: n,
        cost: Cost::Cheap,
    }
}

fn kernel(op: &str, inputs: Vec<Source>, attrs: Attrs) -> BuildNode {
    let entry = KernelEntry {
        op: op.to_string(),
        node: format!("graph/{op}"),
        device: "/device:CPU:0".to_string(),
        attrs,
        inputs: vec![DType::Float; inputs.len()],
        outputs: vec![DType::Float],
    };
    node(op, Action::Kernel(Box::new(entry)), inputs, 1)
}

fn of(node: NodeIdx) -> Source {
    Source::Node(node, 0)
}

/// A loop between two kernels, the second of which waits for the first and calls a function itself;
/// a Case, a While and an If over two functions.
fn body() -> Body {
    let mut b = BodyBuilder::new();
    let main = b.function("", 1, 3);
    let same = b.function("same", 1, 1);
    let test = b.function("test", 1, 1);
    let inside = b.loop_frame("loop", main, 4);
    let constant = b.constant(Tensor::scalar(1.5f32).into());
    b.result(test, 0, Source::Const(constant)).expect("unset");
    let arg = b.add(same, node("_Arg", Action::Arg(0), vec![], 1));
    b.result(same, 0, of(arg)).expect("unset");
    let x = b.add(main, node("_Arg", Action::Arg(0), vec![], 1));
    let attrs = Attrs::default()
        .with("a", AttrValue::ints(&[1, -70_000]))
        .with("b", AttrValue::Shape(PartialShape::unknown()))
        .with("c", AttrValue::Tensor(Tensor::scalar(2i32).into()))
        .with("d", AttrValue::Float(0.25));
    let add = kernel("Add", vec![of(x), Source::Const(constant)], attrs);
    let add = b.add(main, add);
    let enter = Action::Enter {
        frame: inside,
        is_constant: false,
    };
    let enter = b.add(main, node("Enter", enter, vec![of(add)], 1));
    let merge = b.next_node();
    let back = NodeIdx::new(merge.index() + 2);
    let inputs = vec![of(enter), of(back)];
    b.add(inside, node("Merge", Action::Merge, inputs, 1));
    let switch = node("Switch", Action::Switch, vec![of(merge), of(merge)], 2);
    let switch = b.add(inside, switch);
    let next = vec![Source::Node(switch, 1)];
    b.add(
        inside,
        node("NextIteration", Action::NextIteration, next, 1),
    );
    let exit = b.add(inside, node("Exit", Action::Exit, vec![of(switch)], 1));
    let func = FuncRef {
        name: "mapped".to_string(),
        attrs: Attrs::default(),
    };
    let attrs = Attrs::default().with("f", AttrValue::Func(func));
    let mut map = kernel("Map", vec![of(exit)], attrs);
    map.controls.push(add);
    let map = b.add(main, map);
    let branches = Box::new([same, test]);
    let case = node("Case", Action::Case(branches), vec![of(map), of(x)], 1);
    let case = b.add(main, case);
    let looped = Action::While {
        cond: test,
        body: same,
    };
    let looped = b.add(main, node("While", looped, vec![of(case)], 1));
    let choice = Action::If {
        then_branch: test,
        else_branch: same,
    };
    let choice = b.add(main, node("If", choice, vec![of(x), of(case)], 1));
    b.result(main, 0, of(looped)).expect("unset");
    b.result(main, 1, of(choice)).expect("unset");
    b.result(main, 2, of(exit)).expect("unset");
    let mut mapped = BodyBuilder::new();
    let f = mapped.function("", 0, 1);
    let c = mapped.constant(Tensor::scalar(3i64).into());
    mapped.result(f, 0, Source::Const(c)).expect("unset");
    b.called_by_kernels("mapped", Arc::new(mapped.finish().expect("valid")));
    b.finish().expect("valid")
}

/// A body that a change breaks, and what the verifier says.
#[track_caller]
fn check(change: impl FnOnce(&mut Body), expect: &str) {
    let mut body = body();
    change(&mut body);
    let said = body.verify().err().map(|e| e.to_string());
    let said = said.unwrap_or_else(|| "valid".to_string());
    assert!(said.contains(expect), "{said}, expected {expect}");
}

fn find(body: &Body, op: &str) -> usize {
    let mut info = body.info.iter();
    info.position(|i| i.op == op).expect("an op of the body")
}

fn change(body: &mut Body, op: &str, edit: impl FnOnce(&mut Node<Box<KernelEntry>>)) {
    let at = find(body, op);
    edit(&mut body.nodes[at]);
}

#[test]
fn the_verifier_knows_its_rules() {
    let unfit = "the node does not fit its inputs and outputs";
    check(|_| {}, "valid");
    // 1. Arrays.
    check(|b| b.frames.clear(), "the first frame is not a function");
    check(|b| drop(b.info.pop()), "has no name");
    check(|b| b.frames[1].first_node += 1, "not consecutive");
    check(|b| b.nodes[1].first_slot += 1, "not consecutive");
    check(|b| b.nodes[1].n_edges += 1, "not consecutive");
    check(|b| b.edges.truncate(1), "left over");
    check(|b| b.frames[0].slots.push(Value::Empty), "left over");
    // 2. Frames.
    let in_loop = |b: &mut Body, edit: fn(&mut FrameKind)| edit(&mut b.frames[3].kind);
    check(|b| in_loop(b, |k| *k = FrameKind::Function), "invalid");
    let set = |k: &mut FrameKind, parent, n| {
        *k = FrameKind::Loop {
            parent: FrameIdx::new(parent),
            parallel_iterations: n,
            n_enters: 1,
        }
    };
    check(|b| set(&mut b.frames[3].kind, 3, 4), "invalid loop");
    check(|b| set(&mut b.frames[3].kind, 0, 0), "invalid loop");
    check(|b| set(&mut b.frames[3].kind, 1, 1), "an edge is invalid");
    // 3. Edges.
    check(
        |b| b.edges[0].node = NodeIdx::new(999),
        "an edge is invalid",
    );
    check(|b| b.edges[0].output = 1, "an edge is invalid");
    check(|b| b.edges[0].slot = 999, "an edge is invalid");
    check(
        |b| b.edges[0].kind = EdgeKind::MergeData,
        "an edge is invalid",
    );
    check(
        |b| b.edges[0].kind = EdgeKind::Trigger,
        "an edge is invalid",
    );
    // 4. Slots and results.
    check(|b| b.edges[0].kind = EdgeKind::Control, "not set");
    check(|b| b.frames[0].slots[0] = Value::Const(0), "written twice");
    check(|b| b.frames[0].slots[1] = Value::Empty, "not set");
    check(|b| b.frames[2].const_results.clear(), "not set");
    check(|b| b.frames[0].n_results = usize::MAX, "not set");
    check(|b| b.frames[0].n_results = 4, "not set");
    // 5. Derived values.
    let counts = "counts do not agree with the edges";
    check(|b| b.frames[0].pending[1] += 1, counts);
    check(|b| b.frames[3].pending[0] += 2, counts);
    check(|b| b.frames[0].roots.push(NodeIdx::new(1)), counts);
    check(|b| b.frames[0].args[0] = None, counts);
    check(|b| b.edges[0].last ^= true, "forwarding");
    check(|b| b.nodes[1].forward_slot = ForwardSlot(0), "forwarding");
    // 6. Actions.
    let make = |b: &mut Body, op, action| change(b, op, |n| n.action = action);
    check(|b| make(b, "Case", Action::Switch), unfit);
    check(|b| make(b, "Case", Action::Case(Box::new([]))), unfit);
    check(|b| make(b, "While", Action::Call(FrameIdx::new(3))), unfit);
    check(|b| make(b, "While", Action::Call(FrameIdx::new(9))), unfit);
    check(|b| make(b, "_Arg", Action::Arg(7)), "out of range");
    check(|b| make(b, "While", Action::NextIteration), unfit);
    check(|b| change(b, "While", |n| n.n_outputs = 2), unfit);
    check(|b| make(b, "While", Action::Merge), "an edge is invalid");
    // 7. Cycles.
    check(|b| make(b, "NextIteration", Action::Forward), "on a cycle");
    // 8. Constants.
    check(|b| b.frames[0].slots[1] = Value::Const(1), "does not exist");
    check(|b| b.consts.clear(), "does not exist");
    check(|b| make(b, "_Arg", Action::Const(5)), unfit);
}

/// Numbers in the order of asking.
#[derive(Default)]
struct Lists {
    tensors: Vec<LazyTensor>,
    functions: Vec<Arc<Body>>,
}

impl Numbers for Lists {
    fn tensor(&mut self, tensor: &LazyTensor) -> Result<u32> {
        self.tensors.push(tensor.clone());
        Ok((self.tensors.len() - 1) as u32)
    }

    fn function(&mut self, function: &Arc<Body>) -> Result<u32> {
        self.functions.push(function.clone());
        Ok((self.functions.len() - 1) as u32)
    }
}

impl Lists {
    fn decode(&self, bytes: &[u8]) -> Result<Body> {
        let function = |i: u32| self.functions.get(i as usize).cloned();
        decode(
            bytes,
            &References {
                tensors: &self.tensors,
                function: &function,
            },
        )
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % n.max(1)
    }

    fn attr(&mut self, depth: usize) -> AttrValue {
        match self.below(if depth > 2 { 8 } else { 10 }) {
            0 => AttrValue::str("text"),
            1 => AttrValue::Int(self.0.cast_signed()),
            2 => AttrValue::Float(self.below(100) as f32),
            3 => AttrValue::Bool(self.below(2) == 0),
            4 => AttrValue::Type(DType::ALL[self.below(DType::ALL.len())]),
            5 => AttrValue::Tensor(Tensor::scalar(self.below(9) as i64).into()),
            6 => AttrValue::Placeholder("p".to_string()),
            7 => {
                let dims: Vec<i64> = (0..self.below(3)).map(|d| d as i64 - 1).collect();
                let dims = (self.below(4) > 0).then_some(&dims[..]);
                AttrValue::Shape(PartialShape::from_tf(dims).expect("small"))
            }
            8 => AttrValue::List((0..self.below(4)).map(|_| self.attr(depth + 1)).collect()),
            _ => AttrValue::Func(FuncRef {
                name: "f".to_string(),
                attrs: Attrs::default().with("x", self.attr(depth + 1)),
            }),
        }
    }

    /// Kernels over earlier ones, which may wait for others.
    fn body(&mut self) -> Body {
        let mut b = BodyBuilder::new();
        let n_args = self.below(3);
        let main = b.function("", n_args, 1);
        let constant = b.constant(Tensor::scalar(1.0f32).into());
        let n = n_args + 1 + self.below(30);
        for i in 0..n {
            if i < n_args {
                b.add(main, node("_Arg", Action::Arg(i as u32), vec![], 1));
                continue;
            }
            let mut inputs = Vec::new();
            for _ in 0..self.below(4) {
                inputs.push(match self.below(i + 1) {
                    at if at < i => of(NodeIdx::new(at)),
                    _ => Source::Const(constant),
                });
            }
            let mut attrs = Attrs::default();
            for name in ["a", "bb", "c"].iter().take(self.below(4)) {
                attrs.set(*name, self.attr(0));
            }
            let mut node = kernel(["Add", "Mul"][self.below(2)], inputs, attrs);
            if i > 0 && self.below(3) == 0 {
                node.controls.push(NodeIdx::new(self.below(i)));
            }
            b.add(main, node);
        }
        let last = b.result(main, 0, of(NodeIdx::new(n - 1)));
        last.expect("unset");
        b.finish().expect("valid")
    }
}

#[test]
fn decoding_is_the_inverse_of_encoding() {
    let mut random = Random(1 << 40 | 1);
    let bodies = (0..200).map(|_| random.body());
    for body in bodies.chain([body()]) {
        let mut lists = Lists::default();
        let bytes = encode(&body, &mut lists).expect("encodes");
        let read = lists.decode(&bytes).expect("decodes");
        read.verify().expect("valid");
        let mut again = Lists::default();
        assert_eq!(encode(&read, &mut again).expect("encodes"), bytes);
        assert_eq!(read.max_outputs(), body.max_outputs());
        assert_eq!(read.info.len(), body.info.len());
        for ((_, a), (_, b)) in read.kernels().zip(body.kernels()) {
            assert!(a.attrs.same_values(&b.attrs) && a.node == b.node);
        }
    }
}

/// Damaged bytes are an error or another body, which the verifier takes or refuses.
#[test]
fn damaged_bodies_are_errors() {
    let mut lists = Lists::default();
    let bytes = encode(&body(), &mut lists).expect("encodes");
    for n in 0..bytes.len() {
        assert!(lists.decode(&bytes[..n]).is_err(), "cut to {n}");
    }
    let mut random = Random(77);
    let mut n_decoded = 0;
    for _ in 0..20_000 {
        let mut bad = bytes.clone();
        for _ in 0..1 + random.below(3) {
            let at = random.below(bad.len());
            bad[at] = match random.below(3) {
                0 => bad[at] ^ (1 << random.below(8)),
                1 => random.below(256) as u8,
                _ => 0xff,
            };
        }
        if let Ok(body) = lists.decode(&bad) {
            n_decoded += 1;
            let _ = body.verify();
        }
    }
    assert!(n_decoded > 1000, "{n_decoded}");
}
