//! XlaEinsum, XlaDot and XlaDotV2: contractions as XLA names them (TensorFlow: `compiler/tf2xla/kernels/xla_dot_op.cc`,
//! `einsum_op.cc`).

use crate::einsum::{self, Arithmetic, Operand, contraction};
use crate::equation::{Label, Labels};
use ferroflow_base::{Result, Status, invalid_argument};
use ferroflow_functors::conversion::{common, converted};
use ferroflow_functors::indices::shape_of;
use ferroflow_opdef::{Cost, KernelBuild, KernelCtx, Op, OpKernel, ShapeCtx};
use ferroflow_tensor::{DType, PartialShape};
use prost::Message;

/// The ops of this file.
pub(crate) const OPS: &[Op] = &[
    Op::new(
        "XlaEinsum",
        "a: T, b: T -> product: T | equation: string; T: type {complex64,bfloat16,float}",
    )
    .shape(einsum_shape)
    .cost(Cost::Expensive)
    .kernel(|build| {
        check_equation(build.attrs.str("equation")?)?;
        einsum::einsum(build)
    })
    .gradient(einsum::einsum_gradient),
    Op::new(
        "XlaDot",
        "lhs: T, rhs: T -> output: T | T: numbertype; dimension_numbers: string; \
         precision_config: string",
    )
    .shape(dot_shape)
    .cost(Cost::Expensive)
    .kernel(dot),
    Op::new(
        "XlaDotV2",
        "lhs: LhsT, rhs: RhsT -> output: preferred_element_type | LhsT: numbertype; RhsT: \
         numbertype; dimension_numbers: string; precision_config: string; preferred_element_type: \
         numbertype",
    )
    .shape(dot_shape)
    .cost(Cost::Expensive)
    .kernel(dot),
];

/// The roles of dimensions (XLA: `xla_data.proto`).
#[derive(Clone, PartialEq, Message)]
struct DotDimensionNumbers {
    #[prost(int64, repeated, tag = "1")]
    lhs_contracting_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "2")]
    rhs_contracting_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "3")]
    lhs_batch_dimensions: Vec<i64>,
    #[prost(int64, repeated, tag = "4")]
    rhs_batch_dimensions: Vec<i64>,
}

/// The labels of the dimensions of the operands and the result.
struct Labeled {
    lhs: Labels,
    rhs: Labels,
    out: Labels,
}

impl DotDimensionNumbers {
    fn of(bytes: &[u8]) -> Result<Self> {
        Self::decode(bytes).map_err(|_| invalid_argument!("Error parsing dot dimension numbers"))
    }

    /// Returns the pairs of dimensions that are batches, then those that are summed over.
    fn pairs(&self) -> Result<[Vec<[usize; 2]>; 2]> {
        let pairs = |lhs: &[i64], rhs: &[i64], what: &str| {
            if lhs.len() != rhs.len() {
                return Err(invalid_argument!(
                    "Must specify the same number of {what} dimensions for lhs and rhs. Got: {} and {}",
                    lhs.len(),
                    rhs.len()
                ));
            }
            let position = |&dim: &i64| usize::try_from(dim).map_err(|_| out_of_range(dim));
            let both = lhs.iter().zip(rhs);
            both.map(|(l, r)| Ok([position(l)?, position(r)?]))
                .collect()
        };
        let summed = pairs(
            &self.lhs_contracting_dimensions,
            &self.rhs_contracting_dimensions,
            "contracting",
        )?;
        let batch = pairs(
            &self.lhs_batch_dimensions,
            &self.rhs_batch_dimensions,
            "batch",
        )?;
        Ok([batch, summed])
    }

    fn labels(&self, lhs_rank: usize, rhs_rank: usize) -> Result<Labeled> {
        let [batch, summed] = self.pairs()?;
        let lhs: Labels = (0..lhs_rank).map(|i| i as Label).collect();
        let mut rhs: Labels = (lhs_rank..lhs_rank + rhs_rank)
            .map(|i| i as Label)
            .collect();
        let (mut in_lhs, mut in_rhs) = (vec![false; lhs_rank], vec![false; rhs_rank]);
        for [l, r] in batch.iter().chain(&summed) {
            let mark = |seen: &mut Vec<bool>, i: usize| match seen.get_mut(i) {
                None => Err(out_of_range(i as i64)),
                Some(true) => Err(invalid_argument!(
                    "A dimension number is not unique in dot: {i}"
                )),
                Some(seen) => {
                    *seen = true;
                    Ok(())
                }
            };
            mark(&mut in_lhs, *l)?;
            mark(&mut in_rhs, *r)?;
            rhs[*r] = lhs[*l];
        }
        let free = |labels: &Labels, seen: &[bool]| -> Labels {
            let free = labels.iter().zip(seen).filter(|(_, seen)| !**seen);
            free.map(|(l, _)| *l).collect()
        };
        let mut out: Labels = batch.iter().map(|[l, _]| lhs[*l]).collect();
        out.extend(free(&lhs, &in_lhs));
        out.extend(free(&rhs, &in_rhs));
        Ok(Labeled { lhs, rhs, out })
    }
}

