//! Nodes that the engine runs itself, and calls.

use crate::emit::Emitter;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_graph::{Node, NodeClass, rendezvous_key};
use ferroflow_opdef::{AttrValue, Cost, NodeInfo};
use ferroflow_program::{Action, BodyAction, BodyNode, FrameIdx, KernelEntry, NodeIdx, Source};
use ferroflow_tensor::DType;

/// The action of a node that moves values and has no kernel; Enter, which needs its loop, is not
/// among them.
pub(crate) fn dataflow_action(node: &Node) -> Option<BodyAction> {
    Some(match node.class() {
        NodeClass::Switch if node.op() == "_SwitchN" => Action::SwitchN,
        NodeClass::Switch => Action::Switch,
        NodeClass::Merge => Action::Merge,
        NodeClass::Exit => Action::Exit,
        NodeClass::NextIteration => Action::NextIteration,
        NodeClass::ControlTrigger => Action::Trigger,
        NodeClass::Send => Action::Send(rendezvous_key(node).into()),
        NodeClass::Recv => Action::Recv(rendezvous_key(node).into()),
        NodeClass::LoopCond | NodeClass::Identity | NodeClass::NoOp => Action::Forward,
        _ => return None,
    })
}

/// The functions of a node that calls some.
pub(crate) enum Callee<'a> {
    Call(&'a str),
    Branch(Vec<&'a str>, bool),
    While(&'a str, &'a str),
    For(&'a str),
}

impl<'a> Callee<'a> {
    pub(crate) fn of(node: &'a Node) -> Result<Option<Callee<'a>>> {
        let func = |name: &str| match node.attrs.get(name) {
            Some(AttrValue::Func(f)) => Ok(f.name.as_str()),
            _ => Err(invalid_argument!("attr '{name}' is not a function")),
        };
        Ok(Some(match node.class() {
            NodeClass::Call => Callee::Call(func("f")?),
            NodeClass::If => Callee::Branch(vec![func("then_branch")?, func("else_branch")?], true),
            NodeClass::Case => {
                let Some(AttrValue::List(list)) = node.attrs.get("branches") else {
                    return Err(invalid_argument!(
                        "attr 'branches' is not a list of functions"
                    ));
                };
                let names: Vec<&str> = list
                    .iter()
                    .filter_map(|a| match a {
                        AttrValue::Func(f) => Some(f.name.as_str()),
                        _ => None,
                    })
                    .collect();
                if names.is_empty() {
                    return Err(invalid_argument!("attr 'branches' is empty"));
                }
                Callee::Branch(names, false)
            }
            NodeClass::While => Callee::While(func("cond")?, func("body")?),
            NodeClass::For => Callee::For(func("body")?),
            _ => return Ok(None),
        }))
    }

    pub(crate) fn action(&self, emitter: &mut Emitter, node: &Node) -> Result<BodyAction> {
        Ok(match self {
            Callee::Call(f) => Action::Call(emitter.function(f)?),
            Callee::Branch(names, is_if) => {
                let branches = names.iter().map(|n| emitter.function(n));
                let branches: Vec<FrameIdx> = branches.collect::<Result<_>>()?;
                match branches[..] {
                    [then_branch, else_branch] if *is_if => Action::If {
                        then_branch,
                        else_branch,
                    },
                    _ => Action::Case(branches.into()),
                }
            }
            Callee::While(cond, body) => Action::While {
                cond: emitter.function(cond)?,
                body: emitter.function(body)?,
            },
            Callee::For(body) => {
                let (n_vars, body) = (node.outputs.len(), emitter.function(body)?);
                let name = format!("{}/for", node.name);
                let whole = emitter.out.function(&name, n_vars + 3, n_vars);
                emitter.fors.push(ForLoop {
                    node: node.name.clone(),
                    whole,
                    body,
                    n_vars,
                });
                Action::Call(whole)
            }
        })
    }
}

/// A For whose nodes are still to be made: `whole` is a function of (start, limit, delta,
/// variables...) that runs a While over them and returns the variables.
pub(crate) struct ForLoop {
    node: String,
    whole: FrameIdx,
    body: FrameIdx,
    n_vars: usize,
}

/// A kernel of a For: `op` takes `n_inputs` integers.
fn for_kernel(node: &str, op: &str, n_inputs: usize, output: DType) -> BodyAction {
    Action::Kernel(Box::new(KernelEntry {
        op: op.to_string(),
        node: node.to_string(),
        inputs: vec![DType::Int32; n_inputs],
        outputs: vec![output],
        ..KernelEntry::default()
    }))
}

/// Makes the nodes of a For.
pub(crate) fn emit_for(emitter: &mut Emitter, this: &ForLoop) -> Result<()> {
    let (n_vars, n, whole) = (this.n_vars, this.n_vars + 3, this.whole);
    let builder = &mut emitter.out;
    let name = |part: &str| format!("{}/{part}", this.node);
    let cond = builder.function(&name("for_cond"), n, 1);
    let step = builder.function(&name("for_body"), n, n);
    let mut add = |frame, part: &str, action, inputs: Vec<Source>, n_outputs| {
        let info = NodeInfo {
            // What is wrong with the bounds is the node's own error.
            name: match part {
                "start" => this.node.clone(),
                part => name(part),
            },
            op: "For".to_string(),
        };
        builder.add(
            frame,
            BodyNode {
                info,
                action,
                inputs,
                controls: Vec::new(),
                n_outputs,
                cost: Cost::Cheap,
            },
        )
    };
    let mut args = |frame| -> Vec<NodeIdx> {
        (0..n)
            .map(|i| add(frame, "arg", Action::Arg(i as u32), Vec::new(), 1))
            .collect()
    };
    let (outer, tested, inner) = (args(whole), args(cond), args(step));
    let of = |nodes: &[NodeIdx]| {
        nodes
            .iter()
            .map(|n| Source::Node(*n, 0))
            .collect::<Vec<_>>()
    };
    let kernel = |op, n_inputs, output| for_kernel(&this.node, op, n_inputs, output);
    let start = kernel("_ForStart", 3, DType::Int32);
    let start = add(whole, "start", start, of(&outer[..3]), 1);
    let test = kernel("_ForTest", 3, DType::Bool);
    let test = add(cond, "test", test, of(&tested[..3]), 1);
    let next = kernel("_ForNext", 2, DType::Int32);
    let i = add(step, "next", next, of(&[inner[0], inner[2]]), 1);
    let mut passed = vec![inner[0]];
    passed.extend(&inner[3..]);
    let call = add(step, "body", Action::Call(this.body), of(&passed), n_vars);
    let action = Action::While { cond, body: step };
    let mut looped = of(&outer);
    looped[0] = Source::Node(start, 0);
    let looped = add(whole, "while", action, looped, n);
    builder.result(cond, 0, Source::Node(test, 0))?;
    builder.result(step, 0, Source::Node(i, 0))?;
    builder.result(step, 1, Source::Node(inner[1], 0))?;
    builder.result(step, 2, Source::Node(inner[2], 0))?;
    for v in 0..n_vars {
        builder.result(step, 3 + v, Source::Node(call, v as u16))?;
        builder.result(whole, v, Source::Node(looped, (3 + v) as u16))?;
    }
    Ok(())
}
