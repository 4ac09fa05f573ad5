//! Host programs: each `host/NAME.mlir` is translated, checked to come back the same, and run; what
//! it prints is compared with the lines `// PRINTS: …` in it, in order.

use ferroflow_runtime::host::{
    AllocatorType, Config, Driver, TextOptions, bef, bef_to_mlir, host_registry, mlir, mlir_to_bef,
    optimize,
};
use ferroflow_testkit::random::Rng;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

#[derive(Clone, Default)]
struct Output(Arc<Mutex<Vec<u8>>>);

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl Output {
    fn text(&self) -> String {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&all).into_owned()
    }
}

const PLAIN: mlir::PrintOptions = mlir::PrintOptions {
    generic: false,
    locations: false,
    builtin_names: false,
};

const WITH_LOCATIONS: mlir::PrintOptions = mlir::PrintOptions {
    locations: true,
    ..PLAIN
};

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/host")
}

fn programs() -> Vec<(String, String)> {
    let mut programs = Vec::new();
    for entry in std::fs::read_dir(folder()).expect("folder of programs") {
        let path = entry.expect("entry").path();
        if path.extension().is_some_and(|e| e == "mlir") {
            let text = std::fs::read_to_string(&path).expect("text");
            programs.push((path.display().to_string(), text));
        }
    }
    programs.sort();
    assert!(programs.len() >= 5, "programs are missing");
    programs
}

fn run(bytes: Vec<u8>, queue: &str) -> (i32, String) {
    let config = Config {
        work_queue: queue.to_string(),
        allocator: AllocatorType::LeakCheck,
        ..Config::default()
    };
    let output = Output::default();
    let status =
        Driver::new(config, host_registry()).run(Arc::new(bytes), Box::new(output.clone()));
    (status, output.text())
}

fn check(file: &str, text: &str) {
    let options = TextOptions::default();
    // Print is a fixed point, and going through BEF keeps the program.
    let once = optimize(text, file, options, PLAIN).expect("valid");
    let twice = optimize(&once, file, options, PLAIN).expect("what was printed is valid");
    assert_eq!(once, twice, "{file}: printing twice");
    let generic = optimize(text, file, options, mlir::PrintOptions::GENERIC).expect("valid");
    let back = optimize(&generic, file, options, PLAIN).expect("the generic form is valid");
    assert_eq!(once, back, "{file}: through the generic form");
    let bytes = mlir_to_bef(text, file, options, true).expect("can be written");
    let (from_bef, warnings) = bef_to_mlir(bytes.clone(), file, PLAIN).expect("can be read");
    assert_eq!(warnings, "");
    if !text.contains("LOSES: ") {
        assert_eq!(once, from_bef, "{file}: through BEF");
    }
    let stripped = mlir_to_bef(text, file, options, false).expect("can be written");
    // Nor do calls that became bodies change what a program does.
    let inline = TextOptions {
        inline: true,
        ..options
    };
    let inlined = optimize(text, file, inline, WITH_LOCATIONS).expect("valid");
    let twice = optimize(&inlined, file, options, WITH_LOCATIONS).expect("printed is valid");
    assert_eq!(inlined, twice, "{file}: printing twice without calls");
    let inlined = mlir_to_bef(&inlined, file, options, true).expect("can be written");
    let queues: &[&str] = match text.contains("QUEUES: s\n") {
        true => &["s"],
        false => &["s", "mstd:2", "mstd:4,2", "mstd:2,1,pin"],
    };
    for queue in queues {
        let mut files = vec![&bytes, &stripped];
        files.extend((!text.contains("INLINED: ")).then_some(&inlined));
        for bytes in files {
            let (status, printed) = run(bytes.clone(), queue);
            let is_said = |l: &&str| !l.is_empty() && !l.starts_with("--- ");
            let mut lines = printed.lines().skip(2).filter(is_said);
            for wanted in text
                .lines()
                .filter_map(|l| l.trim().strip_prefix("// PRINTS: "))
            {
                let found = lines.next().unwrap_or("(nothing)");
                assert_eq!(found, wanted, "{file} on {queue}:\n{printed}");
            }
            assert_eq!(lines.next(), None, "{file} on {queue}:\n{printed}");
            assert_eq!(status, 0, "{file} on {queue}");
        }
    }
}

