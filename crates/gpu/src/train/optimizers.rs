//! Optimizers: a variable and its slots in one launch, by the programs of `rules.rs`; of rows, between a gather and a
//! scatter.

use super::rules::{Program, RULES};
use super::scatter::scatter_rows;
use super::step_variables::written_variable;
use super::variables::{placed, rewrite};
use crate::elementwise::run_all;
use crate::gather::{check_indices, gather_at};
use crate::kernel::{FLOATS, GpuCtx, GpuKernel, Row};
use ferroflow_base::{Result, internal, invalid_argument};
use ferroflow_functors::indices;
use ferroflow_opdef::KernelBuild;
use ferroflow_resources::resource::{Var, lock, placed_mut};
use ferroflow_tensor::{DType, Shape, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Rows of the optimizers, dense and sparse.
macro_rules! rows {
    ([$($dense:literal)*] [$($sparse:literal)*]) => {
        &[
            $(Row::new(concat!("ResourceApply", $dense), build).types(T),)*
            $(Row::new(concat!("ResourceSparseApply", $sparse), build).types(SPARSE),)*
        ]
    };
}

const T: &[(&str, &[DType])] = &[("T", FLOATS)];
const SPARSE: &[(&str, &[DType])] = &[("T", FLOATS), ("Tindices", &[DType::Int32, DType::Int64])];

pub(crate) const ROWS: &[Row] = rows! {
    ["GradientDescent" "ProximalGradientDescent" "Momentum" "KerasMomentum" "Adagrad" "AdagradV2" "AdagradDA"
     "ProximalAdagrad" "Adadelta" "RMSProp" "CenteredRMSProp" "Adam" "AdamWithAmsgrad" "AdaMax" "AddSign" "PowerSign"
     "Ftrl" "FtrlV2"]
    ["ProximalGradientDescent" "Momentum" "KerasMomentum" "Adagrad" "AdagradV2" "AdagradDA" "ProximalAdagrad" "Adadelta"
     "RMSProp" "CenteredRMSProp" "Ftrl" "FtrlV2"]
};

struct Optimizer {
    program: Program,
    /// The new value of each variable.
    results: Vec<usize>,
    n_vars: usize,
    gradient: usize,
    gradient_name: &'static str,
    /// The input with the rows that the gradient has, which the program does not count.
    indices: Option<usize>,
    dtype: DType,
}

fn build(build: &KernelBuild) -> Result<Box<dyn GpuKernel>> {
    let op = build.def.name.trim_start_matches("Resource");
    let op = op.trim_start_matches("Sparse").trim_start_matches("Apply");
    let named = |name: &str| build.def.inputs.iter().position(|arg| arg.name() == name);
    let rule = RULES.iter().find(|(name, _)| *name == op);
    let (_, rule) = rule.ok_or_else(|| internal!("there is no rule of {op}"))?;
    let indices = named("indices");
    let mut program = Program::new(build.inputs.len() - usize::from(indices.is_some()));
    let results = rule(&mut program, build.attrs)?;
    let gradient = [("grad", "grad"), ("delta", "delta")]
        .into_iter()
        .find_map(|(arg, name)| named(arg).map(|i| (i, name)));
    let (gradient, gradient_name) =
        gradient.ok_or_else(|| internal!("an optimizer needs a gradient"))?;
    Ok(Box::new(Optimizer {
        n_vars: results.len(),
        program,
        results,
        gradient,
        gradient_name,
        indices,
        dtype: build.attrs.dtype("T")?,
    }))
}

impl GpuKernel for Optimizer {
    fn launch(&self, ctx: &mut GpuCtx) -> Result<()> {
        let mut others = Vec::new();
        for i in (self.n_vars..ctx.num_inputs()).filter(|i| Some(*i) != self.indices) {
            let t = ctx.input(i)?;
            if i != self.gradient && !t.shape().is_scalar() {
                return Err(invalid_argument!(
                    "number {i} of an optimizer is not a scalar: {}",
                    t.shape()
                ));
            }
            others.push(t);
        }
        let vars = (0..self.n_vars).map(|i| written_variable(ctx, i));
        let vars: Vec<Arc<Var>> = vars.collect::<Result<_>>()?;
        let mut locked = lock(ctx.engine(), &vars)?;
        let mut values = Vec::with_capacity(vars.len());
        for ((i, value), var) in locked.iter_mut().enumerate().zip(&vars) {
            if value.is_none() && !var.is_reference() {
                return Err(internal!("Invalid variable reference."));
            }
            values.push(placed_mut(ctx.engine(), i, value, self.dtype)?);
        }
        let shape = values[0].shape().clone();
        if let Some(other) = values.iter().find(|v| *v.shape() != shape) {
            return Err(invalid_argument!(
                "var and its slots do not have the same shape {shape} {}",
                other.shape()
            ));
        }
        let gradient = others[self.gradient - self.n_vars].shape().clone();
        match self.indices {
            Some(i) => self.rows(ctx, &mut values, &others, (i, &shape, &gradient)),
            None if gradient != shape => Err(invalid_argument!(
                "var and {} do not have the same shape{shape} {gradient}",
                self.gradient_name
            )),
            None => rewrite(
                ctx,
                &mut values,
                &self.program.steps,
                &others,
                &self.results,
            ),
        }
    }
}

impl Optimizer {
    /// Updates the rows that input `i` numbers, one after another where a row is numbered several times.
    fn rows(
        &self,
        ctx: &GpuCtx,
        values: &mut [&mut Tensor],
        others: &[Tensor],
        (i, shape, gradient): (usize, &Shape, &Shape),
    ) -> Result<()> {
        let indices = ctx.pass(i)?;
        if shape.rank() == 0 {
            return Err(invalid_argument!("var must be at least 1 dimensional"));
        }
        if indices.shape().rank() != 1 {
            return Err(invalid_argument!("indices must be one-dimensional"));
        }
        if gradient.rank() != shape.rank()
            || gradient[1..] != shape[1..]
            || gradient[0] != indices.num_elements()
        {
            return Err(invalid_argument!(
                "var and grad must match in all dimensions but the first, where grad has as many as indices: {shape} and \
                 {gradient}"
            ));
        }
        let rows = shape[0];
        ctx.check(i, Box::new(move |at| check_indices(at, rows)))?;
        for value in values.iter_mut() {
            **value = placed(ctx, value)?;
        }
        let numbers = ctx.host(i)?;
        let passes = passes(&indices::ints(&numbers)?);
        if passes.len() <= 1 {
            return self.distinct_rows(ctx, values, others, &ctx.input(i)?);
        }
        let at = self.gradient - self.n_vars;
        let mut others = others.to_vec();
        let gradient = others[at].clone();
        for pass in passes {
            let positions = ctx.memory.upload(&Tensor::vector(&pass)?)?;
            others[at] = gather_at(ctx, &gradient, &positions, 0)?;
            let indices = gather_at(ctx, &ctx.input(i)?, &positions, 0)?;
            self.distinct_rows(ctx, values, &others, &indices)?;
        }
        Ok(())
    }

    /// Updates the rows that `at` numbers, each of which it has once.
    fn distinct_rows(
        &self,
        ctx: &GpuCtx,
        values: &mut [&mut Tensor],
        others: &[Tensor],
        at: &Tensor,
    ) -> Result<()> {
        let mut operands = Vec::new();
        for value in values.iter() {
            operands.push(gather_at(ctx, value, at, 0)?);
        }
        let n = operands.len();
        operands.extend_from_slice(others);
        let to = operands[..n].iter().zip(&self.results);
        let to: Vec<(&Tensor, usize)> = to.map(|(t, at)| (t, *at)).collect();
        run_all(ctx, &self.program.steps, &operands, &to)?;
        for (value, rows) in values.iter_mut().zip(&operands) {
            scatter_rows(ctx, value, at, rows)?;
        }
        Ok(())
    }
}

/// The positions of numbers in as few groups as the most frequent number needs: each group has a number once, and the
/// groups keep the order of equal numbers.
fn passes(numbers: &[i64]) -> Vec<Vec<i64>> {
    let mut seen: BTreeMap<i64, usize> = BTreeMap::new();
    let mut passes: Vec<Vec<i64>> = Vec::new();
    for (position, number) in (0..).zip(numbers) {
        let pass = seen.entry(*number).or_default();
        match passes.get_mut(*pass) {
            Some(positions) => positions.push(position),
            None => passes.push(vec![position]),
        }
        *pass += 1;
    }
    passes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_numbers_are_in_different_passes() {
        let rows: [(&[i64], &[&[i64]]); 4] = [
            (&[], &[]),
            (&[3, 1, 2], &[&[0, 1, 2]]),
            (&[3, 1, 3, 1, 3], &[&[0, 1], &[2, 3], &[4]]),
            (&[5, 5], &[&[0], &[1]]),
        ];
        for (numbers, expect) in rows {
            assert_eq!(passes(numbers), expect);
        }
    }
}
