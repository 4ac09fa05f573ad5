//! Einsum of two tensors, as products of matrices between transposes.

use crate::data::transposed;
use crate::kernel::{GpuCtx, GpuKernel, Row};
use crate::matmul::batch_product;
use ferroflow_base::{Result, invalid_argument, unimplemented_error};
use ferroflow_opdef::KernelBuild;
use ferroflow_tensor::{Shape, Tensor};

pub(crate) const ROWS: &[Row] = &[Row::new("Einsum", einsum)
    .only_if(|attrs| attrs.str("equation").is_ok_and(|e| parse(e).is_ok()))];

/// The labels of an equation by their role, each in the order of the output, or of the first operand.
#[derive(Debug, PartialEq)]
struct Equation {
    operands: [Vec<char>; 2],
    output: Vec<char>,
    /// In both operands and the output.
    batch: Vec<char>,
    /// In the first operand and the output.
    rows: Vec<char>,
    /// In the second operand and the output.
    columns: Vec<char>,
    /// In both operands alone.
    summed: Vec<char>,
}

fn parse(equation: &str) -> Result<Equation> {
    let unsupported = || {
        unimplemented_error!(
            "GPU kernels of Einsum take two operands without ellipsis and repeated labels, not '{equation}'"
        )
    };
    let text: String = equation.chars().filter(|c| !c.is_whitespace()).collect();
    let (inputs, output) = text.split_once("->").ok_or_else(unsupported)?;
    let (a, b) = inputs.split_once(',').ok_or_else(unsupported)?;
    let [a, b, output] = [a, b, output].map(|labels| labels.chars().collect::<Vec<char>>());
    let is_plain = |labels: &Vec<char>| {
        let is_new = |(i, c): (usize, &char)| c.is_alphabetic() && !labels[..i].contains(c);
        labels.iter().enumerate().all(is_new)
    };
    let (in_a, in_b) = (|c: &char| a.contains(c), |c: &char| b.contains(c));
    let summed: Vec<char> = a
        .iter()
        .copied()
        .filter(|c| in_b(c) && !output.contains(c))
        .collect();
    let is_used = |c: &char| output.contains(c) || summed.contains(c);
    let known = output.iter().all(|c| in_a(c) || in_b(c));
    if ![&a, &b, &output].into_iter().all(is_plain)
        || !known
        || !a.iter().all(is_used)
        || !b.iter().all(is_used)
    {
        return Err(unsupported());
    }
    let of = |role: &dyn Fn(&char) -> bool| output.iter().copied().filter(role).collect();
    Ok(Equation {
        batch: of(&|c| in_a(c) && in_b(c)),
        rows: of(&|c| in_a(c) && !in_b(c)),
        columns: of(&|c| !in_a(c) && in_b(c)),
        summed,
        operands: [a.clone(), b.clone()],
        output,
    })
}

fn einsum(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let equation = parse(build.attrs.str("equation")?)?;
    Ok(Box::new(move |ctx: &mut GpuCtx| {
        let y = equation.compute(ctx, [&ctx.input(0)?, &ctx.input(1)?])?;
        ctx.set_output(0, y)
    }))
}

impl Equation {
    fn compute(&self, ctx: &GpuCtx, operands: [&Tensor; 2]) -> Result<Tensor> {
        let mut sizes: Vec<(char, usize)> = Vec::new();
        for (t, labels) in operands.iter().zip(&self.operands) {
            if t.shape().rank() != labels.len() {
                return Err(invalid_argument!(
                    "Expected input of rank {} but got {}",
                    labels.len(),
                    t.shape()
                ));
            }
            for (c, n) in labels.iter().zip(t.shape().iter()) {
                match sizes.iter().find(|(known, _)| known == c) {
                    Some((_, known)) if known != n => {
                        return Err(invalid_argument!(
                            "Expected dimension {known} at axis {c} of the input shaped {} but got dimension {n}",
                            t.shape()
                        ));
                    }
                    Some(_) => {}
                    None => sizes.push((*c, *n)),
                }
            }
        }
        let size = |labels: &[char]| -> usize {
            let of = |c: &char| sizes.iter().find(|(s, _)| s == c).map_or(1, |(_, n)| *n);
            labels.iter().map(of).product()
        };
        let [batch, m, n, k] =
            [&self.batch, &self.rows, &self.columns, &self.summed].map(|l| size(l));
        let (a, transpose_a) = self.matrices(ctx, operands, 0, [batch, m, k])?;
        let (b, transpose_b) = self.matrices(ctx, operands, 1, [batch, n, k])?;
        // The second operand is [columns, summed], which a product takes as transposed.
        let y = batch_product(ctx, &a, &b, transpose_a, !transpose_b)?;
        let order: Vec<char> = [&self.batch[..], &self.rows, &self.columns].concat();
        let dims: Shape = order.iter().map(|c| size(&[*c])).collect();
        let perm: Vec<usize> = self
            .output
            .iter()
            .filter_map(|c| order.iter().position(|o| o == c))
            .collect();
        transposed(ctx, &y.with_shape(dims)?, &perm)
    }

    /// An operand as `[batch, own, summed]`, or `[batch, summed, own]` if that needs no copy (then the second value
    /// is true).
    fn matrices(
        &self,
        ctx: &GpuCtx,
        operands: [&Tensor; 2],
        i: usize,
        [batch, own, k]: [usize; 3],
    ) -> Result<(Tensor, bool)> {
        let labels = &self.operands[i];
        let own_labels = if i == 0 { &self.rows } else { &self.columns };
        let plain = [&self.batch[..], own_labels, &self.summed].concat();
        let flipped = [&self.batch[..], &self.summed, own_labels].concat();
        let is_flipped = *labels == flipped && *labels != plain;
        let order = if is_flipped { &flipped } else { &plain };
        let perm: Vec<usize> = order
            .iter()
            .filter_map(|c| labels.iter().position(|l| l == c))
            .collect();
        let t = transposed(ctx, operands[i], &perm)?;
        let shape = if is_flipped {
            [batch, k, own]
        } else {
            [batch, own, k]
        };
        Ok((t.with_shape(shape.into())?, is_flipped))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The roles of the labels: batch, rows, columns, summed.
    fn check(equation: &str, expected: &str) {
        let roles = match parse(equation) {
            Ok(e) => {
                let text = |labels: &[char]| labels.iter().collect::<String>();
                [&e.batch, &e.rows, &e.columns, &e.summed]
                    .map(|l| text(l))
                    .join(" ")
            }
            Err(e) => format!("{:?}", e.code()),
        };
        assert_eq!(roles, expected, "{equation}");
    }

    #[test]
    fn labels_have_roles() {
        check("BTNH,BSNH->BNTS", "BN T S H");
        check("BNTS,BSNH->BTNH", "BN T H S");
        check("ij, jk -> ik", " i k j");
        check("abc,cde->abde", " ab de c");
        check("ab,b->a", " a  b");
        for equation in [
            "ii->i",
            "ij,jk",
            "ij->ji",
            "aij,jk->ik",
            "...ij,jk->...ik",
            "ij,jk->iz",
        ] {
            check(equation, "Unimplemented");
        }
    }
}
