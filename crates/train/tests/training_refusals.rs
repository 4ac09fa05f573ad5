//! Errors of building a network, evaluating, restoring and exporting, and where they are reported.

use crate::plane;

use ferroflow_model::proto::tensor_info::Encoding;
use ferroflow_runtime::{Code, DType, Output, PartialShape, SessionOptions, Shape, Tensor};
use ferroflow_train::{Dataset, FitOptions, Network, Optimizer, Trainer};
use plane::{Folder, fit, line, plane};

/// Errors while the network is built, at the faulty call.
#[test]
fn what_a_network_refuses() {
    type Build = fn(&mut Network, Output) -> ferroflow_runtime::Result<()>;
    let rows: &[(&str, Build)] = &[
        ("'a b!' cannot be the name", |n, _| {
            n.input("a b!", DType::Float, &[None]).map(|_| ())
        }),
        ("'' cannot be the name", |n, _| {
            n.input("", DType::Float, &[None]).map(|_| ())
        }),
        ("'_y' cannot be the name", |n, x| {
            n.name("_y", x).map(|_| ())
        }),
        ("'my layer/kernel' cannot be the name", |n, x| {
            n.dense("my layer", x, 1, None).map(|_| ())
        }),
        (
            "Node 'x:0': Node name contains invalid characters",
            |n, x| n.op("Identity").name("x:0").input(x).output().map(|_| ()),
        ),
        (
            "variable 'v' of shape [3] cannot have an initial value of shape [2]",
            |n, _| {
                let start = n
                    .builder()
                    .constant("start", Tensor::vector(&[1f32, 2.0])?)?;
                n.variable("v", start, Shape::from([3])).map(|_| ())
            },
        ),
        (
            "metric 'm' must be a float scalar, but 'x' is float of shape [?,2]",
            |n, x| n.metric("m", x),
        ),
        (
            "metric 'm' must be a float scalar, but 'c' is int32",
            |n, _| {
                let c = n.builder().constant("c", Tensor::scalar(1i32))?;
                n.metric("m", c)
            },
        ),
        (
            "dense layer 'd' takes rows, a matrix, but its input has shape [?,2,3]",
            |n, _| {
                let cube = n.input("cube", DType::Float, &[None, Some(2), Some(3)])?;
                n.dense("d", cube, 1, None).map(|_| ())
            },
        ),
        ("'d/kernel' would be empty: its shape is [2,0]", |n, x| {
            n.dense("d", x, 0, None).map(|_| ())
        }),
        ("is too large", |n, x| {
            n.dense("d", x, usize::MAX, None).map(|_| ())
        }),
        ("the size of a window must be positive", |n, x| {
            n.max_pool(x, 0).map(|_| ())
        }),
        (
            "flatten must know the inner dimensions of its input, <unknown>",
            |n, _| {
                let any = n
                    .builder()
                    .placeholder("any", DType::Float, PartialShape::unknown())?;
                n.flatten(any).map(|_| ())
            },
        ),
        ("Shapes [?,2] and [?] are incompatible", |n, x| {
            let target = n.input("target", DType::Float, &[None])?;
            n.mean_squared_error(x, target).map(|_| ())
        }),
        ("a learning rate cannot be NaN", |n, x| {
            let axes = n.builder().constant("axes", Tensor::vector(&[0i32, 1])?)?;
            let loss = n.op("Mean").input(x).input(axes).output()?;
            n.minimize(loss, &Optimizer::gradient_descent(f32::NAN))
                .map(|_| ())
        }),
    ];
    for (part, build) in rows {
        let mut net = Network::new(1);
        let x = net.input("x", DType::Float, &[None, Some(2)]).unwrap();
        let error = build(&mut net, x).expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
    let column = |t: Tensor| Dataset::new(vec![("x", t.clone()), ("x", t)]).err();
    for (column, part) in [
        (
            column(Tensor::vector(&[1f32]).unwrap()),
            "duplicate column 'x'",
        ),
        (
            column(Tensor::from_strings([1], vec!["a".into()]).unwrap()),
            "column 'x' is string, but datasets hold numbers only",
        ),
    ] {
        let error = column.expect(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn nothing_to_measure_on() {
    let none = Dataset::new(vec![
        (
            "x",
            Tensor::zeros(DType::Float, Shape::from([0, 2])).unwrap(),
        ),
        (
            "y",
            Tensor::zeros(DType::Float, Shape::from([0, 1])).unwrap(),
        ),
    ])
    .unwrap();
    let mut trainer = line(&Optimizer::gradient_descent(0.1)).unwrap();
    let options = FitOptions {
        validation: Some(none.clone()),
        ..Default::default()
    };
    for error in [
        trainer.fit(&plane(), &options, &mut []).map(|_| ()),
        trainer.evaluate(&none, 8).map(|_| ()),
    ] {
        let error = error.unwrap_err().to_string();
        assert!(
            error.contains("there are no examples to evaluate"),
            "{error}"
        );
    }
    assert_eq!(trainer.global_step().unwrap(), 0);
}

/// A checkpoint with a variable of another shape changes no variable.
#[test]
fn a_refused_checkpoint_changes_nothing() {
    let folder = Folder::new("refused");
    let net = |width: usize| -> ferroflow_runtime::Result<Trainer> {
        let mut net = Network::new(width as i64);
        let x = net.input("x", DType::Float, &[None, Some(2)])?;
        let y = net.input("y", DType::Float, &[None, Some(1)])?;
        let a = net.dense("a", x, 3, None)?;
        let b = net.dense("b", a, width, None)?;
        let guess = net.dense("c", b, 1, None)?;
        let loss = net.mean_squared_error(guess, y)?;
        net.metric("error", loss)?;
        net.minimize(loss, &Optimizer::gradient_descent(0.01))?;
        Trainer::new(net, SessionOptions::default())
    };
    let mut first = net(4).unwrap();
    fit(&mut first, 1);
    first.save(&folder.0, 1).unwrap();
    let mut second = net(5).unwrap();
    let kernel = |t: &Trainer| {
        let values = t
            .session()
            .run(&[], &["a/kernel/Read/ReadVariableOp:0"], &[]);
        values.unwrap()[0].slice::<f32>().unwrap().to_vec()
    };
    let before = kernel(&second);
    let error = second.restore(&folder.0).unwrap_err().to_string();
    for part in ["wrong shape", "b/", "model.ckpt-4"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    assert_eq!(kernel(&second), before);
    assert_eq!(second.global_step().unwrap(), 0);
    std::fs::write(folder.0.join("checkpoint"), [0xff, 0xfe]).unwrap();
    let error = second.restore(&folder.0).unwrap_err();
    assert_eq!(error.code(), Code::DataLoss, "{error}");
}

/// Names without a slot are written with it, as TensorFlow requires.
#[test]
fn a_signature_names_tensors() {
    let folder = Folder::new("slots");
    let trainer = line(&Optimizer::gradient_descent(0.1)).unwrap();
    trainer
        .export(&folder.0, &[("x", "x")], &[("y", "guess")])
        .unwrap();
    let bytes = std::fs::read(folder.0.join("saved_model.pb")).unwrap();
    let model: ferroflow_model::proto::SavedModel = ferroflow_model::decode(&bytes).unwrap();
    let signature = &model.meta_graphs[0].signature_def["serving_default"];
    for (info, name) in [
        (&signature.inputs["x"], "x:0"),
        (&signature.outputs["y"], "guess:0"),
    ] {
        assert_eq!(info.encoding, Some(Encoding::Name(name.to_string())));
    }
}
