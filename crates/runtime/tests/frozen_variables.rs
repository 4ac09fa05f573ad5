//! Variables that are constants of a plan until the first write.

use ferroflow_runtime::building::{AttrValue, GraphBuilder};
use ferroflow_runtime::{
    DType, PartialShape, Session, SessionOptions, Signature, Tensor, registry,
};

/// `y = x * v + 1`, with ops that set, destroy and read the variable `v` in the same step.
fn session() -> Session {
    let mut b = GraphBuilder::new(registry());
    let scalar = PartialShape::scalar;
    let x = b.placeholder("x", DType::Float, scalar()).unwrap();
    let handle = |b: &mut GraphBuilder, name: &str| {
        let op = b.op("VarHandleOp").name(name);
        let op = op.attr("dtype", AttrValue::Type(DType::Float));
        let op = op.attr("shape", AttrValue::Shape(scalar()));
        op.attr("shared_name", AttrValue::str("v")).output()
    };
    let v = handle(&mut b, "v").unwrap();
    let read = |b: &mut GraphBuilder, v| {
        let op = b.op("ReadVariableOp").input(v);
        op.attr("dtype", AttrValue::Type(DType::Float)).output()
    };
    let value = read(&mut b, v).unwrap();
    let scaled = b.op("Mul").input(x).input(value).output().unwrap();
    let one = b.constant("one", Tensor::scalar(1f32)).unwrap();
    b.op("AddV2")
        .name("y")
        .input(scaled)
        .input(one)
        .build()
        .unwrap();
    // Another node under the same name.
    let again = handle(&mut b, "again").unwrap();
    let set = b.op("AssignVariableOp").name("set").input(again).input(x);
    let set = set
        .attr("dtype", AttrValue::Type(DType::Float))
        .build()
        .unwrap();
    b.op("DestroyResourceOp")
        .name("destroy")
        .input(v)
        .build()
        .unwrap();
    let after = b.op("ReadVariableOp").name("after").input(v).control(set);
    after
        .attr("dtype", AttrValue::Type(DType::Float))
        .build()
        .unwrap();
    Session::new(b.finish().unwrap(), SessionOptions::default())
}

fn get(session: &Session, x: f32, fetch: &str) -> Result<f32, String> {
    let got = session.run(&[("x:0", Tensor::scalar(x))], &[fetch], &[]);
    got.map(|t| t[0].to_scalar::<f32>().unwrap())
        .map_err(|e| e.to_string())
}

fn set(session: &Session, x: f32) {
    session
        .run(&[("x:0", Tensor::scalar(x))], &[], &["set"])
        .unwrap();
}

fn reads(session: &Session) -> usize {
    let signature = Signature {
        feeds: vec!["x:0".to_string()],
        fetches: vec!["y:0".to_string()],
        targets: vec![],
    };
    let (graph, _) = session.graph_after(&signature, None).unwrap();
    graph
        .iter()
        .filter(|(_, n)| n.op() == "ReadVariableOp")
        .count()
}

#[test]
fn writes_are_seen_by_every_step_after_them() {
    let session = session();
    assert_eq!(reads(&session), 1);
    assert!(
        get(&session, 1.0, "y:0")
            .unwrap_err()
            .contains("FAILED_PRECONDITION")
    );
    set(&session, 2.0);
    assert_eq!(reads(&session), 0);
    for v in [3.0, 4.0, 4.0, 5.0] {
        assert_eq!(get(&session, 10.0, "after:0"), Ok(10.0));
        set(&session, v);
        for x in [1.0, 2.0] {
            assert_eq!(get(&session, x, "y:0"), Ok(x * v + 1.0));
        }
    }
    session.run(&[], &[], &["destroy"]).unwrap();
    assert!(
        get(&session, 1.0, "y:0")
            .unwrap_err()
            .contains("FAILED_PRECONDITION")
    );
}

#[test]
fn a_plan_made_of_values_is_given_up_when_they_change() {
    let session = session();
    set(&session, 2.0);
    assert_eq!(get(&session, 3.0, "y:0"), Ok(7.0));
    std::thread::scope(|scope| {
        scope.spawn(|| (0..200).for_each(|_| set(&session, 5.0)));
        for _ in 0..200 {
            let y = get(&session, 3.0, "y:0").unwrap();
            assert!(y == 7.0 || y == 16.0, "{y}");
        }
    });
    assert_eq!(get(&session, 3.0, "y:0"), Ok(16.0));
}