#[test]
fn programs_print_what_they_say() {
    // The only test here that makes values: the driver looks for leaks by their number.
    for (file, text) in programs() {
        check(&file, &text);
    }
}

/// A file with any byte changed or cut short is refused, or can be printed: it never crashes.
#[test]
fn mangled_files_do_no_harm() {
    for (file, text) in programs().into_iter().filter(|(_, t)| !t.contains("SLOW")) {
        let bytes = mlir_to_bef(&text, &file, TextOptions::default(), true).expect("valid");
        // Large files byte by byte would take minutes.
        for at in (0..bytes.len()).step_by(1 + bytes.len() / 3000) {
            for value in [0x80, 0xff, bytes[at] ^ 1] {
                let mut mangled = bytes.clone();
                mangled[at] = value;
                if let Ok(opened) = bef::File::open(Arc::new(mangled)) {
                    let _ = opened.verify();
                    let _ = bef::to_mlir(&opened).map(|(m, _)| mlir::print(&m, Default::default()));
                }
            }
            let cut = bytes[..at].to_vec();
            if let Ok(opened) = bef::File::open(Arc::new(cut)) {
                let _ = opened.verify();
                let _ = bef::to_mlir(&opened);
            }
        }
    }
}

/// Texts with words in the wrong places are refused, or what is printed of them is the same again.
#[test]
fn mangled_texts_do_no_harm() {
    const WORDS: [&str; 24] = [
        "%a",
        "%0#1",
        "%x:2 =",
        "^bb1:",
        "[^bb1]",
        "({",
        "})",
        "{",
        "}",
        "(",
        ")",
        ",",
        ":",
        "=",
        "->",
        "i32",
        "\"x\"",
        "@f",
        "loc(\"a\")",
        "#a",
        "tfrt.return",
        "attributes {a}",
        "0x1",
        "<",
    ];
    let options = TextOptions::default();
    let mut rng = Rng(1);
    let mut random = |n: usize| rng.below(n.max(1));
    let mut n_valid = 0;
    for (file, text) in programs() {
        // One function after the other, so that most of them are mangled in one place.
        let functions: Vec<&str> = text.split("\n\n").filter(|f| f.contains("func")).collect();
        for _ in 0..300 {
            let function = functions
                .get(random(functions.len()))
                .copied()
                .unwrap_or("");
            let mut words: Vec<&str> = function.split(' ').collect();
            let (at, from) = (random(words.len()), random(words.len()));
            match random(4) {
                0 => drop(words.remove(at)),
                1 => words[at] = words[from],
                2 => words[at] = WORDS[random(WORDS.len())],
                _ => words.insert(at, WORDS[random(WORDS.len())]),
            }
            let text = words.join(" ");
            for print in [PLAIN, WITH_LOCATIONS, mlir::PrintOptions::GENERIC] {
                let Ok(once) = optimize(&text, &file, options, print) else {
                    break;
                };
                n_valid += 1;
                let twice = optimize(&once, &file, options, print);
                assert_eq!(twice.as_ref(), Ok(&once), "{text}");
            }
            if let Ok(bytes) = mlir_to_bef(&text, &file, options, true) {
                let (back, _) = bef_to_mlir(bytes, &file, PLAIN).expect(&text);
                let again = optimize(&back, &file, options, PLAIN);
                assert_eq!(again.as_ref(), Ok(&back), "{text}");
            }
        }
    }
    assert!(n_valid > 100, "{n_valid}");
}

