//! [`Loop`]: kernels that compute elements one by one, as PTX.
//!
//! A thread computes [`Loop::width`] consecutive elements. Functions that PTX has no instruction for are those of
//! `kernels/functions.cu`.

use ferroflow_opdef::{BinaryFn, Instruction, UnaryFn};
use ferroflow_tensor::DType;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

/// The name of the generated kernel.
pub(crate) const ENTRY: &str = "elementwise";

const VERSION: &str = ".version 7.0\n.target sm_75\n.address_size 64\n";

/// How the elements of an operand belong to those of the result.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Walk {
    /// One for one.
    Full,
    /// One for all.
    Scalar,
    /// Element `i % n`; `n` is a parameter.
    Last,
    /// Element `i / inner % n`; both are parameters.
    Middle,
}

/// What is computed of operands: those of the loop, then the results of earlier steps.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Step {
    Unary(UnaryFn, usize),
    Binary(BinaryFn, usize, usize),
    /// The second operand where the first is not zero, else the third.
    Select(usize, usize, usize),
}

impl From<Instruction> for Step {
    fn from(instruction: Instruction) -> Step {
        match instruction {
            Instruction::Unary(f, a) => Step::Unary(f, a),
            Instruction::Binary(f, a, b) => Step::Binary(f, a, b),
        }
    }
}

/// A loop over elements.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    /// The dtype and the walk of each operand.
    pub(crate) operands: Vec<(DType, Walk)>,
    /// What is computed of the operands, then of earlier results; the last one is the result. Empty: the
    /// operand is converted.
    pub(crate) steps: Vec<Step>,
    /// The dtype of the result.
    pub(crate) result: DType,
    /// Elements of a thread: 1 or 4.
    pub(crate) width: usize,
}

impl PartialEq for Loop {
    fn eq(&self, other: &Loop) -> bool {
        self.operands == other.operands
            && self.steps == other.steps
            && self.result == other.result
            && self.width == other.width
    }
}

impl Eq for Loop {}

impl Hash for Loop {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.operands, self.result, self.width).hash(state);
        for step in &self.steps {
            // Functions that differ in a slope alone are compared.
            match step {
                Step::Unary(f, a) => (std::mem::discriminant(f), a).hash(state),
                Step::Binary(f, a, b) => (std::mem::discriminant(f), a, b).hash(state),
                Step::Select(c, a, b) => (c, a, b).hash(state),
            }
        }
    }
}

/// The texts of the functions of `kernels/functions.cu`.
pub(crate) struct Functions {
    globals: String,
    /// Names and definitions.
    all: Vec<(String, String)>,
}

impl Functions {
    pub(crate) fn parse(text: &str) -> Functions {
        let mut parts = text.split(".visible .func");
        let head = parts.next().unwrap_or_default();
        let globals = head.lines().filter(|l| l.starts_with(".global"));
        let mut functions = Functions {
            globals: globals.map(|l| format!("{l}\n")).collect(),
            all: Vec::new(),
        };
        for part in parts {
            let after = part.split_once(") ").map_or("", |(_, rest)| rest);
            let name = after.split('(').next().unwrap_or_default();
            functions
                .all
                .push((name.to_string(), format!(".func{part}")));
        }
        functions
    }

    fn get(&self, name: &str) -> &str {
        let found = self.all.iter().find(|(n, _)| n == name);
        found.map_or("", |(_, text)| text)
    }
}

/// The body of a kernel while it is written.
struct Body {
    text: String,
    /// Functions that it calls.
    called: Vec<&'static str>,
    n_floats: usize,
}

impl Body {
    fn float(&mut self) -> String {
        self.n_floats += 1;
        format!("%f{}", self.n_floats)
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "\t{text}");
    }

    fn call(&mut self, name: &'static str, args: &[&str], to: &str) {
        if !self.called.contains(&name) {
            self.called.push(name);
        }
        let params: Vec<String> = (0..args.len()).map(|i| format!("p{i}")).collect();
        self.line("{");
        for (param, arg) in params.iter().zip(args) {
            self.line(&format!(".param .b32 {param};"));
            self.line(&format!("st.param.f32 [{param}], {arg};"));
        }
        self.line(".param .b32 r;");
        self.line(&format!("call.uni (r), {name}, ({});", params.join(", ")));
        self.line(&format!("ld.param.f32 {to}, [r];"));
        self.line("}");
    }
}

