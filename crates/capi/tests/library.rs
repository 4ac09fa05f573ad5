//! The linked library: its names, and programs in C that use it.

use ferroflow_remote::{MasterOptions, Server, ServerDef, ServerOptions};
use std::collections::{BTreeMap, BTreeSet};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The static library that was built with this test.
fn archive() -> PathBuf {
    let test = std::env::current_exe().expect("a path");
    let folder = test.parent().expect("a folder");
    let files = std::fs::read_dir(folder).expect("readable");
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
        name.is_some_and(|n| n.starts_with("libtensorflow-") && n.ends_with(".a"))
    };
    let archives = files.flatten().map(|f| f.path()).filter(is_archive);
    let newest = archives.max_by_key(|p| p.metadata().and_then(|m| m.modified()).ok());
    newest.expect("libtensorflow.a next to the test")
}

/// Links the library once; returns the folder with it.
fn dist() -> &'static Path {
    static DIST: OnceLock<PathBuf> = OnceLock::new();
    DIST.get_or_init(|| {
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("dist");
        let cargo = std::env::var("CARGO").unwrap_or_else(|_| "cargo".to_string());
        let mut xtask = Command::new(cargo);
        xtask.args(["run", "--quiet", "--package", "xtask", "--", "dist"]);
        xtask.arg(&folder).arg("--archive").arg(archive());
        let status = xtask.current_dir(root()).status().expect("cargo runs");
        assert!(status.success(), "the library does not link");
        folder
    })
}

fn output(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    text
}

#[test]
fn names_are_tensorflows() {
    let library = dist().join("lib/libtensorflow.so.2");
    let symbols = output(
        Command::new("nm")
            .args(["-D", "--defined-only"])
            .arg(library),
    );
    let with_version = |version: &str| -> BTreeSet<String> {
        let names = symbols.lines().filter_map(|line| line.rsplit(' ').next());
        let names = names.filter_map(|name| name.split_once('@'));
        let names = names.filter(|(_, v)| v.trim_start_matches('@') == version);
        names.map(|(name, _)| name.to_string()).collect()
    };
    let expected = std::fs::read_to_string(root().join("crates/capi/exports.txt"));
    let expected: BTreeSet<String> = expected
        .expect("a list")
        .lines()
        .map(String::from)
        .collect();
    for version in ["VERS_1.0", "tensorflow"] {
        let mut found = with_version(version);
        // The node itself.
        found.remove(version);
        let missing: Vec<_> = expected.difference(&found).collect();
        let extra: Vec<_> = found.difference(&expected).collect();
        assert!(missing.is_empty(), "{version} lacks {missing:?}");
        assert!(extra.is_empty(), "{version} has {extra:?} too");
    }
}

#[test]
fn needs_only_the_system() {
    let library = dist().join("lib/libtensorflow.so.2");
    let headers = output(Command::new("objdump").arg("-p").arg(library));
    let needed = headers
        .lines()
        .filter_map(|l| l.trim().strip_prefix("NEEDED"));
    for name in needed.map(str::trim) {
        let known = ["libc.so", "libm.so", "libgcc_s.so", "ld-linux"];
        assert!(known.iter().any(|k| name.starts_with(k)), "needs {name}");
    }
    assert!(headers.contains("libtensorflow.so.2"), "no soname");
}

/// Compiles a program in C; returns the command that runs it.
fn program(name: &str, source: &str, flags: &[&str]) -> Command {
    let dist = dist();
    let program = dist.join(name);
    let mut cc = Command::new("cc");
    cc.args(["-std=c11", "-Wall", "-Wextra", "-Werror"])
        .args(flags)
        .arg(root().join(source));
    cc.arg(format!("-I{}", dist.join("include").display()));
    cc.arg(format!("-L{}", dist.join("lib").display()));
    cc.args([
        "-pthread",
        "-Wl,--no-as-needed",
        "-ltensorflow",
        "-ltensorflow_framework",
        "-o",
    ]);
    output(cc.arg(&program));
    let mut run = Command::new(&program);
    run.env("LD_LIBRARY_PATH", dist.join("lib"));
    run
}

/// Compiles and runs an example.
fn check_example(name: &str, expected: &str) {
    let mut run = program(name, &format!("examples/c/{name}.c"), &[]);
    assert_eq!(output(&mut run), expected, "{name}");
}

