//! [`Loop`]: kernels that compute elements one by one, as PTX.
//!
//! A thread computes [`Loop::width`] consecutive elements. Functions that PTX has no instruction for are those of
//! `kernels/functions.cu`.

mod functions;
#[cfg(test)]
mod tests;

use ferroflow_opdef::{BinaryFn, Instruction, UnaryFn};
use ferroflow_tensor::DType;
use functions::{binary, unary};
use smallvec::SmallVec;
use std::fmt::Write as _;
use std::hash::{Hash, Hasher};

/// The name of the generated kernel.
pub(crate) const ENTRY: &str = "elementwise";

/// The head of a module for devices of compute capability 7.5 or, if `is_newer`, 8.0 on.
fn head(is_newer: bool) -> String {
    let capability = if is_newer { 80 } else { 75 };
    format!(".version 7.0\n.target sm_{capability}\n.address_size 64\n")
}

/// A module that only devices of compute capability 8.0 on take.
pub(crate) fn newer_probe() -> String {
    head(true) + ".visible .entry probe()\n{\n\tret;\n}\n"
}

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
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Step {
    Unary(UnaryFn, usize),
    Binary(BinaryFn, usize, usize),
    /// The second operand where the first is not zero, else the third.
    Select(usize, usize, usize),
    /// A function of `kernels/functions.cu`.
    Call(&'static str, Args),
    /// A number.
    Number(f32),
}

/// The operands of a function.
pub(crate) type Args = SmallVec<[usize; 6]>;

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
    /// What is computed of the operands, then of earlier results.
    pub(crate) steps: Vec<Step>,
    /// The dtypes of the results, with the number of the operand or step that each is.
    pub(crate) results: Vec<(DType, usize)>,
    /// Elements of a thread: 1 or 4.
    pub(crate) width: usize,
}

impl PartialEq for Loop {
    fn eq(&self, other: &Loop) -> bool {
        self.operands == other.operands
            && self.steps == other.steps
            && self.results == other.results
            && self.width == other.width
    }
}

impl Eq for Loop {}

impl Hash for Loop {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.operands, &self.results, self.width).hash(state);
        for step in &self.steps {
            // Functions and numbers that differ in a value alone are compared.
            match step {
                Step::Unary(f, a) => (std::mem::discriminant(f), a).hash(state),
                Step::Binary(f, a, b) => (std::mem::discriminant(f), a, b).hash(state),
                Step::Select(c, a, b) => (c, a, b).hash(state),
                Step::Call(name, args) => (name, args).hash(state),
                Step::Number(_) => 0.hash(state),
            }
        }
    }
}

/// The texts of the functions of `kernels/functions.cu`.
pub(crate) struct Functions {
    globals: String,
    /// Names and definitions.
    all: Vec<(String, String)>,
    /// Whether the device has compute capability 8.0.
    is_newer: bool,
}

/// Lines of the longest function whose body stands in place of its calls.
const INLINED: usize = 64;