/// A float as PTX spells it.
fn literal(value: f32) -> String {
    format!("0f{:08X}", value.to_bits())
}

impl Loop {
    /// The module with the kernel. Its parameters: the result, the number of elements, then of each operand
    /// its address, and the numbers of its walk.
    pub(crate) fn module(&self, functions: &Functions) -> String {
        let mut body = Body {
            text: String::new(),
            called: Vec::new(),
            n_floats: 0,
        };
        let mut params = vec![
            ".param .u64 result".to_string(),
            ".param .u32 count".to_string(),
        ];
        let mut values: Vec<Vec<String>> = Vec::new();
        self.start(&mut body);
        for (i, (dtype, walk)) in self.operands.iter().enumerate() {
            params.push(format!(".param .u64 x{i}"));
            match walk {
                Walk::Last => params.push(format!(".param .u32 n{i}")),
                Walk::Middle => {
                    params.push(format!(".param .u32 n{i}"));
                    params.push(format!(".param .u32 inner{i}"));
                }
                _ => {}
            }
            values.push(self.load(&mut body, i, *dtype, *walk));
        }
        for step in &self.steps {
            let result = (0..self.width)
                .map(|lane| {
                    let to = body.float();
                    match *step {
                        Step::Unary(f, a) => unary(&mut body, f, &values[a][lane], &to),
                        Step::Binary(f, a, b) => {
                            let (a, b) = (&values[a][lane], &values[b][lane]);
                            binary(&mut body, f, a, b, &to);
                        }
                        Step::Select(c, a, b) => {
                            let [c, a, b] = [c, a, b].map(|i| &values[i][lane]);
                            body.line(&format!("setp.neu.f32 %p2, {c}, 0f00000000;"));
                            body.line(&format!("selp.f32 {to}, {a}, {b}, %p2;"));
                        }
                    }
                    to
                })
                .collect();
            values.push(result);
        }
        if let Some(results) = values.last() {
            self.store(&mut body, results);
        }
        let mut text = VERSION.to_string();
        if body
            .called
            .iter()
            .any(|f| matches!(*f, "ff_sin" | "ff_cos"))
        {
            text.push_str(&functions.globals);
        }
        for name in &body.called {
            text.push_str(functions.get(name));
        }
        let _ = write!(
            text,
            ".visible .entry {ENTRY}(\n\t{}\n)\n{{\n\t.reg .pred %p<9>;\n\t.reg .b16 %h<9>;\n\t.reg .b32 %r<24>;\n\t.reg .b64 \
             %a<9>;\n\t.reg .f64 %d<9>;\n\t.reg .f32 %f<{}>;\n{}DONE:\n\tret;\n}}\n",
            params.join(",\n\t"),
            body.n_floats + 1,
            body.text
        );
        text
    }

    /// Leaves the number of the thread's first element in `%r1`.
    fn start(&self, body: &mut Body) {
        for line in [
            "mov.u32 %r2, %ctaid.x;",
            "mov.u32 %r3, %ntid.x;",
            "mov.u32 %r4, %tid.x;",
            "mad.lo.u32 %r1, %r2, %r3, %r4;",
        ] {
            body.line(line);
        }
        if self.width > 1 {
            body.line(&format!("mul.lo.u32 %r1, %r1, {};", self.width));
        }
        body.line("ld.param.u32 %r5, [count];");
        body.line("setp.ge.u32 %p1, %r1, %r5;");
        body.line("@%p1 bra DONE;");
    }

