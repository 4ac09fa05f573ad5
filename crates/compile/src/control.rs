//! Which nodes the engine runs itself, and what calls become.

use crate::emit::Emitter;
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_graph::Node;
use ferroflow_opdef::{AttrValue, Cost, KernelCtx, NodeInfo};
use ferroflow_program::{Action, BuildNode, FrameIdx, NodeIdx, Source};
use ferroflow_tensor::Tensor;

/// The action of a node that moves values and has no kernel; Enter, which needs its loop, is not
/// among them.
pub(crate) fn dataflow_action(node: &Node) -> Option<Action> {
    Some(match node.op() {
        "Switch" | "RefSwitch" => Action::Switch,
        "_SwitchN" => Action::SwitchN,
        "Merge" | "RefMerge" => Action::Merge,
        "Exit" | "RefExit" => Action::Exit,
        "NextIteration" | "RefNextIteration" => Action::NextIteration,
        "ControlTrigger" => Action::Trigger,
        "LoopCond" | "Identity" | "RefIdentity" | "IdentityN" | "NoOp" | "StopGradient"
        | "PreventGradient" | "Snapshot" => Action::Forward,
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
            _ => Err(invalid_argument!("attr '{name}' names no function")),
        };
        Ok(Some(match node.op() {
            "PartitionedCall" | "StatefulPartitionedCall" => Callee::Call(func("f")?),
            "If" | "StatelessIf" => {
                Callee::Branch(vec![func("then_branch")?, func("else_branch")?], true)
            }
            "Case" | "StatelessCase" => {
                let Some(AttrValue::List(list)) = node.attrs.get("branches") else {
                    return Err(invalid_argument!("attr 'branches' names no functions"));
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
            "While" | "StatelessWhile" => Callee::While(func("cond")?, func("body")?),
            "For" => Callee::For(func("body")?),
            _ => return Ok(None),
        }))
    }

    /// The names of the functions.
    pub(crate) fn names(&self) -> Vec<&'a str> {
        match self {
            Callee::Call(name) | Callee::For(name) => vec![name],
            Callee::Branch(names, _) => names.clone(),
            Callee::While(cond, body) => vec![cond, body],
        }
    }

    pub(crate) fn action(&self, emitter: &mut Emitter, node: &Node) -> Result<Action> {
        Ok(match self {
            Callee::Call(f) => Action::Call(emitter.function(f)?),
            Callee::Branch(names, by_truth) => {
                let branches: Result<Vec<FrameIdx>> =
                    names.iter().map(|n| emitter.function(n)).collect();
                Action::Branch {
                    branches: branches?.into(),
                    by_truth: *by_truth,
                }
            }
            Callee::While(cond, body) => Action::While {
                cond: emitter.function(cond)?,
                body: emitter.function(body)?,
            },
            Callee::For(body) => {
                let (n_vars, body) = (node.outputs.len(), emitter.function(body)?);
                let name = format!("{}/for", node.name);
                let whole = emitter.builder.function(&name, n_vars + 3, n_vars);
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

/// The functions that the attrs of a node name which is no [`Callee`]: its kernel calls them.
pub(crate) fn passed(node: &Node) -> impl Iterator<Item = String> {
    node.attrs.iter().filter_map(|(_, value)| match value {
        AttrValue::Func(f) => Some(f.name.clone()),
        _ => None,
    })
}

/// A For whose nodes are still to be made: `whole` is a function of (start, limit, delta,
/// variables...) that runs a While over them and gives the variables.
pub(crate) struct ForLoop {
    node: String,
    whole: FrameIdx,
    body: FrameIdx,
    n_vars: usize,
}

/// Start or counter, limit and delta of a For.
fn bounds(ctx: &KernelCtx) -> Result<(i32, i32, i32)> {
    let int = |i: usize, what: &str| {
        let value = ctx.input(i)?;
        match value.shape().is_scalar() {
            true => value.to_scalar::<i32>(),
            false => Err(invalid_argument!(
                "{what} must be a scalar, but {}",
                value.shape()
            )),
        }
    };
    Ok((int(0, "start")?, int(1, "limit")?, int(2, "delta")?))
}

/// Makes the nodes of a For.
pub(crate) fn emit_for(emitter: &mut Emitter, this: &ForLoop) -> Result<()> {
    let (n_vars, n, whole) = (this.n_vars, this.n_vars + 3, this.whole);
    let builder = &mut emitter.builder;
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
            BuildNode {
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
    let checked = |ctx: &mut KernelCtx| {
        let (start, limit, delta) = bounds(ctx)?;
        let is_finite = match delta {
            0 => start == limit,
            d if d > 0 => start <= limit,
            _ => start >= limit,
        };
        if !is_finite {
            return Err(invalid_argument!(
                "Invalid start/limit/delta: {start} {limit} {delta}"
            ));
        }
        ctx.set_output(0, Tensor::scalar(start))
    };
    let goes_on = |ctx: &mut KernelCtx| {
        let (i, limit, delta) = bounds(ctx)?;
        let go_on = match delta {
            d if d >= 0 => i < limit,
            _ => i > limit,
        };
        ctx.set_output(0, Tensor::scalar(go_on))
    };
    let next = |ctx: &mut KernelCtx| {
        let int = |i| ctx.input(i).and_then(Tensor::to_scalar::<i32>);
        let i = int(0)?.checked_add(int(1)?);
        let i = i.ok_or_else(|| internal!("the counter of a For overflows"))?;
        ctx.set_output(0, Tensor::scalar(i))
    };
    let start = add(
        whole,
        "start",
        Action::Kernel(Box::new(checked)),
        of(&outer[..3]),
        1,
    );
    let test = add(
        cond,
        "test",
        Action::Kernel(Box::new(goes_on)),
        of(&tested[..3]),
        1,
    );
    let i = add(
        step,
        "next",
        Action::Kernel(Box::new(next)),
        of(&[inner[0], inner[2]]),
        1,
    );
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
