//! The host program tools: TFRT's names for them, options, and messages.

use std::path::PathBuf;
use std::process::{Command, Output};

/// A folder with the binary under TFRT's names, removed on drop.
struct Tools(PathBuf);

impl Tools {
    fn new(name: &str) -> Tools {
        let folder = format!("ferroflow-tools-{}-{name}", std::process::id());
        let folder = std::env::temp_dir().join(folder);
        std::fs::create_dir(&folder).expect("a new folder");
        for tool in ["tfrt_opt", "tfrt_translate", "bef_executor", "bef_name"] {
            let link = folder.join(tool);
            std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_ferroflow"), link).expect("a link");
        }
        Tools(folder)
    }

    fn run(&self, tool: &str, args: &[&str]) -> Output {
        let command = Command::new(self.0.join(tool))
            .args(args)
            .current_dir(&self.0)
            .output();
        command.expect("the tool starts")
    }

    /// Returns a tool's output and errors, and whether it succeeded.
    fn said(&self, tool: &str, args: &[&str]) -> (bool, String) {
        let output = self.run(tool, args);
        let text = [output.stdout, output.stderr].concat();
        (
            output.status.success(),
            String::from_utf8_lossy(&text).to_string(),
        )
    }

    /// Writes a program and translates it: the name of the file.
    fn translated(&self, name: &str, text: &str) -> String {
        let (source, bef) = (format!("{name}.mlir"), format!("{name}.bef"));
        std::fs::write(self.0.join(&source), text).expect("can be written");
        let said = self.said("tfrt_translate", &["-mlir-to-bef", &source, "-o", &bef]);
        assert_eq!(said, (true, String::new()));
        bef
    }
}

impl Drop for Tools {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

const PROGRAM: &str = "\
func @begin() {
  %ch = tfrt.new.chain
  %one = tfrt.constant.i32 1
  tfrt.print.i32 %one, %ch
  tfrt.return
}

func @two() -> i32 {
  %two = tfrt.constant.i32 2
  tfrt.return %two : i32
}

func @bad() -> i32 {
  // expected-error @+1 {{something bad happened}}
  %x = \"tfrt_test.fail\"() : () -> i32
  tfrt.return %x : i32
}

func @where() -> i32 {
  %ch = tfrt.new.chain
  %x = \"tfrt_test.get_thread_id\"(%ch) : (!tfrt.chain) -> i32
  tfrt.return %x : i32
}
";

#[test]
fn executor_options() {
    let tools = Tools::new("executor");
    let bef = tools.translated("program", PROGRAM);
    for (args, parts) in [
        (&[][..], &["'two' returned 2", "'where' returned 0"][..]),
        (
            &["--functions=two,bad", "--print_error_code"],
            &[
                "'two' returned 2",
                "<<error: something bad happened, code: ",
            ],
        ),
        (
            &["--functions", "two", "-test_init_function=begin"],
            &["--- Running 'begin':\nint32 = 1\n--- Running 'two':"],
        ),
        (
            &["-functions=two", "-enable_tracing"],
            &["Scope:Bef Executor\nScope:Function: two\nEnd Scope\nEnd Scope\n"],
        ),
        (
            &["-functions=two", "-enable_tracing", "-tracing_level=debug"],
            &["Scope:tfrt.constant.i32\n"],
        ),
        (
            &["-work_queue_type=mstd:2,3"],
            &["Multi-threaded work queue (2 threads, 3 blocking threads)"],
        ),
        (
            &["-host_allocator_type=profiled_allocator"],
            &["Choosing profiled allocator"],
        ),
    ] {
        let args = [args, &[bef.as_str()]].concat();
        let (is_well, text) = tools.said("bef_executor", &args);
        assert!(is_well, "{args:?}: {text}");
        for part in parts {
            assert!(text.contains(part), "{args:?}: no '{part}' in {text}");
        }
    }
    for (args, part) in [
        (&["-functions=three"][..], "couldn't find function three"),
        (&["-work_queue_type=mstd:2,0"], "couldn't create work queue"),
        (&["-work_queue_type=x"], "couldn't create work queue"),
        (&["-host_allocator_type=x"], "unknown allocator 'x'"),
        (
            &["-tracing_level=x", "-enable_tracing"],
            "unknown tracing level",
        ),
        (&["-no_such_option"], "unknown option '-no_such_option'"),
    ] {
        let args = [args, &[bef.as_str()]].concat();
        let (is_well, text) = tools.said("bef_executor", &args);
        assert!(!is_well && text.contains(part), "{args:?}: {text}");
    }
    let unknown = tools.translated(
        "unknown",
        "func @f() {\n  \"my.kernel\"() : () -> ()\n  tfrt.return\n}\n",
    );
    let (is_well, text) = tools.said("bef_executor", &[&unknown]);
    let message =
        "unknown.mlir:2:3: error: unexpected error: runtime error: unknown kernel name 'my.kernel'";
    assert!(!is_well && text.contains(message), "{text}");
    let (is_well, text) = tools.said("bef_executor", &["missing.bef"]);
    assert!(!is_well && text.contains("missing.bef"), "{text}");
}

