//! Links between servers in one process.

use crate::world;

use ferroflow_model::proto::ConfigProto;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;
use world::World;

const X: &str = "x = Placeholder{dtype=type: DT_FLOAT}() @0\n";
const T: &str = "{T=type: DT_FLOAT}";
const MAGIC: &[u8] = b"FERROFLOW-LINK/1";

/// A frame with this head, whose payload has the claimed length.
fn frame(kind: u8, head: &[u8], payload: u64) -> Vec<u8> {
    let mut bytes = payload.to_le_bytes().to_vec();
    bytes.extend_from_slice(&1u64.to_le_bytes());
    bytes.extend_from_slice(&(head.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&[kind, 0, 0, 0]);
    bytes.extend_from_slice(head);
    bytes
}

#[test]
fn steps_push_tensors_of_all_sizes() {
    let world = World::new(3, 0);
    let int = |v: &str| {
        format!(
            "{{dtype=type: DT_INT32; value=tensor {{ dtype: DT_INT32 tensor_shape {{ dim {{ size: 1 }} }} {v} }}}}"
        )
    };
    for n in [1, 100, 5_000, 300_000] {
        let (dims, axis) = (int(&format!("int_val: {n}")), int("int_val: 0"));
        let of = "{T=type: DT_FLOAT; index_type=type: DT_INT32}";
        let by = "{T=type: DT_FLOAT; Tidx=type: DT_INT32}";
        let lines = format!(
            "{X}n = Const{dims}() @1\nfilled = Fill{of}(n, x) @1\nback = Neg{T}(filled) @2
             axis = Const{axis}() @0\ny = Sum{by}(back, axis) @0"
        );
        let session = world.session(&lines, ConfigProto::default()).unwrap();
        for x in 1..6 {
            let y = world.step(&session, x as f32, "y:0", "").unwrap();
            assert_eq!(y, -(x * n) as f32, "{n} elements");
        }
    }
}

/// Steps that were fast end without a thread that waits for them, so that those of the pool run what is expensive.
#[test]
fn fast_steps_run_expensive_nodes() {
    let world = World::new(2, 0);
    let dims = "{dtype=type: DT_INT32; value=tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: 1 }}";
    let axes = "{dtype=type: DT_INT32; value=tensor { dtype: DT_INT32 tensor_shape { dim { size: 2 } } int_val: 0 int_val: 1 }}";
    let four =
        "{dtype=type: DT_FLOAT; value=tensor { dtype: DT_FLOAT tensor_shape { } float_val: 4 }}";
    let of = "{T=type: DT_FLOAT; index_type=type: DT_INT32}";
    let by = "{T=type: DT_FLOAT; Tidx=type: DT_INT32}";
    for task in [0, 1] {
        let mut lines = format!(
            "{X}dims = Const{dims}()\naxes = Const{axes}()\nfour = Const{four}()\nm0 = Fill{of}(dims, x)\n"
        );
        let mut roots = Vec::new();
        for i in 0..4 {
            // Different ones, which no pass merges.
            lines += &format!(
                "root{i} = Cholesky{T}(m{i}) @{task}\nm{} = Mul{T}(m{i}, four)\n",
                i + 1
            );
            roots.push(format!("root{i}"));
        }
        let sum = "{T=type: DT_FLOAT; N=i: 4}";
        lines += &format!(
            "all = AddN{sum}({})\ny = Sum{by}(all, axes) @0",
            roots.join(", ")
        );
        let session = world.session(&lines, ConfigProto::default()).unwrap();
        for x in 1..20 {
            let y = world.step(&session, (x * x) as f32, "y:0", "").unwrap();
            assert_eq!(y, (15 * x) as f32, "task {task}");
        }
    }
}

#[test]
fn an_error_of_one_task_ends_the_step_on_all() {
    let world = World::new(3, 0);
    let lines = format!(
        "{X}a = CheckNumerics{{T=type: DT_FLOAT; message=s: 'found'}}(x) @1
         b = Neg{T}(a) @2\ny = Neg{T}(b) @0"
    );
    let session = world.session(&lines, ConfigProto::default()).unwrap();
    for _ in 0..3 {
        assert_eq!(world.step(&session, 2.0, "y:0", "").unwrap(), 2.0);
        let failed = world.step(&session, f32::NAN, "y:0", "").unwrap_err();
        assert!(failed.message().contains("found"), "{failed}");
    }
}

#[test]
fn damaged_frames_end_their_connection_only() {
    let world = World::new(2, 0);
    let session = world.session(&format!("{X}y = Neg{T}(x) @1"), ConfigProto::default());
    let session = session.unwrap();
    let hello = [MAGIC, &frame(1, &[], 0)].concat();
    let bad = [0xff, 0xff, 0xff];
    let rows = [
        b"FERROFLOW-LINK/9".to_vec(),
        [MAGIC, &frame(2, &[], 0)].concat(),
        [MAGIC, &frame(1, &bad, 0)].concat(),
        [&hello[..], &frame(0, &[], 0)].concat(),
        [&hello[..], &frame(8, &[], 0)].concat(),
        [&hello[..], &frame(2, &bad, 0)].concat(),
        [&hello[..], &frame(3, &bad, 0)].concat(),
        [&hello[..], &frame(4, &bad, 0)].concat(),
        [&hello[..], &[0xff; 24]].concat(),
        hello[..20].to_vec(),
    ];
    for (i, row) in rows.iter().enumerate() {
        let mut stream = TcpStream::connect(&world.addresses[1]).unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(20)))
            .unwrap();
        stream.write_all(row).unwrap();
        stream.shutdown(std::net::Shutdown::Write).unwrap();
        // The end, or a reset if bytes were left.
        if let Err(e) = stream.read_to_end(&mut Vec::new()) {
            assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset, "row {i}");
        }
        assert_eq!(
            world.step(&session, 3.0, "y:0", "").unwrap(),
            -3.0,
            "row {i}"
        );
    }
}
