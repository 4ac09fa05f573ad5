//! The gradient of Einsum: what came, contracted with the other operands.

use ferroflow_base::{Result, unimplemented_error};
use ferroflow_opdef::{Expr, GradientCtx};

const DOTS: &str = "...";

pub(super) fn einsum(g: &mut GradientCtx) -> Result<()> {
    let equation: String = g.attrs().str("equation")?.split_whitespace().collect();
    let (left, out) = equation.split_once("->").ok_or_else(|| {
        unimplemented_error!("the gradient of an Einsum needs '->' in its equation")
    })?;
    let inputs: Vec<&str> = left.split(',').collect();
    for i in 0..inputs.len() {
        if g.needs(i) {
            let dx = of_operand(g, i, &inputs, out)?;
            g.set(i, dx)?;
        }
    }
    Ok(())
}

fn of_operand<'g>(g: &GradientCtx<'g>, i: usize, inputs: &[&str], out: &str) -> Result<Expr<'g>> {
    let (x, d, own) = (g.x(i), g.dy(0), inputs[i]);
    let labels: Vec<char> = own.chars().filter(|c| *c != '.').collect();
    let is_repeated = |(n, c): (usize, &char)| labels[..n].contains(c);
    if labels.iter().enumerate().any(is_repeated) {
        return Err(unimplemented_error!(
            "the gradient of the diagonal in the Einsum operand '{own}' is not known"
        ));
    }
    let others = || (0..inputs.len()).filter(|&j| j != i);
    // A label that only this operand has was summed: the gradient is the same along it.
    let is_known = |c: char| c == '.' || out.contains(c) || others().any(|j| inputs[j].contains(c));
    let mut kept: String = own.chars().filter(|c| is_known(*c)).collect();
    let has_dots = out.contains(DOTS) || inputs.iter().any(|t| t.contains(DOTS));
    if has_dots && !own.contains(DOTS) {
        kept.insert_str(0, DOTS);
    }
    let mut terms = vec![out];
    terms.extend(others().map(|j| inputs[j]));
    let equation = format!("{}->{kept}", terms.join(","));
    let mut operands = vec![d];
    operands.extend(others().map(|j| g.x(j).conj()));
    let attrs = [("equation", equation.as_str().into())];
    let mut dx = d.make("Einsum", &operands, &attrs);
    let is_summed = labels.iter().any(|c| !is_known(*c));
    match (has_dots, is_summed) {
        (true, true) => Err(unimplemented_error!(
            "the gradient of an Einsum with '...' that sums over a label of one operand ('{own}') \
             is not known"
        )),
        // Dimensions that others have, or that are 1 here, were broadcast.
        (true, false) => Ok(dx.sum_to(x)),
        (false, true) => {
            for (axis, _) in labels.iter().enumerate().filter(|(_, c)| !is_known(**c)) {
                dx = dx.op("ExpandDims", &[dx.int(axis as i32)]);
            }
            Ok(dx.op("BroadcastTo", &[x.shape_of()]))
        }
        (false, false) => Ok(dx),
    }
}