#[test]
fn diagnostics_point_at_their_place() {
    let rows = [
        (
            "func @f() {\n  tfrt.print.i32 %x, %y\n}",
            "a.mlir:2:18: error: use of undeclared SSA value name",
        ),
        (
            "func @f(%a: i32) {\n  tfrt.return %a : f32\n}",
            "a.mlir:2:15: error: use of value '%a' expects different type than prior uses: 'f32' vs 'i32'",
        ),
        (
            "func @f() {\n  %x = tfrt.constant.i32 99999999999\n}",
            "a.mlir:2:26: error: integer constant out of range for attribute",
        ),
        (
            "func @f() {\n  foo.bar %x\n}",
            "a.mlir:2:3: error: custom op 'foo.bar' is unknown",
        ),
        (
            "func @f() -> i32 {\n  tfrt.return\n}",
            "a.mlir:2:3: error: 'tfrt.return' op has 0 operands, but enclosing function returns 1",
        ),
        (
            "func @f() {\n  \"a.b\"() : () -> ()\n}",
            "a.mlir:2:3: error: all functions need to have a tfrt.return",
        ),
        (
            "func @f() {\n  %a = \"x\"() {k = \"unfinished} : () -> i32\n}",
            "a.mlir:2:19: error: expected '\"' in string literal",
        ),
        (
            "func @f() {\n  tfrt.return\n}\nfunc @f() {\n  tfrt.return\n}",
            "a.mlir:4:1: error: redefinition of symbol named 'f'",
        ),
        (
            "func @f() {\n  \"a.b\"() {x = 1, y, x = 2} : () -> ()\n}",
            "a.mlir:2:22: error: duplicate key 'x' in dictionary attribute",
        ),
        (
            "func @f(%a: i32, i32) {\n  tfrt.return\n}",
            "a.mlir:1:18: error: expected SSA identifier",
        ),
        (
            "func @f(i32) {\n  tfrt.return\n}",
            "a.mlir:1:9: error: entry block must have 1 arguments to match function signature",
        ),
        (
            "func @\"a\\00b\"() {\n  tfrt.return\n}",
            "a.mlir:1:7: error: a symbol's name cannot contain a zero byte",
        ),
        (
            "func @f() {\n  %a, %b = tfrt.constant.i32 1\n}",
            "a.mlir:2:3: error: operation defines 1 results but was provided 2 to bind",
        ),
        (
            "func @f(%n: i32) {\n  %r:2 = tfrt.repeat.i32 %n, %n, %n : i32, i32 {\n    tfrt.return %n, %n : i32, i32\n  }\n  tfrt.return\n}",
            "a.mlir:2:34: error: region entry argument '%n' is already in use",
        ),
        (
            "func @f() attributes {type = i32} {\n  tfrt.return\n}",
            "a.mlir:1:22: error: 'type' is an inferred attribute and should not be specified in the \
             explicit attribute dictionary",
        ),
        (
            "\"func\"() ({\n^bb0(%a: i32):\n  tfrt.return\n}) {sym_name = \"f\", type = () -> ()} : () -> ()",
            "a.mlir:1:1: error: 'func' op entry block must have 0 arguments to match function signature",
        ),
        (
            "\"func\"() ({\n^bb0(%a: i32):\n  tfrt.return\n}) {sym_name = \"f\", type = (i1) -> ()} : () -> ()",
            "a.mlir:1:1: error: 'func' op type of entry block argument #0('i32') must match the type of \
             the corresponding argument in function signature('i1')",
        ),
        (
            "\"func\"() ({\n  tfrt.return\n}) {sym_name = 1 : i32, type = () -> ()} : () -> ()",
            "a.mlir:1:1: error: 'func' op requires string attribute 'sym_name'",
        ),
        (
            "\"func\"() ({\n  tfrt.return\n}, {}) {sym_name = \"f\", type = () -> ()} : () -> ()",
            "a.mlir:1:1: error: 'func' op requires one region",
        ),
        (
            "func @f() {\n  %x = tfrt.constant.i32 1 {value = 2 : i32}\n}",
            "a.mlir:2:28: error: attribute 'value' occurs more than once in the attribute list",
        ),
        (
            "func @f() {\n}",
            "a.mlir:1:11: error: expected non-empty function body",
        ),
        (
            "\"module\"() : () -> ()",
            "a.mlir:1:1: error: 'module' op requires one region",
        ),
        (
            "\"module\"() ({}, {}) : () -> ()",
            "a.mlir:1:1: error: 'module' op requires one region",
        ),
        (
            "func @f() {\n  \"tfrt.new.chain\"() ({\n  }) : () -> !tfrt.chain\n  tfrt.return\n}",
            "a.mlir:2:3: error: 'tfrt.new.chain' op requires zero regions",
        ),
        (
            "tfrt.return",
            "a.mlir:1:1: error: 'tfrt.return' op expects parent op 'func'",
        ),
        (
            "module {\n  return\n}",
            "a.mlir:2:3: error: 'std.return' op expects parent op 'func'",
        ),
        (
            "func @f() {\n  %b = tfrt.add.i32 %a, %a\n  %a = tfrt.constant.i32 1\n  tfrt.return\n}",
            "a.mlir:2:8: error: 'tfrt.add.i32' op operand #0 does not dominate this use",
        ),
        (
            "func @f() {\n  %b = tfrt.add.i32 %a, %a\n  %a = tfrt.constant.i64 1\n  tfrt.return\n}",
            "a.mlir:3:3: error: definition of SSA value '%a#0' has type 'i64'",
        ),
        (
            "func @f() {\n  %b = tfrt.add.i32 %a#1, %a#1\n  %a = tfrt.constant.i32 1\n  tfrt.return\n}",
            "a.mlir:2:21: error: reference to invalid result number",
        ),
    ];
    for (text, wanted) in rows {
        let error = mlir_to_bef(text, "a.mlir", TextOptions::default(), true).expect_err(text);
        assert!(error.starts_with(wanted), "{error}");
        assert!(error.contains('^'), "{error}");
    }
}