#[test]
fn graph_in_c() {
    check_example("minimal", "3 + 2 = 5\n");
}

#[test]
fn eager_execution_in_c() {
    check_example(
        "eager",
        "product: 7 10 15 22\nvariable: 8 12 18 26\nerror: code 3\n",
    );
}

/// What `cluster.c` prints about ops.
const CLUSTER_OPS: &str = "copy on task:2/device:CPU:0, rank 2: 1 2 3 4
there on task:1/device:CPU:0, rank 2: 7 10 15 22
copied silently on task:1/device:CPU:0, rank 2: 7 10 15 22
brought here on task:0/device:CPU:0, rank 2: 7 10 15 22
moved on task:1/device:CPU:0, rank 2: 1 2 3 4
back on task:0/device:CPU:0, rank 2: 7 10 15 22
";

#[test]
fn eager_ops_run_on_the_tasks_of_a_cluster() {
    let expected = format!(
        "3 devices\n{CLUSTER_OPS}called here on task:0/device:CPU:0, rank 2: 7 10 15 22
called on task 1 on task:0/device:CPU:0, rank 2: 7 10 15 22
all on task 1 on task:1/device:CPU:0, rank 2: 7 10 15 22
variable on task:1/device:CPU:0, rank 2: 1 2 3
error 3
malformed device: 3
unknown device: 3 /job:unknown/replica:0/task:0/device:CPU:0 unknown device.
alive: 1
{CLUSTER_OPS}"
    );
    let listeners = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0").expect("a port"));
    let addresses = listeners.map(|l| l.local_addr().expect("an address").to_string());
    let binary = program("cluster", "interop/bindings/cluster.c", &[]);
    let tasks = (0..).zip(addresses.iter().cloned()).collect();
    let cluster = BTreeMap::from([("localhost".to_string(), tasks)]);
    for (index, address) in (1..).zip(&addresses[1..]) {
        let server = ServerDef::checked(cluster.clone(), "localhost", index).expect("a task");
        let server = Server::bind(ServerOptions {
            address: address.parse().expect("an address"),
            monitor: None,
            tls: None,
            max_message: usize::MAX,
            master: MasterOptions {
                server,
                ..Default::default()
            },
        });
        let server = server.expect("a free port");
        // Ends with the process.
        std::thread::spawn(move || server.run(std::future::pending()));
    }
    for mode in [None, Some("async")] {
        let mut run = Command::new(binary.get_program());
        run.env("LD_LIBRARY_PATH", dist().join("lib"));
        run.args(&addresses).args(mode);
        assert_eq!(output(&mut run), expected, "{mode:?}");
    }
}

/// Compiles `mem_plugin.c`.
fn plugin(name: &str, flags: &[&str]) -> PathBuf {
    let library = dist().join(name);
    let mut cc = Command::new("cc");
    cc.args([
        "-std=gnu11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-shared",
        "-fPIC",
    ])
    .args(flags)
    .arg(root().join("interop/bindings/mem_plugin.c"))
    .arg(format!("-I{}", dist().join("include").display()));
    output(cc.arg("-o").arg(&library));
    library
}

#[test]
fn plugins_have_file_systems() {
    let expected = "no plugin: 12 File system scheme 'mem' not implemented (file: 'mem://host/dir')
wrong plugin: 9 Plugin ABI (7) for writable file operations doesn't match expected core ABI (0). Plugin cannot be loaded.
no library: 5
twice: 6 File factory for mem already registered
length 8, folder 0
child one.txt
missing: 5 /missing
read: content
matching: mem://host/dir/sub/two.txt
read nothing: 5 /nothing
table of b: 2
restored: 3
files: mem://host/checkpoints/model.data-00001-of-00002 mem://host/checkpoints/model.index
reader has x: 1
a model was loaded
";
    let mut run = program("filesystem", "interop/bindings/filesystem.c", &[]);
    run.arg(plugin("libmem.so", &[]));
    run.arg(plugin("libwrong.so", &["-DWRONG_ABI"]));
    run.arg(root().join("crates/runtime/tests/saved_models/keras_mlp"));
    assert_eq!(output(&mut run), expected);
}

