//! Kernels of two inputs that do not broadcast them.

use crate::broadcast::broadcast_shape;
use ferroflow_base::{Result, invalid_argument};
use ferroflow_opdef::{
    BinaryFn, ElementwiseProgram, Instruction, KernelBuild, KernelCtx, OpKernel,
};
use ferroflow_tensor::Shape;

/// How two inputs that are not broadcast must agree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// In the number of elements (TensorFlow: `SimpleBinaryOp`).
    Count,
    /// In the shape (TensorFlow: `BinaryElementWiseOp`).
    Shape,
}

impl Agreement {
    /// Checks the shapes of the two inputs of a node.
    ///
    /// # Errors
    /// INVALID_ARGUMENT if they do not agree.
    pub fn check(self, op: &str, node: &str, [a, b]: [&Shape; 2]) -> Result<()> {
        let counts = [a, b].map(Shape::num_elements);
        match self {
            _ if a == b => Ok(()),
            Agreement::Count if counts[0] != counts[1] => Err(invalid_argument!(
                "The two arguments to a cwise op must have same number of elements, got {} and {}",
                counts[0],
                counts[1]
            )),
            Agreement::Count => Ok(()),
            Agreement::Shape => Err(invalid_argument!(
                "Inputs to operation {node} of type {op} must have the same size and shape.  Input 0: {a} != input 1: {b}"
            )),
        }
    }
}

/// Checks the operands of the steps of a program that do not broadcast them, given the shapes of its inputs.
///
/// # Errors
/// INVALID_ARGUMENT if those of a step do not agree, or those of another cannot be broadcast together.
pub fn check_operands(program: &ElementwiseProgram, node: &str, inputs: &[&Shape]) -> Result<()> {
    if inputs.windows(2).all(|pair| pair[0] == pair[1]) {
        return Ok(());
    }
    let mut shapes: Vec<Shape> = inputs.iter().map(|&shape| shape.clone()).collect();
    for step in program.steps() {
        let shape = match *step {
            Instruction::Unary(_, a) => shapes[a].clone(),
            Instruction::Binary(f, a, b) => {
                let operands = [&shapes[a], &shapes[b]];
                match f {
                    BinaryFn::AddN => Agreement::Shape.check("AddN", node, operands)?,
                    BinaryFn::ReluGrad => Agreement::Shape.check("ReluGrad", node, operands)?,
                    _ if f.needs_same_shape() => Agreement::Count.check("", node, operands)?,
                    _ => {}
                }
                match f.needs_same_shape() {
                    true => operands[0].clone(),
                    false => broadcast_shape(operands[0], operands[1])?,
                }
            }
        };
        shapes.push(shape);
    }
    Ok(())
}

/// Returns a kernel that refuses inputs that do not agree.
///
/// # Errors
/// None; the type is that of kernel factories.
pub fn without_broadcast(
    build: &KernelBuild,
    agreement: Agreement,
    kernel: Box<dyn OpKernel>,
) -> Result<Box<dyn OpKernel>> {
    Ok(Box::new(Agreeing {
        op: build.def.name.to_string(),
        agreement,
        kernel,
    }))
}

struct Agreeing {
    op: String,
    agreement: Agreement,
    kernel: Box<dyn OpKernel>,
}

impl OpKernel for Agreeing {
    fn compute(&self, ctx: &mut KernelCtx) -> Result<()> {
        let (a, b) = (ctx.shape(0)?, ctx.shape(1)?);
        if a == b {
            return self.kernel.compute(ctx);
        }
        self.agreement.check(&self.op, ctx.node(), [a, b])?;
        let a = a.clone();
        let b = ctx.take_input(1)?.with_shape(a)?;
        ctx.set_input(1, b)?;
        self.kernel.compute(ctx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(program: &str, inputs: &[&[usize]], want: &str) {
        let program = ElementwiseProgram::decode(program, inputs.len()).unwrap();
        let shapes: Vec<Shape> = inputs.iter().map(|dims| Shape::from(*dims)).collect();
        let shapes: Vec<&Shape> = shapes.iter().collect();
        let text = match check_operands(&program, "n", &shapes) {
            Ok(()) => String::new(),
            Err(e) => e.message().to_owned(),
        };
        assert_eq!(text, want, "{inputs:?}");
    }

    #[test]
    fn operands_of_programs() {
        let counts = "The two arguments to a cwise op must have same number of elements, got";
        let program = "TanhGrad(0,1);Mul(3,2)";
        check(program, &[&[2, 3], &[2, 3], &[]], "");
        check(program, &[&[2, 3], &[2, 3], &[4, 1, 1]], "");
        check(
            program,
            &[&[2, 3], &[1, 3], &[]],
            &format!("{counts} 6 and 3"),
        );
        check(
            program,
            &[&[2, 3], &[4, 3], &[2, 3]],
            &format!("{counts} 6 and 12"),
        );
        let sum = "Inputs to operation n of type AddN must have the same size and shape.  Input 0: [2,3] != input 1: [1,3]";
        check("Neg(0);AddN(2,1)", &[&[2, 3], &[1, 3]], sum);
        let grad = sum.replace("AddN", "ReluGrad");
        check("ReluGrad(0,1)", &[&[2, 3], &[1, 3]], &grad);
        check("Neg(0);AddV2(2,1)", &[&[2, 3], &[1, 3]], "");
    }
}
