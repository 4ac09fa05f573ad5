//! Kernels of a few instructions: what they compute, and which mistakes are found.

use crate::driver::Param;
use crate::launch::Launch;
use crate::module::Module;
use crate::{Res, float};

/// A kernel of one warp, or more, whose parameter `y` is memory of 64 words.
fn module(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.address_size 64\n.shared .align 16 .b8 tile[512];\n\
         .func (.param .b32 r) twice(.param .b32 v)\n{{\n.reg .f32 %f<2>;\n.reg .pred %p;\nld.param.f32 %f1, [v];\n\
         setp.lt.f32 %p, %f1, 0f00000000;\n@%p bra NEGATIVE;\nadd.f32 %f1, %f1, %f1;\nst.param.f32 [r], %f1;\nret;\n\
         NEGATIVE:\nst.param.f32 [r+0], 0f00000000;\nret;\n}}\n\
         .visible .entry k(.param .u64 y)\n{{\n.reg .pred %p<5>;\n.reg .b16 %h<9>;\n.reg .b32 %r<32>;\n.reg .f32 %f<20>;\n\
         .reg .b64 %d<9>;\nld.param.u64 %d1, [y];\nmov.u32 %r1, %tid.x;\nmul.wide.u32 %d2, %r1, 4;\nadd.s64 %d2, %d1, %d2;\n\
         shl.b32 %r2, %r1, 2;\nmov.u32 %r3, tile;\nadd.s32 %r3, %r3, %r2;\n{body}\nret;\n}}\n"
    )
}

/// Runs a kernel; returns the words that it leaves where 64 zeros were.
fn run(body: &str, threads: u32) -> Res<Vec<u32>> {
    let kernel = Module::parse(&module(body))?
        .kernel("k")?
        .ok_or("no kernel")?;
    let mut words = vec![0u32; 64];
    let start = words.as_mut_ptr().expose_provenance() as u64;
    let launch = Launch {
        kernel,
        blocks: [1, 1, 1],
        threads: [threads, 1, 1],
        args: vec![Param {
            value: start,
            start,
            len: 256,
        }],
    };
    // SAFETY: the only memory is that of the words, which nothing else uses meanwhile.
    unsafe { launch.run() }?;
    Ok(words)
}

/// Checks the word of each lane.
fn check(body: &str, expected: impl Fn(u32) -> u32) {
    let words = run(body, 32).unwrap_or_else(|e| panic!("{body}: {e}"));
    let expected: Vec<u32> = (0..32).map(expected).collect();
    assert_eq!(words[..32], expected, "{body}");
}

/// Checks that a kernel fails with a text.
fn check_error(body: &str, threads: u32, text: &str) {
    let got = run(body, threads);
    let error = got.expect_err(body);
    assert!(error.contains(text), "{body}: {error}");
}

#[test]
fn lanes_compute() {
    let store = "st.global.b32 [%d2], %r9;";
    check(&format!("mad.lo.s32 %r9, %r1, -3, 7; {store}"), |i| {
        7u32.wrapping_sub(3 * i)
    });
    check(
        &format!("add.s32 %r9, %r1, -20; shr.s32 %r9, %r9, 40; {store}"),
        |i| {
            if i < 20 { u32::MAX } else { 0 }
        },
    );
    check(
        &format!("add.s32 %r9, %r1, -20; div.s32 %r9, %r9, 3; {store}"),
        |i| ((i as i32 - 20) / 3) as u32,
    );
    check(
        &format!("mov.b32 %r9, {{1, 2}}; bfi.b32 %r9, %r1, %r9, 4, 8; {store}"),
        |i| 0x2_0001 | i << 4,
    );
    check(
        &format!(
            "cvt.u16.u32 %h1, %r1; sub.s16 %h1, %h1, 9; cvt.rn.f32.s16 %f1, %h1; mov.b32 %r9, %f1; {store}"
        ),
        |i| (i as f32 - 9.0).to_bits(),
    );
    check(
        &format!("shfl.sync.bfly.b32 %r9|%p1, %r1, 3, 31, -1; {store}"),
        |i| i ^ 3,
    );
    check(&format!("mul.hi.u32 %r9, %r1, -1; {store}"), |i| {
        i.saturating_sub(1)
    });
}