#[test]
fn carets_stand_below_characters() {
    let text = "\"é✓\"() {k = §} : () -> ()";
    let error = optimize(text, "a.mlir", TextOptions::default(), PLAIN).expect_err(text);
    let caret = error.lines().nth(2).map(|l| l.chars().count());
    assert_eq!(
        caret,
        Some(1 + text.chars().position(|c| c == '§').unwrap_or(0)),
        "{error}"
    );
}

#[test]
fn what_is_printed_says_all() {
    let options = TextOptions::default();
    for text in [
        "\"x\"() {v = 0x7FF0000000000000 : f64} : () -> ()",
        "func private @native(i32, i32) -> i32 attributes {tfrt.native}",
        "func private @native(i32 {a.b = 1 : i32}, i32) -> (i32 {c.d}) attributes {tfrt.native}",
        "func @f(%arg0: i32 {a.b = 1 : i32}, %arg1: i32) -> (i32 {c.d}, i32) {\n  \
         tfrt.return %arg0, %arg1 : i32, i32\n}",
        "\"x\"() ({\n  \"a\"()[^bb2, ^bb1] : () -> ()\n^bb1:\n  \"b\"()[^bb2] : () -> ()\n^bb2:\n  \
         \"c\"() : () -> ()\n}) : () -> ()",
        "\"x\"() ({\n^bb0(%arg0: i32):\n  \"a\"(%arg0)[^bb1] : (i32) -> ()\n^bb1(%arg1: i32):\n  \
         \"b\"(%arg1) : (i32) -> ()\n}) : () -> ()",
        "\"x\"() {v = dense<[\"a\", \"b\"]> : tensor<2x!corert.string>} : () -> ()",
        "\"x\"() {s = affine_set<(d0) : (d0 >= 0)>, v = 18446744073709551616 : i100} : () -> ()",
        "\"x\"() {v = -1 : i128} : () -> ()",
        "\"x\"() {v = \"abc\" : !foo.type, w = #foo.bar<\"a\\\">b\">} : () -> ()",
        "\"x\"() {t = tuple<i32,!foo.a<\"b c\", d e>>, u = tensor<2xf32,\"a b\">} : () -> ()",
        "\"x\"() {v = dense<[-1, 170141183460469231731687303715884105727]> : tensor<2xi128>, \
         w = dense<1> : vector<4xindex>, x = dense<[-18446744073709551616, 1]> : tensor<2xi65>, \
         y = dense<[(1,2), (3,4)]> : tensor<2xcomplex<i32>>} : () -> ()",
        "\"x\"() {v = dense<> : tensor<2x0xi32>, w = dense<0> : tensor<99999999999xi64>} : () -> ()",
        "\"x\"() {l = loc(callsite(\"a\"(\"f\":1:2) at \"g\":3:4)), \
         m = loc(fused<\"md\">[\"a\":1:1, \"b\"]), n = loc(\"n\"(fused[\"a\", \"b\"]))} : () -> ()",
        // What is printed later may have been there before.
        "func @f() -> i32 {\n  \"br\"()[^bb2] : () -> ()\n^bb1:\n  tfrt.return %0 : i32\n^bb2:\n  \
         %0 = tfrt.constant.i32 1\n  \"br\"()[^bb1] : () -> ()\n}",
        "\"x\"() ({\n  \"a\"()[^bb2] : () -> ()\n^bb1:\n  \"b\"(%arg0, %0#1) : (i32, i64) -> ()\n\
         ^bb2(%arg0: i32):\n  %0:2 = \"c\"()[^bb1] : () -> (i8, i64)\n}) : () -> ()",
        "\"a\"(%0) : (i32) -> ()\n%0 = tfrt.constant.i32 1",
        // Each region continues the numbering of the enclosing one.
        "\"x\"() ({\n  \"y\"() ({\n    %1 = \"a\"() : () -> i32\n  }, {\n    %1 = \"b\"() : () -> i32\n  \
         }) : () -> ()\n  %0 = \"c\"() : () -> i32\n}) : () -> ()",
        // Operands that are given twice cannot both give their names.
        "func @f(%arg0: i32, %arg1: i32) {\n  \
         %0 = \"tfrt.parallel_for.i32\"(%arg0, %arg0, %arg1) ({\n  ^bb0(%arg2: i32, %arg3: i32):\n    \
         tfrt.return\n  }) : (i32, i32, i32) -> !tfrt.chain\n  \
         %1 = tfrt.parallel_for.i32 %arg0 to %arg1 fixed %arg0 {\n    tfrt.return\n  }\n  \
         %2 = \"tfrt_test.do.async\"(%arg0, %arg0) ({\n  ^bb0(%arg2: i32, %arg3: i32):\n    \
         tfrt.return %arg3 : i32\n  }) : (i32, i32) -> i32\n  tfrt.return\n}",
        // The forms of their own of these cannot say all.
        "func @f(%arg0: i32, %arg1: !tfrt.chain) {\n  %0 = tfrt.repeat.i32 %arg0, %arg0 attributes \
         {a = 2 : i32} : i32 {\n    tfrt.return %arg0 : i32\n  }\n  %1 = tfrt.merge.chains %arg1 {a}\n  \
         %2 = \"tfrt.call\"(%arg0) {callee = @g} : (i32) -> i32\n  \"tfrt.return\"() {a = 1 : i32} : () -> ()\n}\n\
         func @g(%arg0: i32) -> i32 {\n  tfrt.return %arg0 : i32\n}",
        "\"x\"() {l = loc(\"f\":1:2), m = loc(\"n\"(\"f\":1:2)), n = loc(\"n\")} : () -> ()",
    ] {
        let once = optimize(text, "a.mlir", options, PLAIN).expect(text);
        assert_eq!(once.trim(), text);
        let generic = optimize(text, "a.mlir", options, mlir::PrintOptions::GENERIC).expect(text);
        let back = optimize(&generic, "a.mlir", options, PLAIN).expect(text);
        assert_eq!(back.trim(), text, "{generic}");
    }
}