#[cold]
fn out_of_range(dim: i64) -> Status {
    invalid_argument!("A dimension number is out of range in dot: {dim}")
}

impl Labeled {
    /// Returns the output's shape.
    fn infer(&self, lhs: &PartialShape, rhs: &PartialShape) -> Result<PartialShape> {
        let size = |labels: &Labels, shape: &PartialShape, label: Label| {
            let at = labels.iter().position(|&l| l == label)?;
            shape.dim(at as isize)
        };
        for (r, label) in self.rhs.iter().enumerate() {
            let l = self.lhs.iter().position(|l| l == label);
            let sizes = l.map(|l| (lhs.dim(l as isize), rhs.dim(r as isize)));
            if let (Some(l), Some((Some(x), Some(y)))) = (l, sizes)
                && x != y
            {
                return Err(invalid_argument!(
                    "Dimensions must be equal, but are {x} and {y}: lhs dimension {l} and rhs dimension {r}"
                ));
            }
        }
        let dims = self.out.iter().map(|&label| {
            let in_lhs = size(&self.lhs, lhs, label);
            in_lhs.or(size(&self.rhs, rhs, label))
        });
        Ok(PartialShape::of(dims))
    }
}

fn check_equation(equation: &str) -> Result<()> {
    match equation.contains(',') {
        true => Ok(()),
        false => Err(invalid_argument!(
            "Expected one \",\" in equation. Got: {equation}"
        )),
    }
}

fn einsum_shape(ctx: &mut ShapeCtx) -> Result<()> {
    check_equation(ctx.attrs().str("equation")?)?;
    einsum::shape(ctx)
}

fn dot_shape(ctx: &mut ShapeCtx) -> Result<()> {
    let (lhs, rhs) = (ctx.input(0), ctx.input(1));
    let (Some(lhs_rank), Some(rhs_rank)) = (lhs.rank(), rhs.rank()) else {
        return Ok(());
    };
    let numbers = DotDimensionNumbers::of(ctx.attrs().bytes("dimension_numbers")?)?;
    let labels = numbers.labels(lhs_rank, rhs_rank)?;
    ctx.set(0, labels.infer(&lhs, &rhs)?);
    Ok(())
}

fn dot(build: &KernelBuild) -> Result<Box<dyn OpKernel>> {
    let numbers = DotDimensionNumbers::of(build.attrs.bytes("dimension_numbers")?)?;
    let (lhs, rhs, out) = (build.input(0)?, build.input(1)?, build.output(0)?);
    // Sums are as exact as those of the operands or the result, whatever holds more.
    let dtype = common(common(lhs, rhs), out);
    let unsupported = |dtype: DType| build.unsupported(dtype);
    let arithmetic = Arithmetic::of_dtype(dtype).ok_or_else(|| unsupported(dtype))?;
    for dtype in [lhs, rhs, out] {
        Arithmetic::of_dtype(dtype).ok_or_else(|| unsupported(dtype))?;
    }
    Ok(Box::new(move |ctx: &mut KernelCtx| {
        let (lhs, rhs) = (ctx.input(0)?, ctx.input(1)?);
        let labels = numbers.labels(lhs.shape().rank(), rhs.shape().rank())?;
        let shape = labels.infer(&lhs.shape().into(), &rhs.shape().into())?;
        let dims = shape.dims().unwrap_or_default();
        let shape = shape_of(dims.iter().map(|d| d.unwrap_or(0)))?;
        let operands = vec![
            Operand::new(converted(lhs, dtype)?, &labels.lhs),
            Operand::new(converted(rhs, dtype)?, &labels.rhs),
        ];
        let product = contraction(ctx.par(), operands, &labels.out, shape, &arithmetic)?;
        ctx.set_output(0, converted(&product, out)?)
    }))
}