#[test]
fn lanes_part_and_meet() {
    // A loop whose lanes leave at different times, then what needs all of them.
    check(
        "mov.u32 %r9, 0;\nLOOP: setp.ge.s32 %p1, %r9, %r1;\n@%p1 bra OUT;\nadd.s32 %r9, %r9, 1;\nbra LOOP;\nOUT:\n\
         shfl.sync.bfly.b32 %r9|%p2, %r9, 1, 31, -1;\nst.global.u32 [%d2], %r9;",
        |i| i ^ 1,
    );
    // A function, in a scope with names of its own.
    check(
        "add.s32 %r9, %r1, -4; cvt.rn.f32.s32 %f1, %r9;\n{\n.reg .f32 %f<3>;\n.param .b32 a;\n.param .b32 b;\n\
         mov.f32 %f1, 0f40000000;\nst.param.f32 [a], %f1;\ncall.uni (b), twice, (a);\nld.param.f32 %f2, [b];\n}\n\
         {\n.param .b32 a;\n.param .b32 b;\nst.param.f32 [a], %f1;\ncall.uni (b), twice, (a);\nld.param.f32 %f2, [b];\n}\n\
         st.global.f32 [%d2], %f2;",
        |i| (2.0 * (i as f32 - 4.0).max(0.0)).to_bits(),
    );
}

#[test]
fn functions_round_as_they_say() {
    let (a, b, c) = (1.0f32 + f32::EPSILON, 1.0f32 + f32::EPSILON, -1.0f32);
    let fma = |mode: &str| {
        let body = format!(
            "fma.{mode}.f32 %f1, 0f{:08X}, 0f{:08X}, 0f{:08X};\nst.global.f32 [%d2], %f1;",
            a.to_bits(),
            b.to_bits(),
            c.to_bits()
        );
        f32::from_bits(run(&body, 1).expect("no mistake")[0])
    };
    let exact = f64::from(a) * f64::from(b) + f64::from(c);
    assert!(f64::from(fma("rm")) < exact && f64::from(fma("rp")) > exact);
    assert_eq!((fma("rz"), fma("rp")), (fma("rm"), fma("rm").next_up()));
    assert_eq!(fma("rn"), exact as f32);
    // Half of the distance between two numbers is rounded away from zero.
    assert_eq!(
        float::tf32(1.0 + 2f32.powi(-11)),
        u64::from((1.0 + 2f32.powi(-10)).to_bits())
    );
    let one =
        |body: &str| run(&format!("{body}\nst.global.b32 [%d2], %r9;"), 1).expect("no mistake")[0];
    assert_eq!(
        one("ex2.approx.ftz.f32 %f1, 0fC3010000; mov.b32 %r9, %f1;"),
        0
    );
    assert_eq!(
        one("ex2.approx.f32 %f1, 0fC3010000; mov.b32 %r9, %f1;"),
        1 << 20
    );
    assert_eq!(one("cvt.sat.f32.f32 %f1, 0f7FC00000; mov.b32 %r9, %f1;"), 0);
    assert_eq!(
        one("max.f32 %f1, 0f7FC00000, 0fBF800000; mov.b32 %r9, %f1;"),
        0xbf80_0000
    );
    assert_eq!(one("cvt.rni.s32.f32 %r9, 0f40200000;"), 2);
    assert_eq!(one("cvt.rzi.s32.f32 %r9, 0f7F800000;"), i32::MAX as u32);
    assert_eq!(
        one("cvt.rn.bf16.f32 %h1, 0f3F808000; cvt.u32.u16 %r9, %h1;"),
        0x3f80
    );
    assert_eq!(
        one("cvt.rn.f16x2.f32 %r9, 0f3F800000, 0f40000000;"),
        0x3c00_4000
    );
}

#[test]
fn matrices_are_multiplied() {
    // The elements of a are their rows, those of b their columns, in TF32 and as pairs of bf16.
    let rows = "shr.u32 %r4, %r1, 2; and.b32 %r5, %r1, 3; cvt.rn.f32.u32 %f1, %r4; add.f32 %f2, %f1, 0f41000000;\n\
                mov.b32 %r6, %f1; mov.b32 %r7, %f2; mov.f32 %f5, 0f3F800000;\n";
    let store = "cvt.rzi.u32.f32 %r9, %f13; st.global.u32 [%d2], %r9;";
    let tf32 = "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f10,%f11,%f12,%f13}, {%r6,%r7,%r6,%r7}, {%r6,%r6}, \
                {%f5,%f5,%f5,%f5};\n";
    // Row g + 8 and column 2 t + 1 of eight equal products.
    let expected = |k: u32| move |i: u32| 1 + k * (i / 4 + 8) * (i % 4 * 2 + 1);
    check(&format!("{rows}{tf32}{store}"), expected(8));
    let bf16 = "cvt.rn.bf16x2.f32 %r6, %f1, %f1; cvt.rn.bf16x2.f32 %r7, %f2, %f2;\n\
                mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f10,%f11,%f12,%f13}, {%r6,%r7,%r6,%r7}, {%r6,%r6}, \
                {%f5,%f5,%f5,%f5};\n";
    check(&format!("{rows}{bf16}{store}"), expected(16));
    // Lane i writes elements 2 i and 2 i + 1 of a matrix of 8 x 8.
    let fill = "shl.b32 %r4, %r1, 1; add.s32 %r5, %r4, 1; shl.b32 %r5, %r5, 16; or.b32 %r4, %r4, %r5;\n\
                st.shared.u32 [%r3], %r4;\nshl.b32 %r4, %r1, 4; and.b32 %r4, %r4, 127; mov.u32 %r5, tile; add.s32 %r4, %r4, \
                %r5;\nbar.sync 0;\n";
    let load = |how: &str| {
        format!(
            "{fill}ldmatrix.sync.aligned.m8n8.x1{how}.shared.b16 {{%r9}}, [%r4];\nst.global.u32 [%d2], %r9;"
        )
    };
    check(&load(""), |i| (2 * i) | ((2 * i + 1) << 16));
    check(&load(".trans"), |i| {
        let (row, column) = (i % 4 * 2, i / 4);
        (row * 8 + column) | (((row + 1) * 8 + column) << 16)
    });
}