#[test]
fn what_is_written_in_other_ways_is_the_same() {
    let late = mlir::PrintOptions {
        builtin_names: true,
        ..mlir::PrintOptions::GENERIC
    };
    let rows = [
        (
            "\"x\"() {v = dense<\"0x0000803F00000040\"> : tensor<2xf32>} : () -> ()",
            PLAIN,
            "dense<[1.000000e+00, 2.000000e+00]> : tensor<2xf32>",
        ),
        (
            "\"x\"() {v = 0xffffffffffffffffffff : i80} : () -> ()",
            PLAIN,
            "v = -1 : i80}",
        ),
        (
            "\"x\"() {v = dense<\"0x07\"> : tensor<1xi1>, w = dense<\"0x02\"> : tensor<2xi1>} : () -> ()",
            PLAIN,
            "v = dense<true> : tensor<1xi1>, w = dense<[false, true]> : tensor<2xi1>",
        ),
        (
            "\"x\"() {v = dense<\"0x1F01\"> : tensor<2xi4>, w = dense<\"0xFF\"> : tensor<9xi1>} : () -> ()",
            PLAIN,
            "v = dense<[-1, 1]> : tensor<2xi4>, w = dense<true> : tensor<9xi1>",
        ),
        (
            "!t = type i32\n\"x\"() {v = tuple<!t, !foo.a<!t>>, w = tensor<2x!t>} : () -> ()",
            PLAIN,
            "v = tuple<i32,!foo.a<!t>>, w = tensor<2xi32>",
        ),
        (
            "\"x\"() {v = \"a\" : none, w = #here} : () -> ()\n#here = loc(\"f\":1:2)",
            PLAIN,
            "{v = \"a\", w = loc(\"f\":1:2)}",
        ),
        // Aliases of places may stand anywhere, in any order.
        (
            "\"x\"() : () -> () loc(#6)\n  #6 = loc(#5)\n#5=loc(#4)\n#4 = loc(#3)\n#3 = loc(#2) #2 = loc(#1)\n\
             #1 = loc(fused[#0, \"b\":3:4, #0]) // #7 = loc(\n#0 = loc(\"a\":1:2)",
            WITH_LOCATIONS,
            "loc(fused[\"a\":1:2, \"b\":3:4])",
        ),
        (
            "\"x\"() ({\n^bb0(%a: i32 loc(callsite(\"n\" at \"f\":7:8))):\n  \"y\"() : () -> () loc(fused[\"n\"])\n}) \
             : () -> () loc(callsite(unknown at \"f\":7:8))",
            WITH_LOCATIONS,
            "^bb0(%arg0: i32 loc(callsite(\"n\" at \"f\":7:8))):\n  \"y\"() : () -> () loc(\"n\")\n}) : () -> () \
             loc(callsite(unknown at \"f\":7:8))",
        ),
        (
            "\"x\"() {v = loc(#here)} : () -> ()\n#here = loc(\"f\":1:2)",
            PLAIN,
            "v = loc(\"f\":1:2)",
        ),
        (
            "\"x\"() ({\n^bb9(%a: i32 loc(\"f\":7:8)):\n  \"y\"(%a) : (i32) -> () loc(\"n\")\n}) : () -> ()",
            WITH_LOCATIONS,
            "^bb0(%arg0: i32 loc(\"f\":7:8)):\n  \"y\"(%arg0) : (i32) -> () loc(\"n\")\n}) : () -> () \
             loc(\"a.mlir\":1:1)",
        ),
        (
            "func private @f(%a: i32 {x = 1 : i32} loc(\"q\":1:1)) {\n  tfrt.return\n} loc(\"z\":1:2)",
            WITH_LOCATIONS,
            "func private @f(%arg0: i32 {x = 1 : i32} loc(\"q\":1:1)) {",
        ),
        (
            "func @f() {\n  tfrt.return\n}",
            late,
            "\"builtin.func\"() ({",
        ),
    ];
    for (text, print, part) in rows {
        let once = optimize(text, "a.mlir", TextOptions::default(), print).expect(text);
        assert!(once.contains(part), "{once}");
        // With places written down, those of the text itself do not count.
        let again = optimize(&once, "b.mlir", TextOptions::default(), print).expect(&once);
        assert_eq!(again, once);
    }
}

