//! Bodies against the verifier's rules, and through their binary form.

use super::*;
use crate::bef::codec::{Codec, Decoder, Encoder};
use ferroflow_base::Result;
use ferroflow_opdef::{AttrValue, Attrs, Cost, FuncRef, KernelCtx, NodeInfo, OpKernel};
use ferroflow_tensor::{DType, LazyTensor, PartialShape, Tensor};
use std::sync::Arc;

fn node(op: &str, action: Action<Box<KernelEntry>>, inputs: Vec<Source>, n: usize) -> BodyNode {
    BodyNode {
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

fn kernel(op: &str, inputs: Vec<Source>, attrs: Attrs) -> BodyNode {
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
    let mut b = Body::default();
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
    let mut mapped = Body::default();
    let f = mapped.function("", 0, 1);
    let c = mapped.constant(Tensor::scalar(3i64).into());
    mapped.result(f, 0, Source::Const(c)).expect("unset");
    b.functions.insert("mapped".to_string(), Arc::new(mapped));
    b
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

fn node_of<'a>(body: &'a mut Body, op: &str) -> &'a mut BodyNode {
    let mut nodes = body.nodes.iter_mut();
    nodes.find(|n| n.info.op == op).expect("an op of the body")
}

#[test]
fn the_verifier_knows_its_rules() {
    let unfit = "the node does not fit its inputs and outputs";
    let lost = "an input does not exist or does not reach the node";
    check(|_| {}, "valid");
    // 1. Frames.
    check(|b| b.frames.clear(), "the first frame is not a function");
    check(|b| b.frames[1].nodes.clear(), "a node has no frame");
    let two = "does not exist or has two frames";
    check(|b| b.frames[1].nodes.push(NodeIdx::new(1)), two);
    check(|b| b.frames[1].nodes.push(NodeIdx::new(99)), two);
    let unset = "is not set or does not reach the frame";
    check(|b| b.frames[3].kind = FrameKind::Function, unset);
    let set = |b: &mut Body, parent, parallel_iterations| {
        b.frames[3].kind = FrameKind::Loop {
            parent: FrameIdx::new(parent),
            parallel_iterations,
        }
    };
    check(|b| set(b, 3, 4), "invalid loop");
    check(|b| set(b, 0, 0), "invalid loop");
    check(|b| set(b, 1, 1), unset);
    check(|b| b.frames[3].n_args = 1, "invalid loop");
    check(|b| b.frames[3].results.push(None), "invalid loop");
    // 2. Sources.
    let input = |b: &mut Body, op, source| node_of(b, op).inputs[0] = source;
    check(|b| input(b, "Add", of(NodeIdx::new(999))), lost);
    check(|b| input(b, "Add", Source::Node(NodeIdx::new(1), 1)), lost);
    check(|b| input(b, "Add", of(NodeIdx::new(0))), lost);
    check(|b| input(b, "Add", Source::Const(1)), lost);
    check(|b| input(b, "Switch", of(NodeIdx::new(1))), lost);
    check(|b| input(b, "Merge", Source::Const(0)), unfit);
    check(|b| node_of(b, "Map").controls[0] = NodeIdx::new(0), lost);
    check(|b| b.consts.clear(), unset);
    check(|b| b.frames[0].results[0] = None, unset);
    check(
        |b| b.frames[0].results[0] = Some(of(NodeIdx::new(0))),
        unset,
    );
    check(|b| b.frames[0].results.push(None), unset);
    check(|b| b.frames[2].results[0] = Some(Source::Const(1)), unset);
    // 3. Actions.
    let make = |b: &mut Body, op, action| node_of(b, op).action = action;
    check(|b| make(b, "Case", Action::Switch), unfit);
    check(|b| make(b, "Case", Action::Case(Box::new([]))), unfit);
    check(|b| make(b, "While", Action::Call(FrameIdx::new(3))), unfit);
    check(|b| make(b, "While", Action::Call(FrameIdx::new(9))), unfit);
    check(|b| make(b, "_Arg", Action::Arg(7)), unfit);
    check(|b| make(b, "_Arg", Action::Const(5)), unfit);
    check(|b| make(b, "While", Action::NextIteration), unfit);
    check(|b| node_of(b, "While").n_outputs = 2, unfit);
    check(|b| node_of(b, "_Arg").controls.push(NodeIdx::new(0)), unfit);
    let again = |b: &mut Body| {
        let arg = b.nodes[1].clone();
        b.add(FrameIdx::new(0), arg);
    };
    check(again, "the argument is delivered twice");
    // 4. Sizes.
    check(|b| b.frames[0].n_args = usize::MAX, "arguments");
    let large = |b: &mut Body| {
        let merge = node_of(b, "Merge");
        merge.inputs = vec![merge.inputs[0]; MergeState::MAX_INPUTS];
    };
    check(large, unfit);
    check(|b| node_of(b, "_Arg").n_outputs = 1 << 16, unfit);
    // 5. Cycles.
    check(|b| make(b, "NextIteration", Action::Forward), "on a cycle");
}

fn encode(body: &Body) -> (Vec<u8>, Lists) {
    let mut encoder = Encoder::default();
    for (i, function) in body.functions.values().enumerate() {
        encoder.functions.insert(Arc::as_ptr(function), i);
    }
    let lists = Lists {
        functions: body.functions.values().cloned().collect(),
        tensors: Vec::new(),
    };
    body.encode(&mut encoder).expect("encodes");
    let tensors = encoder.tensors.tensors.clone();
    (encoder.finish(), Lists { tensors, ..lists })
}

/// The tensors and functions of a body by number.
struct Lists {
    tensors: Vec<LazyTensor>,
    functions: Vec<Arc<Body>>,
}

impl Lists {
    fn decode(&self, bytes: &[u8]) -> Result<Body> {
        let mut decoder = Decoder::new(bytes, &self.tensors);
        decoder.functions.clone_from(&self.functions);
        let body = decoder.value()?;
        decoder.finish().map(|()| body)
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
        let mut b = Body::default();
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
        b
    }
}

#[test]
fn decoding_is_the_inverse_of_encoding() {
    let mut random = Random(1 << 40 | 1);
    let bodies = (0..200).map(|_| random.body());
    for body in bodies.chain([body()]) {
        let (bytes, lists) = encode(&body);
        let read = lists.decode(&bytes).expect("decodes");
        read.verify().expect("valid");
        assert_eq!(encode(&read).0, bytes);
        assert_eq!(read.nodes.len(), body.nodes.len());
        for ((_, a), (_, b)) in read.kernels().zip(body.kernels()) {
            assert!(a.attrs.same_values(&b.attrs) && a.node == b.node);
        }
    }
}

/// Damaged bytes are an error or another body, which the verifier takes or refuses.
#[test]
fn damaged_bodies_are_errors() {
    let (bytes, lists) = encode(&body());
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

/// The orders of the frames of a changed body, by ops; "-" where the order depends on values.
#[track_caller]
fn check_schedules(change: impl FnOnce(&mut Body), expect: &[&str]) {
    let mut body = body();
    change(&mut body);
    let kernel: Box<dyn Fn() -> Result<Box<dyn OpKernel>>> =
        Box::new(|| Ok(Box::new(|_: &mut KernelCtx| Ok(()))));
    let plan = body.load_with(&|_, _| kernel()).expect("valid");
    let order = |frame: &Frame| match &frame.schedule {
        None => "-".to_string(),
        Some(schedule) => {
            let ops = schedule.order.iter().map(|n| &*plan.info[n.index()].op);
            let dead = schedule.has_dead.then(|| "dead".to_string());
            let cost = (schedule.cost != Cost::Cheap).then(|| format!("{:?}", schedule.cost));
            let ops = ops.map(str::to_string).chain(dead).chain(cost);
            ops.collect::<Vec<_>>().join(" ")
        }
    };
    let orders: Vec<String> = plan.frames.iter().map(order).collect();
    assert_eq!(orders, expect);
}

#[test]
fn frames_have_schedules() {
    let inside = "Merge Switch Exit NextIteration dead";
    let main = "Add Enter Map Case If While dead";
    check_schedules(|_| {}, &[main, "", "", inside]);
    let expensive = |b: &mut Body| node_of(b, "Map").cost = Cost::Expensive;
    check_schedules(
        expensive,
        &["Add Enter Map Case If While dead Expensive", "", "", inside],
    );
    let in_callee = |b: &mut Body| {
        let mut slow = kernel("Slow", vec![], Attrs::default());
        slow.cost = Cost::Async;
        b.add(FrameIdx::new(1), slow);
    };
    check_schedules(
        in_callee,
        &[
            "Add Enter Map Case If While dead Expensive",
            "Slow Async",
            "",
            inside,
        ],
    );
    // What a transfer delivers may be dead.
    let receives = |b: &mut Body| {
        let recv = node("Recv", Action::Recv("k".into()), vec![], 1);
        b.add(FrameIdx::new(3), recv);
    };
    check_schedules(receives, &["-", "", "", "-"]);
    let waits = |b: &mut Body| {
        let mut waits = kernel("Waits", vec![], Attrs::default());
        let at = |b: &Body, op: &str| {
            let found = b.nodes.iter().position(|n| n.info.op == op);
            NodeIdx::new(found.expect("an op of the body"))
        };
        waits.controls.push(at(b, "Switch"));
        let waits = b.add(FrameIdx::new(3), waits);
        node_of(b, "NextIteration").controls.push(waits);
    };
    let longer = "Merge Switch Waits NextIteration Exit dead";
    check_schedules(waits, &[main, "", "", longer]);
    // Nothing in an iteration starts it.
    let rootless = |b: &mut Body| {
        b.add(FrameIdx::new(3), kernel("Root", vec![], Attrs::default()));
    };
    check_schedules(rootless, &["-", "", "", "-"]);
}