    /// Loads the elements of operand `i` as floats.
    fn load(&self, body: &mut Body, i: usize, dtype: DType, walk: Walk) -> Vec<String> {
        body.line(&format!("ld.param.u64 %a1, [x{i}];"));
        match walk {
            Walk::Full => body.line("mov.u32 %r6, %r1;"),
            Walk::Scalar => body.line("mov.u32 %r6, 0;"),
            Walk::Last => {
                body.line(&format!("ld.param.u32 %r7, [n{i}];"));
                body.line("rem.u32 %r6, %r1, %r7;");
            }
            Walk::Middle => {
                body.line(&format!("ld.param.u32 %r8, [inner{i}];"));
                body.line(&format!("ld.param.u32 %r7, [n{i}];"));
                body.line("div.u32 %r6, %r1, %r8;");
                body.line("rem.u32 %r6, %r6, %r7;");
            }
        }
        body.line(&format!("mul.wide.u32 %a2, %r6, {};", dtype.size()));
        body.line("add.s64 %a1, %a1, %a2;");
        let n = match walk {
            Walk::Full | Walk::Last => self.width,
            _ => 1,
        };
        let (kind, registers) = register(dtype);
        let first = match registers {
            "%r" => 9,
            "%a" => 3,
            _ => 1,
        };
        let vector: Vec<String> = (first..first + n)
            .map(|l| format!("{registers}{l}"))
            .collect();
        match n {
            1 => body.line(&format!("ld.global.{kind} {}, [%a1];", vector[0])),
            _ => body.line(&format!(
                "ld.global.v{n}.{kind} {{{}}}, [%a1];",
                vector.join(", ")
            )),
        }
        let mut values: Vec<String> = vector.iter().map(|v| widen(body, dtype, v)).collect();
        while values.len() < self.width {
            values.push(values[0].clone());
        }
        values
    }

    fn store(&self, body: &mut Body, results: &[String]) {
        body.line("ld.param.u64 %a1, [result];");
        body.line(&format!("mul.wide.u32 %a2, %r1, {};", self.result.size()));
        body.line("add.s64 %a1, %a1, %a2;");
        let narrow: Vec<String> = results
            .iter()
            .enumerate()
            .map(|(lane, value)| narrow(body, self.result, value, lane + 1))
            .collect();
        let kind = register(self.result).0;
        match narrow.len() {
            1 => body.line(&format!("st.global.{kind} [%a1], {};", narrow[0])),
            n => body.line(&format!(
                "st.global.v{n}.{kind} [%a1], {{{}}};",
                narrow.join(", ")
            )),
        }
    }
}

/// The type of a load of a dtype, and its kind of registers.
fn register(dtype: DType) -> (&'static str, &'static str) {
    match dtype {
        DType::Half | DType::Bfloat16 => ("b16", "%h"),
        DType::Bool | DType::Uint8 => ("u8", "%h"),
        DType::Int64 => ("s64", "%a"),
        DType::Double => ("f64", "%d"),
        // Floats, and integers of 32 bits.
        _ => ("b32", "%r"),
    }
}

/// Converts a loaded register to a float.
fn widen(body: &mut Body, dtype: DType, from: &str) -> String {
    let to = body.float();
    let convert = match dtype {
        DType::Half => "cvt.f32.f16",
        DType::Bfloat16 => {
            body.line(&format!("cvt.u32.u16 %r20, {from};"));
            body.line("shl.b32 %r20, %r20, 16;");
            body.line(&format!("mov.b32 {to}, %r20;"));
            return to;
        }
        DType::Bool | DType::Uint8 => "cvt.rn.f32.u16",
        DType::Int64 => "cvt.rn.f32.s64",
        DType::Double => "cvt.rn.f32.f64",
        DType::Int32 => "cvt.rn.f32.s32",
        _ => "mov.b32",
    };
    body.line(&format!("{convert} {to}, {from};"));
    to
}

/// Converts a float to the register that is stored, of lane 1 to 4.
fn narrow(body: &mut Body, dtype: DType, from: &str, lane: usize) -> String {
    let (_, registers) = register(dtype);
    let to = format!("{registers}{}", lane + 4);
    match dtype {
        DType::Half => body.line(&format!("cvt.rn.f16.f32 {to}, {from};")),
        // Rounds to nearest even; a NaN stays one.
        DType::Bfloat16 => {
            for line in [
                &*format!("mov.b32 %r20, {from};"),
                "shr.u32 %r21, %r20, 16;",
                "and.b32 %r22, %r21, 1;",
                "add.u32 %r22, %r22, 32767;",
                "add.u32 %r22, %r22, %r20;",
                "shr.u32 %r22, %r22, 16;",
                &format!("setp.nan.f32 %p2, {from}, {from};"),
                "or.b32 %r21, %r21, 64;",
                "selp.b32 %r22, %r21, %r22, %p2;",
                &format!("cvt.u16.u32 {to}, %r22;"),
            ] {
                body.line(line);
            }
        }
        DType::Bool => {
            body.line(&format!("setp.neu.f32 %p2, {from}, 0f00000000;"));
            body.line(&format!("selp.u16 {to}, 1, 0, %p2;"));
        }
        DType::Double => body.line(&format!("cvt.f64.f32 {to}, {from};")),
        _ => body.line(&format!("mov.b32 {to}, {from};")),
    }
    to
}