#[test]
fn wrong_blocks_are_named() {
    let rows = [
        (
            "\"x\"() ({\n  \"a\"()[^b] : () -> ()\n}) : () -> ()",
            "a.mlir:2:3: error: reference to an undefined block '^b'",
        ),
        (
            "\"x\"() ({\n^b:\n  \"a\"() : () -> ()\n^b:\n  \"c\"() : () -> ()\n}) : () -> ()",
            "a.mlir:4:1: error: redefinition of block '^b'",
        ),
        (
            "\"x\"()[%a] : () -> ()",
            "a.mlir:1:7: error: expected block name",
        ),
        (
            "\"x\"() {v = dense<\"0x00\"> : tensor<2xf32>} : () -> ()",
            "a.mlir:1:12: error: elements hex data size is invalid",
        ),
        (
            "\"x\"() {v = dense<\"0x0702\"> : tensor<2xi1>} : () -> ()",
            "a.mlir:1:12: error: elements hex data size is invalid",
        ),
        (
            "\"x\"() {v = dense<[[1, 2], [3, 4, 5, 6]]> : tensor<2x3xi32>} : () -> ()",
            "a.mlir:1:27: error: tensor literal is invalid; ranks are not consistent between elements",
        ),
        (
            "\"x\"() {v = dense<[1, 2, 3, 4, 5, 6]> : tensor<2x3xi32>} : () -> ()",
            "a.mlir:1:12: error: inferred shape of elements literal ([6]) does not match type ([2, 3])",
        ),
        (
            "\"x\"() {v = 0x1FFFFFFFF : f32} : () -> ()",
            "a.mlir:1:12: error: hexadecimal float constant out of range for type",
        ),
        (
            "\"x\"() {v = dense<0x10000> : tensor<2xbf16>} : () -> ()",
            "a.mlir:1:12: error: hexadecimal float constant out of range for type",
        ),
        (
            "\"x\"() {v = 1 : f32} : () -> ()",
            "a.mlir:1:12: error: unexpected decimal integer literal for a floating point value",
        ),
        (
            "#a = 5 : i32\n#a = 6 : i32",
            "a.mlir:2:1: error: redefinition of attribute alias id 'a'",
        ),
        (
            "#a = loc(\"f\":1:2)\n#a = loc(\"f\":1:3)",
            "a.mlir:2:1: error: redefinition of attribute alias id 'a'",
        ),
        (
            "!t = type i32\n!t = type i64",
            "a.mlir:2:1: error: redefinition of type alias id 't'",
        ),
        (
            "\"x\"() : () -> () loc(#b)\n#a = loc(#b)\n#b = loc(#a)",
            "a.mlir:1:22: error: undefined location alias id 'b'",
        ),
        (
            "\"x\"() {v = 0 : i0} : () -> ()",
            "a.mlir:1:12: error: integer constant out of range",
        ),
        (
            "\"x\"() {v = 1208925819614629174706176 : i80} : () -> ()",
            "a.mlir:1:12: error: integer constant out of range",
        ),
    ];
    let rows = rows.into_iter().chain([
        (
            "\"x\"() ({\n^a:\n^b:\n  \"c\"() : () -> ()\n}) : () -> ()",
            "a.mlir:1:1: error: empty block: expect at least a terminator",
        ),
        (
            "\"x\"() ({\n^a:\n  \"br\"()[^b] : () -> ()\n^b:\n  \"br\"()[^a] : () -> ()\n}) : () -> ()",
            "a.mlir:1:1: error: 'x' op entry block of region may not have predecessors",
        ),
        (
            "\"x\"() ({\n  \"br\"()[^b] : () -> ()\n  \"c\"() : () -> ()\n^b:\n  \"c\"() : () -> ()\n}) : () -> ()",
            "a.mlir:2:3: error: 'br' op operation with block successors must terminate its parent block",
        ),
        (
            "func @f() {\n  tfrt.return\n  tfrt.return\n}",
            "a.mlir:2:3: error: 'tfrt.return' op must be the last operation in the parent block",
        ),
        (
            "func @f() -> i32 {\n  \"br\"()[^a, ^b] : () -> ()\n^a:\n  %a = tfrt.constant.i32 1\n  \
             \"br\"()[^b] : () -> ()\n^b:\n  tfrt.return %a : i32\n}",
            "a.mlir:7:3: error: 'tfrt.return' op operand #0 does not dominate this use",
        ),
        (
            "func @f() {\n  %b = \"x\"() ({\n    \"y\"(%b) : (i32) -> ()\n  }) : () -> i32\n  tfrt.return\n}",
            "a.mlir:3:5: error: 'y' op operand #0 does not dominate this use",
        ),
    ]);
    for (text, part) in rows {
        let error = optimize(text, "a.mlir", TextOptions::default(), PLAIN).expect_err(text);
        assert!(error.contains(part), "{error}");
    }
}