#[test]
fn text_options() {
    let tools = Tools::new("text");
    let write = |name: &str, text: &str| {
        std::fs::write(tools.0.join(name), text).expect("can be written");
    };
    let parts = "func @a() {\n  tfrt.return\n}\n// -----\nfunc @a() -> i32 {\n  \
                 // expected-error @+1 {{'tfrt.return' op}}\n  tfrt.return\n}\n";
    write("parts.mlir", parts);
    let both = ["-split-input-file", "-verify-diagnostics", "parts.mlir"];
    for tool in ["tfrt_opt", "tfrt_translate"] {
        let args = match tool {
            "tfrt_opt" => both.to_vec(),
            _ => [&["-mlir-to-bef"][..], &both].concat(),
        };
        let (is_well, text) = tools.said(tool, &args);
        assert!(is_well, "{tool}: {text}");
    }
    let (is_well, text) = tools.said("tfrt_opt", &["-split-input-file", "parts.mlir"]);
    assert!(
        !is_well && text.contains("parts.mlir:7:3: error: 'tfrt.return' op"),
        "{text}"
    );
    // A comment that matches no diagnostic.
    write(
        "early.mlir",
        "// expected-error @-5 {{early}}\nfunc @a() {\n  tfrt.return\n}\n",
    );
    let (is_well, text) = tools.said("tfrt_opt", &["-verify-diagnostics", "early.mlir"]);
    assert!(
        !is_well && text.contains("expected error \"early\" was not produced"),
        "{text}"
    );
    let streams = "module attributes {tfrt.cost_threshold = 10 : i64} {\nfunc @f(%a: i32) -> i32 {\n  \
                   %b = tfrt_test.test_cost %a {id = 0 : i64, _tfrt_cost = 1 : i64} : i32\n  \
                   tfrt.return %b : i32\n}\n}\n";
    write("streams.mlir", streams);
    let (is_well, text) = tools.said("tfrt_opt", &["-tfrt-print-stream", "streams.mlir"]);
    assert!(is_well && text.contains("remark: stream id:"), "{text}");
    let (is_well, text) = tools.said("bef_name", &["a/b.mlir"]);
    assert_eq!((is_well, text.as_str()), (true, "a/b.bef\n"));
    let (is_well, text) = tools.said("bef_name", &["a/b.txt"]);
    assert!(!is_well && text.contains("does not end in .mlir"), "{text}");
    // From BEF back to text.
    let bef = tools.translated("program", PROGRAM);
    let (is_well, text) = tools.said("tfrt_translate", &["--bef-to-mlir", &bef]);
    assert!(
        is_well && text.contains("%0 = tfrt.constant.i32 2"),
        "{text}"
    );
}