fn unary(body: &mut Body, f: UnaryFn, a: &str, to: &str) {
    let simple = match f {
        UnaryFn::Neg => "neg.f32",
        UnaryFn::Abs => "abs.f32",
        UnaryFn::Sqrt => "sqrt.rn.f32",
        UnaryFn::Rsqrt => "rsqrt.approx.f32",
        UnaryFn::Reciprocal => "rcp.rn.f32",
        UnaryFn::Floor => "cvt.rmi.f32.f32",
        UnaryFn::Ceil => "cvt.rpi.f32.f32",
        UnaryFn::Round => "cvt.rni.f32.f32",
        UnaryFn::Square => return body.line(&format!("mul.rn.f32 {to}, {a}, {a};")),
        UnaryFn::Relu => {
            let zero = literal(0.0);
            body.line(&format!("setp.lt.f32 %p2, {a}, {zero};"));
            return body.line(&format!("selp.f32 {to}, {zero}, {a}, %p2;"));
        }
        UnaryFn::LeakyRelu(alpha) => {
            return body.call("ff_leaky_relu", &[a, &literal(alpha)], to);
        }
        UnaryFn::Exp => return body.call("ff_exp", &[a], to),
        UnaryFn::Expm1 => return body.call("ff_expm1", &[a], to),
        UnaryFn::Log => return body.call("ff_log", &[a], to),
        UnaryFn::Log1p => return body.call("ff_log1p", &[a], to),
        UnaryFn::Sin => return body.call("ff_sin", &[a], to),
        UnaryFn::Cos => return body.call("ff_cos", &[a], to),
        UnaryFn::Tanh => return body.call("ff_tanh", &[a], to),
        UnaryFn::Sigmoid => return body.call("ff_sigmoid", &[a], to),
        UnaryFn::Erf => return body.call("ff_erf", &[a], to),
        UnaryFn::Erfc => return body.call("ff_erfc", &[a], to),
        UnaryFn::Sign => return body.call("ff_sign", &[a], to),
        UnaryFn::Relu6 => return body.call("ff_relu6", &[a], to),
        UnaryFn::Elu => return body.call("ff_elu", &[a], to),
        UnaryFn::Selu => return body.call("ff_selu", &[a], to),
        UnaryFn::Softplus => return body.call("ff_softplus", &[a], to),
        UnaryFn::Softsign => return body.call("ff_softsign", &[a], to),
        UnaryFn::Swish => return body.call("ff_swish", &[a], to),
        UnaryFn::HardSwish => return body.call("ff_hard_swish", &[a], to),
        UnaryFn::Gelu => return body.call("ff_gelu", &[a], to),
        UnaryFn::GeluTanh => return body.call("ff_gelu_tanh", &[a], to),
    };
    body.line(&format!("{simple} {to}, {a};"));
}

