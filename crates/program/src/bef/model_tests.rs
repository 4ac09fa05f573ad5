//! Compiled models: written and read, damaged, of other layouts.

use super::format::Section;
use super::model::{LAYOUT, Model, Port, write_model};
use super::read::File;
use crate::dataflow::{Action, Body, BodyNode, Source};
use ferroflow_base::Result;
use ferroflow_opdef::{Cost, NodeInfo};
use ferroflow_tensor::{DType, PartialShape, Tensor};
use std::sync::Arc;

/// A model that returns its argument and a large constant.
fn file() -> Vec<u8> {
    let mut b = Body::default();
    let main = b.function("", 1, 2);
    let node = BodyNode {
        info: NodeInfo::default(),
        action: Action::Arg(0),
        inputs: Vec::new(),
        controls: Vec::new(),
        n_outputs: 1,
        cost: Cost::Cheap,
    };
    let x = b.add(main, node);
    b.result(main, 0, Source::Node(x, 0)).expect("unset");
    let large = Tensor::from_slice([100], &[7i64; 100]).expect("fits");
    let large = b.constant(large.into());
    b.result(main, 1, Source::Const(large)).expect("unset");
    let port = |key: &str| Port {
        key: key.to_string(),
        name: format!("{key}:0"),
        dtype: DType::Int64,
        shape: PartialShape::unknown(),
    };
    let model = Model {
        main: b,
        feeds: vec![port("x")],
        fetches: vec![port("y"), port("z")],
        targets: vec!["t".to_string()],
        packing: "p".to_string(),
    };
    let mut bytes = Vec::new();
    write_model(&model, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })
    .expect("can be written");
    bytes
}

fn open(bytes: Vec<u8>) -> Result<Option<Model>> {
    File::open(Arc::new(bytes))?.model(None, &mut |_, _| Ok(()))
}

#[test]
fn models_come_back() {
    let model = open(file()).expect("valid").expect("a model");
    let names = |ports: &[Port]| ports.iter().map(|p| p.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&model.feeds), ["x:0"]);
    assert_eq!(names(&model.fetches), ["y:0", "z:0"]);
    assert_eq!(
        (&*model.targets, &*model.packing),
        (&["t".to_string()][..], "p")
    );
    let large = model.main.consts[0].get().expect("in memory");
    assert_eq!(large.slice::<i64>().expect("integers"), [7; 100]);
}

#[test]
fn other_layouts_are_refused() {
    let check = |bytes: Vec<u8>, layout: u32| {
        let error = open(bytes)
            .map(|_| ())
            .expect_err("another layout")
            .to_string();
        let expect =
            format!("has layout {layout}, and this version of Ferroflow reads layout {LAYOUT}");
        assert!(error.contains(&expect), "{error}");
        assert!(error.contains("compile the model again"), "{error}");
    };
    // Layout 1 had a section with a graph.
    let mut old = file();
    old.extend([Section::Graph as u8, 0]);
    check(old, 1);
    let mut newer = file();
    let words = [0xcc, LAYOUT as u8, 0, 0, 0];
    let mut windows = newer.windows(words.len());
    let at = 1 + windows.position(|w| w == words).expect("the section");
    newer[at] = 9;
    check(newer, 9);
}

#[test]
fn damaged_files_are_errors() {
    let bytes = file();
    for n in 0..bytes.len() {
        let cut = open(bytes.get(..n).expect("shorter").to_vec());
        assert!(!matches!(cut, Ok(Some(_))), "cut to {n}");
    }
    for at in 0..bytes.len() - 800 {
        for value in [0, 1, 0x7f, 0xff] {
            let mut bad = bytes.clone();
            bad[at] = value;
            let _ = open(bad);
        }
    }
}
