//! [`ElementwiseProgram`]: the computation of a `_FusedElementwise` node.

use ferroflow_base::{Result, invalid_argument};

/// A function of one element.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "named after TensorFlow's ops")]
pub enum UnaryFn {
    Neg,
    Abs,
    Square,
    Sqrt,
    Rsqrt,
    Reciprocal,
    Exp,
    Expm1,
    Log,
    Log1p,
    Sin,
    Cos,
    Tanh,
    Sigmoid,
    Erf,
    Erfc,
    Floor,
    Ceil,
    Round,
    Sign,
    Relu,
    Relu6,
    /// The slope for negative elements.
    LeakyRelu(f32),
    Elu,
    Selu,
    Softplus,
    Softsign,
    Swish,
    HardSwish,
    Gelu,
    GeluTanh,
}

/// A function of two elements.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "named after TensorFlow's ops")]
pub enum BinaryFn {
    Add,
    Sub,
    Mul,
    Div,
    Maximum,
    Minimum,
    SquaredDifference,
    Pow,
    ReluGrad,
    TanhGrad,
    SigmoidGrad,
    /// The sum of two operands of the same shape.
    AddN,
}

/// Ops and their functions. The first op of a function names it in encoded programs.
const UNARY: &[(&str, UnaryFn)] = &[
    ("Neg", UnaryFn::Neg),
    ("Abs", UnaryFn::Abs),
    ("Square", UnaryFn::Square),
    ("Sqrt", UnaryFn::Sqrt),
    ("Rsqrt", UnaryFn::Rsqrt),
    ("Reciprocal", UnaryFn::Reciprocal),
    ("Inv", UnaryFn::Reciprocal),
    ("Exp", UnaryFn::Exp),
    ("Expm1", UnaryFn::Expm1),
    ("Log", UnaryFn::Log),
    ("Log1p", UnaryFn::Log1p),
    ("Sin", UnaryFn::Sin),
    ("Cos", UnaryFn::Cos),
    ("Tanh", UnaryFn::Tanh),
    ("Sigmoid", UnaryFn::Sigmoid),
    ("Erf", UnaryFn::Erf),
    ("Erfc", UnaryFn::Erfc),
    ("Floor", UnaryFn::Floor),
    ("Ceil", UnaryFn::Ceil),
    ("Rint", UnaryFn::Round),
    ("Round", UnaryFn::Round),
    ("Sign", UnaryFn::Sign),
    ("Relu", UnaryFn::Relu),
    ("Relu6", UnaryFn::Relu6),
    ("LeakyRelu", UnaryFn::LeakyRelu(0.0)),
    ("Elu", UnaryFn::Elu),
    ("Selu", UnaryFn::Selu),
    ("Softplus", UnaryFn::Softplus),
    ("Softsign", UnaryFn::Softsign),
    ("_Swish", UnaryFn::Swish),
    ("_HardSwish", UnaryFn::HardSwish),
    ("_Gelu", UnaryFn::Gelu),
    ("_GeluTanh", UnaryFn::GeluTanh),
];
const BINARY: &[(&str, BinaryFn)] = &[
    ("AddV2", BinaryFn::Add),
    ("Add", BinaryFn::Add),
    ("BiasAdd", BinaryFn::Add),
    ("Sub", BinaryFn::Sub),
    ("Mul", BinaryFn::Mul),
    ("RealDiv", BinaryFn::Div),
    ("Div", BinaryFn::Div),
    ("Maximum", BinaryFn::Maximum),
    ("Minimum", BinaryFn::Minimum),
    ("SquaredDifference", BinaryFn::SquaredDifference),
    ("Pow", BinaryFn::Pow),
    ("ReluGrad", BinaryFn::ReluGrad),
    ("TanhGrad", BinaryFn::TanhGrad),
    ("SigmoidGrad", BinaryFn::SigmoidGrad),
    ("AddN", BinaryFn::AddN),
];

impl UnaryFn {
    /// Returns the function of the op `op`, if it has one; `alpha` is the slope of a LeakyRelu.
    pub fn of_op(op: &str, alpha: f32) -> Option<UnaryFn> {
        let (_, function) = UNARY.iter().find(|(name, _)| *name == op)?;
        Some(match function {
            UnaryFn::LeakyRelu(_) => UnaryFn::LeakyRelu(alpha),
            other => *other,
        })
    }

    fn name(self) -> &'static str {
        let same = |f: &UnaryFn| std::mem::discriminant(f) == std::mem::discriminant(&self);
        UNARY.iter().find(|(_, f)| same(f)).map_or("", |(n, _)| n)
    }
}

impl BinaryFn {
    /// Returns the function of the op `op`, if it has one.
    pub fn of_op(op: &str) -> Option<BinaryFn> {
        let found = BINARY.iter().find(|(name, _)| *name == op);
        found.map(|(_, function)| *function)
    }

    /// Returns whether its op demands operands of the same shape.
    pub fn needs_same_shape(self) -> bool {
        matches!(
            self,
            BinaryFn::ReluGrad | BinaryFn::TanhGrad | BinaryFn::SigmoidGrad | BinaryFn::AddN
        )
    }

