//! The gradient of Einsum: what came, contracted with the other operand.

use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{Expr, GradientCtx};

const DOTS: &str = "...";

pub(crate) fn einsum(g: &mut GradientCtx) -> Result<()> {
    let equation: String = g.attrs().str("equation")?.split_whitespace().collect();
    let (left, out) = equation.split_once("->").ok_or_else(|| {
        invalid_argument!("Expecting exactly one '->' in einsum equation: {equation}")
    })?;
    // An ellipsis that the result lacks stands for nothing.
    let has_dots = out.contains(DOTS);
    let term = |t: &str| match has_dots {
        true => t.to_string(),
        false => t.replace(DOTS, ""),
    };
    let inputs: Vec<String> = left.split(',').map(term).collect();
    for i in 0..inputs.len() {
        if g.needs(i) {
            let dx = of_operand(g, i, &inputs, out)?;
            g.set(i, dx)?;
        }
    }
    Ok(())
}

/// The operands' contraction.
fn contracted<'g>(operands: &[Expr<'g>], terms: &[&str], to: &str) -> Result<Expr<'g>> {
    let first = operands.first();
    let first = first.ok_or_else(|| invalid_argument!("Einsum needs an operand"))?;
    let equation = format!("{}->{to}", terms.join(","));
    Ok(first.make(
        "Einsum",
        operands,
        &[("equation", equation.as_str().into())],
    ))
}

fn of_operand<'g>(g: &GradientCtx<'g>, i: usize, inputs: &[String], out: &str) -> Result<Expr<'g>> {
    let (x, has_dots) = (g.x(i), out.contains(DOTS));
    let mut own = inputs.get(i).cloned().unwrap_or_default();
    if has_dots && !own.contains(DOTS) {
        own.insert_str(0, DOTS);
    }
    let others = || inputs.iter().enumerate().filter(|(j, _)| *j != i);
    // A label that only this operand has was summed: the gradient is the same along it.
    let is_known = |c: char| c == '.' || out.contains(c) || others().any(|(_, t)| t.contains(c));
    let (mut kept, mut summed, mut seen) = (String::new(), Vec::new(), String::new());
    for c in own.chars() {
        if c != '.' && seen.contains(c) {
            continue;
        }
        seen.push(c);
        match is_known(c) {
            true => kept.push(c),
            false => summed.push(c),
        }
    }
    let (mut operands, mut terms) = (vec![g.dy(0)], vec![out]);
    for (j, t) in others() {
        operands.push(g.x(j).conj());
        terms.push(t);
    }
    let mut dx = contracted(&operands, &terms, &kept)?;
    if !has_dots && seen == own {
        // Nothing but missing dimensions.
        for (axis, _) in own.chars().enumerate().filter(|(_, c)| summed.contains(c)) {
            dx = dx.op("ExpandDims", &[dx.int(axis as i32)]);
        }
        return Ok(match summed.is_empty() {
            true => dx,
            false => dx.op("BroadcastTo", &[x.shape_of()]),
        });
    }
    for c in summed {
        let size = x.shape_of().op("Gather", &[axis_of(x, &own, c)]);
        let ones = size.reshape(size.ints([1]));
        let ones = ones.op("Fill", &[dx.number(1.0)]);
        let more = format!("{kept}{c}");
        dx = contracted(&[dx, ones], &[&kept, &c.to_string()], &more)?;
        kept = more;
    }
    // A label that is there several times is a diagonal.
    if kept != own {
        dx = contracted(&[dx], &[&kept], &own)?;
    }
    // Dimensions that others have, or that are 1 here, were broadcast.
    Ok(match has_dots {
        true => dx.sum_to(x),
        false => dx,
    })
}

/// The first dimension of `x` that has the label.
fn axis_of<'g>(x: Expr<'g>, own: &str, label: char) -> Expr<'g> {
    let (front, back) = own.split_once(DOTS).unwrap_or((own, ""));
    let in_back = || back.find(label).unwrap_or(0);
    match (front.find(label), x.rank()) {
        (Some(axis), _) => x.int(axis as i32),
        (None, Some(rank)) => x.int((rank + in_back()).saturating_sub(back.len()) as i32),
        (None, None) => {
            let behind = back.len() - in_back();
            x.op("Rank", &[]) - x.int(behind as i32)
        }
    }
}
