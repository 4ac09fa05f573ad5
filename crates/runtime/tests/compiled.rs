//! Compiled models: they answer as the session that they were compiled by, and bad files are
//! errors.

use ferroflow_runtime::{
    Code, CompileRequest, CompiledModel, DType, RunOptions, Session, SessionOptions, Shape,
    Signature, Tensor,
};
use ferroflow_testkit::folder::Folder;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::time::Duration;

/// Numbers in -1..1 that are always the same.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn floats(&mut self, n: usize) -> Vec<f32> {
        let one = |v: u64| (v >> 40) as f32 / (1 << 23) as f32 - 1.0;
        (0..n).map(|_| one(self.next())).collect()
    }

    fn tensor(&mut self, dims: &[usize]) -> Tensor {
        let n = dims.iter().product();
        Tensor::from_slice(Shape::from(dims), &self.floats(n)).unwrap()
    }
}

/// A graph as text, node by node.
#[derive(Default)]
struct Text(String);

impl Text {
    fn node(mut self, name: &str, op: &str, inputs: &[&str], attrs: &str) -> Self {
        let inputs: String = inputs.iter().map(|i| format!("input: '{i}' ")).collect();
        writeln!(
            self.0,
            "node {{ name: '{name}' op: '{op}' {inputs}{attrs} }}"
        )
        .unwrap();
        self
    }

    fn float(self, name: &str, op: &str, inputs: &[&str]) -> Self {
        self.node(name, op, inputs, &ty("T"))
    }

    fn placeholder(self, name: &str, dims: &[i64]) -> Self {
        let dims: String = dims
            .iter()
            .map(|d| format!("dim {{ size: {d} }} "))
            .collect();
        let shape = format!("attr {{ key: 'shape' value {{ shape {{ {dims} }} }} }}");
        self.node(
            name,
            "Placeholder",
            &[],
            &format!("{} {shape}", ty("dtype")),
        )
    }

    fn weights(self, name: &str, dims: &[usize]) -> Self {
        let mut noise = Noise(name.bytes().fold(7, |h, b| h * 31 + u64::from(b)));
        let values = noise.floats(dims.iter().product());
        let values: String = values.iter().map(|v| format!("float_val: {v} ")).collect();
        let dims: String = dims
            .iter()
            .map(|d| format!("dim {{ size: {d} }} "))
            .collect();
        let value = format!(
            "attr {{ key: 'value' value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{ {dims} }} \
             {values} }} }} }}"
        );
        self.node(name, "Const", &[], &format!("{} {value}", ty("dtype")))
    }

    fn ints(self, name: &str, values: &[i32]) -> Self {
        let n = values.len();
        let values: String = values.iter().map(|v| format!("int_val: {v} ")).collect();
        let value = format!(
            "attr {{ key: 'dtype' value {{ type: DT_INT32 }} }} attr {{ key: 'value' value {{ \
             tensor {{ dtype: DT_INT32 tensor_shape {{ dim {{ size: {n} }} }} {values} }} }} }}"
        );
        self.node(name, "Const", &[], &value)
    }
}

fn ty(attr: &str) -> String {
    format!("attr {{ key: '{attr}' value {{ type: DT_FLOAT }} }}")
}

const SAME: &str = "attr { key: 'strides' value { list { i: 1 i: 1 i: 1 i: 1 } } } \
    attr { key: 'padding' value { s: 'SAME' } } attr { key: 'T' value { type: DT_FLOAT } }";