    fn name(self) -> &'static str {
        let found = BINARY.iter().find(|(_, f)| *f == self);
        found.map_or("", |(name, _)| name)
    }
}

/// One step of a program. Operands are numbered: the node's inputs, then the results of earlier
/// steps.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Instruction {
    /// A function of one operand.
    Unary(UnaryFn, usize),
    /// A function of two operands.
    Binary(BinaryFn, usize, usize),
}

/// A sequence of instructions, the attr `program` of a `_FusedElementwise` node. The last result is
/// the node's output.
///
/// ```
/// use ferroflow_opdef::ElementwiseProgram;
/// let program = ElementwiseProgram::decode("Mul(0,1);LeakyRelu[0.2](2);AddV2(3,0)", 2).unwrap();
/// assert_eq!(program.steps().len(), 3);
/// assert_eq!(program.encode(), "Mul(0,1);LeakyRelu[0.2](2);AddV2(3,0)");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ElementwiseProgram {
    steps: Vec<Instruction>,
}

impl ElementwiseProgram {
    /// Creates a program of these steps, which must not be empty, with `n_inputs` inputs.
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if there is no step or a step uses an operand that comes after it.
    pub fn new(steps: Vec<Instruction>, n_inputs: usize) -> Result<Self> {
        let is_defined = |(i, step): (usize, &Instruction)| match *step {
            Instruction::Unary(_, a) => a < n_inputs + i,
            Instruction::Binary(_, a, b) => a.max(b) < n_inputs + i,
        };
        match !steps.is_empty() && steps.iter().enumerate().all(is_defined) {
            true => Ok(ElementwiseProgram { steps }),
            false => Err(invalid_argument!(
                "an elementwise program uses undefined operands"
            )),
        }
    }

    /// Returns the steps in order.
    pub fn steps(&self) -> &[Instruction] {
        &self.steps
    }

    /// Returns the program as text: op names with the numbers of their operands, a parameter in
    /// brackets.
    pub fn encode(&self) -> String {
        let steps = self.steps.iter().map(|step| match *step {
            Instruction::Unary(f @ UnaryFn::LeakyRelu(alpha), a) => {
                format!("{}[{alpha}]({a})", f.name())
            }
            Instruction::Unary(f, a) => format!("{}({a})", f.name()),
            Instruction::Binary(f, a, b) => format!("{}({a},{b})", f.name()),
        });
        steps.collect::<Vec<_>>().join(";")
    }

    /// Decodes the text of [`encode`](Self::encode).
    ///
    /// # Errors
    ///
    /// INVALID_ARGUMENT if the text is malformed.
    pub fn decode(text: &str, n_inputs: usize) -> Result<Self> {
        let bad = || invalid_argument!("malformed elementwise program '{text}'");
        let steps: Option<Vec<Instruction>> = text.split(';').map(decode_step).collect();
        let program = ElementwiseProgram::new(steps.ok_or_else(bad)?, n_inputs);
        program.map_err(|_| bad())
    }
}

fn decode_step(text: &str) -> Option<Instruction> {
    let (head, operands) = text.split_once('(')?;
    let operands = operands.strip_suffix(')')?.split(',');
    let operands: Vec<usize> = operands.map(|o| o.parse().ok()).collect::<Option<_>>()?;
    let (name, parameter) = match head.split_once('[') {
        Some((name, parameter)) => (name, parameter.strip_suffix(']')?.parse().ok()?),
        None => (head, 0.0),
    };
    Some(match operands[..] {
        [a] => Instruction::Unary(UnaryFn::of_op(name, parameter)?, a),
        [a, b] => Instruction::Binary(BinaryFn::of_op(name)?, a, b),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn malformed_programs() {
        for text in [
            "",
            "Mul",
            "Mul(0",
            "Mul(0,5)",
            "Mul(0,1,2)",
            "Nope(0)",
            "Relu(x)",
            "LeakyRelu[z](0)",
            "Relu(1);Relu(4)",
        ] {
            let error = ElementwiseProgram::decode(text, 3).expect_err(text);
            assert_eq!(
                error.message(),
                format!("malformed elementwise program '{text}'")
            );
        }
    }

    #[test]
    fn every_op_round_trips() {
        let mut n = 0;
        for (op, f) in UNARY {
            let step = Instruction::Unary(UnaryFn::of_op(op, 0.5).unwrap_or(*f), 0);
            let program = ElementwiseProgram::new(vec![step], 1).unwrap();
            let decoded = ElementwiseProgram::decode(&program.encode(), 1);
            assert_eq!(decoded.ok(), Some(program), "{op}");
            n += 1;
        }
        for (op, f) in BINARY {
            let program = ElementwiseProgram::new(vec![Instruction::Binary(*f, 0, 1)], 2).unwrap();
            let decoded = ElementwiseProgram::decode(&program.encode(), 2);
            assert_eq!(decoded.ok(), Some(program), "{op}");
            n += 1;
        }
        assert_eq!(n, UNARY.len() + BINARY.len());
    }
}
