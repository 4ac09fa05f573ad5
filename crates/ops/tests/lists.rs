//! Lists with a single owner are changed in place; shared lists are not changed.

use ferroflow_opdef::{AttrValue, Attrs};
use ferroflow_ops::registry;
use ferroflow_tensor::{DType, Tensor};
use std::sync::Arc;

/// Returns output 0 of an op on float elements.
fn run(op: &str, inputs: Vec<Tensor>) -> Tensor {
    let def = registry().def(op).expect("parses").expect("registered");
    let mut attrs = Attrs::default();
    for (name, dtype) in [
        ("element_dtype", DType::Float),
        ("shape_type", DType::Int32),
    ] {
        if def.attr(name).is_some() {
            attrs.set(name, AttrValue::Type(dtype));
        }
    }
    let outputs = ferroflow_testkit::op::run(registry(), op, &attrs, inputs);
    outputs.expect("runs").swap_remove(0)
}

/// Returns the address of a handle's list.
fn place(handle: &Tensor) -> *const () {
    let variant = &handle.variants().expect("a variant")[0];
    Arc::as_ptr(variant.0.as_ref().expect("a list")).cast()
}

fn reserved(n: i32) -> Tensor {
    run(
        "TensorListReserve",
        vec![Tensor::scalar(-1i32), Tensor::scalar(n)],
    )
}

fn stacked(handle: &Tensor) -> Vec<f32> {
    let shape = Tensor::vector::<i32>(&[]).expect("small");
    let out = run("TensorListStack", vec![handle.clone(), shape]);
    out.slice::<f32>().expect("float").to_vec()
}

/// Returns each op that changes a list, with its further inputs and the result for a list of
/// `[0, 0]`.
fn changes() -> Vec<(&'static str, Vec<Tensor>, Vec<f32>)> {
    let one = || Tensor::scalar(1.0f32);
    vec![
        (
            "TensorListSetItem",
            vec![Tensor::scalar(1i32), one()],
            vec![0.0, 1.0],
        ),
        ("TensorListPushBack", vec![one()], vec![0.0, 0.0, 1.0]),
        (
            "TensorListPopBack",
            vec![Tensor::vector::<i32>(&[]).expect("small")],
            vec![0.0],
        ),
        ("TensorListResize", vec![Tensor::scalar(3i32)], vec![0.0; 3]),
        (
            "TensorListScatterIntoExistingList",
            vec![
                Tensor::vector(&[1.0f32]).expect("small"),
                Tensor::vector(&[0i32]).expect("small"),
            ],
            vec![1.0, 0.0],
        ),
        ("TensorListConcatLists", vec![reserved(1)], vec![0.0; 3]),
    ]
}

#[test]
fn sole_owners_change_in_place() {
    for (op, more, expected) in changes() {
        let handle = reserved(2);
        let before = place(&handle);
        let inputs = std::iter::once(handle).chain(more).collect();
        let after = run(op, inputs);
        assert_eq!(place(&after), before, "{op} copied the list");
        assert_eq!(stacked(&after), expected, "{op}");
    }
}

#[test]
fn shared_lists_stay_as_they_are() {
    for (op, more, expected) in changes() {
        let handle = reserved(2);
        let inputs = std::iter::once(handle.clone()).chain(more).collect();
        let after = run(op, inputs);
        assert_ne!(place(&after), place(&handle), "{op}");
        assert_eq!(stacked(&after), expected, "{op}");
        assert_eq!(stacked(&handle), [0.0, 0.0], "{op} changed what it shares");
    }
}

#[test]
fn rows_of_a_tensor_share_its_storage() {
    let tensor = Tensor::from_slice([3, 8], &[1.0f32; 24]).expect("small");
    let address = tensor.slice::<f32>().expect("float").as_ptr() as usize;
    let all = Tensor::vector(&[8i32]).expect("small");
    let list = run("TensorListFromTensor", vec![tensor, all.clone()]);
    for i in 0..3usize {
        let inputs = vec![list.clone(), Tensor::scalar(i as i32), all.clone()];
        let row = run("TensorListGetItem", inputs);
        let at = row.slice::<f32>().expect("float").as_ptr() as usize;
        assert_eq!(at, address + i * 32);
    }
}
