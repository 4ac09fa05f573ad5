//! Every dtype with a CPU kernel in TensorFlow (`rows/kernels.txt`) has one here.

use ferroflow_base::Code;
use ferroflow_opdef::{AttrType, AttrValue, Attrs, KernelBuild, OpDef};
use ferroflow_ops::registry;
use ferroflow_tensor::{DType, PartialShape};

/// Returns whether graphs do not compute in a dtype: quantized ones and those of less than a byte.
fn is_exotic(dtype: DType) -> bool {
    !dtype.is_floating()
        && !dtype.is_complex()
        && !dtype.is_integer()
        && !matches!(
            dtype,
            DType::Bool | DType::String | DType::Resource | DType::Variant
        )
}

/// Returns attrs to build a kernel with: `types` and arbitrary values for all others.
fn attrs(def: &OpDef, types: &[(&str, DType)]) -> Attrs {
    let mut attrs = Attrs::default();
    for attr in &def.attrs {
        let given = types.iter().find(|(name, _)| *name == attr.name);
        let one = match (given, attr.default.clone()) {
            (Some((_, dtype)), _) => AttrValue::Type(*dtype),
            (None, Some(default)) => {
                attrs.set(attr.name.clone(), default);
                continue;
            }
            (None, None) => match attr.ty {
                AttrType::Str => attr.allowed.first().cloned().unwrap_or("x".into()),
                // For a list, the minimum is the length.
                AttrType::Int if attr.is_list => AttrValue::Int(1),
                AttrType::Int => AttrValue::Int(attr.minimum.unwrap_or(1).max(1)),
                AttrType::Float => AttrValue::Float(0.5),
                AttrType::Bool => AttrValue::Bool(false),
                AttrType::Type => {
                    let first = attr.allowed.first().cloned();
                    first.unwrap_or(AttrValue::Type(DType::Float))
                }
                AttrType::Shape => AttrValue::Shape(PartialShape::of([Some(2)])),
                AttrType::Tensor | AttrType::Func => continue,
            },
        };
        let n = match attr.name.as_ref() {
            "strides" | "ksize" | "dilations" | "rates" => 4,
            _ => attr.minimum.unwrap_or(1).max(1),
        };
        let value = match attr.is_list {
            true => AttrValue::List(vec![one; n as usize]),
            false => one,
        };
        attrs.set(attr.name.clone(), value);
    }
    attrs
}

/// Kernels known to be missing: tables of handles, complex optimizers, sums of bools, one of
/// bfloat16.
fn is_missing(op: &str, types: &[(&str, DType)]) -> bool {
    let has = |wanted: fn(DType) -> bool| types.iter().any(|(_, t)| wanted(*t));
    let is_handle = |t| matches!(t, DType::Variant | DType::Resource);
    (op.contains("HashTable") || op == "Conj") && has(is_handle)
        || op.starts_with("Resource") && op.contains("Apply") && has(DType::is_complex)
        || op.starts_with("ResourceScatterNd") && has(|t| t == DType::Bool)
        || op == "RandomGamma" && has(|t| t == DType::Bfloat16)
        || op == "DecodeJxl" && !cfg!(feature = "jxl")
}

/// Returns whether the op has a kernel for these types.
fn check(op: &str, types: &[(&str, DType)]) -> Result<(), String> {
    let Some(factory) = registry().op(op).and_then(|op| op.kernel) else {
        return Ok(());
    };
    let def = registry()
        .def(op)
        .expect("signatures parse")
        .expect("an op");
    // Some kernels are registered for types that the op does not allow.
    let allows = |(name, dtype): &(&str, DType)| {
        let attr = def.attr(name);
        attr.is_none_or(|a| a.check(&AttrValue::Type(*dtype)).is_ok() || a.is_list)
    };
    if !types.iter().all(allows) {
        return Ok(());
    }
    let mut attrs = attrs(&def, types);
    if types == [("T", DType::Complex128)] && def.attr("Tout").is_some() {
        attrs.set("Tout", AttrValue::Type(DType::Double));
    }
    let (Ok(inputs), Ok(outputs)) = (def.input_dtypes(&attrs), def.output_dtypes(&attrs)) else {
        return Err("its attrs do not fit its signature".to_string());
    };
    let build = KernelBuild {
        node: "node",
        device: "",
        def: &def,
        attrs: &attrs,
        inputs: &inputs,
        outputs: &outputs,
        constants: &[],
    };
    // Other errors are about the arbitrary attrs.
    match factory(&build) {
        Err(e) if e.code() == Code::Unimplemented => Err(e.to_string()),
        _ => Ok(()),
    }
}

#[test]
fn every_type_has_a_kernel() {
    let text = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/rows/kernels.txt"));
    let text = text.expect("rows/kernels.txt");
    let (mut n, mut missing) = (0, Vec::new());
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let (op, combinations) = line.split_once(' ').expect("an op and types");
        for combination in combinations.split(';') {
            let pairs = combination.split(',').filter_map(|p| p.split_once('='));
            let named = |(name, t)| Some((name, DType::from_name(t)?));
            // Reference types, which import removes, have no name here.
            let Some(types) = pairs.map(named).collect::<Option<Vec<_>>>() else {
                continue;
            };
            if types.iter().any(|(_, t)| is_exotic(*t)) {
                continue;
            }
            n += 1;
            if !is_missing(op, &types) && check(op, &types).is_err() {
                missing.push(format!("{op} {combination}"));
            }
        }
    }
    println!("{n} combinations");
    assert!(
        missing.is_empty(),
        "{} combinations have no kernel:\n{}",
        missing.len(),
        missing.join("\n")
    );
}