struct Row {
    name: &'static str,
    text: String,
    feeds: Vec<(&'static str, Tensor)>,
    fetches: Vec<&'static str>,
    /// Whether some kernel packs weights.
    packs: bool,
}

fn mlp() -> Row {
    let text = Text::default()
        .placeholder("x", &[-1, 20])
        .weights("w1", &[20, 33])
        .weights("b1", &[33])
        .weights("w2", &[10, 33])
        .node("h", "MatMul", &["x", "w1"], &ty("T"))
        .float("hb", "BiasAdd", &["h", "b1"])
        .float("r", "Relu", &["hb"])
        .node(
            "y",
            "MatMul",
            &["r", "w2"],
            &format!(
                "{} attr {{ key: 'transpose_b' value {{ b: true }} }}",
                ty("T")
            ),
        )
        .float("p", "Softmax", &["y"]);
    Row {
        name: "mlp",
        text: text.0,
        feeds: vec![("x:0", Noise(3).tensor(&[5, 20]))],
        fetches: vec!["p:0", "y:0", "w1:0"],
        packs: true,
    }
}

/// Filters of all packed forms: one tap, transformed, general, in groups, by channel.
fn convolutions() -> Row {
    let text = Text::default()
        .placeholder("x", &[-1, 9, 9, 32])
        .weights("f1", &[1, 1, 32, 32])
        .weights("f3", &[3, 3, 32, 32])
        .weights("f5", &[5, 5, 32, 12])
        .weights("fg", &[3, 3, 6, 8])
        .weights("fd", &[3, 3, 8, 2])
        .node("c1", "Conv2D", &["x", "f1"], SAME)
        .node("c3", "Conv2D", &["c1", "f3"], SAME)
        .node("c5", "Conv2D", &["c3", "f5"], SAME)
        .node("cg", "Conv2D", &["c5", "fg"], SAME)
        .float("cr", "Relu", &["cg"])
        .node("cd", "DepthwiseConv2dNative", &["cr", "fd"], SAME);
    Row {
        name: "convolutions",
        text: text.0,
        feeds: vec![("x:0", Noise(5).tensor(&[2, 9, 9, 32]))],
        fetches: vec!["cd:0", "c3:0"],
        packs: true,
    }
}

fn einsum() -> Row {
    let equation = "attr { key: 'equation' value { s: 'abc,cde->abde' } } \
        attr { key: 'N' value { i: 2 } } attr { key: 'T' value { type: DT_FLOAT } }";
    let text = Text::default()
        .placeholder("x", &[2, 3, 8])
        .weights("w", &[8, 2, 5])
        .node("e", "Einsum", &["x", "w"], equation)
        .ints("shape", &[6, 10])
        .node("y", "Reshape", &["e", "shape"], &ty("T"));
    Row {
        name: "einsum",
        text: text.0,
        feeds: vec![("x:0", Noise(8).tensor(&[2, 3, 8]))],
        fetches: vec!["y:0"],
        packs: true,
    }
}

/// A loop by functions, whose body multiplies by weights.
fn functional_loop() -> Row {
    let text = Text::default()
        .placeholder("x", &[2, 9])
        .node(
            "zero",
            "Const",
            &[],
            "attr { key: 'dtype' value { type: DT_INT32 } } attr { key: 'value' value { tensor { \
             dtype: DT_INT32 tensor_shape { } int_val: 0 } } }",
        )
        .node(
            "loop",
            "StatelessWhile",
            &["zero", "x"],
            "attr { key: 'T' value { list { type: DT_INT32 type: DT_FLOAT } } } \
             attr { key: 'cond' value { func { name: 'less' } } } \
             attr { key: 'body' value { func { name: 'step' } } }",
        )
        .node("y", "Identity", &["loop:1"], &ty("T"));
    let weights: String = Noise(11)
        .floats(81)
        .iter()
        .map(|v| format!("float_val: {v} "))
        .collect();
    let arg = |name: &str, ty: &str| format!("input_arg {{ name: '{name}' type: {ty} }}");
    let args = format!("{} {}", arg("i", "DT_INT32"), arg("v", "DT_FLOAT"));
    let int = |name: &str, value: i32| {
        format!(
            "node_def {{ name: '{name}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_INT32 }} \
             }} attr {{ key: 'value' value {{ tensor {{ dtype: DT_INT32 tensor_shape {{ }} int_val: \
             {value} }} }} }} }}"
        )
    };
    let int_type = "attr { key: 'T' value { type: DT_INT32 } }";
    let library = format!(
        "library {{ function {{ signature {{ name: 'less' {args} output_arg {{ name: 'r' type: \
         DT_BOOL }} }} {three} node_def {{ name: 'lt' op: 'Less' input: 'i' input: 'n:output:0' \
         {int_type} }} ret {{ key: 'r' value: 'lt:z:0' }} }} function {{ signature {{ name: 'step' \
         {args} output_arg {{ name: 'j' type: DT_INT32 }} output_arg {{ name: 'u' type: DT_FLOAT }} \
         }} {one} node_def {{ name: 'next' op: 'AddV2' input: 'i' input: 'one:output:0' {int_type} \
         }} node_def {{ name: 'w' op: 'Const' {dtype} attr {{ key: 'value' value {{ tensor {{ \
         dtype: DT_FLOAT tensor_shape {{ dim {{ size: 9 }} dim {{ size: 9 }} }} {weights} }} }} }} \
         }} node_def {{ name: 'm' op: 'MatMul' input: 'v' input: 'w:output:0' {t} }} ret {{ key: \
         'j' value: 'next:z:0' }} ret {{ key: 'u' value: 'm:product:0' }} }} }}",
        three = int("n", 3),
        one = int("one", 1),
        dtype = ty("dtype"),
        t = ty("T"),
    );
    Row {
        name: "functional loop",
        text: text.0 + &library,
        feeds: vec![("x:0", Noise(13).tensor(&[2, 9]))],
        fetches: vec!["y:0", "loop:0"],
        packs: true,
    }
}

/// Returns a branch of two products, of which the first is not read, and an effect: a check of the
/// second.
fn branch_with_effect() -> (String, Signature) {
    let text = Text::default()
        .node(
            "p",
            "Placeholder",
            &[],
            "attr { key: 'dtype' value { type: DT_BOOL } }",
        )
        .placeholder("x", &[-1, -1])
        .node(
            "if",
            "If",
            &["p", "x"],
            "attr { key: 'Tcond' value { type: DT_BOOL } } \
             attr { key: 'Tin' value { list { type: DT_FLOAT } } } \
             attr { key: 'Tout' value { list { type: DT_FLOAT } } } \
             attr { key: 'then_branch' value { func { name: 'checked' } } } \
             attr { key: 'else_branch' value { func { name: 'same' } } }",
        )
        .node("done", "NoOp", &["^if"], "");
    let signature = |name: &str| {
        format!(
            "signature {{ name: '{name}' is_stateful: true input_arg {{ name: 'v' type: DT_FLOAT }} \
             output_arg {{ name: 'r' type: DT_FLOAT }} }}"
        )
    };
    let product = |name: &str| {
        let t = ty("T");
        format!("node_def {{ name: '{name}' op: 'MatMul' input: 'v' input: 'v' {t} }}")
    };
    let library = format!(
        "library {{ function {{ {checked} {a} {b} node_def {{ name: 'c' op: 'CheckNumerics' input: \
         'b:product:0' {t} attr {{ key: 'message' value {{ s: 'late' }} }} }} node_def {{ name: 's' op: \
         'AddV2' input: 'a:product:0' input: 'c:output:0' {t} }} ret {{ key: 'r' value: 's:z:0' }} }} \
         function {{ {same} node_def {{ name: 'i' op: 'Identity' input: 'v' {t} }} ret {{ key: 'r' value: \
         'i:output:0' }} }} }}",
        checked = signature("checked"),
        same = signature("same"),
        a = product("a"),
        b = product("b"),
        t = ty("T"),
    );
    let signature = Signature {
        feeds: vec!["p:0".into(), "x:0".into()],
        fetches: vec![],
        targets: vec!["done".into()],
    };
    (text.0 + &library, signature)
}

/// A step ends after the effects of its branches, even if their results are not read.
#[test]
fn errors_of_branches_reach_the_step() {
    let (text, signature) = branch_with_effect();
    let session = Session::from_text(&text, options()).unwrap();
    let request = CompileRequest {
        signature,
        ..Default::default()
    };
    let file = session.compile_to_bytes(&request).unwrap();
    let model = CompiledModel::from_bytes(&file, options()).unwrap();
    for _ in 0..50 {
        for (p, bad, fails) in [
            (true, true, true),
            (true, false, false),
            (false, true, false),
        ] {
            let mut values = vec![1.0f32; 48 * 48];
            if bad {
                values[7] = f32::NAN;
            }
            let x = Tensor::from_slice(Shape::from([48, 48]), &values).unwrap();
            let result = model.run(&[("p:0", Tensor::scalar(p)), ("x:0", x)]);
            let error = result.err().map(|e| e.to_string()).unwrap_or_default();
            assert_eq!(
                error.contains("late : Tensor had NaN"),
                fails,
                "{p} {bad}: {error}"
            );
        }
    }
}

fn strings() -> Row {
    let text = Text::default()
        .node("s", "Placeholder", &[], "attr { key: 'dtype' value { type: DT_STRING } }")
        .node(
            "words",
            "Const",
            &[],
            "attr { key: 'dtype' value { type: DT_STRING } } attr { key: 'value' value { tensor { \
             dtype: DT_STRING tensor_shape { dim { size: 2 } } string_val: 'a b' string_val: '' } } }",
        )
        .node(
            "j",
            "StringJoin",
            &["s", "words"],
            "attr { key: 'N' value { i: 2 } } attr { key: 'separator' value { s: '-' } }",
        );
    Row {
        name: "strings",
        text: text.0,
        feeds: vec![("s:0", Tensor::string("x"))],
        fetches: vec!["j:0"],
        packs: false,
    }
}

/// A conditional of Switch and Merge, which only the engine `dataflow` runs.
fn frames() -> Row {
    let text = Text::default()
        .placeholder("x", &[2, 8])
        .node("p", "Less", &["sum", "one"], &ty("T"))
        .ints("all", &[0, 1])
        .node("sum", "Sum", &["x", "all"], &ty("T"))
        .weights("one", &[])
        .float("sw", "Switch", &["x", "p"])
        .float("a", "Relu", &["sw:1"])
        .float("b", "Neg", &["sw"])
        .node(
            "y",
            "Merge",
            &["b", "a"],
            &format!("{} attr {{ key: 'N' value {{ i: 2 }} }}", ty("T")),
        );
    Row {
        name: "frames",
        text: text.0,
        feeds: vec![("x:0", Noise(17).tensor(&[2, 8]))],
        fetches: vec!["y:0"],
        packs: false,
    }
}

fn rows() -> Vec<Row> {
    vec![
        mlp(),
        convolutions(),
        einsum(),
        functional_loop(),
        frames(),
        strings(),
    ]
}

fn options() -> SessionOptions {
    SessionOptions {
        threads: 2,
        ..Default::default()
    }
}

impl Row {
    fn session(&self) -> Session {
        Session::from_text(&self.text, options()).unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn request(&self, plain: bool) -> CompileRequest {
        let names = |list: Vec<&str>| list.into_iter().map(str::to_string).collect();
        CompileRequest {
            signature: Signature {
                feeds: names(self.feeds.iter().map(|f| f.0).collect()),
                fetches: names(self.fetches.clone()),
                targets: Vec::new(),
            },
            plain,
            ..Default::default()
        }
    }

    fn expected(&self) -> Vec<Tensor> {
        let results = self.session().run(&self.feeds, &self.fetches, &[]);
        results.unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn file(&self, plain: bool) -> Vec<u8> {
        let file = self.session().compile_to_bytes(&self.request(plain));
        file.unwrap_or_else(|e| panic!("{}: {e}", self.name))
    }

    fn check(&self, what: &str, model: &CompiledModel, expected: &[Tensor]) {
        for _ in 0..2 {
            let got = model.run(&self.feeds);
            let got = got.unwrap_or_else(|e| panic!("{} {what}: {e}", self.name));
            assert_eq!(got.len(), expected.len());
            for ((key, got), expected) in got.iter().zip(expected) {
                assert!(
                    got.same_value(expected),
                    "{} {what}: {key}: {got:?}, expected {expected:?}",
                    self.name
                );
            }
        }
    }
}

#[test]
fn files_answer_as_their_sessions() {
    let folder = Folder::new("compiled");
    for row in rows() {
        let expected = row.expected();
        let path = PathBuf::from(folder.path("model.bef"));
        for plain in [false, true] {
            row.session()
                .compile_to(&path, &row.request(plain))
                .unwrap();
            assert!(CompiledModel::is_at(&path));
            let model = CompiledModel::open(&path, options()).unwrap();
            row.check("from a mapping", &model, &expected);
            let bytes = std::fs::read(&path).unwrap();
            let model = CompiledModel::from_bytes(&bytes, options()).unwrap();
            row.check("from memory", &model, &expected);
        }
    }
}

/// The functions of each row's file as text, which must hold all `parts`.
fn check_text(row: &Row, parts: &[&str]) {
    use ferroflow_runtime::host::{bef, bef_to_mlir};
    let bytes = row.file(false);
    let file = bef::File::open(std::sync::Arc::new(bytes.clone())).unwrap();
    file.verify().unwrap();
    let (text, warnings) = bef_to_mlir(bytes, row.name, Default::default()).unwrap();
    assert_eq!(warnings, "", "{}", row.name);
    for part in parts {
        assert!(
            text.contains(part),
            "{}: {part} is missing in\n{text}",
            row.name
        );
    }
}

#[test]
fn their_functions_have_a_text_form() {
    check_text(
        &mlp(),
        &[
            "func @main(%arg0: !tf.tensor) -> (!tf.tensor, !tf.tensor, !tf.tensor)",
            "\"tf._Dense\"(%arg0, ",
            "\"tf.Softmax\"(",
        ],
    );
    check_text(
        &functional_loop(),
        &[
            "\"tf.StatelessWhile\"(",
            // Copies that know the shapes of their arguments.
            "body = @step_shaped_",
            "func @less_shaped_",
            "(%arg0: !tf.tensor, %arg1: !tf.tensor) -> !tf.tensor",
            "\"tf.Less\"(%arg0, ",
        ],
    );
    check_text(&frames(), &["\"tf.Switch\"(%arg0, ", "\"tf.Merge\"("]);
}

#[test]
fn other_machines_pack_again() {
    for row in rows() {
        let (file, plain) = (row.file(false), row.file(true));
        assert_eq!(file.len() > plain.len(), row.packs, "{}", row.name);
        let tag = ferroflow_functors::prepack::packing(false);
        let at = file.windows(tag.len()).position(|w| w == tag.as_bytes());
        let mut other = file.clone();
        other[at.unwrap()] = b'?';
        let model = CompiledModel::from_bytes(&other, options()).unwrap();
        assert!(!model.is_packed());
        row.check("packed elsewhere", &model, &row.expected());
    }
}

#[test]
fn feeds_are_checked() {
    let row = mlp();
    let model = CompiledModel::from_bytes(&row.file(false), options()).unwrap();
    let fails = |feeds: &[(&str, Tensor)], code: Code, part: &str| {
        let error = model.run(feeds).unwrap_err();
        assert!(
            error.code() == code && error.to_string().contains(part),
            "{error}"
        );
    };
    let x = || Noise(1).tensor(&[1, 20]);
    fails(&[], Code::InvalidArgument, "'x:0'");
    fails(&[("z", x())], Code::InvalidArgument, "no input 'z'");
    let wrong = Noise(1).tensor(&[1, 21]);
    fails(
        &[("x:0", wrong)],
        Code::InvalidArgument,
        "Cannot feed value of shape",
    );
    let ints = Tensor::zeros(DType::Int32, Shape::from([1, 20])).unwrap();
    fails(
        &[("x:0", ints)],
        Code::InvalidArgument,
        "expected dtype float",
    );
}

#[test]
fn state_is_refused() {
    let text = Text::default()
        .node(
            "v",
            "VarHandleOp",
            &[],
            "attr { key: 'dtype' value { type: DT_FLOAT } } \
             attr { key: 'shape' value { shape { } } } attr { key: 'shared_name' value { s: 'v' } }",
        )
        .node("r", "ReadVariableOp", &["v"], &ty("dtype"));
    let session = Session::from_text(&text.0, options()).unwrap();
    let request = CompileRequest {
        signature: Signature {
            fetches: vec!["r:0".into()],
            ..Default::default()
        },
        ..Default::default()
    };
    let error = session.compile_to_bytes(&request).unwrap_err();
    assert_eq!(error.code(), Code::FailedPrecondition);
    assert!(error.to_string().contains("node v"), "{error}");
}

/// What is wrong with a file must be an error: no crash, no hang.
fn survives(row: &Row, bytes: &[u8], what: &dyn Fn() -> String) -> bool {
    let run = || {
        let model = CompiledModel::from_bytes(bytes, options())?;
        let run = RunOptions {
            timeout: Some(Duration::from_secs(5)),
            ..Default::default()
        };
        model.run_with(&row.feeds, &run).map(|_| ())
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => {
            let text = result
                .as_ref()
                .map_or_else(|e| e.to_string(), |()| String::new());
            assert!(!text.contains("panic"), "{} {}: {text}", row.name, what());
            result.is_ok()
        }
        Err(_) => panic!("{} {}", row.name, what()),
    }
}

#[test]
fn bad_files_are_errors() {
    let mut noise = Noise(0x5eed);
    for row in rows() {
        let file = row.file(false);
        let plain = row.file(true);
        // Weights may be anything; what comes before them may not.
        let head = plain.len().min(file.len()).min(4096);
        let step = (head / 160).max(1);
        for n in (0..head).step_by(step) {
            let cut = file.get(..n).unwrap_or_default();
            assert!(!survives(&row, cut, &|| format!("cut to {n}")));
        }
        assert!(!survives(&row, &file[..file.len() - 1], &|| "cut".into()));
        for n in 0..400 {
            let mut bad = file.clone();
            let changes = 1 + noise.next() % 3;
            for _ in 0..changes {
                let at = noise.next() as usize % head;
                let bit = noise.next() % 8;
                bad[at] = match n % 3 {
                    0 => bad[at] ^ (1 << bit),
                    1 => noise.next() as u8,
                    _ => 0xff,
                };
            }
            survives(&row, &bad, &|| format!("changed, number {n}"));
        }
    }
}