/// Adds the arguments of `soak.c`.
fn soak(mut program: Command, seconds: u32) -> Command {
    let model = root().join("crates/runtime/tests/saved_models/keras_mlp");
    program.arg("8").arg(seconds.to_string()).arg(model);
    program
}

#[test]
fn threads_create_run_and_delete_everything() {
    let program = program("soak", "interop/bindings/soak.c", &[]);
    assert!(output(&mut soak(program, 10)).contains("rounds"));
}

/// The programs, not the library, are compiled for AddressSanitizer; it sees all memory of the library, which comes
/// from malloc, and what functions of libc read and write.
#[test]
fn address_sanitizer_finds_nothing() {
    let flags = ["-fsanitize=address", "-fno-omit-frame-pointer", "-g"];
    let empty = dist().join("empty.c");
    std::fs::write(&empty, "int main(void) { return 0; }\n").expect("writable");
    let mut cc = Command::new("cc");
    cc.args(flags).arg(&empty).arg("-o");
    let works = cc.arg(dist().join("empty")).status();
    if !works.is_ok_and(|status| status.success()) {
        eprintln!("the C compiler has no AddressSanitizer: nothing is checked");
        return;
    }
    for name in ["minimal", "eager"] {
        let source = format!("examples/c/{name}.c");
        output(&mut program(&format!("{name}_asan"), &source, &flags));
    }
    let of_bindings = |name: &str, flags: &[&str]| {
        let source = format!("interop/bindings/{name}.c");
        program(&format!("{name}_asan"), &source, flags)
    };
    output(&mut soak(of_bindings("soak", &flags), 3));
    let bad_input = of_bindings("bad_input", &[&flags[..], &["-w"]].concat());
    let run = |case: &str| {
        let mut run = Command::new(bad_input.get_program());
        run.arg(case).env("LD_LIBRARY_PATH", dist().join("lib"));
        // Cases end where they are refused, without deleting what they made.
        run.env("ASAN_OPTIONS", "detect_leaks=0");
        output(&mut run)
    };
    for case in run("--list").lines() {
        run(case);
    }
}

#[test]
fn every_function_that_deletes_takes_null() {
    let exports = std::fs::read_to_string(root().join("crates/capi/exports.txt"));
    let exports = exports.expect("a list");
    let deletes: Vec<&str> = exports.lines().filter(|n| n.contains("Delete")).collect();
    assert!(deletes.len() > 60);
    let mut program = String::from(
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <stdio.h>\n\
         typedef void (*Delete)(void*, void*, void*, void*);\n\
         int main(int argc, char** argv) {\n  void* library = dlopen(argv[argc - 1], RTLD_NOW);\n",
    );
    for name in &deletes {
        program += &format!(
            "  puts(\"{name}\");\n  fflush(stdout);\n\
             \x20 ((Delete)dlsym(library, \"{name}\"))(0, 0, 0, 0);\n"
        );
    }
    program += "  return 0;\n}\n";
    let source = dist().join("deletes.c");
    std::fs::write(&source, program).expect("writable");
    let binary = dist().join("deletes");
    output(
        Command::new("cc")
            .arg(&source)
            .arg("-o")
            .arg(&binary)
            .arg("-ldl"),
    );
    let printed = output(Command::new(&binary).arg(dist().join("lib/libtensorflow.so.2")));
    assert_eq!(printed.lines().last(), deletes.last().copied());
}

#[test]
fn headers_declare_what_is_supported() {
    let mut declared = String::new();
    let mut folders = vec![root().join("crates/capi/include")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("readable").flatten() {
            match entry.path() {
                path if path.is_dir() => folders.push(path),
                path => declared += &std::fs::read_to_string(path).expect("text"),
            }
        }
    }
    let source = std::fs::read_to_string(root().join("crates/capi/src/unsupported.rs"));
    let source = source.expect("text");
    let exports = std::fs::read_to_string(root().join("crates/capi/exports.txt"));
    let exports = exports.expect("a list");
    for name in exports.lines() {
        let is_declared = declared.contains(&format!(" {name}("));
        let is_supported = !source.contains(&format!("fn {name}("));
        assert_eq!(is_declared, is_supported, "{name}");
    }
}
