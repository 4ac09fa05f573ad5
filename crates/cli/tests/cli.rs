//! The binary's interface: output, exit codes, no partial files.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn digits(file: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/digits")
        .join(file);
    path.to_string_lossy().to_string()
}

fn ferroflow(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_ferroflow"))
        .args(args)
        .output()
        .expect("the binary starts")
}

/// Returns the standard output of a command that must succeed.
fn ok(args: &[&str]) -> String {
    let output = ferroflow(args);
    assert!(
        output.status.success(),
        "{args:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).to_string()
}

/// Returns the standard error of a command that must fail with exit code 1.
fn fails(args: &[&str]) -> String {
    let output = ferroflow(args);
    assert_eq!(output.status.code(), Some(1), "{args:?}");
    String::from_utf8_lossy(&output.stderr).to_string()
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ferroflow-cli-{}-{name}", std::process::id()))
}

/// A feed of `n` black images.
fn images_of(n: usize) -> String {
    let image = ["[[0],[0],[0],[0],[0],[0],[0],[0]]"; 8].join(",");
    format!("images=[{}]", vec![format!("[{image}]"); n].join(","))
}

#[test]
fn runs_inspects_and_benches() {
    let model = digits("digits.pb");
    let zeros = images_of(1);
    let out = temporary("out.npz");
    let text = ok(&[
        "run",
        &model,
        "--feed",
        &zeros,
        "--fetch",
        "probabilities:0",
        "--top",
        "3",
        "--out",
        &out.to_string_lossy(),
    ]);
    assert!(
        text.contains("probabilities:0  float32[1,10]") && text.contains("row 0:"),
        "{text}"
    );
    // The output can be fed again.
    let again = format!("probabilities=@{}:probabilities:0", out.display());
    let again = ferroflow(&["run", &model, "--feed", &again, "--fetch", "probabilities"]);
    assert!(
        again.status.success(),
        "{}",
        String::from_utf8_lossy(&again.stderr)
    );
    std::fs::remove_file(&out).expect("it was written");

    assert!(ok(&["inspect", &model]).contains("images:0  float32[?,8,8,1]"));
    assert!(ok(&["inspect", &model, "--after", "fuse"]).contains("_FusedConv2D"));
    let shown = ok(&["inspect", &model, "--gradients"]);
    assert_eq!(shown, "gradients go through all ops\n");
    for (feed, of) in [
        (&[][..], "[1,8,8,1]"),
        (&["--feed", &images_of(3)], "[3,8,8,1]"),
    ] {
        let shown = ok(&[&["inspect", &model, "--memory"], feed].concat());
        let title = format!("memory of a step with float32{of}:\n  planned peak");
        assert!(
            shown.starts_with(&title) && shown.contains("_FusedConv2D"),
            "{shown}"
        );
        assert!(shown.contains("not as planned           0"), "{shown}");
    }
    let svg = temporary("graph.svg");
    ok(&["inspect", &model, "--svg", &svg.to_string_lossy()]);
    assert!(
        std::fs::read_to_string(&svg)
            .expect("written")
            .starts_with("<svg")
    );
    std::fs::remove_file(&svg).expect("it was written");

    let line = ok(&[
        "bench",
        &model,
        "--feed",
        &zeros,
        "--fetch",
        "logits",
        "--seconds",
        "0.05",
        "--json",
    ]);
    for key in [
        "load_s",
        "first_s",
        "median_s",
        "min_s",
        "p99_s",
        "runs",
        "nodes",
        "peak_rss_mb",
    ] {
        assert!(line.contains(&format!("\"{key}\":")), "{line}");
    }
    let trace = temporary("trace.json");
    ok(&[
        "trace",
        &model,
        "--feed",
        &zeros,
        "--out",
        &trace.to_string_lossy(),
    ]);
    let json = std::fs::read_to_string(&trace).expect("written");
    assert!(json.contains("\"traceEvents\"") && json.contains("_FusedConv2D"));
    std::fs::remove_file(&trace).expect("it was written");
}

#[test]
fn compiled_models_run_like_their_models() {
    let (model, file) = (digits("digits.pb"), temporary("digits.bef"));
    let file = file.to_string_lossy();
    let text = ok(&["compile", &model, "-o", &file]);
    assert!(
        text.contains("inputs images:0; outputs probabilities:0"),
        "{text}"
    );
    let row = "[[0.5],[0],[1],[0],[0],[0.25],[0],[0]]";
    let images = format!("images=[[{}]]", [row; 8].join(","));
    let run = |model: &str| {
        ok(&[
            "run",
            model,
            "--feed",
            &images,
            "--fetch",
            "probabilities:0",
        ])
    };
    assert_eq!(run(&file), run(&model));
    let text = ok(&["inspect", &file]);
    for part in ["images:0  float32[?,8,8,1]", "_FusedConv2D", "parameters: "] {
        assert!(text.contains(part), "{text}");
    }
    let bench = ["bench", &file, "--feed", &images, "--seconds", "0.05"];
    assert!(ok(&bench).contains("median"));
    let text = ok(&["translate", "--bef-to-mlir", &file]);
    assert!(
        text.contains("func @main(%arg0: !tf.tensor) -> !tf.tensor attributes {tfrt.dataflow}")
            && text.contains("\"tf._FusedConv2D\"("),
        "{text}"
    );
    let program = temporary("digits.mlir");
    std::fs::write(&program, &text).expect("can be written");
    let program = program.to_string_lossy();
    let text = fails(&["translate", "--mlir-to-bef", &program]);
    assert!(text.contains("written by `ferroflow compile`"), "{text}");
    let _ = std::fs::remove_file(&*program);
    let text = ok(&["exec", &file]);
    assert!(
        text.contains("--- Not running 'main' because it has arguments."),
        "{text}"
    );
    for queue in ["s", "mstd:2"] {
        let queue = format!("--work_queue_type={queue}");
        let text = ok(&["exec", &queue, "--feed", &images, &file]);
        let value = "'main' returned probabilities:0: float[1,10] [[";
        assert!(text.contains(value), "{text}");
    }
    for (args, part) in [
        (&["run", &file][..], "must be fed: images:0"),
        (
            &["run", &file, "--feed", &images, "--fetch", "logits"],
            "--fetch logits: the model was compiled for: probabilities:0",
        ),
        (
            &["run", &file, "--feed", "x=1"],
            "the model was not compiled for it",
        ),
        (&["run", &file, "--no-optimize"], "is already compiled"),
        (&["exec", &file, "--feed", "x=1"], "was not compiled for it"),
        (&["inspect", &file, "--after", "last"], "need the graph"),
        (&["compile", &file, "-o", "x.bef"], "is already compiled"),
    ] {
        let text = fails(args);
        assert!(text.contains(part), "{args:?}: {text}");
    }
    let bytes = std::fs::read(&*file).expect("readable");
    std::fs::write(&*file, &bytes[..bytes.len() / 2]).expect("writable");
    assert!(fails(&["run", &file, "--feed", &images]).contains("DATA_LOSS"));
    let _ = std::fs::remove_file(&*file);
}

#[test]
fn errors_are_one_clear_line_and_leave_nothing() {
    let model = digits("digits.pb");
    let out = temporary("none.npz");
    let path = out.to_string_lossy();
    let cases: &[(&[&str], &str)] = &[
        (&["run", "/no/such/file.pb"], "NOT_FOUND"),
        (&["run", &model, "--fetch", "nope"], "NOT_FOUND"),
        (
            &["run", &model, "--fetch", "logits", "--out", &path],
            "must feed a value for placeholder",
        ),
        (
            &["run", &model, "--feed", "images", "--fetch", "logits"],
            "expected NAME=VALUE",
        ),
        (
            &[
                "run",
                &model,
                "--feed",
                "images=[[1,2],[3]]",
                "--fetch",
                "logits",
            ],
            "same length",
        ),
        (
            &[
                "run",
                &model,
                "--feed",
                "images=[[1,2]]",
                "--fetch",
                "logits",
                "--out",
                &path,
            ],
            "shape",
        ),
        (
            &[
                "run",
                &model,
                "--feed",
                "images=@x.foo",
                "--fetch",
                "logits",
            ],
            "expected FILE.npy",
        ),
        (&["inspect", &model, "--after", "nope"], "no pass 'nope'"),
        (&["inspect", &model, "--feed", "images=1"], "--memory"),
        (&["run", &digits("digits.npz")], "not a GraphDef"),
    ];
    for (args, message) in cases {
        let error = fails(args);
        assert!(
            error.starts_with("error: ") && error.contains(message),
            "{args:?}: {error}"
        );
    }
    assert!(!out.exists());
    assert_eq!(
        ferroflow(&["run"]).status.code(),
        Some(2),
        "clap's usage error"
    );
}

/// A server without a usable configuration does not start.
#[test]
fn servers_without_clients_are_refused() {
    for flag in [
        "--max-sessions",
        "--max-message-bytes",
        "--cpus",
        "--threads",
    ] {
        let number = if flag == "--threads" { "99999" } else { "0" };
        let output = ferroflow(&["server", "--port", "0", flag, number]);
        let error = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{error}");
        assert!(error.contains(flag), "{error}");
    }
}

/// A bfloat16 placeholder accepts files written by `--out`, and numpy's form of the dtype.
#[test]
fn bfloat16_goes_through_files() {
    let model = temporary("bf16.pbtxt");
    let attr = "attr { key: 'dtype' value { type: DT_BFLOAT16 } }";
    let text = format!(
        "node {{ name: 'x' op: 'Placeholder' {attr} }} node {{ name: 'y' op: 'Neg' input: 'x' attr {{ \
         key: 'T' value {{ type: DT_BFLOAT16 }} }} }}"
    );
    std::fs::write(&model, text).unwrap();
    let (model, out) = (model.to_string_lossy(), temporary("bf16.npz"));
    let out = out.to_string_lossy();
    ok(&[
        "run",
        &model,
        "--feed",
        "x=[1.5,-2]",
        "--fetch",
        "y",
        "--out",
        &out,
    ]);
    let again = ok(&[
        "run",
        &model,
        "--feed",
        &format!("x=@{out}:y"),
        "--fetch",
        "y",
    ]);
    assert!(again.contains("[1.5 -2]"), "{again}");
    let npy = temporary("bf16.npy");
    let header = "{'descr': '<V2', 'fortran_order': False, 'shape': (2,), }";
    let mut bytes = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    bytes.extend(format!("{header:<117}\n").bytes());
    bytes.extend([0xc0, 0x3f, 0x00, 0xc0]);
    std::fs::write(&npy, bytes).unwrap();
    let read = ok(&[
        "run",
        &model,
        "--feed",
        &format!("x=@{}", npy.display()),
        "--fetch",
        "y",
    ]);
    assert!(read.contains("[-1.5 2]"), "{read}");
    for file in [&*model, &*out, &npy.to_string_lossy()] {
        let _ = std::fs::remove_file(file);
    }
}

/// A conditional of TensorFlow 1: its pivots are not outputs, and required feeds are reported.
#[test]
fn compile_finds_inputs_and_outputs() {
    let (model, file) = (temporary("cond.pbtxt"), temporary("cond.bef"));
    let attr = |key: &str, ty: &str| format!("attr {{ key: '{key}' value {{ type: {ty} }} }}");
    let node = |name: &str, op: &str, inputs: &[&str], ty: &str| {
        let inputs: String = inputs.iter().map(|i| format!("input: '{i}' ")).collect();
        let attrs = match op {
            "Placeholder" => attr("dtype", ty),
            "Merge" => attr("T", ty) + " attr { key: 'N' value { i: 2 } }",
            _ => attr("T", ty),
        };
        format!("node {{ name: '{name}' op: '{op}' {inputs} {attrs} }}\n")
    };
    let text = [
        node("x", "Placeholder", &[], "DT_FLOAT"),
        node("p", "Placeholder", &[], "DT_BOOL"),
        node("switch", "Switch", &["p", "p"], "DT_BOOL"),
        node("switch_t", "Identity", &["switch:1"], "DT_BOOL"),
        node("switch_f", "Identity", &["switch"], "DT_BOOL"),
        node("x_switch", "Switch", &["x", "p"], "DT_FLOAT"),
        node("square", "Square", &["x_switch:1"], "DT_FLOAT"),
        node("neg", "Neg", &["x_switch"], "DT_FLOAT"),
        node("merge", "Merge", &["neg", "square"], "DT_FLOAT"),
        node("y", "Identity", &["merge"], "DT_FLOAT"),
        node("log", "Abs", &["merge"], "DT_FLOAT"),
        node("done", "Identity", &["y", "^log"], "DT_FLOAT"),
    ];
    std::fs::write(&model, text.concat()).expect("can be written");
    let (model, file) = (model.to_string_lossy(), file.to_string_lossy());
    let command = ["compile", &*model, "-o", &*file];
    let text = ok(&command);
    assert!(text.contains("inputs x:0, p:0; outputs done:0"), "{text}");
    let text = ok(&["run", &file, "--feed", "x=3", "--feed", "p=true"]);
    assert!(text.contains('9'), "{text}");
    let text = fails(&[&command[..], &["--feed", "x", "--fetch", "y"]].concat());
    assert!(text.contains("add --feed p:0"), "{text}");
    let text = ok(&[&command[..], &["--feed", "merge:0", "--fetch", "y"]].concat());
    assert!(text.contains("inputs merge:0; outputs y"), "{text}");
    for file in [model, file] {
        std::fs::remove_file(&*file).expect("was written");
    }
}

/// Deeply nested text, arguments that are not UTF-8, and a small file that stands for gigabytes are
/// errors, and take only the memory they need.
#[test]
fn hostile_input_does_no_harm() {
    let file = temporary("deep.pbtxt");
    let nest = "attr { key: 'f' value { func { name: 'f' ".repeat(5_000);
    std::fs::write(&file, format!("node {{ name: 'a' op: 'NoOp' {nest}")).unwrap();
    let path = file.to_string_lossy();
    for command in ["run", "inspect"] {
        assert!(fails(&[command, &path]).contains("levels deep"));
    }
    let constants: String = (0..64)
        .map(|i| {
            format!(
                "node {{ name: 'c{i}' op: 'Const' attr {{ key: 'dtype' value {{ type: DT_FLOAT }} }} attr \
                 {{ key: 'value' value {{ tensor {{ dtype: DT_FLOAT tensor_shape {{ dim {{ size: \
                 400000000 }} }} float_val: 1 }} }} }} }}"
            )
        })
        .collect();
    let x = "node { name: 'x' op: 'Placeholder' attr { key: 'dtype' value { type: DT_FLOAT } } }";
    std::fs::write(&file, constants + x).unwrap();
    let seen = ok(&["run", &path, "--feed", "x=[1,2]", "--fetch", "x"]);
    assert!(seen.contains("[1 2]"), "{seen}");
    let _ = std::fs::remove_file(&file);
    #[cfg(unix)]
    {
        use std::os::unix::ffi::OsStrExt;
        let odd = std::ffi::OsStr::from_bytes(b"m\xff.pb");
        let output = Command::new(env!("CARGO_BIN_EXE_ferroflow"))
            .arg("run")
            .arg(odd)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(error.starts_with("error: NOT_FOUND"), "{error}");
    }
}

fn saved_model(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../runtime/tests/saved_models")
        .join(name);
    path.to_string_lossy().to_string()
}

#[test]
fn saved_models_run_by_signature() {
    let words = saved_model("vocabulary");
    let text = ok(&["run", &words, "--feed", "words=[\"blue\",\"pink\"]"]);
    assert!(
        text.contains("ids  int64[2]") && text.contains("[2 3]"),
        "{text}"
    );
    let named = ok(&[
        "run",
        &words,
        "--signature",
        "serving_default",
        "--tag",
        "serve",
        "--feed",
        "serving_default_words:0=[\"red\"]",
        "--fetch",
        "words",
        "--fetch",
        "ids",
    ]);
    assert!(named.starts_with("words  string[1]"), "{named}");
    let stateful = saved_model("stateful");
    let text = ok(&["run", &stateful, "--signature", "add", "--feed", "x=[1,2]"]);
    assert!(text.contains("[2 4]"), "{text}");
    let shown = ok(&["inspect", &stateful]);
    for part in [
        "signature count:  tensorflow/serving/predict",
        "words  string[?]  count_words:0",
        "cannot run: Op type not registered 'TPUCompilationResult'",
        "parameters: 2 in 1 variables",
    ] {
        assert!(shown.contains(part), "{shown}");
    }
    let shown = ok(&["inspect", &stateful, "--gradients"]);
    for part in ["gradients go through all ops", "TPUCompilationResult"] {
        assert!(shown.contains(part), "{shown}");
    }
    let mlp = saved_model("keras_mlp");
    let shown = ok(&["inspect", &mlp, "--gradients"]);
    assert_eq!(shown, "gradients go through all ops\n");
    let feed = "features=[[1,2,3,4]]";
    let line = ok(&["bench", &mlp, "--feed", feed, "--seconds", "0.05", "--json"]);
    assert!(line.contains("\"median_s\":"), "{line}");
    let trace = temporary("saved-model-trace.json");
    let out = trace.to_string_lossy();
    let text = ok(&["trace", &mlp, "--feed", feed, "--out", &out]);
    assert!(text.contains("kernel calls written"), "{text}");
    std::fs::remove_file(&trace).expect("it was written");

    let cases: &[(&[&str], &str)] = &[
        (
            &["run", &stateful],
            "name one with --signature: add, count, decode",
        ),
        (
            &["run", &stateful, "--signature", "nope"],
            "no signature 'nope'",
        ),
        (
            &["run", &stateful, "--tag", "train"],
            "matching supplied tags",
        ),
        (
            &["run", &stateful, "--signature", "decode"],
            "TPUCompilationResult",
        ),
        (&["run", &words, "--feed", "wrds=[\"a\"]"], "wrds"),
        (
            &["run", &digits("digits.pb"), "--tag", "serve"],
            "--tag is for SavedModels",
        ),
        (&["run", &saved_model("")], "Could not find SavedModel"),
    ];
    for (args, message) in cases {
        let error = fails(args);
        assert!(error.contains(message), "{args:?}: {error}");
    }
}

#[test]
fn ops_are_listed() {
    let all = ok(&["ops"]);
    let line = all.lines().find(|l| l.starts_with("Square "));
    let words: Vec<&str> = line.expect("a line").split_whitespace().collect();
    assert!(words.starts_with(&["Square", "math", "yes"]), "{words:?}");
    assert!(words[3].starts_with("T=bfloat16,half,float,"), "{words:?}");
    assert!(all.lines().map(|l| l.split(' ').next()).is_sorted());
    let json = ok(&["ops", "--json", "NoOp", "Square"]);
    let lines: Vec<&str> = json.lines().collect();
    assert_eq!(lines.len(), 2, "{json}");
    assert!(lines[0].contains("\"name\":\"NoOp\""), "{json}");
    assert!(lines[1].contains("\"gradient\":\"yes\""), "{json}");
    assert!(fails(&["ops", "NoSuchOp"]).contains("op 'NoSuchOp' is not supported"));
}