impl Functions {
    pub(crate) fn parse(text: &str, is_newer: bool) -> Functions {
        let mut parts = text.split(".visible .func");
        let head = parts.next().unwrap_or_default();
        let globals = head.lines().filter(|l| l.starts_with(".global"));
        let mut functions = Functions {
            globals: globals.map(|l| format!("{l}\n")).collect(),
            all: Vec::new(),
            is_newer,
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

    /// The body of a short function, with operands for its parameters and a register for its result. A call would keep the
    /// lanes of a thread from being computed side by side.
    fn inlined(&self, name: &str, args: &[&str], to: &str) -> Option<String> {
        let (_, body) = self.get(name).split_once('{')?;
        let (body, _) = body.rsplit_once('}')?;
        let is_simple = body.matches("ret;").count() == 1
            && ["call", "__cudart_", ".local"]
                .iter()
                .all(|text| !body.contains(text));
        if !is_simple || body.lines().count() > INLINED {
            return None;
        }
        let mut text = body.replace("\tret;\n", "");
        text = text.replace(
            "st.param.f32 \t[func_retval0+0],",
            &format!("mov.f32 \t{to},"),
        );
        for (i, arg) in args.iter().enumerate() {
            text = text.replace(&format!("[{name}_param_{i}]"), arg);
        }
        text = text.replace("ld.param.f32", "mov.f32");
        (!text.contains("param")).then(|| format!("\t{{{text}\t}}\n"))
    }
}

/// The body of a kernel while it is written.
struct Body<'a> {
    functions: &'a Functions,
    text: String,
    /// Functions that it calls.
    called: Vec<&'static str>,
    n_floats: usize,
}

impl Body<'_> {
    /// A new register, named as none of the functions.
    fn float(&mut self) -> String {
        self.n_floats += 1;
        format!("%v{}", self.n_floats)
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "\t{text}");
    }

    fn call(&mut self, name: &'static str, args: &[&str], to: &str) {
        if let Some(text) = self.functions.inlined(name, args, to) {
            self.text.push_str(&text);
            return;
        }
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
    /// The module with the kernel. Its parameters: the number of elements, the results, then of each operand
    /// its address, and the numbers of its walk.
    pub(crate) fn module(&self, functions: &Functions) -> String {
        let mut body = Body {
            functions,
            text: String::new(),
            called: Vec::new(),
            n_floats: 0,
        };
        let mut params = vec![".param .u32 count".to_string()];
        params.extend((0..self.results.len()).map(|i| format!(".param .u64 y{i}")));
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
            let lanes = (0..self.width).map(|lane| compute(&mut body, step, &values, lane));
            let result = lanes.collect();
            values.push(result);
        }
        for (i, (dtype, value)) in self.results.iter().enumerate() {
            self.store(&mut body, i, *dtype, &values[*value]);
        }
        let mut text = head(functions.is_newer);
        let called: String = body.called.iter().map(|name| functions.get(name)).collect();
        // Tables that functions read.
        if called.contains("__cudart_") {
            text.push_str(&functions.globals);
        }
        text.push_str(&called);
        let _ = write!(
            text,
            ".visible .entry {ENTRY}(\n\t{}\n)\n{{\n\t.reg .pred %p<9>;\n\t.reg .b16 %h<9>;\n\t.reg .b32 %r<24>;\n\t.reg .b64 \
             %a<9>;\n\t.reg .f64 %d<9>;\n\t.reg .f32 %v<{}>;\n{}DONE:\n\tret;\n}}\n",
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

    fn store(&self, body: &mut Body, i: usize, dtype: DType, results: &[String]) {
        body.line(&format!("ld.param.u64 %a1, [y{i}];"));
        body.line(&format!("mul.wide.u32 %a2, %r1, {};", dtype.size()));
        body.line("add.s64 %a1, %a1, %a2;");
        let narrow: Vec<String> = results
            .iter()
            .enumerate()
            .map(|(lane, value)| narrow(body, dtype, value, lane + 1))
            .collect();
        let kind = register(dtype).0;
        match narrow.len() {
            1 => body.line(&format!("st.global.{kind} [%a1], {};", narrow[0])),
            n => body.line(&format!(
                "st.global.v{n}.{kind} [%a1], {{{}}};",
                narrow.join(", ")
            )),
        }
    }
}

/// Computes a step for one lane; returns where its result is.
fn compute(body: &mut Body, step: &Step, values: &[Vec<String>], lane: usize) -> String {
    if let Step::Number(value) = step {
        return literal(*value);
    }
    let to = body.float();
    let value = |i: usize| values[i][lane].as_str();
    match step {
        Step::Unary(f, a) => unary(body, *f, value(*a), &to),
        Step::Binary(f, a, b) => binary(body, *f, value(*a), value(*b), &to),
        Step::Select(c, a, b) => {
            body.line(&format!("setp.neu.f32 %p2, {}, 0f00000000;", value(*c)));
            body.line(&format!(
                "selp.f32 {to}, {}, {}, %p2;",
                value(*a),
                value(*b)
            ));
        }
        Step::Call(name, args) => {
            let args: Vec<&str> = args.iter().map(|a| value(*a)).collect();
            body.call(name, &args, &to);
        }
        Step::Number(_) => {}
    }
    to
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

fn truncate(body: &mut Body, from: &str, to: &str, kind: &str, limit: &str, least: &str) {
    let size = body.float();
    body.line(&format!("abs.f32 {size}, {from};"));
    body.line(&format!("setp.lt.f32 %p2, {size}, {limit};"));
    body.line(&format!("cvt.rzi.{kind}.f32 {to}, {from};"));
    body.line(&format!("selp.{kind} {to}, {to}, {least}, %p2;"));
}

/// Converts a float to the register that is stored, of lane 1 to 4.
fn narrow(body: &mut Body, dtype: DType, from: &str, lane: usize) -> String {
    let (_, registers) = register(dtype);
    let to = format!("{registers}{}", lane + 4);
    match dtype {
        DType::Half => body.line(&format!("cvt.rn.f16.f32 {to}, {from};")),
        DType::Bfloat16 if body.functions.is_newer => {
            body.line(&format!("cvt.rn.bf16.f32 {to}, {from};"));
        }
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
        // What does not fit becomes the least number, as on CPUs.
        DType::Int32 => truncate(body, from, &to, "s32", "0f4F000000", "-2147483648"),
        DType::Int64 => truncate(body, from, &to, "s64", "0f5F000000", "-9223372036854775808"),
        _ => body.line(&format!("mov.b32 {to}, {from};")),
    }
    to
}