fn binary(body: &mut Body, f: BinaryFn, a: &str, b: &str, to: &str) {
    let simple = match f {
        BinaryFn::Add => "add.rn.f32",
        BinaryFn::Sub => "sub.rn.f32",
        BinaryFn::Mul => "mul.rn.f32",
        BinaryFn::Div => "div.rn.f32",
        BinaryFn::SquaredDifference => {
            body.line(&format!("sub.rn.f32 {to}, {a}, {b};"));
            return body.line(&format!("mul.rn.f32 {to}, {to}, {to};"));
        }
        BinaryFn::Maximum => return body.call("ff_maximum", &[a, b], to),
        BinaryFn::Minimum => return body.call("ff_minimum", &[a, b], to),
        BinaryFn::Pow => return body.call("ff_pow", &[a, b], to),
    };
    body.line(&format!("{simple} {to}, {a}, {b};"));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::text;

    fn functions() -> Functions {
        let compressed = include_bytes!("../kernels/functions.ptx.gz");
        Functions::parse(&text(compressed).expect("compressed text"))
    }

    fn program(text: &str, n_inputs: usize) -> Vec<Step> {
        let program = ferroflow_opdef::ElementwiseProgram::decode(text, n_inputs);
        program
            .expect(text)
            .steps()
            .iter()
            .map(|s| (*s).into())
            .collect()
    }

    /// All loops of which modules are made here: each function, walk, width and dtype.
    fn loops() -> Vec<Loop> {
        let f32 = DType::Float;
        let unary = "Neg Abs Square Sqrt Rsqrt Reciprocal Exp Expm1 Log Log1p Sin Cos Tanh Sigmoid Erf Erfc Floor \
                     Ceil Rint Sign Relu Relu6 LeakyRelu[0.3] Elu Selu Softplus Softsign _Swish _HardSwish _Gelu \
                     _GeluTanh";
        let mut all: Vec<Loop> = unary
            .split_whitespace()
            .map(|op| Loop {
                operands: vec![(f32, Walk::Full)],
                steps: program(&format!("{op}(0)"), 1),
                result: f32,
                width: 4,
            })
            .collect();
        for op in "AddV2 Sub Mul RealDiv Maximum Minimum SquaredDifference Pow".split(' ') {
            for (walk, width) in [(Walk::Scalar, 1), (Walk::Last, 4), (Walk::Middle, 4)] {
                all.push(Loop {
                    operands: vec![(f32, Walk::Full), (f32, walk)],
                    steps: program(&format!("{op}(0,1);Tanh(2);Tanh(3)"), 2),
                    result: f32,
                    width,
                });
            }
        }
        let from = [
            DType::Half,
            DType::Bfloat16,
            DType::Double,
            DType::Int32,
            DType::Int64,
            DType::Uint8,
            DType::Bool,
            f32,
        ];
        for dtype in from {
            for result in [f32, DType::Half, DType::Bfloat16] {
                for width in [1, 4].into_iter().filter(|w| w * dtype.size() <= 16) {
                    all.push(Loop {
                        operands: vec![(dtype, Walk::Full)],
                        steps: Vec::new(),
                        result,
                        width,
                    });
                }
            }
        }
        all.push(Loop {
            operands: vec![
                (DType::Bool, Walk::Middle),
                (f32, Walk::Full),
                (f32, Walk::Scalar),
            ],
            steps: vec![Step::Select(0, 1, 2)],
            result: f32,
            width: 4,
        });
        all
    }

    /// Writes the modules to a folder, for an assembler: `PTX_DIR=DIR cargo test -p ferroflow-gpu`, then
    /// `ptxas -arch=sm_90 FILE` for each file.
    #[test]
    fn modules_define_what_they_call() {
        let functions = functions();
        for (i, of) in loops().into_iter().enumerate() {
            let module = of.module(&functions);
            let calls = module
                .lines()
                .filter_map(|l| l.trim().strip_prefix("call.uni (r), "));
            for call in calls {
                let name = call.split(',').next().unwrap_or_default();
                assert!(
                    module.contains(&format!("(.param .b32 func_retval0) {name}(")),
                    "{module}"
                );
            }
            assert_eq!(module.matches(".entry").count(), 1, "{of:?}");
            if let Some(dir) = std::env::var_os("PTX_DIR") {
                let path = std::path::Path::new(&dir).join(format!("{i}.ptx"));
                std::fs::write(path, module).expect("a folder");
            }
        }
    }

    #[test]
    fn walks_read_their_parameters() {
        let of = Loop {
            operands: vec![
                (DType::Float, Walk::Full),
                (DType::Float, Walk::Last),
                (DType::Float, Walk::Middle),
                (DType::Float, Walk::Scalar),
            ],
            steps: program("AddV2(0,1);Mul(4,2);Sub(5,3)", 4),
            result: DType::Float,
            width: 1,
        };
        let module = of.module(&functions());
        let (_, params) = module.split_once("elementwise(").expect("an entry");
        let (params, _) = params.split_once(')').expect("parameters");
        let names = params
            .split(',')
            .map(|p| p.trim().rsplit(' ').next().unwrap_or_default());
        assert_eq!(
            names.collect::<Vec<_>>(),
            [
                "result", "count", "x0", "x1", "n1", "x2", "n2", "inner2", "x3"
            ]
        );
    }
}