#[test]
fn copies_arrive_when_they_are_waited_for() {
    let start = "cp.async.ca.shared.global [%r3], [%d2], 4;\n";
    let show = "ld.shared.u32 %r9, [%r3]; st.global.u32 [%d2], %r9;";
    check(
        &format!("st.global.u32 [%d2], %r1;\n{start}cp.async.wait_all;\n{show}"),
        |i| i,
    );
    check_error(&format!("{start}{show}"), 32, "is read while it is copied");
    check_error(
        &format!("{start}cp.async.commit_group;\ncp.async.wait_group 1;\n{show}"),
        32,
        "is read while it is copied",
    );
    check_error(&format!("{start}{start}"), 32, "two copies");
    check_error(start, 32, "ends before its copies");
}

#[test]
fn mistakes_are_found() {
    let turned =
        "xor.b32 %r4, %r1, 32; shl.b32 %r4, %r4, 2; mov.u32 %r5, tile; add.s32 %r4, %r4, %r5;\n";
    let write = "st.shared.u32 [%r3], %r1;\n";
    let read = "ld.shared.u32 %r9, [%r4]; st.global.u32 [%d2], %r9;\n";
    let words = run(&format!("{turned}{write}bar.sync 0;\n{read}"), 64).expect("no mistake");
    assert!((0..64).all(|i| words[i] as usize == i ^ 32));
    check_error(
        &format!("{turned}{write}{read}"),
        64,
        "before it is written",
    );
    check_error(
        &format!("{turned}{write}bar.sync 0;\n{read}{write}"),
        64,
        "without a barrier",
    );
    check_error(
        &format!("mov.u32 %r3, tile;\n{write}"),
        64,
        "without a barrier",
    );
    check_error("ld.shared.u32 %r9, [%r3];", 32, "before it is written");
    check_error(
        "st.shared.u32 [%r3+448], %r1;",
        32,
        "outside of shared memory",
    );
    check_error(
        "st.global.u32 [%d2+132], %r1;",
        32,
        "block [0, 0, 0], thread [31, 0, 0]: 4 bytes at",
    );
    check_error(
        "ld.global.u32 %r9, [%d2+-4];",
        32,
        "outside: below all arguments",
    );
    check_error(
        "ld.global.v2.u32 {%r9, %r10}, [%d2];",
        32,
        "is not aligned to 8 bytes",
    );
    let some = "setp.lt.u32 %p1, %r1, 16;\n";
    check_error(
        &format!("{some}@%p1 bar.sync 0;"),
        32,
        "not all threads reach the same barrier",
    );
    check_error(
        &format!("{some}@%p1 shfl.sync.bfly.b32 %r9|%p2, %r1, 1, 31, -1;"),
        32,
        "not all lanes of the warp reach it",
    );
    check_error("LOOP: bra LOOP;", 1, "it runs for too long");
}

#[test]
fn what_compilers_refuse_is_refused() {
    check_error("add.f32 %f1, %f1, 1;", 1, "a number of None for F32");
    check_error("add.f32 %f1, %h1, %f2;", 1, "a register of B16 for F32");
    check_error("mov.u32 %r40, 1;", 1, "there is no register %r40");
    check_error("bra NOWHERE;", 1, "there is no label NOWHERE");
    check_error("add.rn.s32.x %r1, %r1, %r1;", 1, "has no type");
    check_error("setp.ltu.s32 %p1, %r1, %r1;", 1, "is not known");
    check_error("cvt.f32.s32 %f1, %r1;", 1, "the rounding of");
    let old = module("cvt.rn.bf16.f32 %h1, %f1;").replace("sm_80", "sm_75");
    let error = Module::parse(&old).and_then(|m| m.kernel("k")).err();
    assert!(error.is_some_and(|e| e.contains("needs sm_80")));
}
