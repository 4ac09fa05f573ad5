//! Einsum of a tensor with a constant matrix, as a product with prepacked weights.

use crate::einsum::{Operand, finish};
use crate::equation::{BROADCAST, Equation, Label, Labels};
use ferroflow_base::Result;
use ferroflow_functors::indices::shape_of;
use ferroflow_functors::prepack;
use ferroflow_functors::product::MatMulElement;
use ferroflow_opdef::{KernelBuild, KernelCtx, OpKernel};
use ferroflow_primitives::gemm::{self, Epilogue, PackedB, gemm_packed};
use ferroflow_sync::Inline;
use ferroflow_tensor::{LazyTensor, Shape, Tensor};

/// An equation whose second input is a constant matrix of weights, packed.
pub(crate) struct EinsumDense<T: gemm::GemmElement> {
    equation: Equation,
    weights: PackedB<T>,
    shape: Shape,
}

impl<T: MatMulElement + gemm::GemmElement> EinsumDense<T> {
    pub(crate) fn new(
        build: &KernelBuild,
        equation: Equation,
        weights: &LazyTensor,
    ) -> Result<Self> {
        let value = weights.get()?;
        let shape = value.shape().clone();
        let labels = equation.input_labels(1, shape.rank())?;
        let (inner, cols) = split(&equation, &labels)?;
        let op = Operand::new(value, &labels);
        let size = |ls: &[Label]| -> usize { ls.iter().map(|&l| op.axis(l).0).product() };
        let (k, n) = (size(&inner), size(&cols));
        let packed = match prepack::matrix(build, k, n)? {
            Some(packed) => packed,
            None => match op.matrix(&inner, &cols) {
                Some((transposed, ld)) if ld == if transposed { k } else { n } => {
                    prepack::of_matrix(build, op.tensor.slice()?, [k, n], transposed)
                }
                _ => {
                    let order: Labels = inner.iter().chain(&cols).copied().collect();
                    let dense = op.dense(&Inline, &order)?;
                    prepack::of_matrix(build, dense.slice()?, [k, n], false)
                }
            },
        };
        weights.release();
        Ok(EinsumDense {
            equation,
            weights: packed,
            shape,
        })
    }
}

/// Returns the weights' labels that are summed over, in the order of input 0, and the others, in
/// the order of the output.
pub(crate) fn split(equation: &Equation, weights: &[Label]) -> Result<(Labels, Labels)> {
    let letters = |labels: Labels| {
        labels
            .into_iter()
            .filter(|&l| l < BROADCAST && weights.contains(&l))
    };
    let n = equation.letters_of_input(0);
    let inner = letters(equation.input_labels(0, n)?).collect();
    let cols = letters(equation.output_labels(&[n, weights.len()])?).collect();
    Ok((inner, cols))
}

impl<T: MatMulElement + gemm::GemmElement> OpKernel for EinsumDense<T> {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let x = ctx.input(0)?;
        let ranks = [x.shape().rank(), self.shape.rank()];
        let out_shape = self
            .equation
            .infer(&[x.shape().into(), (&self.shape).into()])?;
        let out_shape = shape_of(
            out_shape
                .dims()
                .unwrap_or(&[])
                .iter()
                .map(|d| d.unwrap_or(0)),
        )?;
        if out_shape.num_elements() == 0 {
            return ctx.set_output(0, Tensor::zeros(T::DTYPE, out_shape)?);
        }
        let out_labels = self.equation.output_labels(&ranks)?;
        let x_labels = self.equation.input_labels(0, ranks[0])?;
        let w_labels = self.equation.input_labels(1, ranks[1])?;
        let (inner, cols) = split(&self.equation, &w_labels)?;
        let rows: Labels = out_labels
            .iter()
            .copied()
            .filter(|l| x_labels.contains(l))
            .collect();
        let natural: Labels = rows.iter().chain(&cols).copied().collect();

        let x = Operand::new(x.clone(), &x_labels);
        let (k, n) = (self.weights.k(), self.weights.n());
        let m = out_shape.num_elements() / n;
        let (a, lda) = match x.matrix(&rows, &inner) {
            Some((false, ld)) => (x.tensor.clone(), ld),
            _ => {
                let order: Labels = rows.iter().chain(&inner).copied().collect();
                (x.dense(ctx.par(), &order)?, k)
            }
        };
        let shape: Shape = match natural == out_labels {
            true => out_shape.clone(),
            false => {
                let at = |l: &Label| out_labels.iter().position(|o| o == l);
                natural
                    .iter()
                    .filter_map(at)
                    .map(|i| out_shape[i])
                    .collect()
            }
        };
        let mut out = ctx.alloc(T::DTYPE, shape)?;
        let none = Epilogue::none();
        gemm_packed(
            ctx.par(),
            a.slice()?,
            lda,
            m,
            &self.weights,
            out.slice_mut()?,
            n,
            &none,
        );
        let out = match natural == out_labels {
            true => out,
            false => finish(
                ctx.par(),
                &Operand::new(out, &natural),
                &out_labels,
                out_shape,
            )?,
        };
        ctx.set_output(0, out)
    }

    fn prepacks_input(&self, i: usize) -> bool {
        i == 1
    }

    fn packed(&self) -> Result<Vec<Tensor>> {
        Ok(vec![prepack::tensor(&self.weights)?])
    }
}