#[test]
fn lists_with_functions_are_kept() {
    let text = "func @f() {\n  \"x\"() {d = [1 : i32, @f, [@g, \"a\"]], e = [[@f]]} : () -> ()\n  \
                tfrt.return\n}\nfunc @g() {\n  tfrt.return\n}";
    let bytes = mlir_to_bef(text, "a.mlir", TextOptions::default(), true).expect("written");
    let (back, _) = bef_to_mlir(bytes, "a.mlir", PLAIN).expect("read");
    assert_eq!(back.trim(), text);
    let text = "func @f() {\n  \"x\"() {d = [@a::@b, 1 : i32]} : () -> ()\n  tfrt.return\n}";
    let error = mlir_to_bef(text, "a.mlir", TextOptions::default(), true).expect_err(text);
    let wanted = "a.mlir:2:3: error: 'x' op BEF files cannot encode the 'd' attribute";
    assert!(error.starts_with(wanted), "{error}");
}

#[test]
fn deep_and_long_texts_are_errors_or_fine() {
    let options = TextOptions::default();
    for (open, close) in [("[", "]"), ("(", ")"), ("{a = ", "}")] {
        let text = format!(
            "\"x\"() {{k = {}1{}}} : () -> ()",
            open.repeat(50_000),
            close.repeat(50_000)
        );
        assert!(optimize(&text, "deep.mlir", options, PLAIN).is_err());
    }
    // Aliases of aliases: what they stand for would fill any memory.
    for (first, next) in [
        ("#a0 = [1, 1]\n", "#aI = [#aJ, #aJ]\n"),
        ("!a0 = type i32\n", "!aI = type (!aJ) -> !aJ\n"),
        ("!a0 = type i32\n", "!aI = type tuple<!aJ, !aJ>\n"),
        (
            "#a0 = loc(\"f\":1:2)\n",
            "#aI = loc(callsite(#aJ at #aJ))\n",
        ),
    ] {
        let mut text = first.to_string();
        for i in 1..40 {
            let next = next.replace('I', &i.to_string());
            text += &next.replace('J', &(i - 1).to_string());
        }
        let error = optimize(&text, "deep.mlir", options, PLAIN).expect_err(&text);
        assert!(
            error.starts_with("deep.mlir:") && error.contains("too large"),
            "{error}"
        );
    }
    let many = vec!["i32 {a.b}"; 80_000].join(", ");
    let many = format!("func private @f({many}) attributes {{tfrt.native}}");
    let printed = optimize(&many, "long.mlir", options, PLAIN).expect("valid");
    assert_eq!(printed.trim(), many);
    let chain: String = (1..20_000)
        .map(|i| format!("#l{i} = loc(#l{})\n", i - 1))
        .rev()
        .collect();
    let chain = format!("\"x\"() : () -> () loc(#l19999)\n{chain}#l0 = loc(\"f\":1:2)");
    let printed = optimize(&chain, "long.mlir", options, WITH_LOCATIONS).expect("valid");
    assert!(printed.contains("loc(\"f\":1:2)"), "{printed}");
    let regions = format!(
        "{}{}",
        "\"x\"() ({".repeat(20_000),
        "}) : () -> ()".repeat(20_000)
    );
    assert!(optimize(&regions, "deep.mlir", options, PLAIN).is_err());
}
